"""A token of each of few rows of logits: parts of a row are searched by programs of their own, then what they keep."""

from __future__ import annotations

import triton
import triton.language as tl

from .top_k_top_p import ends_of, load_keys, sample_row, threshold_of


@triton.jit(do_not_specialize=["k_step", "p_step"])
def partial_sampling(
    candidates, columns, counts, logits, top_k, k_step, cols, SPLITS: tl.constexpr, BUCKETS: tl.constexpr,
    PART: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """First of two launches: of one of SPLITS parts of a row the top_k largest keys, and their columns, in order.

    They are written at the part's begin in ``candidates`` and ``columns`` [rows, cols], their number in ``counts``
    [rows, SPLITS]. What top_k keeps of the row it keeps of a part of it.
    """
    program = tl.program_id(0)
    row, split = (program // SPLITS).to(tl.int64), program % SPLITS
    # whole steps, so that a part begins where a load may be wide
    span = tl.cdiv(cols, SPLITS * BLOCK) * BLOCK
    begin = tl.minimum(split * span, cols)
    count = tl.minimum(span, cols - begin)
    source = logits + row * cols + begin
    own, own_columns = candidates + row * cols + begin, columns + row * cols + begin
    least, greatest = ends_of(source, own, count, BLOCK, STAGES)
    tl.debug_barrier()
    k = tl.maximum(tl.load(top_k + row * k_step), 1)
    if k < count:
        least = threshold_of(own, count, least, greatest, k, 0.0, False, BUCKETS, PART, BLOCK, STAGES)
    kept = tl.zeros([], tl.int32)
    for start in tl.range(0, count, BLOCK, num_stages=STAGES):
        key, inside = load_keys(source, start, count, BLOCK)
        stays = inside & (key >= least)
        place = kept + tl.cumsum(stays.to(tl.int32), 0) - 1
        tl.store(own + place, key, mask=stays)
        tl.store(own_columns + place, begin + start + tl.arange(0, BLOCK), mask=stays)
        kept += tl.sum(stays.to(tl.int32), 0)
    tl.store(counts + program, kept)


@triton.jit(do_not_specialize=["k_step", "p_step"])
def combine_sampling(
    samples, candidates, columns, joined, joined_columns, rounds, counts, uniform, top_k, top_p, k_step, p_step, cols,
    SPLITS: tl.constexpr, BUCKETS: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    SPAN: tl.constexpr,
):  # fmt: skip
    """Second launch: a row a program, which joins the parts' candidates and samples from them.

    SPAN is the BLOCK of the first launch. ``joined`` and ``joined_columns`` [rows, cols] int32 hold the candidates one
    part after the other, ``rounds`` [rows, cols] int32 those of rounds.
    """
    program = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    begin = program * cols + tl.minimum(split * (tl.cdiv(cols, SPLITS * SPAN) * SPAN), cols)
    count = tl.load(counts + program * SPLITS + split)
    total = tl.sum(count, 0)
    target = program * cols + tl.cumsum(count, 0) - count
    # some candidates of every part at a time: one part after the other would wait for memory in each
    for start in tl.range(0, tl.max(count, 0), BLOCK // SPLITS):
        place = start + tl.arange(0, BLOCK // SPLITS)[None, :]
        inside = place < count[:, None]
        key = tl.load(candidates + begin[:, None] + place, mask=inside, other=0)
        column = tl.load(columns + begin[:, None] + place, mask=inside, other=0)
        tl.store(joined + target[:, None] + place, key, mask=inside)
        tl.store(joined_columns + target[:, None] + place, column, mask=inside)
    tl.debug_barrier()
    keys, own_columns = joined + program * cols, joined_columns + program * cols
    if top_k is not None:
        top_k += program * k_step
    if top_p is not None:
        top_p += program * p_step
    number = tl.load(uniform + program)
    found = sample_row(keys, rounds + program * cols, total, number, top_k, top_p, BUCKETS, PART, BLOCK, STAGES)
    tl.store(samples + program, tl.load(own_columns + found))
