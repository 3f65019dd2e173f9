"""attention: what the tolerances of its outputs and gradients accept, and mutants that they refuse."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from registry.contract import Op
from registry.contracts import ATTENTION, ATTENTION_BACKWARD
from registry.contracts.attention.logits import ScoredCall
from registry.problem import Value

from ...tiers import one_of_each
from ..accepting import accepted
from ..mutants import Mutant, put, tampered

Tensor = torch.Tensor
forward: Callable[..., Any] = ATTENTION.reference
backward: Callable[..., Any] = ATTENTION_BACKWARD.reference
NAMES = ATTENTION.parsed.names


def _without_last(named: dict[str, Any]) -> None:
    """The last key is not seen."""
    mask, q, k = named["mask"], named["q"], named["k"]
    if mask is None:
        mask = torch.ones(1, 1, q.shape[1], k.shape[1], dtype=torch.bool)
    mask = mask.clone()
    mask[..., -1] = False if mask.dtype == torch.bool else -math.inf
    named["mask"] = mask


def _one_more(named: dict[str, Any]) -> None:
    named["window"] = named["window"] + 1


def _next_head(name: str) -> Callable[[dict[str, Any]], None]:
    def change(named: dict[str, Any]) -> None:
        named[name] = named[name].roll(1, 2)

    return change


def _grouped_otherwise(named: dict[str, Any]) -> None:
    """Heads of queries and of keys in turn, where neighbours share."""
    heads, kv_heads = named["q"].shape[2], named["k"].shape[2]
    for name in ("k", "v"):
        named[name] = named[name].repeat(1, 1, heads // kv_heads, 1)


def _from_first(named: dict[str, Any]) -> None:
    """Causal rows aligned to the first key."""
    shift = named["k"].shape[1] - named["q"].shape[1]
    named["causal"] = False
    named["mask"] = torch.ones(named["q"].shape[1], named["k"].shape[1], dtype=torch.bool).tril()[None, None]
    assert shift


def _by_logits(change: Callable[[Tensor], Tensor]) -> Mutant:
    """Forward from logits that ``change`` has tampered with, in float32."""

    def compute(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        call = ScoredCall.of((q, k, v), *rest)
        logits = change(call.scored(slice(0, q.shape[1])).logits)
        groups = v.float().repeat_interleave(q.shape[2] // k.shape[2], 2).transpose(1, 2)
        weights = logits.softmax(-1).nan_to_num(0.0)
        return (weights @ groups).transpose(1, 2).to(q.dtype), logits.logsumexp(-1)

    return compute


def _no_maximum(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    call = ScoredCall.of((q, k, v), *rest)
    weights = call.scored(slice(0, q.shape[1])).logits.exp()
    groups = v.float().repeat_interleave(q.shape[2] // k.shape[2], 2).transpose(1, 2)
    total = weights.sum(-1)
    out = (weights @ groups) / total.masked_fill(total == 0.0, 1.0)[..., None]
    return out.transpose(1, 2).to(q.dtype), total.log()


def _blind_rows_zero(*values: Any) -> tuple[Tensor, ...]:
    out, lse = forward(*values)
    return out, lse.masked_fill(lse == -math.inf, 0.0)


DIMS: dict[str, Value] = {
    "batch": 1, "heads": 4, "kv_heads": 2, "q_len": 40, "kv_len": 600, "head_dim": 32, "causal": True, "mask": "none",
    "softcap": False, "span": False,
}  # fmt: skip
FORWARD: Mapping[str, tuple[Mutant, Mapping[str, Value]]] = {
    "last key left out": (tampered(ATTENTION, _without_last), {}),
    "not causal": (tampered(ATTENTION, put(causal=False)), {}),
    "from the first key": (tampered(ATTENTION, _from_first), {}),
    "causal": (tampered(ATTENTION, put(causal=True)), {"causal": False}),
    "no window": (tampered(ATTENTION, put(window=-1)), {"span": 30}),
    "one key too many": (tampered(ATTENTION, _one_more), {"span": 30}),
    "one key too many on both sides": (tampered(ATTENTION, _one_more), {"span": 30, "causal": False}),
    "no cap": (tampered(ATTENTION, put(softcap=0.0)), {"softcap": True}),
    "no mask": (tampered(ATTENTION, put(mask=None)), {"mask": "bool"}),
    "no bias": (tampered(ATTENTION, put(mask=None)), {"mask": "additive"}),
    "no scale but the usual": (tampered(ATTENTION, put(scale=None)), {}),
    "another head of keys": (tampered(ATTENTION, _next_head("k")), {}),
    "another head of values": (tampered(ATTENTION, _next_head("v")), {}),
    "heads grouped otherwise": (tampered(ATTENTION, _grouped_otherwise), {}),
    "no maximum": (_no_maximum, {}),
    "logits in bfloat16": (_by_logits(lambda logits: logits.bfloat16().float()), {}),
    "an lse of 0 where no key is seen": (_blind_rows_zero, {"mask": "bool"}),
}


def _halved(grad_q: Tensor, grad_k: Tensor, grad_v: Tensor) -> tuple[Tensor, ...]:
    return grad_q, grad_k / 2.0, grad_v


def _gradients(change: Callable[..., tuple[Tensor, ...]]) -> Mutant:
    return lambda *values: change(*(one.clone() for one in backward(*values)))


def _last_rows(*gradients: Tensor) -> tuple[Tensor, ...]:
    for one in gradients:
        one[:, -1] = 0.0
    return gradients


def _delta_left_out(named: dict[str, Any]) -> None:
    named["out"] = torch.zeros_like(named["out"])


def _lse_in_half(named: dict[str, Any]) -> None:
    named["lse"] = named["lse"].bfloat16().float()


def _uncapped_slope(*values: Any) -> tuple[Tensor, ...]:
    """The slope of the cap is left out of the gradients of queries and keys."""
    named = dict(zip(ATTENTION_BACKWARD.parsed.names, values, strict=True))
    call = ScoredCall.of([named[name] for name in ("q", "k", "v")], *values[4:5], *values[7:11])
    rows = call.scored(slice(0, call.q.shape[2]))
    weights = (rows.logits - named["lse"][..., None]).exp()
    gradient, out = (named[name].transpose(1, 2).float() for name in ("grad_out", "out"))
    group = call.q.shape[1] // call.k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (call.k, call.v))
    slopes = weights * (gradient @ v.transpose(-1, -2) - (gradient * out).sum(-1, keepdim=True)) * call.scale
    _, grad_k, grad_v = backward(*values)
    return (slopes @ k).transpose(1, 2).to(grad_k.dtype).contiguous(), grad_k, grad_v


BACKWARD: Mapping[str, tuple[Mutant, Mapping[str, Value]]] = {
    "not causal": (tampered(ATTENTION_BACKWARD, put(causal=False)), {}),
    "no window": (tampered(ATTENTION_BACKWARD, put(window=-1)), {"span": 30}),
    "one key too many": (tampered(ATTENTION_BACKWARD, _one_more), {"span": 30}),
    "no scale but the usual": (tampered(ATTENTION_BACKWARD, put(scale=None)), {}),
    "no mask": (tampered(ATTENTION_BACKWARD, put(mask=None)), {"mask": "bool"}),
    "no cap": (tampered(ATTENTION_BACKWARD, put(softcap=0.0)), {"softcap": True}),
    "no slope of the cap": (_uncapped_slope, {"softcap": True}),
    "no delta": (tampered(ATTENTION_BACKWARD, _delta_left_out), {}),
    "lse in bfloat16": (tampered(ATTENTION_BACKWARD, _lse_in_half), {}),
    "another head of keys": (tampered(ATTENTION_BACKWARD, _next_head("k")), {}),
    "last rows left out": (_gradients(_last_rows), {}),
    "one head of a group alone": (_gradients(_halved), {}),
}


@pytest.mark.parametrize(
    ("op", "mutants", "dtype"),
    one_of_each(
        [
            pytest.param(op, mutants, dtype, id=f"{name}-{dtype}")
            for name, op, mutants in (("forward", ATTENTION, FORWARD), ("backward", ATTENTION_BACKWARD, BACKWARD))
            for dtype in ("float32", "float16", "bfloat16")
        ],
        lambda op, mutants, dtype: op.name,
    ),
)
@pytest.mark.few(1)
def test_tolerances_accept_the_reference_and_refuse_mutants(
    op: Op, mutants: Mapping[str, tuple[Mutant, Mapping[str, Value]]], dtype: str
) -> None:
    for more in {str(more): more for _, more in mutants.values()}.values():
        dims = {**DIMS, **more, "dtype": dtype}
        assert accepted(op, dims, op.reference), dims
        for name, (mutant, of) in mutants.items():
            if of == more:
                assert not accepted(op, dims, mutant), (dims, name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.few(1)
def test_weights_may_be_rounded_but_not_their_sums(dtype: torch.dtype) -> None:
    dims: dict[str, Value] = {**DIMS, "kv_len": 2000, "dtype": str(dtype).removeprefix("torch.")}

    def attend(sums_in: torch.dtype) -> Mutant:
        """In steps of 32 keys, weights in half, and their sums in ``sums_in``."""

        def compute(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
            _, lse = forward(q, k, v, *rest)
            call = ScoredCall.of((q, k, v), *rest)
            logits = call.scored(slice(0, q.shape[1])).logits
            weights = (logits - logits.amax(-1, keepdim=True)).exp()
            values = v.repeat_interleave(q.shape[2] // k.shape[2], 2).transpose(1, 2).float()
            total = torch.zeros(q.transpose(1, 2).shape, dtype=sums_in)
            for first in range(0, k.shape[1], 32):
                keys = slice(first, first + 32)
                total = (total.float() + weights[..., keys].to(dtype).float() @ values[:, :, keys]).to(sums_in)
            out = total.float() / weights.sum(-1, keepdim=True)
            return out.transpose(1, 2).to(dtype).contiguous(), lse

        return compute

    assert accepted(ATTENTION, dims, attend(torch.float32))
    assert not accepted(ATTENTION, dims, attend(dtype))


def _by_half_weights(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The output by weights in half, the largest of which is 1."""
    call = ScoredCall.of((q, k, v), *rest)
    logits = call.scored(slice(0, q.shape[1])).logits
    weights = (logits - logits.amax(-1, keepdim=True).nan_to_num(0.0, 0.0, 0.0)).exp()
    values = v.repeat_interleave(q.shape[2] // k.shape[2], 2).transpose(1, 2).float()
    total = weights.sum(-1, keepdim=True)
    out = (weights.to(q.dtype).float() @ values) / total.masked_fill(total == 0.0, 1.0)
    return out.transpose(1, 2).to(q.dtype).contiguous(), forward(q, k, v, *rest)[1]


def _by_half_slopes(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The gradients by weights and slopes in half."""
    mask, out, lse, *attributes = rest
    call = ScoredCall.of((q, k, v), mask, *attributes[:4])
    rows, group = call.scored(slice(0, q.shape[1])), q.shape[2] // k.shape[2]
    gradient, result = (x.transpose(1, 2).float() for x in (grad_out, out))
    wide = [x.repeat_interleave(group, 1) for x in (call.k, call.v)]
    weights = (rows.logits - lse.masked_fill(lse == -math.inf, 0.0)[..., None]).exp()
    slopes = weights * (gradient @ wide[1].mT - (gradient * result).sum(-1, keepdim=True))
    slopes = (slopes if rows.slope is None else slopes * rows.slope).to(q.dtype).float() * call.scale
    found = slopes @ wide[0], slopes.mT @ call.q, weights.to(q.dtype).float().mT @ gradient
    summed = [found[0], *(x.unflatten(1, (-1, group)).sum(2) for x in found[1:])]
    return tuple([x.transpose(1, 2).to(q.dtype).contiguous() for x in summed])


FORMS: tuple[Mapping[str, Value], ...] = (
    {},
    {"softcap": True, "span": 100, "q_len": 120},
    {"causal": False, "mask": "additive"},
)


def _of_a_form(more: Mapping[str, Value], dtype: str) -> object:
    return str(more)


@pytest.mark.parametrize(("more", "dtype"), one_of_each(itertools.product(FORMS, ("float16", "bfloat16")), _of_a_form))
@pytest.mark.few(1)
def test_weights_and_slopes_in_half_are_right(more: Mapping[str, Value], dtype: str) -> None:
    dims = {**DIMS, "kv_len": 512, "head_dim": 128, **more, "dtype": dtype}
    assert accepted(ATTENTION, dims, _by_half_weights)
    assert accepted(ATTENTION_BACKWARD, dims, _by_half_slopes)


def _smaller_logits(part: float) -> Mutant:
    def change(named: dict[str, Any]) -> None:
        named["scale"] = (named["scale"] or named["q"].shape[-1] ** -0.5) * (1.0 - part)

    return tampered(ATTENTION_BACKWARD, change)


@pytest.mark.few(1)
def test_logits_of_a_gradient_may_all_be_smaller_by_what_tensor_cores_lose() -> None:
    # three products of tf32, sums rounded towards zero: an H200 lost 7e-7 of the logits of heads of 80
    dims: dict[str, Value] = {**DIMS, "heads": 8, "kv_heads": 1, "q_len": 300, "kv_len": 150, "head_dim": 80}
    dims |= {"causal": False, "dtype": "float32"}
    assert accepted(ATTENTION_BACKWARD, dims, _smaller_logits(7e-7))
    assert not accepted(ATTENTION_BACKWARD, dims, _smaller_logits(1e-5))
