"""cuda.wgmma's gradients: their kernels' very texts on a CPU, copies and products as early, and as late, as can be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.contracts import ATTENTION, ATTENTION_BACKWARD, ATTENTION_VARLEN, ATTENTION_VARLEN_BACKWARD
from registry.correctness import numerics
from registry.problem import Problem, Value

from .attention_on_cpu import Attend, Change, Late
from .gradients_on_cpu import CONTRACTS, built, config_of

SMALL: Mapping[str, Value] = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 150, "kv_len": 150, "head_dim": 64, "causal": True, "mask": "none",
    "softcap": False, "span": False, "dtype": "bfloat16",
}  # fmt: skip
FORMS: list[tuple[Mapping[str, Value], Mapping[str, Value]]] = [
    ({}, {}),
    ({"causal": False, "q_len": 100, "kv_len": 333, "batch": 1, "dtype": "float16"}, {"queries": 112, "keys": 144}),
    ({"kv_heads": 1, "head_dim": 128}, {"query_warpgroups": 3}),
    ({"q_len": 70, "kv_len": 400, "kv_heads": 4}, {"key_warpgroups": 3, "query_warpgroups": 1}),
    ({"q_len": 300, "kv_len": 90}, {"key_warpgroups": 1}),
    ({"span": 50, "head_dim": 96, "q_len": 230, "kv_len": 230}, {"queries": 32}),
    ({"span": 70, "causal": False, "kv_len": 260}, {"key_warpgroups": 3, "query_warpgroups": 3}),
    ({"span": 40, "q_len": 90, "kv_len": 300, "dtype": "float16"}, {}),
    ({"q_len": 1, "kv_len": 65, "head_dim": 24}, {"key_warpgroups": 1, "query_warpgroups": 1}),
    ({"q_len": 130, "kv_len": 130, "head_dim": 8}, {}),
    ({"q_len": 300, "kv_len": 300, "head_dim": 128, "batch": 1}, {"queries": 64, "keys": 96}),
    ({"softcap": True, "span": 64}, {}),
    ({"softcap": True, "causal": False, "kv_len": 77, "dtype": "float16", "head_dim": 128, "batch": 1}, {"query_warpgroups": 3}),
]
PACKED: Mapping[str, Value] = {
    "sequences": 5, "heads": 4, "kv_heads": 2, "total_q": 350, "total_k": 350, "head_dim": 64, "causal": True,
    "softcap": False, "span": False, "lengths": "skewed", "dtype": "bfloat16",
}  # fmt: skip
PACKED_FORMS: list[tuple[Mapping[str, Value], Mapping[str, Value]]] = [
    ({}, {}),
    ({"total_q": 200, "total_k": 500, "lengths": "uniform"}, {"key_warpgroups": 3, "query_warpgroups": 1}),
    ({"causal": False, "total_q": 150, "total_k": 233, "dtype": "float16"}, {"queries": 112, "keys": 112}),
    ({"kv_heads": 1, "head_dim": 128, "sequences": 3}, {"query_warpgroups": 3}),
    ({"span": 40, "softcap": True}, {}),
    ({"span": 30, "causal": False, "sequences": 2}, {"key_warpgroups": 1}),
    ({"sequences": 40, "total_q": 200, "total_k": 260, "head_dim": 24}, {"key_warpgroups": 1, "query_warpgroups": 1}),
    ({"head_dim": 128, "sequences": 2, "total_q": 100, "total_k": 150, "dtype": "float16"}, {"queries": 64}),
    ({"sequences": 1, "total_q": 1, "total_k": 65}, {}),
]


def check(problem: Problem, wanted: Mapping[str, Value], folder: Path, kinds: tuple[str, ...]) -> None:
    """The gradients of inputs of some kinds, with copies and products early and late."""
    contract, differentiate = CONTRACTS[problem.op], built(problem, config_of(problem, wanted), folder)
    for kind in kinds:
        values = contract.draw(problem, kind, torch.Generator().manual_seed(1))
        for late in Late:
            verdict = numerics.judged(contract, problem, differentiate(*values, late=late), values)
            assert verdict.ok, f"{kind}, late: {late.name}: {verdict.message}"


@pytest.mark.parametrize(("more", "wanted"), FORMS, ids=str)
@pytest.mark.few(1)
def test_numerics(more: Mapping[str, Value], wanted: Mapping[str, Value], tmp_path: Path) -> None:
    check(ATTENTION_BACKWARD.problem_of({**SMALL, **more}), wanted, tmp_path, ("normal", "edges", "outliers"))


@pytest.mark.parametrize(("more", "wanted"), PACKED_FORMS, ids=str)
@pytest.mark.few(1)
def test_numerics_of_packed_sequences(more: Mapping[str, Value], wanted: Mapping[str, Value], tmp_path: Path) -> None:
    problem = ATTENTION_VARLEN_BACKWARD.problem_of({**PACKED, **more})
    check(problem, wanted, tmp_path, ("normal", "edges", "outliers", "empty", "beside"))


def test_parts_of_a_projection_are_read_where_they_lie(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(1, 90, 8, 64, generator=generator).bfloat16().split([4, 2, 2], 2)
    grad_out = torch.randn(1, 4, 90, 64, generator=generator).bfloat16().transpose(1, 2)
    out, lse = ATTENTION.reference(q, k, v, None, True, 0.3)
    out = out.transpose(1, 2).contiguous().transpose(1, 2)
    values = ATTENTION_BACKWARD.bind((grad_out, q, k, v, None, out, lse), {"causal": True, "scale": 0.3})
    problem = ATTENTION_BACKWARD.pose(ATTENTION_BACKWARD.arguments(values))
    found = built(problem, config_of(problem, {}), tmp_path)(*values)
    verdict = numerics.judged(ATTENTION_BACKWARD, problem, found, values)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True), (False, True, True)])
@pytest.mark.few(1)
def test_gradients_that_are_not_needed_are_not_made(needs: tuple[bool, bool, bool], tmp_path: Path) -> None:
    drawn = ATTENTION_BACKWARD.draw(ATTENTION_BACKWARD.problem_of(SMALL), "normal", torch.Generator().manual_seed(1))
    values = (*drawn[:-3], *needs)
    problem = ATTENTION_BACKWARD.pose(ATTENTION_BACKWARD.arguments(values))
    found = built(problem, config_of(problem, {}), tmp_path)(*values)
    assert [bool(each.numel()) for each in found] == list(needs)
    verdict = numerics.judged(ATTENTION_BACKWARD, problem, found, values)
    assert verdict.ok, verdict.message


def _replaced(*pairs: tuple[str, str]) -> Change:
    def change(text: str) -> str:
        for old, new in pairs:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return text

    return change


FAULTS: Mapping[str, tuple[Change, Late]] = {
    "the phase of a free stage": (_replaced(("await(ring.empty(ring.stage), ring.parity ^ 1)", "await(ring.empty(ring.stage), ring.parity)")), Late.NONE),
    "the phase of held tiles": (_replaced(("    parity ^= 1;\n    bool more", "    bool more")), Late.ALL),
    "blocks are not waited for": (_replaced(("    await(ring.full(), ring.parity);\n", "")), Late.ALL),
    "held tiles are not waited for": (_replaced(("    await(ring.held_full(), parity);\n", "")), Late.ALL),
    "scores are not waited for": (_replaced(("    await_products<NEED_FIRST>();\n", "")), Late.ALL),
    "changes are not waited for": (_replaced(("      await_products<NEED_SECOND>();\n", "")), Late.ALL),
    "the block before is given back too early": (
        _replaced(("    await_products<1>();\n    settle_words();\n", "")),
        Late.PRODUCTS,
    ),
    "a block is given back while products read it": (
        _replaced(
            ("    before = ring.stage;\n", "    release(ring.full() + 8 * STAGES);\n"),
            ("    if (more) release(ring.empty(before));\n", ""),
            ("    settle_words();\n    release(ring.empty(before));\n", ""),
        ),
        Late.PRODUCTS,
    ),
    "held tiles are given back too early": (
        _replaced(("    release(ring.held_empty());\n", ""), ("    bool more = false;\n", "    bool more = false;\n    release(ring.held_empty());\n")),
        False,
    ),
    "sums are stored before they are there": (_replaced(("    await_products<0>();\n", "")), Late.ALL),
    "no fence before the scores": (_replaced(("    begin_products();\n    multiply_held(score", "    multiply_held(score")), Late.NONE),
    "no fence before the changes": (_replaced(("      begin_products();\n      multiply_held(change", "      multiply_held(change")), Late.NONE),
    "no fence before the weights": (_replaced(("      begin_products();\n      multiply_block(by_weights", "      multiply_block(by_weights")), Late.NONE),
    "no fence before the slopes": (_replaced(("      begin_products();\n      multiply_block(by_slopes", "      multiply_block(by_slopes")), Late.NONE),
    "one more is seen behind": (_replaced(("place >= over[half]", "place > over[half]")), Late.NONE),
    "one less is seen before": (_replaced(("place < under[half]", "place <= under[half]")), Late.NONE),
    "a block at the end has no mask": (_replaced(("all > 0 ? all / BLOCK : 0", "end")), Late.NONE),
    "a block at the begin has no mask": (_replaced(("+ BLOCK - 1) / BLOCK, end)", ") / BLOCK, end)")), Late.NONE),
    "blocks behind the whole ones are left out": (_replaced(("edge < whole_begin ? edge : edge + whole", "edge")), Late.NONE),
    "lengths the other way": (_replaced(("return streamed_len - held_len;", "return held_len - streamed_len;")), Late.NONE),
    "one head of a group": (_replaced(("head * GROUP + member", "head * GROUP")), Late.NONE),
    "another group's head": (_replaced((": head / GROUP", ": head % (HEADS / GROUP)")), Late.NONE),
    "another head's terms": (_replaced(("tile.query_head(member) * blocks", "tile.head * blocks")), Late.NONE),
    "another block's terms": (_replaced(("* blocks + block)", "* blocks)")), Late.NONE),
    "terms of all stages in one place": (_replaced(("+ stage * TERM_BYTES", "")), Late.NONE),
    "no scale": (_replaced(("by_slopes, scale)", "by_slopes, 1)")), Late.NONE),
    "no delta": (_replaced((" - (BY_KEYS ? deltas.part[pair] : delta[half])", "")), Late.NONE),
    "only the last block is summed up": (_replaced(("more || k > 0", "k > 0")), Late.NONE),
    "sums begin with another tile's": (_replaced(("more || k > 0", "true")), Late.NONE),
    "values instead of keys": (_replaced(("multiply_held(change, 1)", "multiply_held(change, 0)")), Late.NONE),
    "the other rows of a warp": (_replaced(("lane / 4 + half * 8", "lane / 4 + (1 - half) * 8")), Late.NONE),
}  # fmt: skip
"""Changes of a pass that make it wrong, and what is late where they show."""


@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.few(2)
def test_a_kernel_with_a_fault_is_found_out(fault: str, tmp_path: Path) -> None:
    form = {"batch": 1, "span": 240, "q_len": 300, "kv_len": 330}
    problem = ATTENTION_BACKWARD.problem_of({**SMALL, **form})
    values = ATTENTION_BACKWARD.draw(problem, "normal", torch.Generator().manual_seed(1))
    change, late = FAULTS[fault]
    config = config_of(problem, {"key_warpgroups": 3, "query_warpgroups": 1})
    differentiate = built(problem, config, tmp_path, change)
    try:
        found = differentiate(*values, late=late)
    except RuntimeError:
        return
    assert not numerics.judged(ATTENTION_BACKWARD, problem, found, values).ok


def test_a_kernel_without_the_slope_of_the_soft_cap_is_found_out(tmp_path: Path) -> None:
    problem = ATTENTION_BACKWARD.problem_of({**SMALL, "softcap": True, "batch": 1})
    values = ATTENTION_BACKWARD.draw(problem, "outliers", torch.Generator().manual_seed(1))
    change = _replaced(("found[pair] * fmaf(-each, each, 1)", "found[pair]"))
    found = built(problem, config_of(problem, {}), tmp_path, change)(*values)
    assert not numerics.judged(ATTENTION_BACKWARD, problem, found, values).ok


def _of_others_not_finite() -> tuple[Problem, tuple[Any, ...]]:
    """Three sequences, of which the first and the last have tensors that are no numbers."""
    offsets = torch.tensor([0, 70, 100, 90]).cumsum(0, dtype=torch.int32)
    generator = torch.Generator().manual_seed(1)
    grad_out, q, k, v = (torch.randn(260, count, 64, generator=generator).bfloat16() for count in (4, 4, 2, 2))
    out, lse = ATTENTION_VARLEN.reference(q, k, v, offsets, offsets, True)
    for x in (grad_out, q, k, v, out):
        x[:70], x[170:] = torch.nan, torch.inf
    values = ATTENTION_VARLEN_BACKWARD.bind((grad_out, q, k, v, offsets, offsets, out, lse), {"causal": True})
    return ATTENTION_VARLEN_BACKWARD.pose(ATTENTION_VARLEN_BACKWARD.arguments(values)), values


def _second_is_right(differentiate: Attend, values: tuple[Any, ...], late: Late) -> bool:
    own = slice(70, 170)
    grad_out, q, k, v, _, _, out = (x[None, own] if len(x.shape) > 1 else x for x in values[:7])
    bound = (grad_out, q, k, v, None, out, values[7][None, :, own])
    expected = numerics.reference64(ATTENTION_BACKWARD, ATTENTION_BACKWARD.bind(bound, {"causal": True}))
    found = differentiate(*values, late=late)
    return all(torch.allclose(one[own].double(), other[0], 3e-2, 3e-2) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("late", Late)
@pytest.mark.few(1)
def test_what_is_not_finite_in_other_sequences_does_not_reach_one(late: Late, tmp_path: Path) -> None:
    problem, values = _of_others_not_finite()
    assert _second_is_right(built(problem, config_of(problem, {}), tmp_path), values, late)


MIXED: Mapping[str, tuple[Change, Late]] = {
    "rows behind the end are left as they are": (_replaced(("    clean(tile, block);\n", "")), Late.NONE),
    "some rows behind the end are": (_replaced(("first >= BLOCK", "first > 32")), Late.NONE),
    "a warp multiplies where another has not put its zeros": (
        _replaced(("    cpu::named_barrier(1 + warp / WARPS, 128, true);\n", "")),
        Late.NONE,
    ),
    "products do not see the zeros": (_replaced(("    show_writes();\n", "")), Late.NONE),
    "tiles of all sequences": (_replaced(("    place -= held.first(own);\n", "")), Late.ALL),
    "rows of the first sequence": (_replaced(("tile.sequence.first_streamed + block", "block")), Late.NONE),
    "terms of the first sequence": (_replaced(("0, queries.first(own)}", "0, 0}")), Late.NONE),
}
"""Changes of a pass that mix sequences, and what is late where they show."""


@pytest.mark.parametrize("fault", list(MIXED))
@pytest.mark.few(1)
def test_a_kernel_that_mixes_sequences_is_found_out(fault: str, tmp_path: Path) -> None:
    problem, values = _of_others_not_finite()
    change, late = MIXED[fault]
    differentiate = built(problem, config_of(problem, {}), tmp_path, change)
    try:
        assert not _second_is_right(differentiate, values, late)
    except RuntimeError:
        return


WILD = torch.tensor([-9, 2**30, 5, 0, 2**31 - 1, 3, 350, -(2**31)], dtype=torch.int32)
FALLING = torch.tensor([350, 300, 290, 200, 199, 90, 80, 0], dtype=torch.int32)


@pytest.mark.parametrize("late", Late)
@pytest.mark.few(1)
def test_wrong_offsets_stay_within_the_tensors(late: Late, tmp_path: Path) -> None:
    problem = ATTENTION_VARLEN_BACKWARD.problem_of({**PACKED, "sequences": 7})
    values = ATTENTION_VARLEN_BACKWARD.draw(problem, "normal", torch.Generator().manual_seed(1))
    differentiate = built(problem, config_of(problem, {}), tmp_path)
    for queries, keys in ((WILD, WILD), (WILD, FALLING), (FALLING, WILD), (WILD.flip(0), values[5])):
        differentiate(*values[:4], queries, keys, *values[6:], late=late)


def test_a_kernel_that_trusts_offsets_is_found_out(tmp_path: Path) -> None:
    problem = ATTENTION_VARLEN_BACKWARD.problem_of({**PACKED, "sequences": 2})
    values = ATTENTION_VARLEN_BACKWARD.draw(problem, "normal", torch.Generator().manual_seed(1))
    change = _replaced(("return min(max(begins[place], 0), total);", "return begins[place];"))
    differentiate = built(problem, config_of(problem, {}), tmp_path, change)
    beyond = torch.tensor([0, 100, 352], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="outside of an output"):
        differentiate(*values[:4], beyond, values[5], *values[6:])
