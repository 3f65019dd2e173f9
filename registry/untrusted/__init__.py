"""Untrusted data: reading files with limits, and texts made safe for a terminal."""
