"""torch's own operator for every op: the baseline of all comparisons, and right for every layout."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

from .int4 import dequantized


class Native(Implementation):
    """torch's own operator: it needs no tuning, and is the baseline of every comparison."""

    name = "torch.native"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    any_size = True

    def preference(self, problem: Problem, device: Device) -> float:
        return 0.0


class VectorAdd(Native):
    """``torch.add``."""

    op = "vector_add"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            torch.add(arguments[0], arguments[1], out=outputs[0])

        return run


class Square(Native):
    """``x * x``."""

    op = "square"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Write through ``out=``. ``torch.square`` calls ``pow``, which is slower on CPUs."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            torch.mul(arguments[0], arguments[0], out=outputs[0])

        return run


class Gelu(Native):
    """``torch.nn.functional.gelu``."""

    op = "gelu"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Write through the operator's ``out`` overload."""
        gelu = torch.ops.aten.gelu.out

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            gelu(arguments[0], approximate=arguments[1], out=outputs[0])

        return run


class Softmax(Native):
    """``torch.softmax``."""

    op = "softmax"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            torch.softmax(arguments[0], arguments[1], out=outputs[0])

        return run


class RmsNorm(Native):
    """``torch.nn.functional.rms_norm``; there is no ``out=``."""

    op = "rms_norm"
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind the operator; the output is row-major, whatever the layout of x."""
        rms_norm = torch.nn.functional.rms_norm

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            x, weight, eps = arguments
            return rms_norm(x, weight.shape, weight, eps).contiguous()

        return run


class DequantizeGemm(Native):
    """Dequantise the whole weight to half precision, then ``torch.matmul``: the baseline, which needs no kernel."""

    op = "gemm_int4"
    name = "torch.native"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            a, qweight, scales, zeros, _, group_size, k, _ = arguments
            weight = dequantized(qweight, scales, zeros, group_size)
            torch.mm(a.reshape(-1, k), weight, out=outputs[0].view(-1, weight.shape[1]))

        return run
