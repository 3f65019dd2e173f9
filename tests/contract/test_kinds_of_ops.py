"""Ops whose outputs are unlike those of the box, and contracts of which a part is wrong: told with what to write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

import registry
from registry import Floor, Op, Tolerance
from registry.problem import Arguments, dtype_name
from registry.testing import check_implementation, check_op


def dims_of(arguments: Arguments) -> dict[str, Any]:
    x = arguments.tensor("x")
    return {"n": x.numel, "dtype": dtype_name(x.dtype)}


def inputs_of(problem: Any, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    return (torch.randn(problem.n, generator=generator, dtype=problem.torch_dtype),)


TWICE = Op(
    name="acme::twice",
    schema="acme::twice(Tensor x) -> Tensor y",
    version=1,
    reference=lambda x: x * 2,
    fake=lambda x: x.new_empty(x.shape),
    problem=dims_of,
    inputs=inputs_of,
    floor=lambda problem: Floor(bytes=8 * problem.n, flop=problem.n),
    tolerance=Tolerance({"float32": 1e-6}, {"float32": 1e-6}, lambda problem, y: y.abs()),
    static=frozenset({"dtype"}),
    dynamic=frozenset({"n"}),
    examples=({"n": 5, "dtype": "float32"},),
)


def to_float8(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-448, 448).to(torch.float8_e4m3fn)


def test_a_reference_may_round_to_float8() -> None:
    op = replace(
        TWICE,
        reference=to_float8,
        fake=lambda x: x.new_empty(x.shape, dtype=torch.float8_e4m3fn),
        tolerance=Tolerance({"float8_e4m3fn": 2.0**-3}, {"float8_e4m3fn": 2.0**-9}, lambda problem, y: y.abs()),
    )
    assert check_op(op).ok
    right = registry.implementation_of(op.name, "acme.right", to_float8)
    assert check_implementation(right, op, device="cpu").ok
    wrong = registry.implementation_of(op.name, "acme.wrong", lambda x: to_float8(x * 1.5))
    with pytest.raises(registry.RegistryError, match="times what is allowed"):
        check_implementation(wrong, op, device="cpu")


@pytest.mark.parametrize("rtol", [1e-5, 1e9])
def test_one_number_is_no_constant_output_but_a_blind_tolerance_is_found(rtol: float) -> None:
    """A loss of the only example is one number: that a constant equals it says nothing."""
    op = replace(
        TWICE,
        reference=lambda x: x.square().mean(),
        fake=lambda x: x.new_empty(()),
        tolerance=Tolerance({"float32": rtol}, {"float32": 1e-7}, lambda problem, y: y.abs()),
    )
    if rtol < 1:
        assert check_op(op).ok
    else:
        with pytest.raises(registry.RegistryError, match="its tolerance accepts"):
            check_op(op)


def far(problem: Any, values: Any, results: Mapping[str, torch.Tensor], references: Mapping[str, torch.Tensor]) -> Any:
    assert references["y"].dtype == torch.complex128
    if (results["y"] - references["y"]).abs().max() > 1e-5:
        yield "too far off"


def test_complex_results_are_judged_by_the_ops_own_comparator() -> None:
    complex_op = replace(TWICE, examples=({"n": 5, "dtype": "complex64"},))
    with pytest.raises(registry.RegistryError, match=r"no error rule for complex.*judge y by compare="):
        check_op(complex_op)
    op = replace(complex_op, compare={"y": far})
    assert check_op(op).ok
    assert check_implementation(registry.implementation_of(op.name, "acme.c", lambda x: x + x), op, device="cpu").ok
    wrong = registry.implementation_of(op.name, "acme.wrong", lambda x: x + x.conj().resolve_conj())
    with pytest.raises(registry.RegistryError, match="y: too far off"):
        check_implementation(wrong, op, device="cpu")


WRONG = {
    "dtype": ({"problem": lambda a: {"n": 5, "dtype": a.tensor("x").dtype}}, "gives dtype as torch.float32, a dtype"),
    "None": ({"problem": lambda a: None}, r"problem\(\) returned None"),
    "missing": ({"problem": lambda a: {"n": 5}}, r"problem\(\) gives n \(.*\(its dimensions are dtype, n\)"),
    "more": ({"problem": lambda a: {**dims_of(a), "m": 5}}, r"problem\(\) gives n, dtype, m"),
    "argument": ({"problem": lambda a: {"n": a.tensor("xs").numel}}, r"unknown argument 'xs'.*did you mean x\?"),
    "kind": ({"problem": lambda a: {"n": a.integer("x")}}, r"x must be an int, got a tensor .arguments.tensor\('x'\)"),
    "fakes": ({"fake": lambda x: (x, x)}, r"its fake returned Tensor, Tensor \(.*a tensor for each of its outputs: y"),
    "no fake": ({"fake": lambda x: None}, r"its fake returned None"),
    "floor": ({"floor": lambda problem: (1, 2)}, r"its floor is \(1, 2\), expected registry.Floor"),
    "raises": ({"floor": lambda problem: problem.m}, r"no dimension 'm'.* \(.*test_kinds_of_ops.py:\d+\)"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=list(WRONG))
def test_a_part_of_a_contract_that_is_wrong_is_told_by_check_op(change: dict[str, Any], message: str) -> None:
    with pytest.raises(registry.RegistryError, match=message):
        check_op(replace(TWICE, **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tolerance": None}, r"its tolerance is None\n  expected a registry.Tolerance"),
        ({"static": "dtype"}, r"static is 'dtype'\n  expected \{'dtype'\}"),
        ({"schema": "acme::twice(int n) -> Tensor y"}, "it takes no tensor"),
        ({"reference": None}, r"its reference is None\n  it takes the schema's arguments in order: \(x\)"),
        (
            {"reference": lambda: 1},
            r"its reference, which takes \(\), cannot be called .*too many positional",
        ),
        (
            {"reference": lambda x, z: x},
            r"which takes \(x, z\), .* 'z' \(.*test_kinds_of_ops.py:\d+\)\n.*in order: \(x\)",
        ),
        ({"reference": lambda x, *, z: x}, "missing a required .*'z'"),
    ],
)
def test_what_no_op_can_say_is_refused_when_it_is_made(change: dict[str, Any], message: str) -> None:
    with pytest.raises(registry.RegistryError, match=message):
        replace(TWICE, **change)


@pytest.mark.parametrize("reference", [torch.square, torch.ops.aten.square, lambda *given: given[0], lambda x, z=1: x])
def test_a_reference_may_take_more_or_hide_what_it_takes(reference: Any) -> None:
    assert replace(TWICE, reference=reference).reference is reference


def test_names_of_dimensions_may_come_in_a_list() -> None:
    op = replace(TWICE, static=["dtype"], dynamic=["n"])  # type: ignore[arg-type]
    assert (op.static, op.dynamic) == ({"dtype"}, {"n"})
