"""The error rule as an interval for every element: made once per reference, it tests many candidates quickly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..contract import Op, Outputs, as_tuple
from ..problem import Problem
from .magnitudes import calculable, is_float8, largest, largest_finite, magnitude
from .numerics import Piece, pieces, scales, tolerance_of

# float16 has no nextafter; for bfloat16 a billion elements must fit in memory five times
_DTYPES = {torch.bfloat16: torch.bfloat16, torch.float16: torch.float32, torch.float32: torch.float32}


@dataclass(frozen=True)
class Bounds:
    """For every element of one result, the interval of values that are right by the error rule.

    The intervals are rounded inwards: a result within them is right, any other needs ``compare``. Both bounds are NaN
    where the reference is. For a result that is not floating, or that the op compares itself, both are the reference,
    one tensor in the result's dtype.
    """

    low: torch.Tensor
    high: torch.Tensor
    has_nan: bool

    def holding(self, output: torch.Tensor) -> torch.Tensor:
        """True, as a tensor on the device, if every element is within; ``output`` may be several stacked outputs."""
        if self.are_exact:
            return (output == self.low).all()
        output = calculable(output)
        within = (output >= self.low).logical_and_(output <= self.high)
        if self.has_nan:
            within |= output.isnan() & self.low.isnan()
        return within.all()

    @property
    def nbytes(self) -> int:
        return self.low.nbytes + (0 if self.are_exact else self.high.nbytes)

    @property
    def are_exact(self) -> bool:
        """True if only ``low`` is right: the result is not floating, or the op compares it itself."""
        return self.low is self.high


def holding(bounds: Iterable[Bounds], results: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """For each result a tensor on the device: True if the result is within its bounds."""
    return [each.holding(result) for each, result in zip(bounds, results, strict=True)]


@torch.no_grad()
def bounds_of(
    op: Op,
    problem: Problem,
    values: tuple[Any, ...],
    reference: Outputs,
    torch_error: tuple[float, ...],
    dtypes: Iterable[torch.dtype] | None = None,
) -> tuple[Bounds, ...]:
    """Bounds for each result, as ``compare`` judges it, on these arguments; ``dtypes`` default to the op's fake."""
    if dtypes is None:
        dtypes = [spec.dtype for spec in op.result_specs(op.arguments(values), torch.device("meta"))]
    named = dict(zip(op.parsed.names, values, strict=True))
    parts = zip(op.parsed.results, dtypes, as_tuple(reference), torch_error, strict=True)
    return tuple(_bounds_of_one(op, problem, named, *part) for part in parts)


def _bounds_of_one(
    op: Op,
    problem: Problem,
    values: Mapping[str, Any],
    name: str,
    dtype: torch.dtype,
    reference: torch.Tensor,
    torch_error: float,
) -> Bounds:
    if not dtype.is_floating_point or name in op.compare:
        # a copy: it may be an argument that the reference returns
        only = reference.to(dtype, copy=True)
        return Bounds(only, only, has_nan=False)
    rtol, atol, unit = tolerance_of(op, name, dtype)
    wide = torch.float32 if is_float8(dtype) else _DTYPES.get(dtype, torch.float64)
    low, high = torch.empty_like(reference, dtype=wide), torch.empty_like(reference, dtype=wide)
    most_finite, size = largest_finite(dtype), magnitude([reference])
    tolerance = op.tolerance_of(name)
    if size <= most_finite and not tolerance.by_values:
        found = [tolerance.scaled(problem, piece.reference) for piece in pieces(low, reference)]
    else:
        found = list(map(scales(tolerance, problem, values, dtype, reference), pieces(low, reference)))
    most = largest([scale.max() for scale in found])
    limit = 2 * torch_error + unit * most + atol
    tame = size + min(limit, rtol * most + atol) <= most_finite
    is_nan = []
    for below, above, scale in zip(pieces(low, reference), pieces(high, reference), found, strict=True):
        allowed = (rtol * scale + atol).clamp_(max=limit)
        if tame:
            _round_inwards(below.reference - allowed, 1, below.output)
            _round_inwards(above.reference + allowed, -1, above.output)
        else:
            is_nan.append(_fill_carefully(below, above, allowed, dtype))
    return Bounds(low, high, bool(is_nan) and bool(torch.stack(is_nan).any()))


def _fill_carefully(below: Piece, above: Piece, allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Write bounds of a reference with NaN, infinities or large numbers; returns a tensor: True if there is a NaN."""
    expected = below.reference.to(dtype).to(below.output.dtype)
    # a bound of a finite number stays finite: infinity is no rounding error
    info = torch.finfo(dtype)
    exact = ~expected.isfinite()
    for piece, bound, direction in (
        (below, below.reference - allowed, 1),
        (above, above.reference + allowed, -1),
    ):
        _round_inwards(bound.clamp(info.min, info.max), direction, piece.output)
        piece.output.copy_(torch.where(exact, expected, piece.output))
    return expected.isnan().any()


def _round_inwards(bound: torch.Tensor, direction: int, into: torch.Tensor) -> None:
    """Write ``bound`` in the dtype of ``into``, rounded up (1) or down (-1)."""
    rounded = bound.to(into.dtype)
    outside = rounded < bound if direction > 0 else rounded > bound
    inwards = torch.nextafter(rounded, torch.full_like(rounded[:1], direction * math.inf))
    torch.where(outside, inwards, rounded, out=into)
