"""Landscapes: problems whose every candidate was measured, and searches replayed on them without a GPU."""
