"""top_k_top_p_sampling: a token of each row of logits, drawn from those that top_k and top_p keep.

FlashInfer's op of that name, with the random numbers as an argument: one a row, so that the logits alone cross memory,
and a call can be repeated and checked. It has no gradient. What random numbers and filters hold is on the device and is
not read by the host; ``KERNEL_REGISTRY_CHECK=1`` finds numbers that none may be.
"""

from __future__ import annotations

from typing import Any

import torch

from ...contract import Floor, Op, RowMajor, Tolerance
from ...problem import Problem
from ..rounding import underflow, units
from .kept_tokens import samples_are_right, thresholds, weights_of
from .token_logits import (
    KINDS,
    OP_NAME,
    check_sampling,
    check_sampling_data,
    sampling_examples,
    sampling_inputs,
    sampling_problem,
    with_row_filters,
)


def top_k_top_p_sampling_reference(
    logits: torch.Tensor,
    uniform: torch.Tensor,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
) -> torch.Tensor:
    """``samples`` [rows], int32: a column of each row of logits [rows, cols].

    First top_k, int32 [rows], keeps as many of the largest logits of a row, and all that equal the least of these. Then
    top_p, float32 [rows], keeps the fewest of the most probable tokens whose probabilities, of the softmax over what
    top_k kept, add up to at least top_p, and all that equal the least of these. Each may be None, and a call may give a
    number, or one element, for all rows.

    The sample is the first kept token at which the running sum of kept probabilities, in the order of columns, is more
    than ``uniform`` times their sum: of uniform, float32 [rows], independent and evenly spread over [0, 1), samples
    have the kept tokens' probabilities. Where rounding leaves no such token, it is the last kept one.

    A top_k of less than 1 counts as 1, a top_p of at most 0 keeps the most probable token. A row with NaN or +inf, or
    of -inf alone, has any column. Halves are computed in fp32.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    kept = weights_of(wide).masked_fill(wide < thresholds(wide, top_k, top_p), 0.0)
    masses = kept.cumsum(-1)
    passed = (masses <= uniform.to(wide.dtype)[:, None] * masses[:, -1:]).sum(-1)
    last = kept.shape[1] - 1 - (kept > 0.0).flip(-1).int().argmax(-1)
    return torch.minimum(passed, last).clamp(0, kept.shape[1] - 1).to(torch.int32)


def _outputs(logits: Any, *_: Any) -> list[Any]:
    return [((logits.shape[0],), torch.int32)]


def _floor(problem: Problem) -> Floor:
    numbers = 2 + problem.top_k + problem.top_p
    moved = problem.rows * (problem.cols * problem.torch_dtype.itemsize + 4 * numbers)
    return Floor(bytes=moved, flop=4 * problem.rows * problem.cols)


def _exact(_: Problem, reference: torch.Tensor) -> torch.Tensor:
    return reference.double()


TOP_K_TOP_P_SAMPLING = Op(
    name=OP_NAME,
    schema=f"{OP_NAME}(Tensor logits, Tensor uniform, Tensor? top_k=None, Tensor? top_p=None) -> Tensor samples",
    version=1,
    reference=top_k_top_p_sampling_reference,
    fake=RowMajor(_outputs),
    problem=sampling_problem,
    inputs=sampling_inputs,
    floor=_floor,
    tolerance=Tolerance(units(float32=1.0, half=1.0), underflow(), _exact),
    compare={"samples": samples_are_right},
    static=frozenset({"cols", "dtype"}),
    dynamic=frozenset({"rows"}),
    choices={"top_k": (False, True), "top_p": (False, True)},
    kinds=KINDS,
    examples=sampling_examples(),
    check=check_sampling,
    check_data=check_sampling_data,
    independent=frozenset({"top_k"}),
    flatten=with_row_filters,
)
