"""Kernels of losses over a vocabulary."""
