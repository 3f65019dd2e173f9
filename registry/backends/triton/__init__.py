"""Triton: how its kernels become variants, are compiled ahead, and are launched without the JIT."""

from .implementation import INTERPRETED, TritonImplementation, warm

__all__ = ["INTERPRETED", "TritonImplementation", "warm"]
