"""Running a stranger's implementation behind bubblewrap: its process has neither the expected results nor the clock."""
