"""attention_varlen: each sequence as torch computes it by itself, offsets, gradients, what is refused, and mutants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import pytest
import torch

import registry
from registry.contracts import ATTENTION_VARLEN as OP
from registry.contracts.attention.packed_lengths import PACKED_LENGTHS, packed_lengths, packed_pairs
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import InvalidArgumentError, OutOfRangeError
from registry.problem import Value
from registry.testing import check_implementation, check_op

from ...tiers import one_of_each
from ..accepting import accepted
from ..mutants import Mutant, put, tampered

Tensor = torch.Tensor
forward: Callable[..., Any] = OP.reference
sdpa: Callable[..., Tensor] = torch.nn.functional.scaled_dot_product_attention
LENGTHS = ([5, 1, 9], [5, 1, 9]), ([5, 1, 9], [7, 4, 9]), ([3, 0, 4], [6, 2, 0]), ([0, 0, 2], [0, 3, 2]), ([4], [6])


def offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def packed(
    rows: Sequence[int], keys: Sequence[int], heads: int = 4, kv_heads: int = 2, width: int = 8,
    dtype: torch.dtype = torch.float32, grad: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """q, k, v and both offsets of sequences of these lengths."""
    shapes = (sum(rows), heads), (sum(keys), kv_heads), (sum(keys), kv_heads)
    made = [torch.randn(*shape, width, dtype=dtype).requires_grad_(grad) for shape in shapes]
    return *made, offsets(rows), offsets(keys)


def by_torch(values: Sequence[Tensor], causal: bool, window: int = -1) -> Tensor:
    """torch's scaled_dot_product_attention of each sequence by itself, aligned to its last key."""
    q, k, v, *ends = values
    parts = [q[:0]]
    for place in range(ends[0].shape[0] - 1):
        rows, keys = (slice(int(each[place]), int(each[place + 1])) for each in ends)
        own, key = torch.arange(rows.stop - rows.start)[:, None], torch.arange(keys.stop - keys.start)
        after = key - own - (keys.stop - keys.start - (rows.stop - rows.start))
        seen = after <= (0 if causal else len(key) if window < 0 else window)
        seen &= (after >= -window) | (window < 0)
        heads = [x.transpose(0, 1)[None] for x in (q[rows], k[keys], v[keys])]
        found = sdpa(*heads, attn_mask=seen, enable_gqa=True)[0].transpose(0, 1)
        # a row that sees no key is NaN for some of torch's kernels
        parts.append(found.masked_fill(~seen.any(-1)[:, None, None], 0.0))
    return torch.cat(parts)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "keys"), LENGTHS, ids=str)
def test_values_and_gradients_are_those_of_torch_for_each_sequence(
    rows: list[int], keys: list[int], causal: bool, kv_heads: int
) -> None:
    values = packed(rows, keys, 4, kv_heads, dtype=torch.float64, grad=True)
    out, lse = registry.call(OP.name, *values, causal=causal)
    expected, seed = by_torch(values, causal), torch.randn_like(out)
    torch.testing.assert_close(out, expected)
    assert not lse.requires_grad
    found = torch.autograd.grad(out, values[:3], seed)
    for one, right in zip(found, torch.autograd.grad(expected, values[:3], seed), strict=True):
        torch.testing.assert_close(one, right)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 2, 50])
def test_a_window_is_that_of_each_sequence(window: int, causal: bool) -> None:
    values = packed([5, 1, 9], [7, 4, 6], dtype=torch.float64)
    out, _ = registry.call(OP.name, *values, causal=causal, window=window)
    torch.testing.assert_close(out, by_torch(values, causal, window))


@pytest.mark.parametrize("attributes", [{}, {"causal": True, "softcap": 3.0}, {"scale": 0.3, "window": 2}], ids=str)
def test_sequences_of_one_length_are_a_batch_of_attention(attributes: Mapping[str, Any]) -> None:
    values = packed([6] * 3, [9] * 3)
    right, rights = registry.call("attention", *(x.unflatten(0, (3, -1)) for x in values[:3]), **attributes)
    out, lse = registry.call(OP.name, *values, **attributes)
    torch.testing.assert_close(out, right.flatten(0, 1))
    torch.testing.assert_close(lse, rights.transpose(0, 1).flatten(1))


def test_tokens_that_see_no_key_are_0() -> None:
    values = packed([2, 3, 0], [0, 2, 4])
    out, lse = registry.call(OP.name, *values, causal=True)
    assert lse.shape == (4, 5)
    assert lse[0].isinf().tolist() == [True, True, True, False, False]
    assert not out[:3].any()
    out, lse = registry.call(OP.name, *packed([3], [0]))
    assert not out.any()
    assert lse.tolist() == [[-math.inf] * 3] * 4
    out, lse = registry.call(OP.name, *packed([0, 0], [3, 1]))
    assert (out.shape, lse.shape) == ((0, 4, 8), (4, 0))


