"""Fields of an op that no call could use are refused when the op is made, with the author's line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import registry
from registry import InvalidDefinitionError, Tolerance, implementation_of
from registry.contracts import SQUARE
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import CheckError
from registry.testing import check_op

HERE = Path(__file__).name
RIGHT = SQUARE.tolerance
ONE: Any = 1e-5
BY_DTYPE: Any = {torch.float32: 1.0}

FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "version": ({"version": "1"}, "its version is '1'\n  expected an int"),
    "kinds": ({"kinds": "normal"}, "its kinds are 'normal'\n  expected a tuple of names, ('normal',)"),
    "examples": ({"examples": {"n": 3, "dtype": "float32"}}, "its examples are one mapping"),
    "backward": ({"backward": "square_backward"}, "its backward is 'square_backward'\n  expected registry.Backward("),
    "kinds twice": ({"kinds": ("normal", "normal")}, "its kinds have 'normal' twice\n  name each kind"),
    "baseline": (
        {"baseline": "torch"},
        "its baseline is 'torch'\n  expected the name of an implementation",
    ),
    "flatten": ({"flatten": "x"}, "flatten: 'x' is no function\n  it takes a user's call"),
    "forms": ({"forms": "x"}, "forms: 'x' is no function\n  it takes (given)"),
    "view": ({"view": lambda: 1}, "view: <lambda>() cannot be called with (arguments): too many"),
    "check_data": ({"check_data": 3}, "check_data: 3 is no function\n  it takes (values)"),
    "name": ({"name": "mine::square"}, "its schema is named 'square'\n  begin the schema with mine::square("),
    "saved": (
        {"backward": registry.Backward(op="square_backward", saved="x")},  # type: ignore[arg-type]
        f"saved in its backward is 'x' (tests/contract/{HERE}:",
    ),
    "differentiable": (
        {"backward": registry.Backward.reference("y")},  # type: ignore[arg-type]
        "expected a tuple of names, ('y',)",
    ),
    "problem": ({"problem": None}, "problem: None is no function"),
    "inputs": ({"inputs": lambda problem: ()}, "cannot be called with (problem, kind, generator): too many posi"),
    "floor": (
        {"floor": lambda problem, device: None},
        "floor: <lambda>(problem, device) cannot be called with (problem",
    ),
    "fake": ({"fake": lambda x, y: x}, "it takes the schema's arguments in order: (x)"),
    "alike": ({"alike": {"w": "x"}}, "alike: unknown tensor 'w'\n  its tensors are x"),
    "added": (
        {"added": {"kind": ("b",)}},
        "added: kind is ('b',), but its choices of kind are none\n  expected a tuple of some of these, not of all",
    ),
    "compare": ({"compare": {"y": "exact"}}, "compare: y: 'exact' is no function"),
    "scale": (
        {"tolerance": replace(RIGHT, scale=lambda y: y.abs())},
        "its tolerance: scale: <lambda>(y) cannot be called with (problem, reference)",
    ),
    "rtol": (
        {"tolerance": replace(RIGHT, rtol=ONE)},
        'has rtol=1e-05\n  expected a mapping of dtype names, rtol={"flo',
    ),
    "dtype": ({"tolerances": {"y": replace(RIGHT, atol=BY_DTYPE)}}, "its tolerance of y has atol={torch."),
    "tolerance": ({"tolerances": {"y": 1e-5}}, "its tolerance of y is 1e-05\n  expected a registry.Tolerance"),
}


@pytest.mark.parametrize(("given", "message"), FIELDS.values(), ids=list(FIELDS))
def test_a_field_that_no_call_could_use_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidDefinitionError) as raised:
        replace(SQUARE, **given)
    assert message in str(raised.value)
    if "cannot be called" in str(raised.value):
        assert f"{HERE}:" in str(raised.value)


def _drawn(*given: Any) -> tuple[Any, ...]:
    return SQUARE.inputs(*given)


def _counted(problem: registry.Problem, share: float = 1.0) -> registry.Floor:
    return SQUARE.floor(problem)


def test_functions_may_have_more_parameters_that_need_not_be_given() -> None:
    op = replace(SQUARE, floor=_counted, inputs=_drawn)
    assert check_op(op).checked
    by_values = Tolerance(RIGHT.rtol, RIGHT.atol, lambda problem, y, values: y.abs())
    assert replace(SQUARE, tolerance=by_values).tolerance.by_values


def test_a_reference_that_returns_a_list_is_told_once() -> None:
    in_a_list: Any = lambda x: [x * x]  # noqa: E731
    op = replace(SQUARE, reference=in_a_list)
    with pytest.raises(
        CheckError, match=rf"its reference returns a list as y \(.*{HERE}:\d+\).*a tuple of several"
    ) as told:
        check_op(op)
    assert str(told.value).count("its reference returns") == 1


def test_a_comparator_that_returns_no_faults_but_a_verdict_is_told() -> None:
    verdict: Any = lambda problem, values, results, references: True  # noqa: E731
    op = replace(SQUARE, compare={"y": verdict})
    with pytest.raises(CheckError, match=rf"compare of y returned True \(.*{HERE}:\d+\).*yield each fault in words"):
        check_op(op)


def test_an_op_that_writes_and_declares_a_gradient_is_told() -> None:
    op = replace(SQUARE, schema="square(Tensor(a!) x) -> Tensor y", backward=registry.Backward.reference(), fake=None)
    with pytest.raises(CheckError, match=r"it writes to its arguments, so it has no backward: leave backward out"):
        check_op(op, problems=())


def test_a_function_of_other_parameters_is_refused_when_it_is_registered() -> None:
    catalog = Catalog(entry_points=())
    wrong = implementation_of("square", "own.two", lambda x, y: x * y)
    with pytest.raises(InvalidDefinitionError, match=rf"own.two: <lambda>\(x, y\) cannot be called with \(x\).*{HERE}"):
        catalog.register(wrong)
    with pytest.raises(InvalidDefinitionError, match=r"cannot be called with \(y, x\)"):
        catalog.register(implementation_of("square", "own.into", lambda x: x * x, into=True))
    catalog.register(implementation_of("square", "own.right", lambda y, x: torch.mul(x, x, out=y), into=True))


def test_limits_that_are_no_function_are_refused_with_their_line() -> None:
    with pytest.raises(
        InvalidDefinitionError, match=rf"unsupported is 'too big' \(.*{HERE}:\d+\)\n.*yields every reas"
    ):
        implementation_of("square", "own.right", torch.square, unsupported="too big")  # type: ignore[arg-type]


def test_a_fake_that_looks_at_data_is_told_as_the_ops_fault() -> None:
    def by_data(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(int(x.sum()))

    message = r"its {} looks at the data of tensors: .*test_field_checks.py:\d+\).*x.new_empty"
    with pytest.raises(CheckError, match=message.format("fake")):
        check_op(replace(SQUARE, fake=by_data))
    with pytest.raises(CheckError, match=message.format("reference, which stands for a fake that it lacks,")):
        check_op(replace(SQUARE, fake=None, reference=lambda x: x[: max(1, int(x.abs().sum()) % 2)].clone()))


def test_rows_that_name_nothing_are_refused() -> None:
    with pytest.raises(InvalidDefinitionError, match=r"rows: unknown argument or output 'z'"):
        registry.rows_op("own::same(Tensor x) -> Tensor y", lambda x: x.clone(), rows=("x", "z"))


WRONG_RETURNS: dict[str, tuple[str, Any, str]] = {
    "forms: dict": ("forms", lambda given: given, r"forms\(\) returned \{'x': .*CanonicalCall of the arguments"),
    "forms: values": ("forms", lambda given: registry.CanonicalCall(3), r"forms\(\) returned CanonicalCall\(3\)"),  # type: ignore[arg-type]
    "flatten: one": ("flatten", lambda x: (x,), r"flatten\(\) returned tuple \(tensor.*as a mapping"),
    "flatten: tensor": ("flatten", lambda x: x, r"flatten\(\) returned Tensor tensor"),
    "flatten: no tuple": ("flatten", lambda x: (x, {}), r"flatten\(\) returned tuple"),
}


@pytest.mark.parametrize(("field", "function", "message"), WRONG_RETURNS.values(), ids=list(WRONG_RETURNS))
def test_a_function_that_returns_another_type_is_told_with_its_op_and_line(
    tmp_path: Path, field: str, function: Any, message: str
) -> None:
    given: dict[str, Any] = {field: function}
    op = replace(SQUARE, name="own::square", schema=SQUARE.schema.replace("square(", "own::square("), **given)
    catalog = Catalog(entry_points=())
    catalog.define(op)
    dispatcher = Dispatcher(catalog, database=str(tmp_path / "tuning.db"))
    for ask in (dispatcher.call, dispatcher.explain):
        with pytest.raises(InvalidDefinitionError, match=rf"(?s)op 'own::square': {message}") as told:
            ask("own::square", torch.ones(3))
        assert f"{HERE}:" in told.value.message


@pytest.mark.parametrize("returned", [None, {}])
def test_a_view_that_returns_another_type_is_told_when_a_trait_is_asked_for(returned: Any) -> None:
    op = replace(SQUARE, view=lambda arguments: returned)
    problem = op.pose(op.arguments((torch.ones(3),)))
    message = rf"op 'square': view\(\) returned {returned} \(.*{HERE}:\d+\)\n.*expected registry\.Arguments"
    with pytest.raises(InvalidDefinitionError, match=message):
        problem.traits["contiguous"]


WRONG_OUTPUTS: dict[str, tuple[Any, str]] = {
    "number": (lambda x: (x, x), r"returned 2 outputs, expected 1: y"),
    "dtype": (lambda x: x.double(), r"returned an output that does not fit: y is float64, expected float32"),
    "shape": (lambda x: x[1:] ** 2, r"returned an output that does not fit: y has shape \(3,\), expected \(4,\)"),
    "argument": (lambda x: x, r"returned y, which shares memory with an argument"),
}


@pytest.mark.parametrize(("function", "message"), WRONG_OUTPUTS.values(), ids=list(WRONG_OUTPUTS))
def test_wrong_outputs_of_a_function_are_told_with_its_line(function: Any, message: str) -> None:
    catalog = Catalog(entry_points=())
    catalog.register(implementation_of("square", "own.wrong", function))
    own = Dispatcher(catalog)
    with own.using(square="own.wrong"), pytest.raises(registry.RegistryError, match=rf"{message} \(.*{HERE}:\d+\)"):
        own.call("square", torch.ones(4))
