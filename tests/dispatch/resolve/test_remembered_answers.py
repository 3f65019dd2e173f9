"""Answers are kept by what was looked at: nothing else may spare a question, and no look may go unseen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

from registry.arguments.specs import Arguments, TensorSpec
from registry.arguments.traits import OrdinaryTraits, Traits
from registry.backends.inductor.implementation import InductorImplementation
from registry.contracts import BOX
from registry.contracts.softmax import SOFTMAX
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.resolve.remembered_answers import Remembered
from registry.dispatch.resolve.spans import Spans
from registry.problem import Problem, Value

CPU = Device.of("cpu")


def posed(rows: int, cols: int, traits: Traits | None = None, **more: object) -> Problem:
    arguments = Arguments("op", {"x": TensorSpec.contiguous((rows, cols), torch.float32), "mask": None})
    dims: Mapping[str, int] = {"rows": rows, "cols": cols, **more}  # type: ignore[dict-item]
    return Problem("op", dims, traits or OrdinaryTraits(arguments))


LOOKS: dict[str, Callable[[Problem], object]] = {
    "attribute": lambda problem: problem.rows,
    "item": lambda problem: problem.dims["rows"],
    "get": lambda problem: problem.dims.get("rows"),
    "text": str,
    "key": lambda problem: problem.key,
    "hash": hash,
    "all": lambda problem: dict(problem.dims),
    "count": lambda problem: len(problem.dims),
    "of the misaligned": lambda problem: problem.misaligned().rows,
    "arguments": lambda problem: problem.traits.arguments.tensor("x").shape,  # type: ignore[union-attr]
    "arguments of the misaligned": lambda problem: problem.misaligned().traits.arguments,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=list(LOOKS))
def test_whoever_looks_at_a_size_is_asked_for_each_size(look: Callable[[Problem], object]) -> None:
    asked: list[int] = []

    def ask(problem: Problem) -> int:
        look(problem)
        asked.append(problem.dims["rows"] if look is LOOKS["item"] else 0)  # type: ignore[arg-type]
        return len(asked)

    remembered = Remembered(ask, frozenset({"rows"}))
    for rows in (1, 2, 3):
        remembered.of(posed(rows, 8))
    assert len(asked) == 3


def test_whoever_looks_elsewhere_is_asked_once() -> None:
    asked: list[object] = []

    def ask(problem: Problem) -> bool:
        traits = problem.traits
        other = problem.misaligned().traits
        asked.append(((traits["aligned"], traits["mixed"]), (traits.dtype("x"), traits.present("mask"))))
        asked.append((traits.layout("x"), other.aligned("x"), other.contiguous("x"), traits.lists))
        return bool(problem.cols > 4)

    remembered = Remembered(ask, frozenset({"rows"}))
    assert [remembered.of(posed(rows, 8)) for rows in (1, 2, 3)] == [True, True, True]
    assert asked == [((True, False), ("float32", False)), ("row-major", False, True, False)]
    assert [remembered.of(posed(rows, 4)) for rows in (1, 2)] == [False, False]
    assert len(asked) == 4


def test_lists_are_told_from_tensors() -> None:
    one = TensorSpec.contiguous((2, 3), torch.float32)
    told = [Traits(Arguments("op", {"x": one, "more": more})).lists for more in ((one, one), (), None, one, 1.5)]
    assert told == [True, True, False, False, False]
    assert not Traits().lists


def test_nothing_that_inductor_compiles_is_asked_anew_for_each_size() -> None:
    catalog = Catalog()
    for op in BOX:
        values = op.draw(op.problem_of(op.examples[0]), "normal", torch.Generator().manual_seed(0))
        for implementation in catalog.implementations(op.name):
            if isinstance(implementation, InductorImplementation):
                traits = OrdinaryTraits(op.arguments(values))
                list(implementation.unsupported(Problem(op.name, op.examples[0], traits), CPU))
                assert not traits.taken, implementation


def test_what_is_looked_at_later_counts_from_then_on() -> None:
    asked: list[int] = []

    def ask(problem: Problem) -> bool:
        asked.append(problem.dims["cols"])  # type: ignore[arg-type]
        return bool(problem.cols < 8 or problem.rows > 2)

    remembered = Remembered(ask, frozenset({"rows"}))
    answers = [remembered.of(posed(rows, cols)) for rows, cols in ((1, 4), (3, 8), (1, 8), (3, 8), (3, 4))]
    assert answers == [True, True, False, True, True]


def test_equal_numbers_of_other_types_are_other_answers() -> None:
    remembered = Remembered(lambda problem: type(problem.flag).__name__, frozenset({"rows"}))
    assert [remembered.of(posed(1, 1, flag=flag)) for flag in (1, True, 1.0)] == ["int", "bool", "float"]


def test_traits_that_follow_from_sizes_are_asked_each_time() -> None:
    asked: list[int] = []

    def ask(problem: Problem) -> bool:
        asked.append(1)
        return problem.traits["contiguous"]

    remembered = Remembered(ask, frozenset({"rows"}))
    for rows in (1, 2):
        arguments = Arguments("op", {"x": TensorSpec((rows, 4), torch.float32, (8, 1))})
        assert remembered.of(posed(rows, 4, Traits(arguments))) is (rows == 1)
    assert len(asked) == 2


def test_a_size_between_two_of_a_span_has_its_winner_and_no_other_has() -> None:
    spans: Spans[str] = Spans(SOFTMAX)

    def dims(rows: int, cols: int) -> dict[str, Value]:
        return {"rows": rows, "cols": cols, "dtype": "float32"}

    spans.add(dims(8, 4), winner := "near")
    assert spans.find(dims(9, 4)) is None
    spans.add(dims(16, 4), winner)
    found = [spans.find(dims(rows, cols)) for rows, cols in ((8, 4), (11, 4), (16, 4), (17, 4), (11, 5))]
    assert found == ["near", "near", "near", None, None]
    assert spans.find(dims(True, 4)) is None
    assert spans.find(dims(11, 4.0)) is None  # type: ignore[arg-type]


def test_an_answer_that_others_remember_is_kept_by_what_these_look_at() -> None:
    asked: list[str] = []

    def of_cols(problem: Problem) -> bool:
        asked.append("cols")
        return bool(problem.cols > 4)

    def of_rows(problem: Problem) -> bool:
        asked.append("rows")
        return bool(problem.rows > 2)

    sizes = frozenset({"rows"})
    inner = Remembered(of_cols, sizes)
    outer = Remembered(lambda problem: [inner.of(problem)], sizes)
    assert [outer.of(posed(rows, cols)) for rows, cols in ((1, 8), (2, 8), (1, 4), (2, 4))] == [[True]] * 2 + [
        [False]
    ] * 2
    assert asked == ["cols", "cols"]
    inner = Remembered(of_rows, sizes)
    outer = Remembered(lambda problem: [inner.of(problem)], sizes)
    assert [outer.of(posed(rows, 8)) for rows in (1, 2, 3, 2)] == [[False], [False], [True], [False]]
