"""The experts of tokens, from a router's logits: a row of all experts in registers."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _sigmoid(value):
    """``1 / (1 + exp(-value))``, without the infinity in between."""
    power = tl.exp2(-tl.abs(value) * LOG2E)
    return tl.where(value < 0.0, power, 1.0) / (1.0 + power)


@triton.jit
def _in_order(value):
    """Integers that are ordered as floats are; NaN is the greatest."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(value != value, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def _choose(logit, inside, TOKENS: tl.constexpr, SPAN: tl.constexpr, TOP: tl.constexpr, TOP_SPAN: tl.constexpr):
    """The TOP largest logits [TOKENS, TOP_SPAN] of each row, -inf behind them, and their columns.

    Keys are unique, of the logit and the column, so that no column is found twice, whatever the logits are.
    """
    col = tl.arange(0, SPAN)
    place = tl.arange(0, TOP_SPAN)
    key = (_in_order(logit).to(tl.int64) << 32) | (SPAN - 1 - col)[None, :].to(tl.int64)
    key = tl.where(inside, key, -0x7FFFFFFFFFFFFFFF - 1)
    found = tl.full([TOKENS, TOP_SPAN], 0, tl.int64)
    for rank in tl.static_range(TOP):
        most = tl.max(key, 1)
        found = tl.where((place == rank)[None, :], most[:, None], found)
        key = tl.where(key == most[:, None], -0x7FFFFFFFFFFFFFFF - 1, key)
    ordered = (found >> 32).to(tl.int32)
    value = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    chosen = (place < TOP)[None, :]
    expert = SPAN - 1 - (found & 0xFFFFFFFF).to(tl.int32)
    return tl.where(chosen, value, -float("inf")), tl.where(chosen, expert, -1)


@triton.jit
def _logits(logits, token, tokens, EXPERTS: tl.constexpr, SPAN: tl.constexpr):
    """Logits [TOKENS, SPAN] in fp32, -inf where none is, and where one is."""
    col = tl.arange(0, SPAN)
    inside = (token < tokens)[:, None] & (col < EXPERTS)[None, :]
    place = logits + token.to(tl.int64)[:, None] * EXPERTS + col[None, :]
    return tl.load(place, mask=inside, other=-float("inf")).to(tl.float32), inside


@triton.jit
def _exponentials(logit):
    """``exp(logit - most)`` of each row, and its sum; NaN where nothing is finite."""
    most = tl.max(logit, 1)
    power = tl.exp2((logit - most[:, None]) * LOG2E)
    return power, most, tl.sum(power, 1)


@triton.jit(do_not_specialize=["tokens"])
def topk_softmax(
    weights, experts, logits, tokens, EXPERTS: tl.constexpr, SPAN: tl.constexpr, TOP: tl.constexpr,
    TOP_SPAN: tl.constexpr, RENORMALIZE: tl.constexpr, SIGMOID: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """A program has TOKENS rows. SPAN >= EXPERTS, TOP_SPAN >= TOP: powers of two."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    logit, inside = _logits(logits, token, tokens, EXPERTS, SPAN)
    value, expert = _choose(logit, inside, TOKENS, SPAN, TOP, TOP_SPAN)
    if SIGMOID:
        weight = _sigmoid(value)
    else:
        _, most, total = _exponentials(logit)
        weight = tl.exp2((value - most[:, None]) * LOG2E) / total[:, None]
    place = tl.arange(0, TOP_SPAN)
    if RENORMALIZE:
        weight = weight / tl.sum(tl.where((place < TOP)[None, :], weight, 0.0), 1)[:, None]
    there = (token < tokens)[:, None] & (place < TOP)[None, :]
    target = token.to(tl.int64)[:, None] * TOP + place[None, :]
    tl.store(weights + target, weight, mask=there)
    tl.store(experts + target, expert, mask=there)


@triton.jit
def _at_experts(grad_weights, experts, token, tokens, TOKENS: tl.constexpr, SPAN: tl.constexpr, TOP: tl.constexpr):
    """Gradients of weights [TOKENS, SPAN] in the columns of their experts, and which columns these are."""
    col = tl.arange(0, SPAN)
    gradient = tl.zeros([TOKENS, SPAN], tl.float32)
    chosen = tl.zeros([TOKENS, SPAN], tl.int32)
    for rank in tl.static_range(TOP):
        place = token.to(tl.int64) * TOP + rank
        expert = tl.load(experts + place, mask=token < tokens, other=-1)
        each = tl.load(grad_weights + place, mask=token < tokens, other=0.0)
        own = col[None, :] == expert[:, None]
        gradient = tl.where(own, each[:, None], gradient)
        chosen = tl.where(own, 1, chosen)
    return gradient, chosen > 0


@triton.jit(do_not_specialize=["tokens"])
def topk_softmax_backward(
    grad_logits, grad_weights, logits, experts, tokens, EXPERTS: tl.constexpr, SPAN: tl.constexpr, TOP: tl.constexpr,
    RENORMALIZE: tl.constexpr, SIGMOID: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """A program has TOKENS rows."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    logit, inside = _logits(logits, token, tokens, EXPERTS, SPAN)
    gradient, chosen = _at_experts(grad_weights, experts, token, tokens, TOKENS, SPAN, TOP)
    if SIGMOID:
        score = _sigmoid(logit)
        if RENORMALIZE:
            share = tl.where(chosen, score, 0.0)
            total = tl.sum(share, 1)[:, None]
            mean = tl.sum(gradient * share, 1)[:, None] / total
            gradient = (gradient - mean) / total
        result = tl.where(chosen, gradient * score * (1.0 - score), 0.0)
    else:
        of_all, _, total = _exponentials(logit)
        if RENORMALIZE:
            # a softmax over the chosen alone; NaN where that of all experts is
            power, _, part = _exponentials(tl.where(chosen, logit, -float("inf")))
            share = power / part[:, None] + tl.where(total == total, 0.0, total)[:, None]
        else:
            share = of_all / total[:, None]
        result = share * (gradient - tl.sum(gradient * share, 1)[:, None])
    place = token.to(tl.int64)[:, None] * EXPERTS + tl.arange(0, SPAN)[None, :]
    tl.store(grad_logits + place, result.to(grad_logits.dtype.element_ty), mask=inside)
