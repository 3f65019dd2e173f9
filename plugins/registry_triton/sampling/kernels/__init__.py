"""Kernels that draw tokens."""
