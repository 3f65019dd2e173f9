"""cuda.wgmma's attention: its kernel's very text on a CPU, copies and products as early, and as late, as can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.contracts import ATTENTION, ATTENTION_VARLEN
from registry.correctness import numerics
from registry.problem import Problem, Value
from registry.space import Config

from ..tiers import THOROUGH
from .attention_on_cpu import Attend, built
from .wgmma_attention import CONTRACTS, SMALL_H200, implementation_of

SMALL: Mapping[str, Value] = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 200, "kv_len": 200, "head_dim": 64, "causal": True, "mask": "none",
    "softcap": False, "span": False, "dtype": "bfloat16",
}  # fmt: skip
FORMS: list[tuple[Mapping[str, Value], Mapping[str, Value]]] = [
    ({}, {"keys": 64}),
    ({"causal": False, "kv_len": 333, "dtype": "float16"}, {"keys": 96, "stages": 8}),
    ({"kv_heads": 1, "head_dim": 128}, {"keys": 80, "warpgroups": 3}),
    ({"q_len": 70, "kv_len": 500, "kv_heads": 4}, {"keys": 192}),
    ({"q_len": 300, "kv_len": 90}, {"keys": 64, "in_turn": False}),
    ({"span": 50, "head_dim": 96}, {"keys": 64, "stages": 4}),
    ({"span": 70, "causal": False, "kv_len": 260}, {"keys": 64}),
    ({"q_len": 1, "kv_len": 65, "head_dim": 24}, {"keys": 64, "warpgroups": 1}),
    ({"q_len": 130, "kv_len": 130, "head_dim": 8}, {"keys": 176, "warpgroups": 2}),
    ({"q_len": 400, "kv_len": 400, "head_dim": 128, "batch": 1}, {"keys": 128, "stages": 3}),
    ({"softcap": True, "span": 64}, {"keys": 64}),
    ({"softcap": True, "causal": False, "kv_len": 77, "dtype": "float16"}, {"keys": 96, "warpgroups": 3}),
    ({"head_dim": 256, "q_len": 150, "kv_len": 230}, {"keys": 80, "stages": 4}),
    ({"head_dim": 184, "kv_heads": 4, "softcap": True, "batch": 1}, {"keys": 128, "stages": 3}),
]
PACKED: Mapping[str, Value] = {
    "sequences": 5, "heads": 4, "kv_heads": 2, "total_q": 450, "total_k": 450, "head_dim": 64, "causal": True,
    "softcap": False, "span": False, "lengths": "skewed", "dtype": "bfloat16",
}  # fmt: skip
PACKED_FORMS: list[tuple[Mapping[str, Value], Mapping[str, Value]]] = [
    ({}, {"keys": 64}),
    ({"total_q": 300, "total_k": 700, "lengths": "uniform"}, {"keys": 96, "stages": 8}),
    ({"causal": False, "total_k": 333, "dtype": "float16"}, {"keys": 64, "in_turn": False}),
    ({"kv_heads": 1, "head_dim": 128, "sequences": 3}, {"keys": 80, "warpgroups": 3}),
    ({"span": 40, "softcap": True}, {"keys": 64}),
    ({"span": 30, "causal": False, "sequences": 2}, {"keys": 64}),
    ({"sequences": 40, "total_q": 200, "total_k": 260, "head_dim": 24}, {"keys": 64, "warpgroups": 1}),
    ({"head_dim": 256, "sequences": 2, "total_q": 200, "total_k": 200}, {"keys": 80, "stages": 4}),
    ({"sequences": 1, "total_q": 1, "total_k": 65}, {"keys": 128, "warpgroups": 2}),
    # more tiles than are put in order
    ({"sequences": 200, "heads": 2, "kv_heads": 1, "total_q": 210, "total_k": 230}, {"keys": 64, "warpgroups": 1}),
]


def config_of(problem: Problem, wanted: Mapping[str, Value]) -> Config:
    """The first configuration with what is wanted, with turns where nothing is said."""
    space = implementation_of(problem).space(problem, SMALL_H200).configs
    fit = [config for config in space if all(config[name] == value for name, value in wanted.items())]
    return max(fit, key=lambda config: (config["in_turn"], config["warpgroups"] == 2))


def check(problem: Problem, wanted: Mapping[str, Value], folder: Path, kinds: tuple[str, ...]) -> None:
    """The results of a kernel with inputs of some kinds, early and late."""
    contract, attend = CONTRACTS[problem.op], built(problem, config_of(problem, wanted), folder)
    for kind in kinds:
        values = contract.draw(problem, kind, torch.Generator().manual_seed(1))
        for late in (False, True):
            verdict = numerics.judged(contract, problem, attend(*values, late=late), values)
            assert verdict.ok, f"{kind}, {'late' if late else 'early'}: {verdict.message}"


@pytest.mark.parametrize(("more", "wanted"), FORMS, ids=str)
@THOROUGH
def test_numerics(more: Mapping[str, Value], wanted: Mapping[str, Value], tmp_path: Path) -> None:
    check(ATTENTION.problem_of({**SMALL, **more}), wanted, tmp_path, ("normal", "edges", "outliers"))


@pytest.mark.parametrize(("more", "wanted"), PACKED_FORMS, ids=str)
@pytest.mark.few(1)
def test_numerics_of_packed_sequences(more: Mapping[str, Value], wanted: Mapping[str, Value], tmp_path: Path) -> None:
    problem = ATTENTION_VARLEN.problem_of({**PACKED, **more})
    check(problem, wanted, tmp_path, ("normal", "edges", "outliers", "empty", "beside"))


@pytest.mark.parametrize(
    ("problem", "keys"),
    [
        (ATTENTION.problem_of({**SMALL, "batch": 1, "heads": 6, "kv_heads": 3}), 200),
        (ATTENTION_VARLEN.problem_of({**PACKED, "sequences": 200, "heads": 6, "kv_heads": 3, "total_q": 210}), 450),
    ],
    ids=lambda value: getattr(value, "op", ""),
)
@THOROUGH
def test_heads_whose_keys_do_not_fit_in_l2_together_run_in_bands(
    problem: Problem, keys: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # two heads of keys, and so four of queries, at once: the last band has fewer
    monkeypatch.setattr("registry_cuda.attention.wgmma._KEPT_BYTES", 2 * 4 * keys * problem.head_dim)
    wanted = {"keys": 64, "warpgroups": 1}
    assert implementation_of(problem).launch(problem, config_of(problem, wanted), SMALL_H200).args[-1] == 4
    check(problem, wanted, tmp_path, ("normal",))


@THOROUGH
def test_parts_of_a_projection_are_read_where_they_lie(tmp_path: Path) -> None:
    q, k, v = torch.randn(2, 150, 8, 64).half().split([4, 2, 2], 2)
    before = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    values = ATTENTION.bind((q, k, v), {"causal": True, "scale": 0.3})
    problem = ATTENTION.pose(ATTENTION.arguments(values))
    attend = built(problem, config_of(problem, {"keys": 64}), tmp_path)
    expected = numerics.reference64(ATTENTION, values)
    for given in (values, ATTENTION.bind(tuple(before), {"causal": True, "scale": 0.3})):
        for one, other in zip(attend(*given), expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=4e-3, atol=4e-3)


def _replaced(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


def _early_queries(text: str) -> str:
    """The kernel's text, in which queries are given back behind the products of their first block of keys."""
    release = "    release(ring.queries_empty());\n"
    assert release in text
    return text.replace(release, "").replace("    begin(tile, block);\n", f"    begin(tile, block);\n{release}")


