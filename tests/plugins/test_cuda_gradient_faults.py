"""cuda.wgmma's gradients with planted faults: each is found by inputs that the right kernels pass."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from registry.contracts import ATTENTION_BACKWARD, ATTENTION_VARLEN_BACKWARD
from registry.correctness import numerics

from ..tiers import THOROUGH
from .attention_on_cpu import Change, Late
from .gradients_on_cpu import PACKED, SMALL, built, config_of, of_others_not_finite, second_is_right

_FENCE = "      begin_products();\n      "
_MEETING = "    cpu::named_barrier(1 + warp / WARPS, 128, true);\n"
_HELD_AWAY, _MORE = "    release(ring.held_empty());\n", "    bool more = false;\n"
_BEFORE_AWAY = "    if (more) release(ring.empty(ring.before()));\n"
_LAST_AWAY = "    settle_words();\n    release(ring.empty(ring.before()));\n"
_END = "    ring.advance();\n    return true;\n"
Pairs = tuple[tuple[str, str], ...]
"""Parts of a text, each of which occurs once, and what takes their place."""
FAULTS: Mapping[str, tuple[Late, Pairs]] = {
    "the phase of a free stage": (Late.NONE, (("ring.parity ^ 1)", "ring.parity)"),)),
    "the phase of held tiles": (Late.ALL, (("    parity ^= 1;\n    bool more", "    bool more"),)),
    "blocks are not waited for": (Late.ALL, (("    await(ring.full(), ring.parity);\n", ""),)),
    "held tiles are not waited for": (Late.ALL, (("    await(ring.held_full(), parity);\n", ""),)),
    "scores are not waited for": (Late.ALL, (("    await_products<NEED_FIRST>();\n", ""),)),
    "changes are not waited for": (Late.ALL, (("      await_products<NEED_SECOND>();\n", ""),)),
    "sums are not waited for": (Late.ALL, (("    await_products<0>();\n", ""),)),
    "a block is given back too early": (Late.PRODUCTS, (("    await_products<1>();\n    settle_words();\n", ""),)),
    "a block is given back while products read it": (
        Late.PRODUCTS,
        (
            (_END, "    release(ring.empty(ring.stage));\n" + _END),
            (_BEFORE_AWAY, ""),
            (_LAST_AWAY, ""),
        ),
    ),
    "a block is not given back": (Late.NONE, ((_BEFORE_AWAY, ""),)),
    "held tiles are given back too early": (Late.PRODUCTS, ((_HELD_AWAY, ""), (_MORE, _MORE + _HELD_AWAY))),
    "no fence before scores": (Late.NONE, (("    begin_products();\n    multiply_held", "    multiply_held"),)),
    "no fence before changes": (Late.NONE, ((_FENCE + "multiply_held(change", "multiply_held(change"),)),
    "no fence before weights": (Late.NONE, ((_FENCE + "multiply_block(by_w", "multiply_block(by_w"),)),
    "no fence before slopes": (Late.NONE, ((_FENCE + "multiply_block(by_s", "multiply_block(by_s"),)),
    "one more is seen behind": (Late.NONE, (("place >= over[half]", "place > over[half]"),)),
    "one less is seen before": (Late.NONE, (("place < under[half]", "place <= under[half]"),)),
    "a block at the end has no mask": (Late.NONE, (("all > 0 ? all / BLOCK : 0", "end"),)),
    "a block at the begin has no mask": (Late.NONE, (("+ BLOCK - 1) / BLOCK, end)", ") / BLOCK, end)"),)),
    "blocks before whole ones are left out": (Late.NONE, (("found < begin + count ? found : found - count", "found"),)),
    "lengths the other way": (Late.NONE, (("return streamed_len - held_len;", "return held_len - streamed_len;"),)),
    "one head of a group": (Late.NONE, (("head * GROUP + member", "head * GROUP"),)),
    "another group's head": (Late.NONE, ((": head / GROUP", ": head % (HEADS / GROUP)"),)),
    "another head's terms": (Late.NONE, (("+ tile.query_head(member);", "+ tile.head;"),)),
    "another block's terms": (Late.NONE, (("tile.sequence.first_terms + block)", "tile.sequence.first_terms)"),)),
    "terms of all stages in one place": (Late.NONE, (("+ stage * TERM_BYTES", ""),)),
    "no scale": (Late.NONE, (("by_slopes, scale)", "by_slopes, 1)"),)),
    "no delta": (Late.NONE, ((" - (BY_KEYS ? deltas.part[pair] : delta[half])", ""),)),
    "only the last block is summed up": (Late.NONE, (("more || k > 0", "k > 0"),)),
    "sums begin with another tile's": (Late.NONE, (("more || k > 0", "true"),)),
    "keys instead of values": (Late.NONE, (("multiply_held(change, 1)", "multiply_held(change, 0)"),)),
    "a warp's rows exchanged": (Late.NONE, (("lane / 4 + half * 8", "lane / 4 + (1 - half) * 8"),)),
}
"""Faults of a pass, and what is late where they show."""
MIXED: Mapping[str, tuple[Late, Pairs]] = {
    "rows behind the end are left as they are": (Late.NONE, (("    clean(tile, block);\n", ""),)),
    "some rows behind the end are": (Late.NONE, (("first >= BLOCK", "first > 32"),)),
    "a warp multiplies where another has no zeros yet": (Late.NONE, ((_MEETING, ""),)),
    "products do not see the zeros": (Late.NONE, (("    show_writes();\n", ""),)),
    "tiles of all sequences": (Late.ALL, (("    place -= held.first(own);\n", ""),)),
    "rows of the first sequence": (Late.NONE, (("tile.sequence.first_streamed + block", "block"),)),
    "terms of the first sequence": (Late.NONE, (("0, queries.first(own)}", "0, 0}"),)),
}
"""Faults that mix packed sequences, and what is late where they show."""


def _changed(pairs: Pairs) -> Change:
    def change(text: str) -> str:
        for old, new in pairs:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return text

    return change


@pytest.mark.parametrize("fault", list(FAULTS))
@THOROUGH
def test_a_fault_is_found(fault: str, tmp_path: Path) -> None:
    form = {"batch": 1, "span": 240, "q_len": 300, "kv_len": 330}
    problem = ATTENTION_BACKWARD.problem_of({**SMALL, **form})
    values = ATTENTION_BACKWARD.draw(problem, "normal", torch.Generator().manual_seed(1))
    late, pairs = FAULTS[fault]
    config = config_of(problem, {"key_warpgroups": 3, "query_warpgroups": 1})
    differentiate = built(problem, config, tmp_path, _changed(pairs))
    try:
        found = differentiate(*values, late=late)
    except RuntimeError:
        return
    assert not numerics.judged(ATTENTION_BACKWARD, problem, found, values).ok


@THOROUGH
def test_a_soft_cap_without_its_slope_is_found(tmp_path: Path) -> None:
    problem = ATTENTION_BACKWARD.problem_of({**SMALL, "softcap": True, "batch": 1})
    values = ATTENTION_BACKWARD.draw(problem, "outliers", torch.Generator().manual_seed(1))
    change = _changed((("found[pair] * fmaf(-each, each, 1)", "found[pair]"),))
    found = built(problem, config_of(problem, {}), tmp_path, change)(*values)
    assert not numerics.judged(ATTENTION_BACKWARD, problem, found, values).ok


@pytest.mark.parametrize("fault", list(MIXED))
@THOROUGH
def test_a_fault_that_mixes_sequences_is_found(fault: str, tmp_path: Path) -> None:
    problem, values = of_others_not_finite()
    late, pairs = MIXED[fault]
    differentiate = built(problem, config_of(problem, {}), tmp_path, _changed(pairs))
    try:
        assert not second_is_right(differentiate, values, late)
    except RuntimeError:
        return


@THOROUGH
def test_trust_in_offsets_is_found(tmp_path: Path) -> None:
    problem = ATTENTION_VARLEN_BACKWARD.problem_of({**PACKED, "sequences": 2})
    values = ATTENTION_VARLEN_BACKWARD.draw(problem, "normal", torch.Generator().manual_seed(1))
    change = _changed((("return min(max(begins[place], 0), total);", "return begins[place];"),))
    differentiate = built(problem, config_of(problem, {}), tmp_path, change)
    beyond = torch.tensor([0, 100, 252], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="outside of an output"):
        differentiate(*values[:4], beyond, values[5], *values[6:])
