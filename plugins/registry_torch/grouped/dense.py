"""Each expert's rows times that expert's weight: one product after the other, or torch's grouped product."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native

_TMA_BYTES = 16
_MOST_EXPERTS = 1023


def spans(offsets: torch.Tensor, rows: int) -> list[tuple[int, int]]:
    """First row and end of each expert, after reading the offsets to the host."""
    ends = accumulate((min(max(offset, 0), rows) for offset in offsets.tolist()), max)
    return list(pairwise(ends))


def zero_beside(y: torch.Tensor, found: list[tuple[int, int]]) -> None:
    """Set the rows of ``y`` that belong to no expert to 0."""
    if found[0][0]:
        y[: found[0][0]].zero_()
    if found[-1][1] < y.shape[0]:
        y[found[-1][1] :].zero_()


class GroupedGemm(Native):
    """``torch.mm`` for each expert that has rows. It waits for the offsets, which it reads on the host."""

    op = "grouped_gemm"
    capturable = False

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            x, weights, offsets = arguments
            y, found = outputs[0], spans(offsets, x.shape[0])
            zero_beside(y, found)
            for expert, (begin, end) in enumerate(found):
                if end > begin:
                    torch.mm(x[begin:end], weights[expert].t(), out=y[begin:end])

        return run


def grouped_mm_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why torch's grouped product cannot run on the device, or would read the offsets on the host."""
    dtype = problem.torch_dtype
    if not hasattr(torch, "_grouped_mm"):
        yield f"torch {torch.__version__} has no _grouped_mm"
    if dtype == torch.float64:
        yield "dtype is float64, expected float32, float16 or bfloat16"
    for name in ("n", "k"):
        if problem.dims[name] * dtype.itemsize % _TMA_BYTES:
            yield f"{name}={problem.dims[name]}: rows of {name} elements are no multiple of {_TMA_BYTES} bytes"
    if not problem.traits["contiguous"]:
        yield "a tensor is not contiguous"
    if not problem.traits["aligned"]:
        yield f"a tensor is not aligned to {_TMA_BYTES} bytes"
    if device.type == "cuda":
        # elsewhere its fallback reads the offsets on the host, as torch.native does
        if dtype != torch.bfloat16:
            yield f"dtype is {problem.dtype}, expected bfloat16"
        if device.capability[0] not in (9, 10):
            yield "its kernel is for compute capability 9.0 and 10.x"
        if problem.experts > _MOST_EXPERTS:
            yield f"{problem.experts} experts (limit {_MOST_EXPERTS})"


def grouped_mm(x: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """``torch._grouped_mm`` of ``[m, k]`` and ``[experts, k, n]``, with the rows of no expert set to 0.

    The operator takes the first group to begin with row 0, and leaves the rows after the last group uninitialised.
    """
    rows = x.shape[0]
    bounds = offsets.clamp(0, rows).to(torch.int32)
    product: torch.Tensor = torch._grouped_mm(x, weights, offs=bounds[1:])
    row = torch.arange(rows, dtype=torch.int32, device=x.device)
    beside = (row < bounds[0]) | (row >= bounds[-1])
    return product.masked_fill_(beside.unsqueeze(1), 0.0)


class GroupedMm(Implementation):
    """``torch._grouped_mm``: CUTLASS on Hopper and data-centre Blackwell, with the offsets on the device."""

    op = "grouped_gemm"
    name = "torch.grouped_mm"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    any_size = True
    returns_outputs = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from grouped_mm_reasons(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Before a product for each expert, on GPUs where that product would wait for the offsets."""
        return 0.5 if device.type == "cuda" else -0.5

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            x, weights, offsets = arguments
            return grouped_mm(x, weights.mT, offsets)

        return run


class CompiledGroupedGemm(InductorImplementation):
    """``torch._grouped_mm``, with the rows of no expert set to 0 by one fused kernel; a CPU gains nothing by it."""

    op = "grouped_gemm"
    name = "torch.compile"
    device_types: ClassVar[frozenset[str]] = frozenset({"cuda"})

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        yield from grouped_mm_reasons(problem, device)

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[m, k]``, ``[experts, n, k]`` and ``[experts + 1]``."""
        x, weights, offsets = values
        return grouped_mm(x, weights.mT, offsets).contiguous()
