"""Activations in half precision times a weight of 4 bits, and the gradient by the activations."""

from .formats import GROUP_SIZES, PER_WORD, filling_group_size, takes
from .ops import GEMM_INT4, GEMM_INT4_BACKWARD

__all__ = ["GEMM_INT4", "GEMM_INT4_BACKWARD", "GROUP_SIZES", "PER_WORD", "filling_group_size", "takes"]
