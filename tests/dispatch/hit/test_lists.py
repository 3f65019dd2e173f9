"""Calls with lists of tensors, lists of ints and Scalars are hits, and what lies in a list is guarded one by one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from registry import Config, Device, Floor, Implementation, Op, Problem, Tolerance
from registry.artifact import Built
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.torch_side import operators as torch_ops
from registry.errors import ArgumentTypeError, InvalidArgumentError
from registry.implementation import Run
from registry.problem import Arguments

from ... import fresh
from ...serving import serving


def weighted(parts: Any, weights: Any, bias: torch.Tensor | None, by: float) -> torch.Tensor:
    """The sum of ``parts``, each times its number, times ``by``, and ``bias``."""
    total = sum(part.double() * weight for part, weight in zip(parts, weights, strict=True)) * by
    return (total if bias is None else total + bias).to(parts[0].dtype)


def dims(arguments: Arguments) -> dict[str, Any]:
    parts = arguments.tensors_of("parts")
    if len({part.shape for part in parts}) != 1 or len(arguments.integers("weights")) != len(parts):
        raise InvalidArgumentError("parts and weights are as many, and parts of one shape")
    return {"n": parts[0].numel, "parts": len(parts)}


SUM = Op(
    name="acme::sum",
    schema="acme::sum(Tensor[] parts, int[] weights, Tensor? bias=None, Scalar by=1) -> Tensor y",
    version=1,
    reference=weighted,
    fake=lambda parts, weights, bias, by: torch.empty_like(parts[0]),
    problem=dims,
    inputs=lambda problem, kind, generator: ([torch.ones(problem.n)] * problem.parts, [1] * problem.parts),
    floor=lambda problem: Floor(1, 1),
    tolerance=Tolerance({}, {}, lambda problem, reference: reference),
    static=frozenset({"parts"}),
    dynamic=frozenset({"n"}),
)


class Sum(Implementation):
    """Remembers what it was given. Bound to shape, strides, dtype and length of what it was made for."""

    op, name = "acme::sum", "acme.sum"
    device_types = frozenset({"cpu"})

    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []
        self.bound = 0

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        self.bound += 1
        specs = built.signature.arguments.tensors_of("parts")

        def run(outputs: tuple[torch.Tensor, ...], values: tuple[Any, ...], scratch: Any) -> None:
            self.given.append(values)
            parts = values[0]
            assert [(part.shape, part.stride(), part.dtype) for part in parts] == [
                (spec.shape, spec.strides, spec.dtype) for spec in specs
            ]
            assert all(part.data_ptr() % 16 == 0 for part in parts) or not problem.traits["aligned"]
            outputs[0].copy_(weighted(*values))

        return run

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        if not problem.traits.aligned("parts"):
            yield "parts that are not aligned"


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    made = Dispatcher(Catalog(entry_points=()))
    made.catalog.define(SUM)
    with serving(made):
        yield made


@pytest.fixture
def kernel(dispatcher: Dispatcher) -> Sum:
    made = Sum()
    dispatcher.register(made)
    return made


def tensors(count: int = 4, n: int = 8) -> list[torch.Tensor]:
    return [torch.randn(n) for _ in range(count)]


def right(dispatcher: Dispatcher, *args: Any, **named: Any) -> None:
    y = dispatcher.call("acme::sum", *args, **named)
    bias, by = named.get("bias", args[2] if len(args) > 2 else None), named.get("by", 1)
    torch.testing.assert_close(y, weighted(args[0], args[1], bias, by))


def misses(dispatcher: Dispatcher) -> int:
    return dispatcher.bound("acme::sum").misses


@pytest.mark.parametrize("way", ["call", "op", "flat", "torch.ops"])
def test_calls_with_lists_are_hits(dispatcher: Dispatcher, kernel: Sum, way: str) -> None:
    ways: dict[str, Callable[..., Any]] = {
        "call": lambda *args, **named: dispatcher.call("acme::sum", *args, **named),
        "op": dispatcher.op("acme::sum"),
        "flat": dispatcher.bound("acme::sum").flat,
        "torch.ops": torch_ops.define(SUM),
    }
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((tensors(), [1, 2, 3, 4]), {}),
        ((tensors(), [1, 2, 3, 4]), {"by": 2.5}),
        ((tensors(), [1, 2, 3, 4], torch.randn(8)), {}),
        ((tensors(2), [5, -1]), {}),
        ((tensors(4, 16), [1, 2, 3, 4]), {}),
        ((tensors(1), [7]), {"by": True}),
    ]
    calls += [((tuple(args[0]), tuple(args[1]), *args[2:]), named) for args, named in calls]
    for _ in range(3):
        known = misses(dispatcher)
        for args, named in calls:
            wanted = weighted(args[0], args[1], args[2] if len(args) > 2 else None, named.get("by", 1))
            torch.testing.assert_close(ways[way](*args, **named), wanted)
    assert misses(dispatcher) == known
    assert all(type(values[0]) is type(values[1]) is tuple for values in kernel.given)


def test_a_list_that_changes_between_calls_is_seen(dispatcher: Dispatcher, kernel: Sum) -> None:
    parts, weights = tensors(), [1, 2, 3, 4]
    for _ in range(2):
        right(dispatcher, parts, weights)
    parts[2] = torch.randn(8)
    right(dispatcher, parts, weights)
    weights[0] = 9
    right(dispatcher, parts, weights)
    parts.append(torch.randn(8))
    weights.append(5)
    right(dispatcher, parts, weights)
    del parts[1:], weights[1:]
    right(dispatcher, parts, weights)
    parts.clear()
    with pytest.raises((InvalidArgumentError, IndexError)):
        dispatcher.call("acme::sum", parts, weights)


CHANGED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dtype": lambda part: part.double(),
    "strides": lambda part: torch.stack([part, part], -1)[:, 0],
    "alignment": lambda part: torch.cat([part[:1], part])[1:],
    "requires_grad, not recorded": lambda part: part.clone().requires_grad_(),
    "a parameter": torch.nn.Parameter,
    "a lazy negation": torch._neg_view,
}


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.few(6)
def test_each_tensor_of_a_list_is_guarded(dispatcher: Dispatcher, kernel: Sum, change: str, place: int) -> None:
    with torch.no_grad():
        parts = tensors()
        for _ in range(2):
            right(dispatcher, parts, (1, 2, 3, 4))
        changed = [CHANGED[change](part) if place == number else part for number, part in enumerate(parts)]
        for _ in range(2):
            right(dispatcher, changed, (1, 2, 3, 4))
            right(dispatcher, parts, (1, 2, 3, 4))


def test_one_tensor_several_times_in_a_list(dispatcher: Dispatcher, kernel: Sum) -> None:
    x, y = tensors(2)
    for parts in ([x, y], [x, x], [y, x], [x, x]):
        right(dispatcher, parts, [1, 2])
    known = misses(dispatcher)
    for parts in ([x, y], [x, x], [y, x]):
        right(dispatcher, parts, [1, 2])
    assert misses(dispatcher) == known


def test_what_is_no_such_list_is_refused_also_after_hits(dispatcher: Dispatcher, kernel: Sum) -> None:
    parts, call = tensors(), dispatcher.op("acme::sum")
    for _ in range(3):
        call(parts, [1, 1, 1, 1])
        call([torch.ones(8)] * 8, [1] * 8)
    refused: list[tuple[tuple[Any, ...], str]] = [
        ((parts, [1, 1, 1, True]), r"weights\[3\] must be an int, got True"),
        ((parts, [1, 1, 1.0, 1]), r"weights\[2\] must be an int, got 1.0"),
        ((parts, 1), "weights must be an int"),
        ((torch.stack(parts), [1] * 4), "parts must be a Tensor"),
        ((torch.ones(8, 8), [1] * 8), "parts must be a Tensor"),
        (([*parts[:3], None], [1] * 4), r"parts\[3\] must be a Tensor, got None"),
        (([*parts[:3], 3.0], [1] * 4), r"parts\[3\] must be a Tensor, got 3.0"),
        ((iter(parts), [1] * 4), "parts must be a Tensor"),
        (({"a": parts[0]}, [1]), "parts must be a Tensor"),
        ((parts, [1] * 4, None, 1j), "by must be a Scalar"),
    ]
    for ways in (call, lambda *args: dispatcher.call("acme::sum", *args)):
        for args, told in refused:
            with pytest.raises(ArgumentTypeError, match=told):
                ways(*args)


def test_a_size_is_a_list_of_ints(dispatcher: Dispatcher, kernel: Sum) -> None:
    parts, size = tensors(2), torch.empty(3, 4).shape
    for _ in range(2):
        torch.testing.assert_close(dispatcher.call("acme::sum", parts, size), weighted(parts, (3, 4), None, 1))
    assert type(kernel.given[-1][1]) is tuple


def test_a_nested_tensor_in_a_list_never_reaches_torchs_guard() -> None:
    # in a process of its own: the guard does not raise, it aborts
    code = f"""
