"""Grouped products with weights of 4 bits: an expert's weight in the activations' dtype, then the library's product."""

from __future__ import annotations

from typing import Any

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native
from ..packed_weight import weight_of
from .dense import spans, zero_beside


class DequantizedGroupedGemm(Native):
    """Unpacks the weight of each expert that has rows, one at a time. It reads the offsets on the host."""

    op = "grouped_gemm_int4"
    capturable = False

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            x, qweight, scales, zeros, bits, group_size, k, offsets = arguments
            y, found = outputs[0], spans(offsets, x.shape[0])
            zero_beside(y, found)
            for expert, (begin, end) in enumerate(found):
                if end > begin:
                    zero = None if zeros is None else zeros[expert]
                    weight = weight_of((qweight[expert], scales[expert], zero, None, bits, group_size, k, "gptq"))
                    torch.mm(x[begin:end], weight, out=y[begin:end])

        return run


class DequantizedGroupedGradient(Native):
    """The product with each expert's transposed weight. It reads the offsets on the host."""

    op = "grouped_gemm_int4_backward"
    capturable = False

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            grad_y, qweight, scales, zeros, offsets, bits, group_size, k = arguments
            grad_x, found = outputs[0], spans(offsets, grad_y.shape[0])
            zero_beside(grad_x, found)
            for expert, (begin, end) in enumerate(found):
                if end > begin:
                    zero = None if zeros is None else zeros[expert]
                    weight = weight_of((qweight[expert], scales[expert], zero, None, bits, group_size, k, "gptq"))
                    torch.mm(grad_y[begin:end], weight.t(), out=grad_x[begin:end])

        return run
