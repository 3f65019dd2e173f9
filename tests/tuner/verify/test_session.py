"""What a worker keeps of a problem is made only for an op that can tell a right output from none."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.contract import Op
from registry.contracts import SQUARE
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.errors import InvalidDefinitionError
from registry.problem import Problem
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.planning.weights import BATCH
from registry.tuner.verify.session import Session, Sessions

CPU = Device.of("cpu")
SIZE = 12_345


def inputs_of_one_size(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    if problem.n != SIZE:
        raise RuntimeError("a size that it has no inputs for")
    return SQUARE.inputs(problem, kind, generator)


def registered(rtol: float) -> Op:
    """Square under another name, with that tolerance; it fails on all of its examples."""
    op = replace(
        SQUARE,
        name="acme::square",
        schema=SQUARE.schema.replace("square", "acme::square", 1),
        inputs=inputs_of_one_size,
        tolerance=replace(SQUARE.tolerance, rtol=dict.fromkeys(SQUARE.tolerance.rtol, rtol)),
    )
    catalog = Catalog(entry_points=())
    catalog.define(op)
    return catalog.op("acme::square")


def session_of(op: Op) -> Session:
    return Session(op, op.problem_of({"n": SIZE, "dtype": "float32"}), CPU, TimingProtocol.of(CPU), 7)


def test_a_blind_op_whose_examples_all_fail_is_refused_when_it_is_first_tuned() -> None:
    op = registered(rtol=1.0)
    for _ in range(2):
        with pytest.raises(InvalidDefinitionError, match="accepts an all-zero output as y"):
            session_of(op)


def test_an_op_whose_examples_all_fail_is_tuned_if_it_tells_right_from_nothing() -> None:
    session = session_of(registered(rtol=1e-3))
    case = session.case(session.timed_kind)
    assert session.judge(case, (torch.square(case.values[0]),)) == ""


EMBEDDING = {"rows": 8, "cols": 256, "vocabulary": 4096, "dtype": "float32", "frequency": "skewed"}
TABLE_BYTES = 256 * 4096 * 4


def sessions_of(memory_bytes: int) -> Sessions:
    device = replace(CPU, memory_bytes=memory_bytes)
    return Sessions(Catalog(entry_points=()).op, device)


def squares(sessions: Sessions, count: int) -> list[Session]:
    protocol = TimingProtocol.of(CPU)
    return [sessions.get("square", {"n": 1000 + size, "dtype": "float32"}, protocol, 7) for size in range(count)]


def test_a_problem_is_huge_by_all_that_a_call_holds_not_by_what_it_must_read() -> None:
    """An embedding of a few rows reads little of its table, which is in memory all the same."""
    protocol = TimingProtocol.of(CPU)
    for memory, dropped in ((TABLE_BYTES * 40, True), (TABLE_BYTES * 60, False)):
        sessions = sessions_of(memory)
        (small,) = squares(sessions, 1)
        sessions.get("embedding", EMBEDDING, protocol, 7)
        assert (squares(sessions, 1)[0] is not small) is dropped


def test_as_many_small_problems_are_kept_as_finals_are_held_together() -> None:
    sessions = sessions_of(1 << 40)
    before = squares(sessions, BATCH)
    assert all(map(operator.is_, before, squares(sessions, BATCH)))


def test_the_rotating_copies_count_as_held() -> None:
    (session,) = squares(sessions_of(1 << 40), 1)
    before = session.nbytes
    assert session.nbytes - before == 0
    assert session.rotation.nbytes > 0
    assert session.nbytes >= before + session.rotation.nbytes


def test_bounds_of_inputs_that_are_used_once_are_not_kept_for_others() -> None:
    problem, device = SQUARE.problem_of({"n": 1000, "dtype": "float32"}), replace(CPU, memory_bytes=40_000)
    session = Session(SQUARE, problem, device, TimingProtocol.of(CPU), 7)
    assert not session.is_roomy
    for factor in (1.0, 2.0):
        x = torch.full((1000,), factor)
        (bounds,) = session.case_of((x,)).bounds
        assert bool(bounds.holding(x * x))
