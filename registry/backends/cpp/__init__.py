"""C++ for the CPU: kernels compiled by the machine's own compiler, called through ctypes."""

from .implementation import CppImplementation, CppKernel

__all__ = ["CppImplementation", "CppKernel"]
