"""Each expert's rows times that expert's weight in float8 or int8: by torch's products of one expert, or its grouped
product."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native
from ..scaled_mm import dequantized_product, row_scale_reasons
from .dense import spans, zero_beside
from .scaled_private import grouped_product, missing

_ALIGNED = 16
_MOST_EXPERTS = 1023
_FLOAT8 = "float8_e4m3fn"


class DequantizedGroupedScaledMm(Native):
    """Operands of each expert that has rows in float32, then torch's product. It reads the offsets on the host."""

    op = "grouped_scaled_mm"
    capturable = False

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Write each expert's rows of the output."""
        out_dtype = problem.out_dtype

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            x, weights, offsets, scale_x, scale_weights, _ = arguments
            y, found = outputs[0], spans(offsets, x.shape[0])
            zero_beside(y, found)
            for expert, (begin, end) in enumerate(found):
                if end > begin:
                    scales = scale_x[begin:end], scale_weights[expert]
                    y[begin:end] = dequantized_product(x[begin:end], weights[expert], *scales, None, out_dtype)

        return run


class ScaledMmOfExperts(Native):
    """``torch._scaled_mm`` for each expert that has rows, without fast accumulation. It reads the offsets on the host.

    cuBLASLt and CUTLASS, oneDNN on a CPU.
    """

    op = "grouped_scaled_mm"
    name = "torch.scaled_mm"
    capturable = False

    def preference(self, problem: Problem, device: Device) -> float:
        """Before dequantised operands, which are written and read in four bytes; behind them on a CPU, as scaled_mm."""
        return 0.1 if device.type == "cuda" else -0.5

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from _float8_reasons(problem)
        if device.type != "cuda":
            yield from row_scale_reasons()
            return
        if device.capability < (9, 0):
            yield f"scales of rows on {device.architecture} (compute capability 9.0 has them)"
        yield from _kernel_reasons(problem)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""
        out_dtype = getattr(torch, problem.out_dtype)

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            x, weights, offsets, scale_x, scale_weights, _ = arguments
            y, found = outputs[0], spans(offsets, x.shape[0])
            zero_beside(y, found)
            for expert, (begin, end) in enumerate(found):
                if end > begin:
                    torch._scaled_mm(
                        x[begin:end],
                        weights[expert].t(),
                        _aligned(scale_x[begin:end]),
                        scale_weights[expert].t(),
                        out_dtype=out_dtype,
                        use_fast_accum=False,
                        out=y[begin:end],
                    )

        return run


class ScaledGroupedMm(Implementation):
    """``torch._scaled_grouped_mm`` without fast accumulation: CUTLASS on Hopper, with the offsets on the device."""

    op = "grouped_scaled_mm"
    name = "torch.scaled_grouped_mm"
    device_types: ClassVar[frozenset[str]] = frozenset({"cuda"})
    any_size = True
    returns_outputs = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        if told := missing():
            yield told
        yield from _float8_reasons(problem)
        yield from _kernel_reasons(problem)
        if device.capability[0] != 9:
            yield "its kernel is for compute capability 9.0"
        if problem.experts > _MOST_EXPERTS:
            yield f"{problem.experts} experts (limit {_MOST_EXPERTS})"

    def preference(self, problem: Problem, device: Device) -> float:
        """Before a product for each expert, which would wait for the offsets."""
        return 0.5

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind the operator; rows of no expert are set to 0 behind it."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            x, weights, offsets, scale_x, scale_weights, _ = arguments
            rows = x.shape[0]
            bounds = offsets.clamp(0, rows).to(torch.int32)
            product = grouped_product(x, weights, scale_x, scale_weights, bounds[1:])
            row = torch.arange(rows, dtype=torch.int32, device=x.device)
            beside = (row < bounds[0]) | (row >= bounds[-1])
            return product.masked_fill_(beside.unsqueeze(1), 0.0)

        return run


def _aligned(scales: torch.Tensor) -> torch.Tensor:
    """``scales``, copied where they begin inside 16 bytes, as those of an expert's rows do: cuBLASLt refuses these."""
    return scales if scales.data_ptr() % _ALIGNED == 0 else scales.clone()


def _float8_reasons(problem: Problem) -> Iterator[str]:
    if problem.dtype != _FLOAT8:
        yield f"dtype {problem.dtype} (supported: {_FLOAT8})"
    if not problem.traits["contiguous"]:
        yield "a tensor is not contiguous"


def _kernel_reasons(problem: Problem) -> Iterator[str]:
    """Why the kernels for scales of rows on a GPU cannot run."""
    if problem.n % _ALIGNED or problem.k % _ALIGNED:
        yield f"n={problem.n} and k={problem.k} must be multiples of {_ALIGNED}"
    if not problem.traits["aligned"]:
        yield f"a tensor is not aligned to {_ALIGNED} bytes"
    if problem.out_dtype != "bfloat16":
        yield f"an output in {problem.out_dtype} (supported: bfloat16)"
