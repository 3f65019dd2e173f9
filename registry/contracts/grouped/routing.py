"""Offsets, on the device, that assign rows to experts, and drawing them at random.

Rows ``offsets[i]`` to ``offsets[i + 1]`` belong to expert i; an expert may have none. Rows before the first offset and
from the last one on belong to no expert. Offsets are clamped to 0 to m. They must not decrease: otherwise the result is
unspecified, but nothing outside of the tensors may be read or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, dtype_name
from ..checks import check_values, shape_text

ROUTING = ("uniform", "skewed", "one_expert")
"""Distributions of rows: equal for all experts; the i-th expert has 1 / i of the first's; one expert has all."""

_LEAST_WITH_GAPS = 8


def spans(offsets: torch.Tensor, rows: int) -> list[tuple[int, int]]:
    """First row and end of each expert, after reading the offsets to the host.

    Of meta tensors, which have no values, all rows are the first expert's: shapes of results do not depend on it.
    """
    if offsets.is_meta:
        return [(0, rows), *[(rows, rows)] * (len(offsets) - 2)]
    ends = accumulate((min(max(offset, 0), rows) for offset in offsets.tolist()), max)
    return list(pairwise(ends))


def rows_of_experts(rows: int, experts: int, routing: str) -> list[int]:
    """The number of rows of each expert, falling except for rounding; they sum to ``rows``."""
    if routing == "one_expert":
        return [rows, *[0] * (experts - 1)]
    shares = [1.0 if routing == "uniform" else 1 / (place + 1) for place in range(experts)]
    total, ends = sum(shares), accumulate(shares)
    bounds = [0, *(int(rows * end / total + 0.5) for end in ends)]
    return [end - begin for begin, end in pairwise(bounds)]


def busy_experts(problem: Problem) -> int:
    """The number of experts that have rows."""
    return sum(count > 0 for count in rows_of_experts(problem.m, problem.experts, problem.routing))


def draw_offsets(problem: Problem, generator: torch.Generator, gaps: int = 0) -> torch.Tensor:
    """Random offsets, int32 ``[experts + 1]``: the problem's routing with the experts in random order.

    ``gaps``: the number of rows at either end without an expert; if not 0, every other expert has no rows.
    """
    device, experts = generator.device, problem.experts
    given = rows_of_experts(problem.m - 2 * gaps, experts, problem.routing)
    counts = torch.tensor(given, dtype=torch.int32, device=device)
    counts = counts[torch.randperm(experts, device=device, generator=generator)]
    if gaps and experts > 1:
        counts[0 : experts - 1 : 2] += counts[1::2]
        counts[1::2] = 0
    offsets = torch.zeros(experts + 1, dtype=torch.int32, device=device)
    offsets[1:] = counts.cumsum(0, dtype=torch.int32)
    return offsets + gaps


def gap(rows: int) -> int:
    """The number of rows at either end without an expert, in inputs of the kind "gaps"."""
    return rows // 8 if rows >= _LEAST_WITH_GAPS else 0


def plant_beside(x: torch.Tensor) -> torch.Tensor:
    """Put NaN in all rows without an expert, and in one element of a row with one; for the kind "gaps"."""
    rows = x.shape[0]
    if count := gap(rows):
        x[:count] = torch.nan
        x[rows - count :] = torch.nan
        x[rows // 2, 0] = torch.nan
    return x


def check_offsets_data(op: str, values: Mapping[str, Any]) -> None:
    """Raise OutOfRangeError if the offsets decrease. Reads them to the host."""
    offsets = values["offsets"]
    least = offsets.roll(1)
    least[0] = offsets[0]
    check_values(
        op,
        "offsets",
        offsets,
        offsets < least,
        "no less than the offset before it",
        "rows offsets[i] to offsets[i + 1] belong to expert i: pass cumulated counts, counts.cumsum(0)",
    )


def check_offsets(arguments: Arguments, experts: int) -> None:
    """Raise InvalidArgumentError unless the offsets are integers, one more than there are experts.

    Their values, which are on the device, are not read.
    """
    offsets = arguments.tensor("offsets")
    if offsets.dtype not in (torch.int32, torch.int64):
        raise InvalidArgumentError(
            f"{arguments.op}: offsets is {dtype_name(offsets.dtype)}, expected int32 or int64",
            hint="convert it, e.g. offsets.to(torch.int32)",
        )
    if offsets.shape != (experts + 1,):
        raise InvalidArgumentError(
            f"{arguments.op}: offsets has shape {shape_text(offsets.shape)} but there are {experts} experts",
            hint=f"expected [{experts + 1}], the first row of each expert and the end of the last: of counts [experts],"
            " torch.nn.functional.pad(counts.cumsum(0), (1, 0))",
        )
