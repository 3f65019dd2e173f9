"""Checks of a whole plugin, each in a process of its own: what ``registry check`` reports."""
