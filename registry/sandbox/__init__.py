"""Running an implementation of a stranger behind bubblewrap: its process has neither the reference nor the clock."""
