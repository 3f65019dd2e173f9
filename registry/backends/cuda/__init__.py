"""CUDA C++: kernels compiled by NVRTC, launched through the driver; and host code of the ``load_inline`` form."""

from .implementation import CudaImplementation, CudaKernel, read_source, shared_limit

__all__ = ["CudaImplementation", "CudaKernel", "read_source", "shared_limit"]