@pytest.mark.parametrize(
    ("change", "late"),
    [
        (_replaced("place < over", "place <= over"), False),
        (_replaced("place >= under", "place > under"), False),
        (_replaced("kept[half] = exp2_of(top[half] - base);", "kept[half] = 1;"), False),
        (_replaced("(max(row + ROWS - 1 + sequence.shift() - WINDOW, 0) + KEYS - 1) / KEYS", "begin"), False),
        # keys are given back before their products are there
        (_replaced("    await_products<1>();\n", ""), True),
        # values are multiplied before they have arrived
        (_replaced("    await(ring.full(), ring.parity);\n    if (!more)", "    if (!more)"), True),
        # the first block's keys are given back before their products are there
        (_replaced("    await_products<0>();\n    settle(score);\n    release", "    release"), True),
        # queries are given back while products read them
        (_early_queries, False),
    ],
)
@THOROUGH
def test_a_kernel_with_a_fault_is_found_out(change: Callable[[str], str], late: bool, tmp_path: Path) -> None:
    problem = ATTENTION.problem_of({**SMALL, "span": 90, "kv_len": 230})
    values = ATTENTION.draw(problem, "normal", torch.Generator().manual_seed(1))

    def is_right(made: Callable[[str], str] | None) -> bool:
        attend = built(problem, config_of(problem, {"keys": 64}), tmp_path, made)
        try:
            found = attend(*values, late=late)
        except RuntimeError:
            return False
        return numerics.judged(ATTENTION, problem, found, values).ok

    assert not is_right(change)


