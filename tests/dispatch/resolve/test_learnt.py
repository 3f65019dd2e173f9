"""Where nothing tuned is near: what was learnt from all problems of an op decides, and explain says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Device, DispatchWarning, shipped
from registry.arguments.traits import OrdinaryTraits
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.resolve.first_choice import FirstChoice
from registry.dispatch.resolve.learnt import Leaf, LearntDefault, Split, WinningConfig, learnt_from
from registry.dispatch.resolve.resolution import choices
from registry.errors import StoreError
from tuning_db import Environment, Store
from tuning_db.snapshot import LEARNT

RULE = LearntDefault(
    1,
    9,
    Split(
        "rows", 64, Leaf((("a.few", 1.02), ("a.other", 1.5)), 4), Split("dtype", "float32", Leaf((), 3), Leaf((), 2))
    ),
    {
        "a.few": (
            WinningConfig({"rows": 4, "cols": 64, "dtype": "float32"}, {"block": 2}),
            WinningConfig({"rows": 4, "cols": 4096, "dtype": "float32"}, {"block": 4}),
            WinningConfig({"rows": 4, "cols": 32, "dtype": "float16"}, {"block": 64}),
        )
    },
)


def learn(store: Store, rule: Any) -> None:
    device = Device.of("cpu")
    run = store.start_run(Environment(device.hardware(), device.software()))
    store.end_run(run, {LEARNT: {"softmax": rule}})


def who(dispatcher: Dispatcher, *shape: int, dtype: torch.dtype = torch.float32) -> tuple[str, dict[str, Any]]:
    x = torch.randn(*shape, dtype=dtype)
    torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    told = dispatcher.explain("softmax", x)
    assert told.step == "default"
    return told.implementation, dict(told.config)


@pytest.fixture
def three(dispatcher: Dispatcher, told: Any) -> Dispatcher:
    dispatcher.register(told("a.declared", 5.0))
    dispatcher.register(told("a.few", unsupported=lambda problem: ["odd"] if problem.cols == 17 else []))
    dispatcher.register(told("a.other"))
    return dispatcher


def test_the_rule_of_the_latest_run_that_knows_the_op_chooses(three: Dispatcher, store: Store) -> None:
    assert who(three, 8, 48)[0] == "a.declared"
    learn(store, RULE.plain())
    device = Device.of("cpu")
    store.end_run(store.start_run(Environment(device.hardware(), device.software())), {LEARNT: {"gelu": {}}})
    three.reload()
    assert who(three, 8, 48) == ("a.few", {"block": 2})
    assert who(three, 8, 2048) == ("a.few", {"block": 4})
    assert who(three, 8, 17) == ("a.other", {"block": 1})
    assert who(three, 65, 48) == ("a.declared", {"block": 1})
    story = str(three.explain("softmax", torch.randn(8, 48)))
    assert "default: nothing tuned is near; 1.02 times the fastest one's time in 4 problems where rows <= 64" in story
    assert "its configuration won in the most similar of 9 problems, learnt on this cpu by tune" in story
    assert "not    a.other: supported, not chosen: nothing tuned is near, and it took 1.50 times" in story
    assert "not    a.declared: supported, not chosen: nothing tuned is near, and its default was slower" in story


def test_the_leaf_of_a_problem_is_where_the_answers_of_the_splits_lead() -> None:
    leaves = [Leaf((), number) for number in range(6)]
    few = Split("causal", True, Split("dtype", "float32", leaves[0], leaves[1]), leaves[2])
    rule = LearntDefault(1, 9, Split("rows", 64, few, Split("cols", 2.5, leaves[3], Split("rows", 100, *leaves[4:]))))
    for rows in (1, 64, 65, 100, 101, 64.0, 64.5, True, "64", None):
        for cols in (2, 3, 2.5, False, None):
            for causal in (True, False, 1, None):
                for dtype in ("float32", "bfloat16", None):
                    given = {"rows": rows, "cols": cols, "causal": causal, "dtype": dtype}
                    dims: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
                    node: Split | Leaf = rule.tree
                    while isinstance(node, Split):
                        node = node.yes if node.holds(dims) else node.no
                    assert rule.leaf(dims) is node, dims


def test_a_learnt_configuration_that_is_not_valid_here_gives_way_to_the_default(
    three: Dispatcher, store: Store
) -> None:
    learn(store, RULE.plain())
    assert who(three, 8, 48, dtype=torch.float16) == ("a.few", {"block": 1})


def test_a_tuned_neighbour_comes_before_the_rule(three: Dispatcher, store: Store, publish: Any) -> None:
    learn(store, RULE.plain())
    publish({"rows": 8, "cols": 48, "dtype": "float32"}, "a.other", {"block": 4})
    assert three.explain("softmax", torch.randn(9, 48)).step == "nearest"


def test_the_short_way_follows_the_rule(three: Dispatcher, store: Store) -> None:
    learn(store, RULE.plain())
    plans, device = three.bound("softmax").plans, Device.of("cpu")
    op = plans.op
    posed = [
        op.posing_in_family(OrdinaryTraits, None)(op.specs((torch.empty(rows, 48), -1)))
        for rows in (1, 3, 64, 65, 66, 200, 64, 2)
    ]
    first_choice = FirstChoice(plans.situation(posed[0], device))
    for problem in posed:
        found = first_choice.choice(problem)
        assert found is not None
        assert found.choice_of(problem) == next(choices(plans.situation(problem, device), None, []))


@pytest.mark.parametrize("change", [{"version": 2}, {"version": 7}])
def test_a_rule_for_another_version_of_the_op_is_not_taken(three: Dispatcher, store: Store, change: Any) -> None:
    learn(store, {**RULE.plain(), **change})
    assert who(three, 8, 48)[0] == "a.declared"


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"version": 1},
        {**RULE.plain(), "tree": {"dim": "rows", "bound": [1], "yes": {}, "no": {}}},
        {**RULE.plain(), "configs": {"a.few": [{"dims": {"rows": {}}, "config": {}}]}},
        {**RULE.plain(), "configs": []},
        {**RULE.plain(), "tree": {"ranking": [["a.few", "fast"]], "problems": 1}},
    ],
)
@pytest.mark.few(3)
def test_a_damaged_rule_is_one_warning_and_the_declared_default(three: Dispatcher, store: Store, rule: Any) -> None:
    learn(store, rule)
    with pytest.warns(DispatchWarning, match="no rule for a default"):
        assert who(three, 8, 48)[0] == "a.declared"


def test_a_tree_that_is_too_deep_is_refused() -> None:
    tree: dict[str, Any] = {"ranking": [], "problems": 1}
    for _ in range(9):
        tree = {"dim": "rows", "bound": 1, "yes": tree, "no": {"ranking": [], "problems": 1}}
    with pytest.raises(StoreError, match="deeper than 8"):
        learnt_from({"version": 1, "problems": 1, "tree": tree, "configs": {}}, "here")


def test_what_is_written_is_read() -> None:
    assert learnt_from(json.loads(json.dumps(RULE.plain())), "") == RULE


def test_shipped_rules_hold_on_hardware_of_the_same_kind_behind_the_users(
    three: Dispatcher, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware = Device.of("cpu").hardware()
    other = {**RULE.plain(), "tree": {"ranking": [["a.other", 1.0]], "problems": 9}}
    rules = [
        {"hardware": {**hardware, "architecture": "z80"}, "defaults": {"softmax": RULE.plain()}},
        {"hardware": {**hardware, "name": "Another CPU"}, "defaults": {"softmax": other}},
    ]
    (tmp_path / shipped.DEFAULTS).write_text(json.dumps(rules))
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", str(tmp_path))
    shipped.forget()
    assert who(three, 8, 48)[0] == "a.other"
    assert "learnt on Another CPU, shipped with" in three.explain("softmax", torch.randn(8, 48)).reason
    learn(store, RULE.plain())
    three.reload()
    assert who(three, 8, 48)[0] == "a.few"
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", "0")
    shipped.forget()
