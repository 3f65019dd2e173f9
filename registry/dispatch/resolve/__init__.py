"""Resolving: which candidate runs a problem, from stored winners down to the reference, and which candidates failed."""
