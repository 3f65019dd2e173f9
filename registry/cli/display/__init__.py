"""The output of commands: text and tables, the progress of a tuning run, its winners and its changes."""
