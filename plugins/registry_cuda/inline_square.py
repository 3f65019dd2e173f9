"""square by a C++ wrapper and a CUDA kernel, as many people hold theirs: built by nvcc through load_inline."""

from __future__ import annotations

from collections.abc import Iterable

from registry import Device, Problem, Space
from registry.backends.cuda.inline import InlineImplementation

from .number import number_reasons

_DECLARATION = "torch::Tensor square(torch::Tensor x);"

_SOURCE = r"""
#include <ATen/Dispatch.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/types.h>

template <typename Number>
__global__ void square_kernel(Number *__restrict__ y, const Number *__restrict__ x, int64_t n) {
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
    const float value = static_cast<float>(x[i]);
    y[i] = static_cast<Number>(value * value);
  }
}

torch::Tensor square(torch::Tensor x) {
  torch::Tensor y = torch::empty_like(x);
  const int64_t n = x.numel();
  if (n == 0) return y;
  const int64_t blocks = std::min<int64_t>((n + BLOCK - 1) / BLOCK, int64_t(1) << 30);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "square", [&] {
    square_kernel<scalar_t><<<blocks, BLOCK, 0, c10::cuda::getCurrentCUDAStream()>>>(
        y.data_ptr<scalar_t>(), x.data_ptr<scalar_t>(), n);
  });
  TORCH_CHECK(cudaGetLastError() == cudaSuccess, "square: the launch failed");
  return y;
}
"""


class InlineSquare(InlineImplementation):
    """One element a thread; a build takes nvcc and about a minute, so that the block size is not tuned."""

    op = "square"
    name = "cuda.inline"
    function = "square"
    cpp_source = _DECLARATION
    cuda_source = _SOURCE
    cuda_flags = ("-O3",)

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from number_reasons(problem)

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(BLOCK=[256])

    def preference(self, problem: Problem, device: Device) -> float:
        # untuned, it would make a first call wait for a minute
        return -10.0
