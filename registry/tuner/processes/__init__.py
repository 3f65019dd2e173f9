"""Processes: starting, watching and ending child processes. Nothing here knows of tuning."""
