"""The Triton kernels of attention in Triton's interpreter: layouts, masks, and gradients that nobody needs.

test_triton_numerics.py starts these tests in its process, in which Triton interprets.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from registry.backends.triton import INTERPRETED
from registry.contract import as_tuple
from registry.contracts import ATTENTION, ATTENTION_BACKWARD, ATTENTION_VARLEN, ATTENTION_VARLEN_BACKWARD
from registry.correctness import numerics
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, build

from ..triton_forms import FORMS
from .test_attention import SMALL

CPU = Device.of("cpu")
pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*"),
]


def run(op: Any, values: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """The results of the Triton form on values of any layout."""
    implementation, arguments = FORMS[op.name][0], op.arguments(values)
    problem = op.pose(arguments)
    assert not list(implementation.unsupported(problem, CPU))
    plan = build(op, Candidate(implementation, implementation.default(problem, CPU)), problem, arguments, CPU)
    return as_tuple(plan(*values))


def test_numerics_of_parts_of_a_projection_and_of_heads_before_rows() -> None:
    fused = torch.randn(2, 19, (4 + 2 + 2) * 16).half()
    parts = [part.unflatten(-1, (-1, 16)) for part in fused.split([64, 32, 32], -1)]
    before = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in parts]
    for given in (parts, before):
        values = ATTENTION.bind(tuple(given), {"causal": True})
        out, lse = run(ATTENTION, values)
        right = numerics.reference64(ATTENTION, values)
        torch.testing.assert_close(out.double(), right[0], rtol=4e-3, atol=4e-3)
        torch.testing.assert_close(lse.double(), right[1], rtol=1e-5, atol=1e-5)
        rest = (torch.randn(2, 4, 19, 16).half().transpose(1, 2), *given, None, out, lse, True)
        values = ATTENTION_BACKWARD.bind(rest, {})
        exact = numerics.reference64(ATTENTION_BACKWARD, values)
        for one, other in zip(run(ATTENTION_BACKWARD, values), exact, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("outer", [(1, 1), (2, 1), (1, 4), (2, 4)], ids=str)
@pytest.mark.few(2)
def test_numerics_of_masks_of_all_batches_and_of_all_heads(outer: tuple[int, int]) -> None:
    q, k, v = torch.randn(2, 5, 4, 16), torch.randn(2, 40, 2, 16), torch.randn(2, 40, 2, 16)
    seen = torch.rand(*outer, 5, 40) < 0.5
    bias = torch.randn(seen.shape).masked_fill(~seen, -torch.inf)
    for mask in (seen, bias, seen[:, :, :1].expand(-1, -1, 5, -1)):
        values = ATTENTION.bind((q, k, v, mask), {})
        for one, right in zip(run(ATTENTION, values), numerics.reference64(ATTENTION, values), strict=True):
            torch.testing.assert_close(one.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("needs", list(itertools.product((False, True), repeat=3)), ids=str)
@pytest.mark.few(3)
def test_numerics_of_gradients_some_of_which_nobody_needs(needs: tuple[bool, bool, bool]) -> None:
    drawn = ATTENTION_BACKWARD.draw(
        ATTENTION_BACKWARD.problem_of({**SMALL, "head_dim": 16, "kv_heads": 2, "dtype": "float32"}),
        "normal",
        torch.Generator().manual_seed(0),
    )
    whole = ATTENTION_BACKWARD.reference(*drawn)
    found = run(ATTENTION_BACKWARD, (*drawn[:-3], *needs))
    for one, right, needed in zip(found, as_tuple(whole), needs, strict=True):
        assert one.shape == (right.shape if needed else (0,))
        if needed:
            torch.testing.assert_close(one, right)


@pytest.mark.parametrize("causal", [False, True])
def test_numerics_of_packed_parts_of_a_projection(causal: bool) -> None:
    parts = [part.unflatten(-1, (-1, 16)) for part in torch.randn(60, 8 * 16).half().split([64, 32, 32], -1)]
    # the second and the last have no token, the third has one; tiles of 16 queries begin within sequences
    ends = torch.tensor([0, 35, 35, 36, 60, 60], dtype=torch.int32)
    values = ATTENTION_VARLEN.bind((*parts, ends, ends, causal), {})
    out, lse = run(ATTENTION_VARLEN, values)
    for one, right in zip((out, lse), numerics.reference64(ATTENTION_VARLEN, values), strict=True):
        torch.testing.assert_close(one.double(), right, rtol=4e-3, atol=4e-3)
    heads_first = torch.randn(4, 60, 16).half().transpose(0, 1)
    values = ATTENTION_VARLEN_BACKWARD.bind((heads_first, *parts, ends, ends, out, lse, causal), {})
    exact = numerics.reference64(ATTENTION_VARLEN_BACKWARD, values)
    for one, right in zip(run(ATTENTION_VARLEN_BACKWARD, values), exact, strict=True):
        torch.testing.assert_close(one.double(), right, rtol=1e-2, atol=1e-2)


def test_numerics_of_more_sequences_than_tokens() -> None:
    q, k = torch.randn(3, 2, 16), torch.randn(5, 1, 16)
    ends = [torch.tensor(each, dtype=torch.int32) for each in ([0] * 9 + [2] * 9 + [3], [0] * 12 + [4] * 6 + [5])]
    heads = q, k, torch.randn_like(k)
    values = ATTENTION_VARLEN.bind((*heads, *ends), {})
    found = run(ATTENTION_VARLEN, values)
    for one, right in zip(found, numerics.reference64(ATTENTION_VARLEN, values), strict=True):
        torch.testing.assert_close(one.double(), right, rtol=1e-5, atol=1e-5)
    values = ATTENTION_VARLEN_BACKWARD.bind((torch.randn_like(q), *heads, *ends, *found), {})
    exact = numerics.reference64(ATTENTION_VARLEN_BACKWARD, values)
    for one, right in zip(run(ATTENTION_VARLEN_BACKWARD, values), exact, strict=True):
        torch.testing.assert_close(one.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wrong", [[3, 1, 90], [-4, 2, 3], [2, 2, 2], [9, 9, 9]], ids=str)
def test_numerics_of_wrong_offsets_stay_within_the_tensors(wrong: list[int]) -> None:
    """All tensors are parts of larger ones: of the rows beside them none is written, and no NaN of theirs is read."""
    ends = torch.tensor(wrong, dtype=torch.int32)
    around = torch.full((21, 2, 16), torch.nan)
    around[8:13] = 1.0
    one = around[8:13]
    out, lse = run(ATTENTION_VARLEN, ATTENTION_VARLEN.bind((one, one, one, ends, ends), {}))
    begin, end = min(max(wrong[1], 0), 5), min(max(wrong[2], wrong[1], 0), 5)
    torch.testing.assert_close(out[begin:end], torch.ones(end - begin, 2, 16))
    given = ATTENTION_VARLEN_BACKWARD.bind((one, one, one, one, ends, ends, one, lse), {})
    for gradient in run(ATTENTION_VARLEN_BACKWARD, given):
        # each weight is the same, and no logit matters
        assert gradient[begin:end].isfinite().all()
    assert around[:8].isnan().all()
    assert around[13:].isnan().all()


@pytest.mark.parametrize("needs", list(itertools.product((False, True), repeat=3)), ids=str)
@pytest.mark.few(3)
def test_numerics_of_packed_gradients_some_of_which_nobody_needs(needs: tuple[bool, bool, bool]) -> None:
    op = ATTENTION_VARLEN_BACKWARD
    drawn = op.draw(op.problem_of({**op.examples[1], "dtype": "float32"}), "normal", torch.Generator().manual_seed(0))
    found = run(op, (*drawn[:-3], *needs))
    for one, right, needed in zip(found, as_tuple(op.reference(*drawn)), needs, strict=True):
        assert one.shape == (right.shape if needed else (0,))
        if needed:
            torch.testing.assert_close(one, right)
