"""Tuning with every candidate in a sandbox of its own: a plugin file of a stranger is never run outside of one."""
