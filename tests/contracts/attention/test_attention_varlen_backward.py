"""attention_varlen_backward: gradients of each sequence by itself, those left out, what is refused, and mutants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import registry
from registry.contracts import ATTENTION_VARLEN
from registry.contracts import ATTENTION_VARLEN_BACKWARD as OP
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import InvalidArgumentError, OutOfRangeError
from registry.problem import Value
from registry.testing import check_implementation, check_op

from ...tiers import one_of_each
from ..accepting import accepted
from ..mutants import Mutant, put, tampered
from .test_attention_varlen import LENGTHS, by_torch, offsets, packed

Tensor = torch.Tensor


def saved(rows: list[int], keys: list[int], causal: bool) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """q, k, v and both offsets in float64, and what a gradient needs: grad_out, these, out and lse."""
    values = packed(rows, keys, 4, 2, dtype=torch.float64, grad=True)
    out, lse = (x.detach() for x in ATTENTION_VARLEN.reference(*values, causal))
    return values, (torch.randn_like(out), *(x.detach() for x in values), out, lse)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "keys"), LENGTHS, ids=str)
def test_gradients_are_those_of_torch_for_each_sequence(rows: list[int], keys: list[int], causal: bool) -> None:
    values, given = saved(rows, keys, causal)
    right = torch.autograd.grad(by_torch(values, causal), values[:3], given[0])
    for one, expected in zip(OP.reference(*given, causal), right, strict=True):
        torch.testing.assert_close(one, expected)
    with registry.using(**{OP.name: "torch.native"}):
        for one, expected in zip(registry.call(OP.name, *given, causal=causal), right, strict=True):
            torch.testing.assert_close(one, expected)


@pytest.mark.parametrize(
    "needs", [(True, False, False), (False, True, False), (False, False, True), (False,) * 3], ids=str
)
def test_a_gradient_that_is_not_needed_is_an_empty_tensor(needs: tuple[bool, ...]) -> None:
    _, given = saved([3, 0, 4], [6, 2, 1], True)
    whole = registry.call(OP.name, *given, causal=True)
    masks = dict(zip(("need_q", "need_k", "need_v"), needs, strict=True))
    for one, all_of_it, needed in zip(registry.call(OP.name, *given, causal=True, **masks), whole, needs, strict=True):
        assert torch.equal(one, all_of_it if needed else all_of_it.new_empty(0))


def test_only_what_training_asks_for_is_computed() -> None:
    values = packed([3, 4], [6, 1], dtype=torch.float64)
    v = values[2].requires_grad_()
    out, _ = registry.call(ATTENTION_VARLEN.name, *values[:2], v, *values[3:], causal=True)
    (found,) = torch.autograd.grad(out.sum(), v)
    (right,) = torch.autograd.grad(by_torch((*values[:2], v, *values[3:]), True).sum(), v)
    torch.testing.assert_close(found, right)


def test_keys_without_queries_and_queries_without_keys_have_the_gradient_0() -> None:
    _, given = saved([2, 0, 3], [4, 5, 0], False)
    grad_q, grad_k, grad_v = registry.call(OP.name, *given)
    assert grad_q[2:].eq(0).all()
    assert grad_k[4:].eq(0).all()
    assert grad_v[4:].eq(0).all()
    assert grad_q[:2].ne(0).any()


# tests/testing/test_op_check.py asks it of some examples of each op
@pytest.mark.thorough
def test_the_parts_of_the_contract_agree() -> None:
    assert check_op(OP).checked


@pytest.mark.thorough
def test_torchs_implementation_passes_the_public_check() -> None:
    implementation = Catalog().implementation(OP.name, "torch.native")
    assert check_implementation(implementation, OP, problems=OP.examples[:6], device="cpu").ok


# --- what is refused ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grad_out": torch.ones(7, 4, 9)}, "grad_out is 7x4x9 but q is 7x4x8\n.*expand_as"),
        ({"out": torch.ones(7, 4, 8)}, "q is float64 but out is float32"),
        (
            {"lse": torch.ones(7, 4).double()},
            "lse is float64 of shape 7x4, expected float64 of shape 4x7\n.*attention_varlen$",
        ),
        ({"lse": torch.ones(4, 7)}, "lse is float32 of shape 4x7, expected float64"),
        ({"cu_seqlens_q": torch.tensor([0, 3, 7])}, "cu_seqlens_q is int64, expected int32"),
    ],
)
def test_what_does_not_fit_is_told(change: Mapping[str, Tensor], message: str) -> None:
    _, given = saved([3, 4], [6, 2], False)
    named = dict(zip(OP.parsed.names, given, strict=False)) | change
    with pytest.raises(InvalidArgumentError, match=f"^attention_varlen_backward: {message}"):
        registry.call(OP.name, *named.values())


def test_wrong_offsets_are_told_where_data_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_CHECK", "1")
    _, given = saved([3, 4], [6, 2], False)
    with pytest.raises(OutOfRangeError, match=r"attention_varlen_backward: cu_seqlens_k\[2\] is 7, expected .* 8"):
        Dispatcher(Catalog()).call(OP.name, *given[:5], offsets([6, 1]), *given[6:])


@pytest.mark.parametrize("wrong", [[3, 1, 90], [-4, 2, 3], [2, 2, 2], [9, 9, 9]], ids=str)
def test_wrong_offsets_read_nothing_beside_the_tensors(wrong: list[int]) -> None:
    _, given = saved([3, 4], [6, 2], False)
    ends = torch.tensor(wrong, dtype=torch.int32)
    found = registry.call(OP.name, *given[:4], ends, ends, *given[6:])
    assert [x.shape for x in found] == [x.shape for x in given[1:4]]


# --- what the tolerances refuse ---

DIMS: dict[str, Value] = {
    "sequences": 5, "heads": 4, "kv_heads": 2, "total_q": 60, "total_k": 400, "head_dim": 32, "lengths": "skewed",
    "causal": True, "softcap": False, "span": False,
}  # fmt: skip


def _one_more(named: dict[str, Any]) -> None:
    named["window"] = named["window"] + 1


def _one_sequence(named: dict[str, Any]) -> None:
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        named[name] = named[name][[0, -1]]


def _key_of_the_next(named: dict[str, Any]) -> None:
    ends = named["cu_seqlens_k"].clone()
    ends[1:-1] = (ends[1:-1] + 1).clamp_max(int(ends[-1]))
    named["cu_seqlens_k"] = ends


def _no_delta(named: dict[str, Any]) -> None:
    named["out"] = torch.zeros_like(named["out"])


def _one_head_of_a_group(*values: Any) -> tuple[Tensor, ...]:
    grad_q, grad_k, grad_v = OP.reference(*values)
    return grad_q, grad_k / 2.0, grad_v


MUTANTS: Mapping[str, tuple[Mutant, Mapping[str, Value]]] = {
    "not causal": (tampered(OP, put(causal=False)), {}),
    "no window": (tampered(OP, put(window=-1)), {"span": 12}),
    "one key too many": (tampered(OP, _one_more), {"span": 12}),
    "no cap": (tampered(OP, put(softcap=0.0)), {"softcap": True}),
    "no scale but the usual": (tampered(OP, put(scale=None)), {}),
    "one sequence": (tampered(OP, _one_sequence), {}),
    "a key of the next sequence": (tampered(OP, _key_of_the_next), {"causal": False}),
    "no delta": (tampered(OP, _no_delta), {}),
    "one head of a group alone": (_one_head_of_a_group, {}),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    one_of_each(
        [pytest.param(name, dtype, id=f"{name}-{dtype}") for name in MUTANTS for dtype in ("float32", "bfloat16")],
        lambda name, _: name,
    ),
)
@pytest.mark.few(4)
def test_the_tolerances_refuse_mutants(name: str, dtype: str) -> None:
    mutant, more = MUTANTS[name]
    dims = {**DIMS, **more, "dtype": dtype}
    assert accepted(OP, dims, OP.reference)
    assert not accepted(OP, dims, mutant)
