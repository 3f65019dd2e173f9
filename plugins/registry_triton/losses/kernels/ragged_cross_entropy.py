"""Cross-entropy where a row is no whole number of 16 bytes, so that rows begin anywhere.

Loads of 16 bytes need addresses that are multiples of it: a row's few elements before the first such address, and
behind the last, are read apart from the others. Semantics are those of the kernels of ``cross_entropy``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .cross_entropy import LOG2E, LOWEST, _accumulate, _finish, _mass


@triton.jit(do_not_specialize=["ignore_index", "cols"])
def ragged_cross_entropy(
    losses, lses, logits, targets, weight, ignore_index, smoothing, cols, LANES: tl.constexpr, VECTOR: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A row a program, read once."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    if target == ignore_index:
        tl.store(lses + row, 0.0)
        tl.store(losses + row, tl.zeros([], tl.float32).to(losses.dtype.element_ty))
    else:
        x = logits + row * cols
        first = (row * cols + VECTOR - 1) // VECTOR * VECTOR
        head = (first - row * cols).to(tl.int32)
        whole = (cols - head) // VECTOR * VECTOR
        gains = weight
        if weight is not None:
            gains = weight + head
        if smoothing > 0.0:
            top, total, weighed, mass = _accumulate(logits + first, gains, 0, whole, True, LANES, VECTOR, STAGES)
        else:
            top, total, weighed, mass = _accumulate(logits + first, gains, 0, whole, False, LANES, VECTOR, STAGES)
        item = tl.arange(0, 2 * VECTOR)
        col = tl.where(item < VECTOR, item, item - VECTOR + head + whole)
        mask = tl.where(item < VECTOR, item < head, col < cols)
        rest = tl.load(x + col, mask=mask, other=-float("inf")).to(tl.float32)
        rest_weighed = tl.where(mask, rest, 0.0)
        rest_mass = tl.zeros([2 * VECTOR], tl.float32)
        if weight is not None:
            rest_mass = tl.load(weight + col, mask=mask & (smoothing > 0.0), other=0.0).to(tl.float32)
            rest_weighed = tl.where(mask, rest * rest_mass, 0.0)
        rest_top = tl.maximum(tl.max(rest, axis=0), LOWEST)
        rest_total = tl.sum(tl.exp2((rest - rest_top) * LOG2E), axis=0)
        peak = tl.maximum(tl.max(top, axis=0), rest_top)
        sum_of_powers = tl.sum(total * tl.exp2((top - peak) * LOG2E), axis=0)
        sum_of_powers += rest_total * tl.exp2((rest_top - peak) * LOG2E)
        lse = tl.where(sum_of_powers == 0.0, float("nan"), peak + tl.log(sum_of_powers))
        all_weighed = tl.sum(weighed, axis=0) + tl.sum(rest_weighed, axis=0)
        all_mass = _mass(weight, mass, cols)
        if weight is not None:
            all_mass += tl.sum(rest_mass, axis=0)
        _finish(losses, lses, row, x, target, weight, lse, all_weighed, all_mass, smoothing, cols)
