"""Other sizes of a problem: along every dynamic dimension, alike in divisibility, and not too large."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.contract import Floor, Op
from registry.contracts import SOFTMAX
from registry.correctness.other_sizes import other_sizes
from registry.device import Device
from registry.errors import InvalidArgumentError
from registry.problem import Arguments, Problem, Value

CPU = Device.of("cpu")


def found(op: Op, dims: Mapping[str, Value], device: Device = CPU) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Where the other problem differs from its home, and the home from the given problem."""
    problem = op.problem_of(dims)
    return [
        (
            {name: value for name, value in other.problem.dims.items() if other.home.dims[name] != value},
            {name: value for name, value in other.home.dims.items() if problem.dims[name] != value},
        )
        for other in other_sizes(op, problem, device)
    ]


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (1, [3, 16]),
        (2, [1, 6, 16]),
        (16, [8, 48, 17]),
        (37, [18, 111, 64]),
        (64, [32, 208, 65]),
        (65, [33, 195, 128]),
        (48, [16, 144, 49]),
        (2000, [512, 6000, 2001]),
        (2002, [1001, 6006, 2048]),
    ],
)
def test_a_multiple_of_16_stays_one_in_whole_tiles_and_in_a_part_of_one_and_not_in_the_third_size(
    rows: int, sizes: list[int]
) -> None:
    told = found(SOFTMAX, {"rows": rows, "cols": 8, "dtype": "float32"})
    assert told == [({"rows": size}, {}) for size in sizes]


def shift_problem(arguments: Arguments) -> Mapping[str, Value]:
    rows, cols = arguments.tensor("x").shape
    return {"rows": rows, "cols": cols, "by": arguments.integer("by")}


def at_most_cols(problem: Problem) -> None:
    if problem.by > problem.cols:
        raise InvalidArgumentError(f"by={problem.by} is more than {problem.cols} columns")


SHIFT = Op(
    name="acme::shift",
    schema="acme::shift(Tensor x, int by) -> (Tensor y)",
    version=1,
    reference=lambda x, by: torch.roll(x, by, 1),
    problem=shift_problem,
    inputs=lambda problem, kind, generator: (torch.randn(problem.rows, problem.cols, generator=generator), problem.by),
    floor=lambda problem: Floor(8 * problem.rows * problem.cols, 0),
    tolerance=SOFTMAX.tolerance,
    static=frozenset(),
    dynamic=frozenset({"rows", "cols", "by"}),
    check=at_most_cols,
)


def test_every_dynamic_dimension_has_sizes_of_its_own_an_attribute_too() -> None:
    told = found(SHIFT, {"rows": 5, "cols": 40, "by": 9})
    assert told == [
        ({"rows": 2}, {}),
        ({"rows": 15}, {}),
        ({"rows": 16}, {}),
        ({"cols": 20}, {}),
        ({"cols": 120}, {}),
        ({"cols": 64}, {}),
        ({"by": 4}, {}),
        ({"by": 27}, {}),
        ({"by": 16}, {}),
    ]


def test_sizes_that_the_op_does_not_have_are_passed_over() -> None:
    told = found(SHIFT, {"rows": 1, "cols": 40, "by": 15})
    assert ({"by": 30}, {}) in told, "45 is more than the columns, twice 15 is not"
    assert ({"cols": 20}, {}) in told
    assert not any("cols" in other and int(other["cols"]) < 15 for other, _ in told)


def test_where_a_larger_size_costs_too_much_the_home_is_smaller() -> None:
    small = replace(CPU, memory_bytes=128 << 20)
    told = found(SOFTMAX, {"rows": 4096, "cols": 128, "dtype": "float32"}, small)
    # of 1 MiB, and a row moves 1 KiB
    assert told == [({"rows": 1024}, {}), ({"rows": 1024}, {"rows": 512}), ({"rows": 513}, {"rows": 512})]
    problem = SOFTMAX.problem_of({"rows": 4096, "cols": 128, "dtype": "float32"})
    halves = list(other_sizes(SOFTMAX, problem, small, part=1 / 2))
    assert [(each.home.rows, each.problem.rows) for each in halves] == [(4096, 512), (256, 512), (256, 257)]
    assert [each.is_larger for each in halves] == [False, True, False]


def test_an_op_without_dynamic_dimensions_has_no_other_sizes() -> None:
    op = replace(SHIFT, static=SHIFT.dynamic, dynamic=frozenset())
    assert found(op, {"rows": 1, "cols": 4, "by": 3}) == []