def _of_others_not_finite() -> tuple[Problem, tuple[Any, ...]]:
    """Three sequences, of which the first and the last have keys and values that are no numbers."""
    lengths = torch.tensor([0, 70, 100, 90])
    offsets = lengths.cumsum(0, dtype=torch.int32)
    q, k, v = (torch.randn(260, count, 64, generator=torch.Generator().manual_seed(1)).half() for count in (4, 2, 2))
    for x in (k, v):
        x[:70], x[170:] = torch.nan, torch.inf
    values = ATTENTION_VARLEN.bind((q, k, v, offsets, offsets), {"causal": True})
    return ATTENTION_VARLEN.pose(ATTENTION_VARLEN.arguments(values)), values


def _second_is_right(attend: Attend, values: tuple[Any, ...], late: bool) -> bool:
    own = slice(70, 170)
    q, k, v = (x[None, own] for x in values[:3])
    out, lse = numerics.reference64(ATTENTION, ATTENTION.bind((q, k, v), {"causal": True}))
    found = attend(*values, late=late)
    return torch.allclose(found[0][own].double(), out[0], 4e-3, 4e-3) and torch.allclose(
        found[1][:, own].double(), lse[0], 4e-3, 4e-3
    )


@pytest.mark.parametrize("late", [False, True])
@THOROUGH
def test_what_is_not_finite_in_other_sequences_does_not_reach_one(late: bool, tmp_path: Path) -> None:
    problem, values = _of_others_not_finite()
    assert _second_is_right(built(problem, config_of(problem, {"keys": 64}), tmp_path), values, late)


@pytest.mark.parametrize(
    ("change", "late"),
    [
        # values behind the sequence's end are left as they are
        (_replaced("if (!more) clean(tile);", ""), False),
        (_replaced("first >= KEYS", "first > 32"), False),
        # a warp multiplies values where another has not put its zeros yet
        (_replaced("    turns.meet();\n", ""), False),
        (_replaced("    place -= first_tile(low);\n", ""), True),
        (_replaced("tile.sequence.first_key + block", "block"), False),
    ],
)
@THOROUGH
def test_a_kernel_that_mixes_sequences_is_found_out(change: Callable[[str], str], late: bool, tmp_path: Path) -> None:
    problem, values = _of_others_not_finite()
    attend = built(problem, config_of(problem, {"keys": 64}), tmp_path, change)
    assert not _second_is_right(attend, values, late)


@pytest.mark.parametrize("late", [True, False])
@THOROUGH
def test_wrong_offsets_stay_within_the_tensors(late: bool, tmp_path: Path) -> None:
    problem = ATTENTION_VARLEN.problem_of({**PACKED, "sequences": 7})
    values = ATTENTION_VARLEN.draw(problem, "normal", torch.Generator().manual_seed(1))
    attend = built(problem, config_of(problem, {"keys": 64}), tmp_path)
    wild = torch.tensor([-9, 2**30, 5, 0, 2**31 - 1, 3, 450, -(2**31)], dtype=torch.int32)
    falling = torch.tensor([450, 400, 300, 200, 199, 90, 80, 0], dtype=torch.int32)
    for queries, keys in ((wild, wild), (wild, falling), (falling, wild), (wild.flip(0), values[4])):
        attend(*values[:3], queries, keys, *values[5:], late=late)


@THOROUGH
def test_a_kernel_that_trusts_offsets_is_found_out(tmp_path: Path) -> None:
    problem = ATTENTION_VARLEN.problem_of({**PACKED, "sequences": 2})
    values = ATTENTION_VARLEN.draw(problem, "normal", torch.Generator().manual_seed(1))
    change = _replaced("return min(max(offset, 0), total);", "return offset;")
    attend = built(problem, config_of(problem, {"keys": 64}), tmp_path, change)
    beyond = torch.tensor([0, 100, 452], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="outside of an output"):
        attend(*values[:3], beyond, values[4], *values[5:])
