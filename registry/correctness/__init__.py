"""Correctness: comparing outputs with a float64 reference, error bounds, and checking an op's own tolerance."""
