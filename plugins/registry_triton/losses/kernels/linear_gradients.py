"""Cross-entropy of rows of logits and its gradient in their place, in fp32: two passes over a row by one program."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
# instead of -inf, so that lanes without a column yet do not compute inf - inf
LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _log_sum_exp(x, cols, LANES: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr):
    """The log-sum-exp of a row by a maximum and a sum in each lane (Milakov & Gimelshein 2018), and its logits' sum.

    The row is read again afterwards, so that it is to stay in the L2 cache.
    """
    item = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    top = tl.full([LANES], LOWEST, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    plain = tl.zeros([LANES], tl.float32)
    for start in tl.range(0, cols, LANES * VECTOR, num_stages=STAGES):
        mask = start + item < cols
        value = tl.load(x + start + item, mask=mask, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
        plain += tl.sum(tl.where(mask, value, 0.0), axis=1)
        new = tl.maximum(top, tl.max(value, axis=1))
        power = tl.exp2((value - new[:, None]) * LOG2E)
        total = total * tl.exp2((top - new) * LOG2E) + tl.sum(power, axis=1)
        top = new
    peak = tl.max(top, axis=0)
    whole = tl.sum(total * tl.exp2((top - peak) * LOG2E), axis=0)
    # NaN where nothing was finite
    return tl.where(whole == 0.0, float("nan"), peak + tl.log(whole)), tl.sum(plain, axis=0)


@triton.jit(do_not_specialize=["ignore_index", "units"])
def loss_into_gradient(
    losses, logits, targets, factor, ignore_index, smoothing, units, MULTIPLE: tl.constexpr, LANES: tl.constexpr,
    VECTOR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A row a program: its loss, and ``factor`` [1] times the loss's gradient over the logits.

    A row whose target is ``ignore_index`` is not read, and gets 0; one whose target is outside of the columns gets NaN.
    """
    cols = units * MULTIPLE
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    x = logits + row * cols
    item = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    if target == ignore_index:
        tl.store(losses + row, 0.0)
        for start in tl.range(0, cols, LANES * VECTOR):
            nothing = tl.zeros([LANES, VECTOR], tl.float32).to(logits.dtype.element_ty)
            tl.store(x + start + item, nothing, mask=start + item < cols)
    else:
        inside = (target >= 0) & (target < cols)
        own = tl.load(x + target, mask=inside, other=0.0).to(tl.float32)
        lse, plain = _log_sum_exp(x, cols, LANES, VECTOR, STAGES)
        even = smoothing / cols.to(tl.float32)
        loss = tl.where(smoothing > 0.0, (1.0 - smoothing) * (lse - own) + (smoothing * lse - even * plain), lse - own)
        tl.store(losses + row, tl.where(inside, loss, float("nan")))
        slope = tl.where(inside, tl.load(factor), float("nan"))
        # every thread has read the target's logit, and its part of the row
        tl.debug_barrier()
        for start in tl.range(0, cols, LANES * VECTOR, num_stages=STAGES):
            place = start + item
            mask = place < cols
            value = tl.load(x + place, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
            gradient = tl.exp2((value - lse) * LOG2E) - even
            gradient -= tl.where(place == target, 1.0 - smoothing, 0.0)
            tl.store(
                x + place, (gradient * slope).to(logits.dtype.element_ty), mask=mask, eviction_policy="evict_first"
            )
