"""What a worker keeps of a problem is made only for an op that can tell a right output from none."""

from __future__ import annotations

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
from registry.tuner.verify.session import Session

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
