"""cuda.wgmma's attention: its kernel's very text on a CPU, copies and products as early, and as late, as can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from registry.contracts import ATTENTION
from registry.correctness import numerics
from registry.problem import Problem, Value
from registry.space import Config

from .attention_on_cpu import FORWARD, SMALL_H200, built

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
]


def config_of(problem: Problem, wanted: Mapping[str, Value]) -> Config:
    """The first configuration with what is wanted, with turns where nothing is said."""
    space = FORWARD.space(problem, SMALL_H200).configs
    fit = [config for config in space if all(config[name] == value for name, value in wanted.items())]
    return max(fit, key=lambda config: (config["in_turn"], config["warpgroups"] == 2))


@pytest.mark.parametrize(("more", "wanted"), FORMS, ids=str)
@pytest.mark.few(4)
def test_numerics(more: Mapping[str, Value], wanted: Mapping[str, Value], tmp_path: Path) -> None:
    problem = ATTENTION.problem_of({**SMALL, **more})
    attend = built(problem, config_of(problem, wanted), tmp_path)
    for kind in ("normal", "edges", "outliers"):
        values = ATTENTION.draw(problem, kind, torch.Generator().manual_seed(1))
        for late in (False, True):
            verdict = numerics.judged(ATTENTION, problem, attend(*values, late=late), values)
            assert verdict.ok, f"{kind}, {'late' if late else 'early'}: {verdict.message}"


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


@pytest.mark.parametrize(
    ("change", "late"),
    [
        (_replaced("place < over", "place <= over"), False),
        (_replaced("place >= under", "place > under"), False),
        (_replaced("kept[half] = exp2_of(top[half] - base);", "kept[half] = 1;"), False),
        (_replaced("(max(row + ROWS - 1 + size.shift() - WINDOW, 0) + KEYS - 1) / KEYS", "begin"), False),
        # keys are given back before their products are there
        (_replaced("    await_products<1>();\n", ""), True),
        # values are multiplied before they have arrived
        (_replaced("    await(ring.full(), ring.parity);\n    values(more);", "    values(more);"), True),
        # queries are given back while the last products read them
        (_replaced("    await_products<0>();\n    settle(score);\n    release(ring.empty(ring.stage));", ""), True),
    ],
)
@pytest.mark.few(4)
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
