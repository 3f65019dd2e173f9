// What torch's header of this name gives to a function that takes a tensor and multiplies it, and nothing else.
#pragma once
#include <ATen/ops/mul.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/Exceptions.h>

namespace torch {
using at::Tensor;
}