def test_no_sequence_sees_another() -> None:
    q, k, v, *ends = packed([4, 5, 6], [4, 5, 6])
    out, lse = registry.call(OP.name, q, k, v, *ends)
    k[4:9], v[4:9] = math.nan, math.inf
    other, others = registry.call(OP.name, q, k, v, *ends)
    kept = torch.tensor([0, 1, 2, 3, *range(9, 15)])
    torch.testing.assert_close((other[kept], others[:, kept]), (out[kept], lse[:, kept]))


def test_parts_of_a_fused_projection_are_taken_without_a_copy() -> None:
    fused = torch.randn(15, (4 + 2 + 2) * 16)
    parts = [part.unflatten(-1, (-1, 16)) for part in fused.split([64, 32, 32], -1)]
    ends = offsets([5, 1, 9])
    out, lse = registry.call(OP.name, *parts, ends, ends, causal=True)
    assert out.is_contiguous()
    right = registry.call(OP.name, *(x.contiguous() for x in parts), ends, ends, causal=True)
    torch.testing.assert_close((out, lse), right)


@pytest.mark.parametrize("attributes", [{"causal": True}, {"window": 1, "softcap": 2.0}, {"scale": 0.7}], ids=str)
@pytest.mark.few(1)
def test_gradients_pass_gradcheck_in_float64(attributes: Mapping[str, Any]) -> None:
    *heads, first, second = packed([3, 0, 2], [4, 1, 2], 2, 1, 3, torch.float64, grad=True)

    def out(*tensors: Tensor) -> Tensor:
        found: Tensor = registry.call(OP.name, *tensors, first, second, **attributes)[0]
        return found

    assert torch.autograd.gradcheck(out, tuple(heads))


@pytest.mark.thorough
def test_a_program_of_torch_compile_has_its_values_and_gradients() -> None:
    values = packed([5, 1, 9], [5, 1, 9], grad=True)

    def step(*given: Tensor) -> Tensor:
        found: Tensor = registry.call(OP.name, *given, causal=True)[0]
        return found * 2.0

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*values).square().sum(), values[:3])
    right = torch.autograd.grad(step(*values).square().sum(), values[:3])
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other)


# tests/testing/test_op_check.py asks it of some examples of each op
@pytest.mark.thorough
def test_the_parts_of_the_contract_agree() -> None:
    assert check_op(OP).checked


@pytest.mark.thorough
def test_torchs_implementation_passes_the_public_check() -> None:
    implementation = Catalog().implementation(OP.name, "torch.native")
    assert check_implementation(implementation, OP, problems=OP.examples[:6], device="cpu").ok


def test_lengths_sum_to_the_tokens_and_pairs_are_counted() -> None:
    for lengths in PACKED_LENGTHS:
        for causal, span in ((False, False), (True, False), (True, 3), (False, 3)):
            dims: dict[str, Value] = {**DIMS, "lengths": lengths, "causal": causal, "span": span, "dtype": "float32"}
            problem = OP.named(dims)
            assert sum(packed_lengths(problem.total_q, problem)) == problem.total_q
            q, k, v, *rest = OP.draw(problem, "normal", torch.Generator().manual_seed(0))
            # every key that is seen adds one to the sum of exponentials of logits of 0
            _, lse = forward(torch.zeros_like(q), k, v, *rest)
            assert lse[0].exp().sum().round() == packed_pairs(problem)


# --- what is refused ---

