"""Dispatch: chooses and runs the kernel of a call, by resolution, plans and the hot path; and explains the choice."""
