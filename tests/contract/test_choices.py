"""Lists of tensors, dimensions with named values, distributions of data, and results that an op compares itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import registry
from registry import Device, octave
from registry.arguments.schema import Schema
from registry.correctness import numerics
from registry.correctness.bounds import bounds_of
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.torch_side.operators import define
from registry.errors import ArgumentTypeError, InvalidArgumentError, InvalidDefinitionError, UnsupportedError
from registry.testing import check_implementation, check_op
from registry.tuner.shapes.shapes import load_shapes
from registry.tuner.stored_winners import problem_key
from tuning_db import CandidateKey, Decision, Environment, Protocol, Store

sys.path.insert(0, str(Path(__file__).parent))

from acme import TOP, LastOfTies

from ..covering import covering
from ..serving import serving

CPU = Device.of("cpu")
PLUGIN = Path(__file__).with_name("acme.py")
DIMS: dict[str, Any] = {"rows": 5, "cols": 17, "parts": 2, "top": 3, "order": "largest", "dtype": "float32"}


class Wrong(LastOfTies):
    name = "acme.wrong"

    def __init__(self, spoil: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.places = spoil  # type: ignore[method-assign]


def given(rows: int = 5, parts: int = 2) -> tuple[list[torch.Tensor], int]:
    return [torch.randn(rows, 17) for _ in range(parts)], 3


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    made = Catalog()
    made.load_file(PLUGIN)
    return made


@pytest.fixture
def dispatcher(catalog: Catalog, tmp_path: Path) -> Iterator[Dispatcher]:
    made = Dispatcher(catalog, database=str(tmp_path / "top.db"))
    with serving(made):
        yield made


def test_the_op_agrees_with_itself_and_with_an_implementation_that_breaks_ties_otherwise() -> None:
    check_op(TOP)
    few = covering(map(TOP.problem_of, TOP.examples))
    assert check_implementation(LastOfTies(), TOP, problems=few, device="cpu").checked


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (torch.zeros_like, "does not hold|named twice"),
        (lambda places: places + 17, "outside of 0 to 16"),
        (lambda places: places.flip(-1), "does not hold"),
    ],
)
def test_the_comparator_refuses_places_that_are_wrong(spoil: Any, fault: str) -> None:
    with pytest.raises(registry.RegistryError, match=fault):
        check_implementation(Wrong(spoil), TOP, problems=TOP.examples[:1], device="cpu")


def test_a_call_with_a_list_runs_the_implementation_every_time_on_what_it_is_given(dispatcher: Dispatcher) -> None:
    for parts in (1, 2, 2, 3):
        scores, top = given(parts=parts)
        values, places = dispatcher.call("acme::top", scores, top)
        wanted = torch.stack(scores).sum(0).topk(3, -1)
        assert torch.equal(values, wanted.values)
        assert torch.equal(places, wanted.indices)
        assert dispatcher.explain("acme::top", tuple(scores), top).implementation == "acme.last"


def test_torch_compile_sees_one_operator_for_a_call_with_a_list(dispatcher: Dispatcher) -> None:
    scores, top = given()
    operator = torch.ops.acme.top if dispatcher.call("acme::top", scores, top) and define(TOP) else None
    assert operator is not None
    compiled = torch.compile(lambda *parts: operator(list(parts), top)[0] + 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*scores), torch.stack(scores).sum(0).topk(3, -1).values + 1)


def test_a_gradient_through_a_list_is_refused_not_dropped(dispatcher: Dispatcher) -> None:
    scores, top = given()
    scores[1].requires_grad_()
    with pytest.raises(UnsupportedError, match="needs a gradient"):
        dispatcher.call("acme::top", scores, top)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((torch.ones(2, 3), 1), "parts must be a Tensor"),
        (([torch.ones(2, 3), 4], 1), r"parts\[1\] must be a Tensor, got 4"),
        (([torch.ones(2, 3)], True), "top must be an int"),
    ],
)
def test_a_list_of_another_type_is_refused(dispatcher: Dispatcher, args: Any, told: str) -> None:
    with pytest.raises(ArgumentTypeError, match=told):
        dispatcher.call("acme::top", *args)


def test_a_choice_that_is_none_is_refused_with_the_nearest(dispatcher: Dispatcher) -> None:
    with pytest.raises(InvalidArgumentError, match="order must be one of largest, smallest, got 'larges'") as raised:
        dispatcher.call("acme::top", *given(), "larges")
    assert "did you mean largest" in str(raised.value)
    with pytest.raises(InvalidArgumentError, match="skew must be one of"):
        TOP.problem_of({**DIMS, "skew": "zip"})


def test_a_call_poses_the_usual_distribution_and_a_file_names_others(catalog: Catalog, tmp_path: Path) -> None:
    scores, top = given()
    posed = TOP.pose(TOP.arguments(TOP.bind((scores, top), {})))
    assert posed == TOP.problem_of(DIMS) == TOP.problem_of({**DIMS, "skew": "uniform"})
    file = tmp_path / "shapes.yaml"
    entry = "{rows: 5, cols: 17, parts: 2, top: 3, order: [largest, smallest], dtype: float32, skew: [one_hot, zipf]}"
    file.write_text(f"acme::top: [{entry}]")
    (problems,) = load_shapes(file, catalog).values()
    assert [(one.order, one.skew) for one in problems] == [
        (order, skew) for order in ("largest", "smallest") for skew in ("one_hot", "zipf")
    ]
    file.write_text(f"acme::top: [{entry.replace('zipf', 'zip')}]")
    with pytest.raises(registry.RegistryError, match="expected uniform or one_hot or zipf, did you mean zipf"):
        load_shapes(file, catalog)


def file_winner(store: Store, skew: str) -> None:
    """As a run does, which tests/test_example_acme.py tests: under the name that it gives to a problem."""
    environment = Environment(CPU.hardware(), CPU.software())
    problem = problem_key(TOP, TOP.problem_of({**DIMS, "skew": skew}))
    winner = CandidateKey("acme.last", LastOfTies().fingerprint(), {})
    decision = Decision(problem, environment, Protocol("cold"), winner, 12.5, verdict="new")
    assert store.publish(store.start_run(environment), decision)


def test_winners_are_filed_by_distribution_and_those_of_another_one_answer(catalog: Catalog, store: Store) -> None:
    file_winner(store, "one_hot")
    (stored,) = store.winners(op=TOP.name)
    assert stored.problem.dims["skew"] == "one_hot"
    told = Dispatcher(catalog, database=store.url).explain("acme::top", *given())
    assert (told.step, told.implementation) == ("nearest", "acme.last")
    assert "skew=one_hot" in str(told)
    file_winner(store, "uniform")
    assert Dispatcher(catalog, database=store.url).explain("acme::top", *given()).step == "exact"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"choices": {"order": ("largest", "largest")}}, "the choices of order are"),
        ({"choices": {"order": (1, 2)}}, "the choices of order are"),
        ({"choices": {"rows": ("a",)}}, "both static and dynamic"),
        ({"choices": {"key": (False, True)}}, r"a dimension named 'key'[^;]*\n *problem.key is something else"),
        ({"dynamic": frozenset({"torch_dtype"})}, r"a dimension named 'torch_dtype'[^;]*\n *problem.torch_dtype is"),
        (
            {"choices": {"in place": (False, True)}},
            r"a dimension named 'in place'[^;]*\n *expected a name as in Python",
        ),
        ({"compare": {"place": lambda *_: None}}, "unknown result 'place'"),
        ({"tolerances": {"score": TOP.tolerance}}, "unknown result 'score'"),
        ({"transfers": {"rows": octave}}, "transfers: rows is no static size"),
        ({"transfers": {"dtype": octave}}, "transfers: dtype is no static size"),
        ({"transfers": {"order": octave}}, "transfers: order is no static size"),
        ({"transfers": {"cols": (32, 64)}}, r"the range of cols is \(32, 64\)"),
    ],
)
def test_an_op_with_named_values_that_make_no_sense_is_refused(change: Any, fault: str) -> None:
    with pytest.raises(InvalidDefinitionError, match=fault):
        replace(TOP, **change)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("Tensor?[] xs) -> Tensor y", "pass the tensors that are there"),
        ("int[]? axes) -> Tensor y", "an empty list"),
        ("int[2] axes) -> Tensor y", "lists have any length"),
        ("SymInt n) -> Tensor y", "write int"),
        ("ScalarType? dtype) -> Tensor y", "dtype's name as a str"),
        ("Device device) -> Tensor y", "device is the op's"),
        ("Dict(str, int) table) -> Tensor y", "a name of its own"),
        ("Generator? seed) -> Tensor y", "equal arguments must give equal results"),
        ("Tensor x, ...) -> Tensor y", "a launch names its arguments"),
        ("Tensor(a) x) -> Tensor(a) y", "shares memory with an argument"),
        ("Tensor x) -> Tensor[] ys", "every output is a Tensor"),
        ("Tensor(a!)? x) -> ()", "mutated and optional"),
        ("Tensor(a!)[] xs) -> ()", "mutated and a list"),
    ],
)
def test_what_a_schema_may_not_say_is_refused_with_the_reason(arguments: str, fault: str) -> None:
    with pytest.raises(InvalidDefinitionError, match=fault):
        Schema.parse(f"f({arguments}")


def test_lists_and_scalars_are_coerced() -> None:
    schema = Schema.parse("f(Tensor x, int[] axes=[1, 2], Scalar s=2, int? n=None, float? f=None) -> Tensor y")
    x = torch.ones(1)
    assert schema.bind((x,), {}) == (x, (1, 2), 2, None, None)
    assert schema.bind((x, [3]), {"s": 0.5, "f": 1}) == (x, (3,), 0.5, None, 1.0)
    with pytest.raises(ArgumentTypeError, match=r"axes\[0\] must be an int, got True"):
        schema.bind((x, [True]), {})


def test_traits_are_told_of_each_argument_by_name() -> None:
    op = replace(
        TOP,
        name="acme::norm",
        schema="acme::norm(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor y",
        problem=lambda arguments: {"rows": arguments.tensor("x").shape[0], "dtype": "float32"},
        static=frozenset({"dtype"}),
        compare={},
        choices={},
        distributions={},
    )
    x, weight = torch.randn(9, 8), torch.randn(9)
    traits = op.pose(op.arguments(op.bind((x.T, weight[1:]), {}))).traits
    assert (traits.layout("x"), traits.contiguous("x"), traits.aligned("x")) == ("transposed", False, True)
    assert (traits.layout("weight"), traits.contiguous("weight"), traits.aligned("weight")) == (
        "row-major",
        True,
        False,
    )
    assert (traits.present("weight"), traits.present("bias"), traits.dtype("bias")) == (True, False, None)
    assert (traits["contiguous"], traits["aligned"], traits.gradient) == (False, False, False)
    assert not op.pose(op.arguments((x, weight, None))).misaligned().traits.aligned("x")
    assert op.pose(op.arguments((x.requires_grad_(), weight, None))).traits.gradient
    with pytest.raises(registry.RegistryError, match="unknown argument of acme::norm 'wight'"):
        traits.aligned("wight")


def test_a_tolerance_may_be_a_results_own_and_take_the_arguments() -> None:
    def scale(problem: Any, reference: torch.Tensor, values: Any) -> torch.Tensor:
        return reference.abs() + values["parts"][0].abs().amax()

    own = replace(TOP.tolerance, rtol={"float32": 0.5}, scale=scale)
    assert own.by_values
    assert not TOP.tolerance.by_values
    loose = replace(TOP, tolerances={"scores": own})

    class Off(LastOfTies):
        name = "acme.off"

        def bind(self, *given: Any) -> Any:
            right = super().bind(*given)

            def run(*values: Any) -> Any:
                scores, places = right(*values)
                return scores + 1e-3, places

            return run

    op = replace(TOP, compare={"places": lambda *_: None})
    with pytest.raises(registry.RegistryError, match="scores"):
        check_implementation(Off(), op, problems=TOP.examples[:1], device="cpu")
    check_problem = loose.problem_of(DIMS)
    values = loose.draw(check_problem, "normal", torch.Generator().manual_seed(1))
    reference = numerics.reference64(loose, values)
    results = (reference[0].float() * 1.2, reference[1])
    assert numerics.compare(loose, check_problem, results, reference, (10.0, 0.0), values).ok
    assert not numerics.compare(TOP, check_problem, results, reference, (10.0, 0.0), values).ok
    (bounds, _) = bounds_of(loose, check_problem, values, reference, (10.0, 0.0))
    assert bounds.holding(results[0])
