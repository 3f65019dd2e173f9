"""Drift: whether winners that were measured under other software still beat their defaults by as much."""
