"""attention: torch's values and gradients, what a query sees, and what is refused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import registry
from registry.contracts import ATTENTION, ATTENTION_BACKWARD
from registry.contracts.attention.logits import ScoredCall, seen_pairs
from registry.errors import InvalidArgumentError, UnsupportedError
from registry.problem import Value
from registry.testing import check_op

Tensor = torch.Tensor


forward: Callable[..., Any] = ATTENTION.reference
backward: Callable[..., Any] = ATTENTION_BACKWARD.reference
sdpa: Callable[..., Tensor] = torch.nn.functional.scaled_dot_product_attention
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["torch.native", "torch.flash_cpu"])


def heads(*shape: int, grad: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


@IMPLEMENTATIONS
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_values_and_gradients_are_those_of_torch(kv_heads: int, causal: bool, implementation: str) -> None:
    q, k, v = heads(2, 9, 4, 16, grad=True), *(heads(2, 9, kv_heads, 16, grad=True) for _ in range(2))
    expected = sdpa(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal, enable_gqa=True).transpose(1, 2)
    seed = torch.randn_like(q)
    with registry.using(attention=implementation, attention_backward=implementation):
        out, lse = registry.call("attention", q, k, v, causal=causal)
        found = torch.autograd.grad(out, (q, k, v), seed)
    assert not lse.requires_grad
    torch.testing.assert_close(out, expected)
    for one, right in zip(found, torch.autograd.grad(expected, (q, k, v), seed), strict=True):
        torch.testing.assert_close(one, right)
    logits = q.transpose(1, 2) @ k.repeat_interleave(4 // kv_heads, 2).permute(0, 2, 3, 1) / 4.0
    if causal:
        logits = logits.masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), -math.inf)
    torch.testing.assert_close(lse, logits.logsumexp(-1))


@IMPLEMENTATIONS
@pytest.mark.parametrize("outer", [(1, 1), (2, 1), (1, 4), (2, 4)], ids=str)
def test_masks_are_those_of_torch(outer: tuple[int, int], implementation: str) -> None:
    q, k, v = heads(2, 5, 4, 16), heads(2, 9, 4, 16), heads(2, 9, 4, 16)
    seen = torch.rand(*outer, 5, 9) < 0.6
    seen[..., 0] = True
    for mask in (seen, torch.randn(seen.shape).masked_fill(~seen, -math.inf), seen[:, :, :1].expand(-1, -1, 5, -1)):
        with registry.using(attention=implementation):
            out, _ = registry.call("attention", q, k, v, mask, scale=0.3)
        expected = sdpa(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask, scale=0.3)
        torch.testing.assert_close(out, expected.transpose(1, 2))


def test_parts_of_a_fused_projection_and_heads_before_rows_are_taken_without_a_copy() -> None:
    fused = torch.randn(2, 9, (4 + 2 + 2) * 16)
    q, k, v = (part.unflatten(-1, (-1, 16)) for part in fused.split([64, 32, 32], -1))
    before = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    for implementation in ("torch.native", "torch.flash_cpu"):
        with registry.using(attention=implementation):
            right = registry.call("attention", q.contiguous(), k.contiguous(), v.contiguous(), causal=True)
            for given in ((q, k, v), before):
                out, lse = registry.call("attention", *given, causal=True)
                assert out.is_contiguous()
                assert lse.is_contiguous()
                torch.testing.assert_close((out, lse), right)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "keys"), [(5, 5), (3, 9), (9, 3)])
def test_what_a_query_sees_by_its_place(rows: int, keys: int, causal: bool) -> None:
    q, k = heads(1, rows, 1, 8), heads(1, keys, 1, 8)
    # values that tell the keys apart: 1 where a key is seen
    v = torch.eye(keys, 8)[None, :, None] if keys <= 8 else torch.eye(9)[None, :, None, :8]
    for window in (-1, 0, 1, 2, 20):
        out, _ = forward(q, k, v, None, causal, None, 0.0, window)
        for row, key in itertools.product(range(rows), range(min(keys, 8))):
            after = key - (row + keys - rows)
            seen = (after <= 0 or not causal) and (window < 0 or abs(after) <= window)
            assert (out[0, row, 0, key] > 0).item() == seen, (row, key, window)
        dims: dict[str, Value] = {"q_len": rows, "kv_len": keys, "causal": causal, "mask": "none", "softcap": False}
        span = False if window < 0 else window + 1
        more: dict[str, Value] = {"batch": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "dtype": "float32"}
        problem = ATTENTION.named({**dims, **more, "span": span})
        logits = ScoredCall.of((q, k, v), None, causal, None, 0.0, window).scored(slice(0, rows)).logits
        assert seen_pairs(problem) == (logits > -math.inf).sum()


@IMPLEMENTATIONS
def test_a_row_that_sees_no_key_is_0_and_adds_nothing(implementation: str) -> None:
    q, k, v = heads(1, 4, 2, 8, grad=True), heads(1, 6, 2, 8, grad=True), heads(1, 6, 2, 8, grad=True)
    seen = torch.ones(1, 1, 4, 6, dtype=torch.bool)
    seen[:, :, 1] = False
    with registry.using(attention=implementation, attention_backward=implementation):
        out, lse = registry.call("attention", q, k, v, seen)
        found = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    kept = torch.tensor([0, 2, 3])
    right, _ = forward(q[:, kept], k, v, seen[:, :, kept])
    assert not out[:, 1].any()
    assert lse[0, :, 1].tolist() == [-math.inf] * 2
    assert not found[0][:, 1].any()
    expected = torch.autograd.grad(right, (q, k, v), torch.ones_like(right))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_the_first_rows_of_more_queries_than_keys_see_none() -> None:
    out, lse = registry.call("attention", heads(1, 5, 1, 8), heads(1, 2, 1, 8), heads(1, 2, 1, 8), causal=True)
    assert lse[0, 0].isinf().tolist() == [True] * 3 + [False] * 2
    assert not out[:, :3].any()


def test_without_keys_or_queries_there_is_nothing_to_see() -> None:
    out, lse = registry.call("attention", heads(2, 3, 2, 8), heads(2, 0, 2, 8), heads(2, 0, 2, 8))
    assert not out.any()
    assert lse.tolist() == [[[-math.inf] * 3] * 2] * 2
    out, lse = registry.call("attention", heads(2, 0, 2, 8), heads(2, 3, 2, 8), heads(2, 3, 2, 8))
    assert (out.shape, lse.shape) == ((2, 0, 2, 8), (2, 2, 0))


def test_a_soft_cap_is_gemmas() -> None:
    q, k, v = (4.0 * heads(1, 7, 2, 16) for _ in range(3))
    logits = torch.einsum("bqhd,bkhd->bhqk", q, k) / 4.0
    capped = 5.0 * torch.tanh(logits / 5.0)
    out, lse = registry.call("attention", q, k, v, softcap=5.0)
    torch.testing.assert_close(out, torch.einsum("bhqk,bkhd->bqhd", capped.softmax(-1), v))
    torch.testing.assert_close(lse, capped.logsumexp(-1))


@pytest.mark.parametrize(
    ("rows", "keys", "attributes"),
    [
        (4, 4, {"causal": True}),
        (3, 5, {"causal": True, "softcap": 2.0, "window": 1}),
        (5, 3, {"scale": 0.7, "window": 1}),
        (5, 3, {"causal": True, "mask": True}),
    ],
)
@pytest.mark.few(1)
def test_gradients_pass_gradcheck_in_float64(rows: int, keys: int, attributes: Mapping[str, Any]) -> None:
    q = heads(2, rows, 4, 3, grad=True, dtype=torch.float64)
    k, v = (heads(2, keys, 2, 3, grad=True, dtype=torch.float64) for _ in range(2))
    given = dict(attributes)
    mask = torch.randn(2, 1, rows, keys, dtype=torch.float64) if given.pop("mask", False) else None

    def out(*tensors: Tensor) -> Tensor:
        found: Tensor = registry.call("attention", *tensors, mask, **given)[0]
        return found

    assert torch.autograd.gradcheck(out, (q, k, v))


@IMPLEMENTATIONS
def test_a_gradient_that_is_not_needed_is_empty(implementation: str) -> None:
    plain = {"causal": False, "mask": "none", "softcap": False, "span": False, "dtype": "float16"}
    problem = ATTENTION_BACKWARD.problem_of({**ATTENTION_BACKWARD.examples[1], **plain})
    values = ATTENTION_BACKWARD.draw(problem, "normal", torch.Generator().manual_seed(0))
    whole = backward(*values)
    for needs in itertools.product((False, True), repeat=3):
        with registry.using(attention_backward=implementation):
            found = registry.call("attention_backward", *values[:-3], *needs)
        for one, right, needed in zip(found, whole, needs, strict=True):
            assert one.shape == (right.shape if needed else (0,))
            if needed:
                torch.testing.assert_close(one, right, rtol=1e-2, atol=1e-2)


def test_a_mask_has_no_gradient() -> None:
    mask = torch.zeros(1, 1, 3, 3, requires_grad=True)
    with pytest.raises(UnsupportedError, match=r"mask needs a gradient.*\n.*mask\.detach"):
        registry.call("attention", *(heads(1, 3, 1, 8) for _ in range(3)), mask)


# tests/testing/test_op_check.py asks it of some examples of each op
@pytest.mark.thorough
def test_the_parts_of_the_contracts_agree() -> None:
    for op in (ATTENTION, ATTENTION_BACKWARD):
        assert check_op(op).checked


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_that_no_sequence_exceeds_is_none(causal: bool) -> None:
    q, k = torch.randn(1, 5, 2, 8), torch.randn(1, 9, 2, 8)
    whole = registry.call("attention", q, k, k, causal=causal)
    for window in (2**30 - 2, 2**30 - 1, 2**30, 2**31 - 50, 2**31 - 1, 2**40):
        posed = ATTENTION.pose(ATTENTION.arguments(ATTENTION.bind((q, k, k), {"causal": causal, "window": window})))
        assert posed.span == (window + 1 if window < 2**30 else False)
        for one, other in zip(registry.call("attention", q, k, k, causal=causal, window=window), whole, strict=True):
            torch.testing.assert_close(one, other)
    dims = {**ATTENTION.examples[0], "dtype": "float32"}
    with pytest.raises(InvalidArgumentError, match=r"span=1073741825\n.*at most 1073741824 keys"):
        ATTENTION.named({**dims, "span": 2**30 + 1})


# --- what is refused ---

Q, K = torch.ones(2, 5, 4, 8), torch.ones(2, 6, 2, 8)
MASK = torch.ones(2, 1, 5, 6, dtype=torch.bool)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((Q[0], K, K), r"q has shape 5x4x8, expected \[batch, length, heads, head_dim\]\n.*transpose"),
        ((Q.int(), K, K), "q is int32, expected float32"),
        ((Q, K.half(), K), "q is float32 but k is float16"),
        ((Q, K, K[:, :5]), "k is 2x6x2x8 but v is 2x5x2x8"),
        ((Q[:1], K, K), r"q is 1x5x4x8 but k is 2x6x2x8\n.*kv_heads"),
        ((Q[..., :7], K, K), "q is 2x5x4x7 but k is 2x6x2x8"),
        ((Q[:, :, :3], K, K), "q has 3 heads but k has 2\n.*divide"),
        ((Q, K, K, MASK[:, 0]), r"mask has shape 2x5x6, expected \[2 or 1, 4 or 1, 5, 6\]\n.*mask\[None, None\]"),
        ((Q, K, K, MASK[:, :, :1]), r"mask has shape 2x1x1x6, expected .*\n.*mask.expand\(-1, -1, q_len, -1\)"),
        ((Q, K, K, MASK.expand(2, 3, 5, 6)), "mask has shape 2x3x5x6, expected"),
        ((Q, K, K, MASK.half()), r"mask is float16, expected bool .* or float32\n.*mask.to\(q.dtype\)"),
        ((Q, K, K, None, True, math.inf), "scale=inf\n.*None for"),
        ((Q, K, K, None, True, None, -1.0), "softcap=-1.0\n.*or 0 for"),
        ((Q, K, K, None, True, None, 1e-41), "softcap=1e-41\n.*at least 1e-30"),
        ((Q, K, K, None, True, None, math.nan), "softcap=nan"),
        ((Q, K, K, None, True, None, 0.0, -2), "window=-2\n.*or -1 for all"),
    ],
)
def test_what_does_not_fit_is_told(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^attention: {message}"):
        registry.call("attention", *values)


LSE = torch.ones(2, 4, 5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((Q[:, :1], Q, K, K, None, Q, LSE), "grad_out is 2x1x4x8 but q is 2x5x4x8\n.*expand_as"),
        ((Q, Q, K, K, None, Q[..., :4], LSE), "out is 2x5x4x4 but q is 2x5x4x8"),
        ((Q.half(), Q, K, K, None, Q, LSE), "q is float32 but grad_out is float16"),
        ((Q, Q, K, K, None, Q, LSE.mT), "lse is float32 of shape 2x5x4, expected float32 of shape 2x4x5\n.*second"),
        ((Q, Q, K, K, None, Q, LSE.half()), "lse is float16 of shape 2x4x5, expected float32"),
    ],
)
def test_a_gradient_that_does_not_fit_is_told(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^attention_backward: {message}"):
        registry.call("attention_backward", *values)


def test_heads_that_do_not_divide_and_spans_of_0_are_refused_in_a_shapes_file() -> None:
    dims = next(each for each in ATTENTION.examples if each["heads"] == 4)
    with pytest.raises(InvalidArgumentError, match="heads=4 but kv_heads=3"):
        ATTENTION.named({**dims, "kv_heads": 3})
    with pytest.raises(InvalidArgumentError, match="span must be a positive integer"):
        ATTENTION.named({**dims, "span": 0})
