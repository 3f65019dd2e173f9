"""Triton kernels of a mixture of experts."""
