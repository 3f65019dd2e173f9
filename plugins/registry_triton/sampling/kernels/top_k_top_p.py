"""A token of each row of logits, without a sort: the least kept logit is found among keys that are ordered as logits.

Keys of candidates are counted, or their weights added up, in buckets of the range that is left; the bucket at which the
count or the mass is reached becomes the range, and its keys the candidates. Keys are int32 without gaps in their order,
so that a range is exact, and each round but the first reads few.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LEAST_KEY = tl.constexpr(-0x80000000)
GREATEST_KEY = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _key_of(value):
    """Integers that are ordered as floats are; both zeros have one."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value_of(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _weight_of(key, most):
    """``exp(logit - most)`` of keys."""
    return tl.exp2((_value_of(key) - most) * LOG2E)


@triton.jit
def load_keys(row, start, cols, BLOCK: tl.constexpr):
    """Keys of columns from ``start`` on, of a row of logits or of keys, and which of them are there."""
    place = start + tl.arange(0, BLOCK)
    inside = place < cols
    if row.dtype.element_ty == tl.int32:
        return tl.load(row + place, mask=inside, other=LEAST_KEY), inside
    else:
        return _key_of(tl.load(row + place, mask=inside, other=-float("inf")).to(tl.float32)), inside


@triton.jit
def ends_of(row, candidates, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """The least and the greatest key of a row. ``candidates``, if there are any, become all keys."""
    least = tl.full([BLOCK], GREATEST_KEY, tl.int32)
    greatest = tl.full([BLOCK], LEAST_KEY, tl.int32)
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        key, inside = load_keys(row, start, cols, BLOCK)
        least = tl.minimum(least, tl.where(inside, key, GREATEST_KEY))
        greatest = tl.maximum(greatest, tl.where(inside, key, LEAST_KEY))
        if candidates is not None:
            tl.store(candidates + start + tl.arange(0, BLOCK), key, mask=inside)
    return tl.min(least, 0), tl.max(greatest, 0)


@triton.jit
def _bucket_sums(
    candidates, count, low, shift, most, BY_MASS: tl.constexpr, BUCKETS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The number of candidates of each bucket of ``2 ** shift`` keys from ``low`` on, or the sum of their weights."""
    bucket = tl.arange(0, BUCKETS)[:, None]
    sums = tl.zeros([BUCKETS, BLOCK], tl.float32 if BY_MASS else tl.int32)
    for start in tl.range(0, count, BLOCK, num_stages=STAGES):
        place = start + tl.arange(0, BLOCK)
        inside = place < count
        key = tl.load(candidates + place, mask=inside, other=0)
        own = tl.where(inside, ((key.to(tl.int64) - low) >> shift).to(tl.int32), -1)
        mine = own[None, :] == bucket
        if BY_MASS:
            sums += tl.where(mine, _weight_of(key, most)[None, :], 0.0)
        else:
            sums += mine.to(tl.int32)
    return tl.sum(sums, 1)


@triton.jit
def _keep(source, candidates, count, low, high, FROM_ROW: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Keep the keys from ``low`` to ``high`` of a row or of the candidates; their number, least and greatest.

    The candidates may be kept in place: none is written where one has still to be read.
    """
    kept = tl.zeros([], tl.int32)
    least = tl.full([BLOCK], GREATEST_KEY, tl.int32)
    greatest = tl.full([BLOCK], LEAST_KEY, tl.int32)
    for start in tl.range(0, count, BLOCK, num_stages=STAGES):
        if FROM_ROW:
            key, inside = load_keys(source, start, count, BLOCK)
        else:
            place = start + tl.arange(0, BLOCK)
            inside = place < count
            key = tl.load(source + place, mask=inside, other=0)
        own = inside & (key >= low) & (key <= high)
        rank = tl.cumsum(own.to(tl.int32), 0)
        if not FROM_ROW:
            # warps may hold the same keys, and none may find there what another one keeps
            tl.debug_barrier()
        tl.store(candidates + kept + rank - 1, key, mask=own)
        kept += tl.sum(own.to(tl.int32), 0)
        least = tl.minimum(least, tl.where(own, key, GREATEST_KEY))
        greatest = tl.maximum(greatest, tl.where(own, key, LEAST_KEY))
    # the next round reads what other threads have written
    tl.debug_barrier()
    return kept, tl.min(least, 0), tl.max(greatest, 0)


@triton.jit
def threshold_of(
    candidates, count, low, high, target, most, BY_MASS: tl.constexpr, BUCKETS: tl.constexpr, PART: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The greatest key, of candidates from ``low`` to ``high``, from which on they make up ``target``.

    ``low`` where sums that err do not reach it.
    """
    above = tl.zeros([], tl.float32 if BY_MASS else tl.int32)
    bucket = tl.arange(0, BUCKETS)
    while low < high:
        first = low.to(tl.int64)
        shift = tl.zeros([], tl.int64)
        while ((high.to(tl.int64) - first) >> shift) >= BUCKETS:
            shift += 1
        sums = _bucket_sums(candidates, count, first, shift, most, BY_MASS, BUCKETS, PART, STAGES)
        # sums that err may reach the target first where nothing is added; the first bucket is never empty
        reached = (above + tl.cumsum(sums, 0, reverse=True) >= target) & (sums > 0)
        chosen = tl.max(tl.where(reached, bucket, 0), 0)
        above += tl.sum(tl.where(bucket > chosen, sums, 0), 0)
        begin = first + (chosen.to(tl.int64) << shift)
        end = begin + (tl.full([], 1, tl.int64) << shift) - 1
        # no two rounds have one range: of its ends, which are candidates, one is in another bucket
        count, low, high = _keep(candidates, candidates, count, begin, end, False, BLOCK, STAGES)
    return low


@triton.jit
def _mass(row, cols, least, most, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """The sum of the weights of keys from ``least`` on, block by block."""
    mass = tl.zeros([], tl.float32)
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        key, inside = load_keys(row, start, cols, BLOCK)
        mass += tl.sum(tl.where(inside & (key >= least), _weight_of(key, most), 0.0), 0)
    return mass


@triton.jit
def _draw(row, cols, least, most, uniform, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """The first column at which the weights of keys from ``least`` on add up to more than ``uniform`` of all."""
    target = uniform * _mass(row, cols, least, most, BLOCK, STAGES)
    found = tl.full([], -1, tl.int32)
    last = tl.zeros([], tl.int32)
    passed = tl.zeros([], tl.float32)
    start = tl.zeros([], tl.int32)
    while (start < cols) & (found < 0):
        key, inside = load_keys(row, start, cols, BLOCK)
        weight = tl.where(inside & (key >= least), _weight_of(key, most), 0.0)
        place = start + tl.arange(0, BLOCK)
        last = tl.maximum(last, tl.max(tl.where(weight > 0.0, place, 0), 0))
        # as _mass adds them, so that all blocks together make up what the target is a part of
        behind = passed + tl.sum(weight, 0)
        if behind > target:
            hit = (passed + tl.cumsum(weight, 0) > target) & (weight > 0.0)
            found = tl.min(tl.where(hit, place, last), 0)
        passed = behind
        start += BLOCK
    return tl.where(found < 0, last, found)


@triton.jit
def sample_row(
    row, candidates, cols, uniform, top_k, top_p, BUCKETS: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The column drawn from a row of logits or of keys; ``top_k`` and ``top_p`` point to the row's, or are None."""
    least, greatest = ends_of(row, candidates, cols, BLOCK, STAGES)
    tl.debug_barrier()
    most = _value_of(greatest)
    if top_k is not None:
        k = tl.maximum(tl.load(top_k), 1)
        if k < cols:
            least = threshold_of(candidates, cols, least, greatest, k, most, False, BUCKETS, PART, BLOCK, STAGES)
    if top_p is not None:
        share = tl.load(top_p)
        if share < 1.0:
            count, low, high = _keep(row, candidates, cols, least, greatest, True, BLOCK, STAGES)
            target = tl.maximum(share, 0.0) * _mass(row, cols, least, most, BLOCK, STAGES)
            least = threshold_of(candidates, count, low, high, target, most, True, BUCKETS, PART, BLOCK, STAGES)
    column = _draw(row, cols, least, most, uniform, BLOCK, STAGES)
    return tl.minimum(tl.maximum(column, 0), cols - 1)


@triton.jit(do_not_specialize=["k_step", "p_step"])
def looped_sampling(
    samples, candidates, logits, uniform, top_k, top_p, k_step, p_step, cols, BUCKETS: tl.constexpr,
    PART: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program has a row. ``candidates`` [rows, cols] int32, None without filters. PART keys are put in buckets at
    a time.

    ``k_step`` and ``p_step``: elements from the filter of a row to the next, 0 where all rows have one.
    """
    program = tl.program_id(0).to(tl.int64)
    if candidates is not None:
        candidates += program * cols
    if top_k is not None:
        top_k += program * k_step
    if top_p is not None:
        top_p += program * p_step
    number = tl.load(uniform + program)
    column = sample_row(logits + program * cols, candidates, cols, number, top_k, top_p, BUCKETS, PART, BLOCK, STAGES)
    tl.store(samples + program, column)
