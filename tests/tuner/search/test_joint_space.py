"""A joint space numbers candidates, and a study's parameters name them."""

from __future__ import annotations

import optuna
import pytest

from registry.space import Space
from registry.tuner.search.joint_space import JointSpace
from registry.tuner.search.parameters import IMPLEMENTATION, choices

WIDE = Space(a=[1, 2, 4], b=["x", "y"]).require("y only with 4", lambda config: config["b"] == "x" or config["a"] == 4)
TYPED = Space(swap=[True, 1, False, 0])
JOINT = JointSpace({"acme.wide": WIDE, "acme.typed": TYPED, "acme.plain": Space()})


def test_every_candidate_has_a_number_and_parameters_that_name_it() -> None:
    everything = [
        (name, config) for name, space in (("acme.wide", WIDE), ("acme.typed", TYPED)) for config in space.configs
    ]
    numbers = [JOINT.number(name, config) for name, config in [*everything, ("acme.plain", {})]]
    assert numbers == list(range(len(JOINT)))
    assert [JOINT.number_of(JOINT.parameters(number)) for number in range(len(JOINT))] == numbers
    assert JOINT.parameters(0) == {IMPLEMENTATION: "acme.wide", "acme.wide.a": 1, "acme.wide.b": "x"}
    assert JOINT.block_of(len(JOINT) - 1).name == "acme.plain"


@pytest.mark.parametrize("config", [{"a": 1, "b": "y"}, {"a": 1}, {"a": 1.0, "b": "x"}, {"a": 1, "b": "x", "c": 1}])
def test_what_is_not_valid_has_no_number(config: dict[str, object]) -> None:
    assert JOINT.number("acme.wide", config) is None
    assert JOINT.number("acme.absent", config) is None
    assert JOINT.number_of({}) is None
    assert JOINT.number_of({IMPLEMENTATION: "acme.wide", "acme.wide.a": 1, "acme.wide.b": "y"}) is None


def test_values_that_optuna_takes_for_equal_are_texts_to_it() -> None:
    assert choices([1, 2, 4]) == (1, 2, 4)
    assert choices([True, 1, False, 0]) == ("true", "1", "false", "0")
    assert choices([[1, 2], None]) == ("[1,2]", "null")


@pytest.mark.parametrize("number", range(len(JOINT)))
def test_a_trial_with_those_parameters_suggests_that_candidate(number: int) -> None:
    trial = optuna.create_study().ask()
    trial.study.enqueue_trial(JOINT.parameters(number))
    name, config = JOINT.suggest(trial.study.ask())
    assert JOINT.number(name, config) == number
