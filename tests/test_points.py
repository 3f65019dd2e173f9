"""The configurations of a large space are found without asking at each, and are those of the plain product."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from registry.artifact import Built
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate
from registry.errors import InvalidDefinitionError, MisnamedError
from registry.implementation import Implementation, Run
from registry.points import Points
from registry.problem import Problem
from registry.space import MANY, Config, Space
from registry.tuner.planning.problems import plan
from registry.tuner.search.proposals import Searcher

PROBLEM = Problem("softmax", {"rows": 64, "cols": 256, "dtype": "float32"})

Rule = Callable[[Config], Any]

RULES: dict[str, tuple[Rule, ...]] = {
    "none": (),
    "two parameters": (lambda config: config["a"] * config["c"] <= 8,),
    "another parameter by the value of the first": (
        lambda config: config["b"] != "x" if config["a"] > 2 else config["d"],
    ),
    "a guard before a division": (lambda config: config["c"] != 0, lambda config: config["a"] % config["c"] == 0),
    "every parameter": (lambda config: len(str(sorted(map(str, config.values())))) % 3 != 0,),
    "what only a dict can do": (lambda config: (config | {"a": 1})["c"] < 3,),
    "unpacked": (lambda config: dict(**config)["c"] > 1,),
    "all": (lambda config: False,),
}


def space_of(*rules: Rule) -> Space:
    space = Space(a=[1, 2, 3, 4], b=["x", "y"], c=[0, 1, 2, 3], d=[False, True])
    for number, rule in enumerate(rules):
        space = space.require(f"rule {number}", rule)
    return space


def plainly(space: Space, rules: tuple[Rule, ...]) -> list[dict[str, Any]]:
    every = (dict(zip(space.domains, values, strict=True)) for values in itertools.product(*space.domains.values()))
    return [config for config in every if all(rule(config) for rule in rules)]


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_the_points_are_those_of_the_product_that_hold(rules: tuple[Rule, ...]) -> None:
    space = space_of(*rules)
    points, expected = Points(space), plainly(space, rules)
    assert list(points) == expected == list(space.configs)
    assert len(points) == len(expected)
    assert [points[row] for row in range(len(points))] == expected
    assert points[1:4] == expected[1:4]
    assert [points.row(config) for config in expected] == list(range(len(expected)))
    names = list(space.domains)
    places = [[space.domains[name].index(config[name]) for name in names] for config in expected]
    assert points.places(slice(None)).tolist() == places
    for centre in places[::7]:
        distances = [sum(abs(one - two) for one, two in zip(centre, other, strict=True)) for other in places]
        assert points.distances(centre).tolist() == distances
        for distance in (0, 1, 2, 3):
            assert points.near(centre, distance) == [row for row, far in enumerate(distances) if far == distance]


@pytest.mark.parametrize(
    "config",
    [{"a": True, "b": "x", "c": 1, "d": True}, {"a": 1, "b": "x", "c": 1.0, "d": True}, {"a": 1, "b": "x", "c": 1}, {}],
)
def test_a_configuration_is_found_by_the_types_of_its_values(config: Mapping[str, Any]) -> None:
    assert Points(space_of()).row(config) is None
    assert config not in Points(space_of())


def vast(asked: list[Config] | None = None) -> Space:
    def rule(config: Config) -> bool:
        if asked is not None:
            asked.append(config)
        return bool(config["p1"] + config["p4"] < 11)

    return Space(**{f"p{place}": range(11) for place in range(6)}).require("p1 and p4 are small", rule)


def test_a_constraint_is_asked_for_each_combination_of_what_it_reads() -> None:
    asked: list[Config] = []
    space = vast(asked)
    assert len(space.configs) == 11**4 * 66 > 900_000
    assert len(asked) <= 11**2 + 2


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        (lambda config: config["p9"] < 3, MisnamedError),
        (lambda config: config["p0"] / config["p1"] < 3, InvalidDefinitionError),
        (lambda config: None, InvalidDefinitionError),
    ],
)
def test_a_fault_of_a_constraint_is_told(rule: Rule, fault: type[Exception]) -> None:
    with pytest.raises(fault, match="the constraint 'wrong'"):
        len(vast().require("wrong", rule).configs)


@pytest.mark.parametrize(("name", "rule"), [(lambda config: True, "tiles fit"), ("tiles fit", True), (None, any)])
def test_a_constraint_needs_words_and_a_function(name: Any, rule: Any) -> None:
    with pytest.raises(InvalidDefinitionError, match=r"require\(.*\n  expected words and a function"):
        vast().require(name, rule)


class Vast(Implementation):
    """A million configurations."""

    op, name = "softmax", "acme.vast"
    device_types = frozenset({"cpu"})

    def space(self, problem: Problem, device: Device) -> Space:
        return vast()

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        raise AssertionError("never run here")


def test_a_million_configurations_are_planned_and_searched_without_being_held() -> None:
    catalog, implementation = Catalog(entry_points=()), Vast()
    catalog.register(implementation)
    assert vast().product > MANY
    Searcher(plan([PROBLEM], catalog, Device.of("cpu"))[0]).ask(1)  # what is imported late is no part of it
    tracemalloc.start()
    try:
        (planned,) = plan([PROBLEM], catalog, Device.of("cpu"))
        searcher = Searcher(planned)
        told = {candidate.key for candidate in searcher.ask(9)}
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert planned.candidates > 900_000
    assert held < 16 * planned.candidates, "a dict alone takes 184 bytes"
    assert len(told) == 9


@pytest.mark.thorough
def test_a_search_of_a_million_configurations_comes_to_the_valley() -> None:
    catalog = Catalog(entry_points=())
    implementation = Vast()
    catalog.register(implementation)
    (planned,) = plan([PROBLEM], catalog, Device.of("cpu"))
    searcher, random_ones = Searcher(planned, seed=1), random.Random(1)
    times: list[float] = []
    for _ in range(64):
        (candidate,) = searcher.ask(1)
        assert planned.choices[0].has(candidate.config)
        times.append(time(candidate.config))
        searcher.tell(candidate, times[-1])
    by_chance = [time(planned.choices[0].configs[random_ones.randrange(planned.candidates)]) for _ in range(64)]
    assert min(times) < 1.05 * time(dict.fromkeys(vast().domains, 3)) < min(by_chance)
    assert not searcher.untried(Candidate(implementation, dict.fromkeys(vast().domains, 10)))


def time(config: Config) -> float:
    return 10.0 + sum((value - 3) ** 2 for value in config.values())
