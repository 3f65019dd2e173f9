"""PackedExperts: what is stacked, what is refused, what survives a round trip."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from registry.errors import InvalidArgumentError
from registry.packed import PackedExperts, PackedWeight, quantize


def weights(count: int = 3, **how: Any) -> list[PackedWeight]:
    generator = torch.Generator().manual_seed(0)
    return [
        quantize(torch.randn(24, 128, generator=generator).bfloat16(), **{"group_size": 64, **how})
        for _ in range(count)
    ]


@pytest.mark.parametrize("how", [{}, {"symmetric": True}, {"bits": 8}], ids=str)
def test_each_expert_keeps_its_weight(how: dict[str, Any]) -> None:
    given = weights(**how)
    experts = PackedExperts.stack(given)
    assert (len(experts), experts.shape, experts.dtype) == (3, (24, 128), torch.bfloat16)
    assert experts.nbytes == sum(weight.nbytes for weight in given)
    for place, weight in enumerate(given):
        assert torch.equal(experts[place].dequantize(), weight.dequantize())
        assert torch.equal(experts.dequantize()[place], weight.dequantize())
    assert torch.equal(experts.to(dtype=torch.float32)[1].scales, given[1].scales.float())


def test_it_survives_a_round_trip() -> None:
    experts = PackedExperts.stack(weights())
    leaves, spec = pytree.tree_flatten(experts)
    file = io.BytesIO()
    torch.save(experts, file)
    file.seek(0)
    for copied in (pytree.tree_unflatten(leaves, spec), copy.deepcopy(experts), torch.load(file, weights_only=True)):
        assert torch.equal(copied.dequantize(), experts.dequantize())
        assert (copied.bits, copied.group_size, copied.shape) == (4, 64, (24, 128))


def test_it_tells_its_shape() -> None:
    assert repr(PackedExperts.stack(weights())) == (
        "PackedExperts(3 of 24x128, bits=4, group_size=64, zeros='integer', bfloat16, cpu, 5184 bytes)"
    )


ORDER = torch.arange(128, dtype=torch.int32) // 64
REFUSED = [
    ([], "no kinds of weights"),
    (
        [*weights(1), *weights(1, symmetric=True)],
        "2 kinds of weights: 0: 24x128, .* zeros integer, .*; 1: .* zeros none",
    ),
    ([*weights(2), *weights(1, group_size=32)], "2 kinds of weights: 0: .* group_size 64, .*; 2: .* group_size 32"),
    ([torch.ones(24, 128)], "a Tensor among the weights, expected PackedWeights"),
    (weights(2, codebook="nf4"), "layout 'nf4', expected 'gptq'"),
    ([replace(weights(1)[0], g_idx=ORDER)], "layout 'gptq_act_order', expected 'gptq'"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_weights_that_make_no_stack_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"PackedExperts: .*{message}"):
        PackedExperts.stack(given)


def test_parts_that_do_not_fit_are_refused() -> None:
    experts = PackedExperts.stack(weights())
    with pytest.raises(InvalidArgumentError, match="scales has shape"):
        replace(experts, scales=experts.scales[:2])
    with pytest.raises(InvalidArgumentError, match="qweight is int32 of shape"):
        replace(experts, shape=(24, 136))
