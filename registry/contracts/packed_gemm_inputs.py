"""Random activations and packed weights of the kinds that verification uses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import InvalidArgumentError
from ..packed import CODEBOOKS, groups, layout_name, symmetric_zero, words
from ..problem import Problem
from . import fills

KINDS = ("normal", "outliers", "spike_last", "constant", "groups")


@dataclass(frozen=True)
class Format:
    """The bits of a weight's integers, and the codebook that they index, if any."""

    bits: int
    codebook: str | None

    @property
    def text(self) -> str:
        """The arguments of ``registry.quantize`` for a weight of this format, as text for hints."""
        return f"bits={self.bits}" + (f", codebook={self.codebook!r}" if self.codebook else "")

    @property
    def spread(self) -> float:
        """The root mean square of a level minus the zero point, if all integers are equally likely."""
        if self.codebook:
            levels = CODEBOOKS[self.codebook]
            return math.sqrt(sum(level * level for level in levels) / len(levels))
        return float(2**self.bits) / math.sqrt(12)

    def layout(self, act_order: bool) -> str:
        """The layout's name in a ``PackedWeight``."""
        return layout_name(self.codebook, act_order)

    def check(self, op: str, bits: int, layout: str) -> None:
        """Raise InvalidArgumentError for a weight of another format."""
        if bits != self.bits or (layout in CODEBOOKS) != (self.codebook is not None):
            raise InvalidArgumentError(
                f"{op}: w has {bits} bits in layout {layout!r}, expected {self.bits} bits"
                f" in layout {self.codebook or 'gptq'!r}",
                hint=f"call the op of that format, or registry.quantize(weight, {self.text})",
            )


def packed_inputs(
    form: Format, problem: Problem, kind: str, generator: torch.Generator, *, backward: bool = False
) -> tuple[Any, ...]:
    """The arguments of an op of the family, or of its backward op."""
    across, along = (problem.n, problem.k) if backward else (problem.k, problem.n)
    a = activations((problem.m, across), problem.torch_dtype, kind, generator)
    scales, zeros = _groups(form, problem, kind, generator, summed=across)
    g_idx = _order(problem, generator) if problem.act_order else None
    if kind == "groups":
        # makes its whole row NaN. No infinity: it is one or NaN by whether a weight is rounded to zero
        fills.plant_in_rows(a, (torch.nan,), generator)
    layout = form.layout(problem.act_order)
    weight = (_words(form, problem, kind, generator), scales, zeros, g_idx, form.bits, problem.group_size, problem.k)
    if backward:
        return a, *weight, layout, True, True
    bias = fills.normal((along,), problem.torch_dtype, generator) if problem.bias else None
    return a, *weight, layout, bias


def activations(shape: tuple[int, int], dtype: torch.dtype, kind: str, generator: torch.Generator) -> torch.Tensor:
    """Activations of one kind, or gradients of outputs, whose last extent is summed over."""
    if kind == "constant":
        return fills.constant(shape, dtype, generator, 0.5)
    a = fills.normal(shape, dtype, generator)
    if kind == "outliers":
        return fills.plant_outliers(a, 60.0, generator)
    if kind == "spike_last":
        # the last element that is summed over weighs 64 times as much as all the others together
        a[:, -1:] = 8.0 * math.sqrt(shape[1])
    return a


def _words(form: Format, problem: Problem, kind: str, generator: torch.Generator) -> torch.Tensor:
    """Random words, also in the bits after K in the last word, which must not be read."""
    shape, device = (words(problem.k, form.bits), problem.n), generator.device
    if kind == "constant":
        # eleven in each 4 bits, three in each 2, one in each bit: no zero point is any of these
        word = 0xBBBBBBBB if form.bits >= 4 else 0xFFFFFFFF
        return torch.full(shape, word - 2**32, dtype=torch.int32, device=device)
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device=device, generator=generator)


def _groups(
    form: Format, problem: Problem, kind: str, generator: torch.Generator, summed: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scales for outputs of about 1, and zero points. Neighbouring groups and columns always differ."""
    shape, dtype = (groups(problem.k, problem.group_size), problem.n), problem.torch_dtype
    unit = 1 / (form.spread * math.sqrt(summed))
    if kind == "constant":
        # a power of two: otherwise sums of one number drift, since each rounding errs in one direction
        unit = 2.0 ** math.floor(math.log2(unit))
        zero = math.floor(symmetric_zero(form.bits)) - (1 if form.bits > 1 else 0)
        return fills.constant(shape, dtype, generator, unit), _zeros_of(problem, shape, generator, zero)
    scales = torch.rand(shape, dtype=dtype, device=generator.device, generator=generator).add_(0.5).mul_(unit)
    if kind == "groups":
        # factors 1, 4, 16 in turn along K: a neighbour's scale is wrong by at least a factor of 4
        scales *= 4.0 ** (torch.arange(shape[0], device=generator.device) % 3).unsqueeze(1).to(dtype)
    return scales, _zeros(form, problem, kind, shape, generator)


def _zeros_of(
    problem: Problem, shape: tuple[int, int], generator: torch.Generator, value: float
) -> torch.Tensor | None:
    if problem.zeros == "none":
        return None
    dtype = problem.torch_dtype if problem.zeros == "integer" else torch.float32
    return fills.constant(shape, dtype, generator, value)


def _zeros(
    form: Format, problem: Problem, kind: str, shape: tuple[int, int], generator: torch.Generator
) -> torch.Tensor | None:
    """Zero points near the middle, over all levels for "groups"; float ones are up to 0.5 from an integer."""
    if problem.zeros == "none":
        return None
    middle, width = 2 ** (form.bits - 1), max(1, 2**form.bits // 8)
    low, high = (0, 2**form.bits) if kind == "groups" else (middle - width, min(middle + width + 1, 2**form.bits))
    device = generator.device
    zeros = torch.randint(low, high, shape, dtype=torch.int32, device=device, generator=generator)
    if problem.zeros == "integer":
        return zeros.to(problem.torch_dtype)
    return zeros.float() + torch.rand(shape, device=device, generator=generator) - 0.5


def _order(problem: Problem, generator: torch.Generator) -> torch.Tensor:
    """The group of each k in random order: act-order."""
    device = generator.device
    shuffled = torch.randperm(problem.k, device=device, generator=generator)
    return shuffled.div(problem.group_size, rounding_mode="floor").to(torch.int32)
