"""Verifying: runs a candidate on every kind of input and compares its outputs with the float64 reference."""