import sys, warnings, torch, registry
warnings.simplefilter('ignore')
sys.path.insert(0, {str(fresh.__file__).rpartition("/tests/")[0]!r})
from tests.dispatch.hit.test_lists import SUM, Sum
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
dispatcher = Dispatcher(Catalog(entry_points=()))
dispatcher.catalog.define(SUM)
dispatcher.register(Sum())
parts = [torch.randn(8), torch.randn(8)]
nested = torch.nested.nested_tensor([parts[0], parts[1][:2]])
for call in (dispatcher.op('acme::sum'), lambda *args: dispatcher.call('acme::sum', *args)):
    [call(parts, [1, 2]) for _ in range(3)]
    for bad in ([nested, parts[1]], [parts[0], nested], [nested, nested], (parts[0], nested)):
        try: call(bad, [1, 2])
        except registry.InvalidArgumentError as fault: print('nested' in str(fault))
"""
    done = fresh.run("-c", code)
    assert (done.returncode, done.stdout.split()) == (0, ["True"] * 8), done.stderr


def test_numbers_are_told_apart_by_type_where_they_were_read(dispatcher: Dispatcher) -> None:
    seen: list[Any] = []

    def told(arguments: Arguments) -> dict[str, Any]:
        seen.append((arguments["weights"], arguments["by"]))
        return dims(arguments)

    dispatcher.catalog.define(replace(SUM, name="acme::read", schema=SUM.schema.replace("sum", "read"), problem=told))
    kernel = Sum()
    kernel.op = "acme::read"
    dispatcher.register(kernel)
    parts, call = tensors(2), dispatcher.op("acme::read")
    cases: list[tuple[Any, Any]] = [
        ([1, 2], 1),
        ([1, 2], 1.0),
        ([1, 2], True),
        ([1, 2], -0.0),
        ([1, 2], 0.0),
        ([2, 2], 1),
    ]
    for _ in range(2):
        for weights, by in cases:
            y = call(parts, weights, by=by)
            wanted = weighted(parts, weights, None, by)
            assert y.equal(wanted)
            assert torch.equal(y.signbit(), wanted.signbit())
            assert (type(kernel.given[-1][3]), repr(kernel.given[-1][3])) == (type(by), repr(by))
    known = dispatcher.bound("acme::read").misses
    for weights, by in cases:
        call(parts, weights, by=by)
    assert dispatcher.bound("acme::read").misses == known
    assert seen


def test_numbers_that_nobody_reads_may_differ_in_a_hit(dispatcher: Dispatcher) -> None:
    op = replace(
        SUM,
        name="acme::free",
        schema=SUM.schema.replace("sum", "free"),
        problem=lambda arguments: {"n": arguments.tensors_of("parts")[0].numel, "parts": 1},
    )
    dispatcher.catalog.define(op)
    kernel = Sum()
    kernel.op = "acme::free"
    dispatcher.register(kernel)
    parts, call = tensors(3), dispatcher.op("acme::free")
    call(parts, [1, 1, 1], by=2.0)
    known = dispatcher.bound("acme::free").misses
    for step in range(2, 20):
        y = call(parts, [step, -step, 1], by=step / 2)
        torch.testing.assert_close(y, weighted(parts, (step, -step, 1), None, step / 2))
    assert dispatcher.bound("acme::free").misses == known
    torch.testing.assert_close(call(parts, [1, 2**40, 1]), weighted(parts, (1, 2**40, 1), None, 1))
    torch.testing.assert_close(call(parts, [1, 2, 3], by=3), weighted(parts, (1, 2, 3), None, 3))
    assert dispatcher.bound("acme::free").misses == known + 2, "64 bits and an int in place of a float are other kinds"


def test_another_size_of_a_list_is_bound_without_asking_all_again(dispatcher: Dispatcher) -> None:
    kernel = Sum()
    kernel.any_size = True
    kernel.bind = lambda *_: lambda outputs, values, scratch: outputs[0].copy_(weighted(*values))  # type: ignore[method-assign]
    dispatcher.register(kernel)
    miss, asked = dispatcher.bound("acme::sum").miss, []
    whole = miss._first_that_runs
    miss._first_that_runs = lambda *given: asked.append(given) or whole(*given)  # type: ignore[func-returns-value, method-assign]
    for n in (8, 12, 16, 400):
        right(dispatcher, tensors(2, n), [1, 2])
    assert len(asked) == 1
    right(dispatcher, tensors(3, 8), [1, 2, 3])
    assert len(asked) == 2, "a list of another length is another family"
    right(dispatcher, [torch.randn(8), torch.stack([torch.randn(8)] * 2, -1)[:, 0]], [1, 2])
    assert len(asked) == 3, "an element with strides is met by the miss"


def test_torch_compile_and_its_graphs_hit(dispatcher: Dispatcher, kernel: Sum) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = dispatcher.call("acme::sum", [x, y * 2], [1, 3], by=2)
        return total + 1

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for _ in range(4):
        x, y = tensors(2)
        known = misses(dispatcher)
        torch.testing.assert_close(compiled(x, y), weighted([x, y * 2], [1, 3], None, 2) + 1)
    assert misses(dispatcher) == known
    torch._dynamo.reset()


def test_torch_fx_records_a_list_of_what_it_traces(dispatcher: Dispatcher, kernel: Sum) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return dispatcher.call("acme::sum", [x, y], [1, 2])

    traced = torch.fx.symbolic_trace(Model())
    x, y = tensors(2)
    torch.testing.assert_close(traced(x, y), weighted([x, y], [1, 2], None, 1))
    assert any("acme" in str(node.target) for node in traced.graph.nodes)


@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False))
@pytest.mark.thorough
def test_some_orders_of_lists_are_right(generator: random.Random) -> None:
    call_and_change(generator)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_order_of_lists_is_right(generator: random.Random) -> None:
    call_and_change(generator)


def call_and_change(generator: random.Random) -> None:
    """Calls of one op with lists that grow, shrink and change by chance, and their layouts with them."""
    dispatcher, kernel = Dispatcher(Catalog(entry_points=())), Sum()
    dispatcher.catalog.define(SUM)
    dispatcher.register(kernel)
    pool = [
        torch.ones(8), torch.ones(8) * 3, torch.ones(16)[::2], torch.ones(9)[1:], torch.ones(8).double(),
        torch.ones(4), torch.nn.Parameter(torch.ones(8), requires_grad=False),
    ]  # fmt: skip
    parts: list[torch.Tensor] = []
    for _ in range(25):
        change = generator.random()
        if change < 0.4 or not parts:
            parts.insert(generator.randrange(len(parts) + 1), generator.choice(pool))
        elif change < 0.7:
            parts[generator.randrange(len(parts))] = generator.choice(pool)
        elif len(parts) > 1:
            parts.pop(generator.randrange(len(parts)))
        weights = [generator.randrange(3) for _ in parts]
        if len({part.shape for part in parts}) == 1:
            right(dispatcher, parts, weights)
        else:
            with pytest.raises(InvalidArgumentError, match="as many"):
                dispatcher.call("acme::sum", parts, weights)
