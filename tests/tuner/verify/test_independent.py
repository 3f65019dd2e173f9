"""What ops say to be independent: any mixture of such elements is a call of the op, and verification makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.arguments.schema import tensors_in
from registry.contracts import SQUARE
from registry.contracts.scaled_mm import SCALED_MM
from registry.correctness.numerics import reference64
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.errors import InvalidDefinitionError
from registry.problem import Problem
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.verify.session import PARTLY, PARTLY_AGAIN, Session

CPU = Device.of("cpu")
PROTOCOL = TimingProtocol.of(CPU)
OPS = tuple(name for name, op in sorted(Catalog(entry_points=()).ops().items()) if op.independent)


def drawn_with_integers(catalog: Catalog, name: str) -> tuple[Problem, tuple[Any, ...]]:
    """The first of an op's examples that has independent integers, and its inputs."""
    op = catalog.op(name)
    for dims in op.examples:
        problem = op.problem_of(dims)
        values = op.draw(problem, op.kinds[0], torch.Generator().manual_seed(1))
        named = dict(zip(op.parsed.names, values, strict=True))
        tensors = tensors_in([named[each] for each in op.independent])
        if any(not each.is_floating_point() and each.numel() > 1 for each in tensors):
            return problem, values
    raise AssertionError(f"{name} has no example with integers")


@pytest.mark.parametrize("name", OPS)
def test_changed_and_moved_elements_are_a_call_of_the_op(catalog: Catalog, name: str) -> None:
    op = catalog.op(name)
    problem, values = drawn_with_integers(catalog, name)
    session = Session(op, problem, CPU, PROTOCOL, 1)
    rotation, floating = session.rotation, dict.fromkeys(session.independent)
    rotation.show("drawn", values)
    before = [tensor.clone() for tensor in tensors_in(values)]
    differ = False
    for _ in range(3):
        rotation.move([0], {place: values[place] for place in floating if tensors_in((values[place],))})
        rotation.change(floating)
        copy = rotation.copies[0]
        if op.check_data is not None:
            op.check_data(dict(zip(op.parsed.names, copy, strict=True)))
        assert all(not result.isnan().any() for result in reference64(op, copy) if result.is_floating_point())
        differ |= any(not torch.equal(now, was) for now, was in zip(tensors_in(copy), before, strict=True))
    assert differ
    rotation.restore()
    assert all(torch.equal(now, was) for now, was in zip(tensors_in(rotation.copies[0]), before, strict=True))


def test_inputs_after_timing_have_most_integers_of_the_timed_ones() -> None:
    dims = {"m": 40, "n": 64, "k": 200, "dtype": "int8", "scales": "tensor", "out_dtype": "float32", "bias": False}
    for op, part in ((SCALED_MM, 0.9), (replace(SCALED_MM, independent=frozenset()), 0.0)):
        session = Session(op, Problem("scaled_mm", dims), CPU, PROTOCOL, 1)
        timed = session.values(session.timed_kind)
        for kind in (PARTLY, PARTLY_AGAIN):
            mixed = session.case(kind).values
            for place in (0, 1):
                alike = float((mixed[place] == timed[place]).double().mean())
                assert part <= alike < 1.0
                assert part or alike < 0.5


def test_names_that_are_no_tensors_are_refused_when_the_op_is_made() -> None:
    with pytest.raises(InvalidDefinitionError, match=r"independent: .*'z'"):
        replace(SQUARE, independent=frozenset({"z"}))
    with pytest.raises(InvalidDefinitionError, match="independent is 'x'"):
        replace(SQUARE, independent="x")  # type: ignore[arg-type]
