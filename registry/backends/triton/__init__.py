"""Triton: how its kernels become variants, are compiled ahead, and are launched without the JIT."""

from .implementation import TritonImplementation, warm
from .variant import INTERPRETED

__all__ = ["INTERPRETED", "TritonImplementation", "warm"]
