// What torch's header of this name gives to a function that takes a tensor and multiplies it, and nothing else.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/mul_ops.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/Exceptions.h>

namespace at {
// those of ATen/ops/mul.h, which includes the whole context for them
inline Tensor mul(const Tensor& self, const Tensor& other) { return _ops::mul_Tensor::call(self, other); }
inline Tensor mul(const Tensor& self, const Scalar& other) { return _ops::mul_Scalar::call(self, other); }
}

namespace torch {
using at::Tensor;
}