Q, K, ENDS = torch.ones(5, 4, 8), torch.ones(6, 2, 8), (offsets([2, 3]), offsets([2, 4]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((Q[None], K, K, *ENDS), r"q has shape 1x5x4x8, expected \[tokens, heads, head_dim\]\n.*flatten\(0, 1\)"),
        ((Q.int(), K, K, *ENDS), "q is int32, expected float32"),
        ((Q, K.half(), K, *ENDS), "q is float32 but k is float16"),
        ((Q, K, K[:5], *ENDS), "k is 6x2x8 but v is 5x2x8"),
        ((Q[..., :7], K, K, *ENDS), r"q is 5x4x7 but k is 6x2x8\n.*total_k, kv_heads"),
        ((Q[:, :3], K, K, *ENDS), "q has 3 heads but k has 2\n.*divide"),
        ((Q, K, K, ENDS[0].long(), ENDS[1]), "cu_seqlens_q is int64, expected int32\n.*to\\(torch.int32\\)"),
        ((Q, K, K, ENDS[0], ENDS[1][None]), r"cu_seqlens_k has shape 1x3, expected \[sequences \+ 1\]\n.*cumsum"),
        ((Q, K, K, ENDS[0][:1], ENDS[1]), r"cu_seqlens_q has shape 1, expected \[sequences \+ 1\]"),
        ((Q, K, K, ENDS[0], ENDS[1][:2]), "cu_seqlens_q is of 2 sequences but cu_seqlens_k of 1\n.*perhaps 0"),
        ((Q, K, K, *ENDS, True, math.inf), "scale=inf\n.*None for"),
        ((Q, K, K, *ENDS, True, None, -1.0), "softcap=-1.0\n.*or 0 for"),
        ((Q, K, K, *ENDS, True, None, 0.0, -2), "window=-2\n.*or -1 for all"),
    ],
)
def test_what_does_not_fit_is_told(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^attention_varlen: {message}"):
        registry.call(OP.name, *values)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            [0, 2, 5],
            [1, 2, 6],
            r"cu_seqlens_k\[0\] is 1, expected 0 at first, .* at last 6, the tokens of k\n.*cumulated",
        ),
        ([0, 6, 5], [0, 2, 6], r"cu_seqlens_q\[2\] is 5, expected"),
        ([0, 2, 4], [0, 2, 6], r"cu_seqlens_q\[2\] is 4, expected .* at last 5"),
        ([-1, 2, 5], [0, 2, 6], r"cu_seqlens_q\[0\] is -1, expected"),
    ],
)
def test_wrong_offsets_are_told_where_data_are_checked(
    first: list[int], second: list[int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_CHECK", "1")
    dispatcher = Dispatcher(Catalog())
    dispatcher.call(OP.name, Q, K, K, *ENDS)
    wrong = [torch.tensor(each, dtype=torch.int32) for each in (first, second)]
    with pytest.raises(OutOfRangeError, match=message):
        dispatcher.call(OP.name, Q, K, K, *wrong)


@pytest.mark.parametrize("wrong", [[3, 1, 90], [-4, 2, 3], [2, 2, 2], [9, 9, 9]], ids=str)
def test_wrong_offsets_read_nothing_beside_the_tensors(wrong: list[int]) -> None:
    ends = torch.tensor(wrong, dtype=torch.int32)
    out, lse = registry.call(OP.name, Q, K, K, ends, ends)
    assert (out.shape, lse.shape) == ((5, 4, 8), (4, 5))
    assert [x.shape for x in forward(Q, K, K, ends, ends)] == [out.shape, lse.shape]


def test_heads_that_do_not_divide_and_spans_of_0_are_refused_in_a_shapes_file() -> None:
    dims = next(each for each in OP.examples if each["heads"] == 4)
    with pytest.raises(InvalidArgumentError, match="heads=4 but kv_heads=3"):
        OP.named({**dims, "kv_heads": 3})
    with pytest.raises(InvalidArgumentError, match="span must be a positive integer"):
        OP.named({**dims, "span": 0})


# --- what the tolerances refuse ---

DIMS: dict[str, Value] = {
    "sequences": 5, "heads": 4, "kv_heads": 2, "total_q": 60, "total_k": 400, "head_dim": 32, "lengths": "skewed",
    "causal": True, "softcap": False, "span": False,
}  # fmt: skip


def _one_more(named: dict[str, Any]) -> None:
    named["window"] = named["window"] + 1


def _moved(name: str) -> Callable[[dict[str, Any]], None]:
    """Each sequence but the first begins a token late, and the one before it has that token."""

    def change(named: dict[str, Any]) -> None:
        ends = named[name].clone()
        ends[1:-1] = (ends[1:-1] + 1).clamp_max(int(ends[-1]))
        named[name] = ends

    return change


def _one_sequence(named: dict[str, Any]) -> None:
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        named[name] = named[name][[0, -1]]


def _grouped_otherwise(named: dict[str, Any]) -> None:
    """Heads of queries and of keys in turn, where neighbours share."""
    for name in ("k", "v"):
        named[name] = named[name].repeat(1, named["q"].shape[1] // named[name].shape[1], 1)


def _lse_by_token(*values: Any) -> tuple[Tensor, ...]:
    out, lse = forward(*values)
    return out, lse.T.reshape(lse.shape)


MUTANTS: Mapping[str, tuple[Mutant, Mapping[str, Value]]] = {
    "not causal": (tampered(OP, put(causal=False)), {}),
    "causal": (tampered(OP, put(causal=True)), {"causal": False}),
    "no window": (tampered(OP, put(window=-1)), {"span": 12}),
    "one key too many": (tampered(OP, _one_more), {"span": 12}),
    "one key too many on both sides": (tampered(OP, _one_more), {"span": 12, "causal": False}),
    "no cap": (tampered(OP, put(softcap=0.0)), {"softcap": True}),
    "no scale but the usual": (tampered(OP, put(scale=None)), {}),
    "one sequence": (tampered(OP, _one_sequence), {}),
    "a query of the next sequence": (tampered(OP, _moved("cu_seqlens_q")), {}),
    "a key of the next sequence": (tampered(OP, _moved("cu_seqlens_k")), {"causal": False}),
    "heads grouped otherwise": (tampered(OP, _grouped_otherwise), {}),
    "lse by token": (_lse_by_token, {}),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    one_of_each([(name, dtype) for name in MUTANTS for dtype in ("float32", "bfloat16")], lambda name, _: name),
)
@pytest.mark.few(4)
def test_the_tolerances_refuse_mutants(name: str, dtype: str) -> None:
    mutant, more = MUTANTS[name]
    assert not accepted(OP, {**DIMS, **more, "dtype": dtype}, mutant)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.few(1)
def test_the_tolerances_accept_the_reference(dtype: str) -> None:
    assert accepted(OP, {**DIMS, "dtype": dtype}, forward)
