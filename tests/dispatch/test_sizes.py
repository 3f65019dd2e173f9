"""New sizes of a compiled variant: each is answered as if it were alone, and nothing is compiled or bound for it."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import pprint
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import registry_cpp
import registry_torch
from registry import Config, Device, DispatchWarning, Implementation, Launch, Op, Problem, Space, TensorSpec, quantize
from registry.artifact import Built
from registry.backends import CppImplementation, CppKernel
from registry.backends.cpp import implementation as cpp_implementation
from registry.backends.launch_forms import Forms
from registry.contract import Floor, Tolerance
from registry.discovery.catalog import Catalog
from registry.dispatch import call_answers
from registry.dispatch.dispatcher import Dispatcher
from registry.implementation import Run
from registry.problem import Arguments, Value


def dispatching(*implementations: Implementation) -> Dispatcher:
    dispatcher = Dispatcher(Catalog(entry_points=()))
    for implementation in implementations:
        dispatcher.register(implementation)
    return dispatcher


def native(op: str) -> Implementation:
    """torch's own implementation of an op."""
    offered: Sequence[Implementation] = getattr(registry_torch, f"{op}_implementations")()
    return next(one for one in offered if one.name == "torch.native")


def compiled(op: str, name: str) -> Implementation:
    """A C++ kernel of the box."""
    offered: Sequence[Implementation] = getattr(registry_cpp, f"{op}_implementations")()
    return next(one for one in offered if one.name == name)


def right(y: torch.Tensor, x: torch.Tensor) -> None:
    torch.testing.assert_close(y, torch.softmax(x, -1))
    assert y.is_contiguous()


class Work:
    """How often C++ variants were compiled and bound from their artifacts."""

    def __init__(self) -> None:
        self.compiled = self.bound = 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    counts = Work()
    monkeypatch.setattr(cpp_implementation, "_FORMS", Forms())
    compile_, bind = CppImplementation.compile, CppImplementation.bind

    def compiling(self: Any, *given: Any) -> Any:
        counts.compiled += 1
        return compile_(self, *given)

    def binding(self: Any, *given: Any) -> Any:
        counts.bound += 1
        return bind(self, *given)

    monkeypatch.setattr(CppImplementation, "compile", compiling)
    monkeypatch.setattr(CppImplementation, "bind", binding)
    return counts


# --- an op with an attribute that the kernel alone takes, and one that is a dimension

KERNEL = CppKernel(
    """
    void shifted(float *y, const float *x, long long count, long long position, double scale, int window) {
        for (long long i = 0; i < count; ++i) y[i] = x[i] * float(scale) + float(position) + float(window);
    }
    """,
    "shifted",
)


def shifted(x: torch.Tensor, position: int, window: int = 4, scale: float = 1.0) -> torch.Tensor:
    return x * scale + position + window


def shifted_fake(x: torch.Tensor, position: int, window: int = 4, scale: float = 1.0) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def shifted_problem(arguments: Arguments) -> Problem:
    return Problem("acme::shifted", {"n": arguments.tensor("x").numel, "window": arguments.integer("window")})


def op_of(**changes: Any) -> Op:
    given: dict[str, Any] = {
        "name": "acme::shifted",
        "schema": "acme::shifted(Tensor x, int position, int window=4, float scale=1.0) -> Tensor y",
        "version": 1,
        "reference": shifted,
        "fake": shifted_fake,
        "problem": shifted_problem,
        "inputs": lambda problem, kind, generator: (torch.zeros(int(problem.n)), 1),
        "floor": lambda problem: Floor(0, 0),
        "tolerance": Tolerance({}, {}, lambda problem, reference: reference),
        "static": frozenset(),
        "dynamic": frozenset({"n", "window"}),
    }
    return Op(**{**given, **changes})


class Shifted(CppImplementation):
    op = "acme::shifted"
    name = "acme.shifted"
    refused: tuple[str, ...] = ()

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if f"{problem.n}x{problem.window}" in self.refused:
            yield f"{problem.n}x{problem.window} is broken"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return Launch(KERNEL, (1,), ("y", "x", problem.n, "position", "scale", problem.window))


def shifting(implementation: Implementation | None = None, **changes: Any) -> Dispatcher:
    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.catalog.define(op_of(**changes))
    dispatcher.register(implementation or Shifted())
    return dispatcher


def test_an_attribute_that_grows_and_that_nobody_reads_hits(work: Work) -> None:
    dispatcher = shifting()
    call, x = dispatcher.op("acme::shifted"), torch.randn(6)
    for position in (*range(200), -5, 2**31 - 1):
        torch.testing.assert_close(call(x, position), shifted(x, position))
    for scale in (0.5, 0.0, -0.0, float("inf"), 3.0):
        torch.testing.assert_close(call(x, 2, scale=scale), shifted(x, 2, scale=scale))
    assert dispatcher.bound("acme::shifted").misses == 1
    assert (work.compiled, work.bound) == (1, 1)
    told = dispatcher.explain("acme::shifted", x, 77)
    assert (told.implementation, told.calls) == ("acme.shifted", 207)


def test_an_int_that_needs_more_than_32_bits_is_no_hit_of_one_that_does_not() -> None:
    dispatcher = shifting()
    call, x = dispatcher.op("acme::shifted"), torch.zeros(4)
    for position in (1, 2**31, 2**40, 2, 2**31 - 1, -(2**31) - 1):
        torch.testing.assert_close(call(x, position), shifted(x, position))
    assert dispatcher.bound("acme::shifted").misses == 2


def test_an_attribute_of_another_type_is_refused_or_resolved_anew() -> None:
    dispatcher = shifting()
    call, x = dispatcher.op("acme::shifted"), torch.zeros(4)
    call(x, 1)
    for wrong in (1.0, True, "1", None):
        with pytest.raises(TypeError):
            call(x, wrong)
    # an int for a float is coerced, and stays itself
    for scale in (2, 3, 2, 2.0):
        torch.testing.assert_close(call(x + 1, 1, scale=scale), shifted(x + 1, 1, scale=float(scale)))


def test_an_attribute_that_is_a_dimension_is_a_new_size_each_time(work: Work) -> None:
    dispatcher = shifting()
    call, x = dispatcher.op("acme::shifted"), torch.randn(6)
    for window in range(1, 60):
        torch.testing.assert_close(call(x, 3, window), shifted(x, 3, window))
        told = dispatcher.explain("acme::shifted", x, 3, window)
        assert told.problem is not None
        assert told.problem.window == window
    assert dispatcher.bound("acme::shifted").misses == 59
    assert (work.compiled, work.bound) == (1, 1)


@pytest.mark.parametrize("reader", ["problem", "fake", "no fake", "bind"])
def test_an_attribute_that_anything_reads_is_part_of_the_call(reader: str) -> None:
    class Reading(Shifted):
        def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
            position = built.signature.arguments.integer("position") if reader == "bind" else None
            run = super().bind(problem, config, device, built)

            def checked(outputs: Any, arguments: Any, scratch: Any) -> None:
                assert position in {None, arguments[1]}
                run(outputs, arguments, scratch)

            return checked

    def problem(arguments: Arguments) -> Problem:
        arguments.integer("position")
        return shifted_problem(arguments)

    def fake(x: torch.Tensor, position: int, window: int = 4, scale: float = 1.0) -> torch.Tensor:
        return torch.empty(x.shape, dtype=torch.float32 if position >= 0 else torch.float64)

    changes: dict[str, dict[str, Any]] = {"problem": {"problem": problem}, "fake": {"fake": fake}}
    changes["no fake"] = {"fake": None}
    dispatcher = shifting(Reading(), **changes.get(reader, {}))
    call, x = dispatcher.op("acme::shifted"), torch.randn(6)
    for position in (1, 2, 1, 2, 3):
        torch.testing.assert_close(call(x, position), shifted(x, position))
    assert dispatcher.bound("acme::shifted").misses == 3


ATTRIBUTE_LOOKS: dict[str, Callable[[Any], object]] = {
    "repr": repr,
    "str": str,
    "pprint": pprint.pformat,
    "of values": lambda arguments: repr(arguments.values),
    "values copy": lambda arguments: arguments.values.copy(),
    "values |": lambda arguments: arguments.values | {},
    "values get": lambda arguments: {"position": arguments.values.get("position")},
    "deepcopy of values": lambda arguments: copy.deepcopy(arguments.values),
    "copy": lambda arguments: repr(copy.copy(arguments)),
    "deepcopy": lambda arguments: repr(copy.deepcopy(arguments)),
    "pickle": lambda arguments: repr(pickle.loads(pickle.dumps(arguments))),
    "mapped": lambda arguments: repr(arguments.mapped(lambda spec: spec)),
    "==": lambda arguments: next(
        f"'position': {position}"
        for position in range(1, 9)
        if arguments == Arguments(arguments.op, {**arguments.unrecorded, "position": position}, arguments.gradient)
    ),
}
"""Reads of an attribute, each of which gives a text or a dict with its name and value."""


@pytest.mark.parametrize("look", ATTRIBUTE_LOOKS)
@pytest.mark.filterwarnings("error::registry.DispatchWarning")
def test_an_attribute_is_part_of_the_call_however_it_is_read(look: str) -> None:
    class Looking(Implementation):
        op, name, device_types = "acme::shifted", "acme.looking", frozenset({"cpu"})
        any_size = True

        def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
            found = re.search(r"'position': (\d+)", str(ATTRIBUTE_LOOKS[look](built.signature.arguments)))
            assert found is not None
            position = int(found[1])

            def run(outputs: Any, values: Any, scratch: Any) -> None:
                outputs[0].copy_(shifted(values[0], position, *values[2:]))

            return run

    call = shifting(Looking()).op("acme::shifted")
    for count, position in ((5, 1), (5, 2), (6, 2), (6, 3), (5, 1)):
        torch.testing.assert_close(call(x := torch.randn(count), position), shifted(x, position))


@pytest.mark.parametrize("shown", [vars, dataclasses.asdict], ids=["vars", "asdict"])
def test_data_that_record_no_reads_lack_the_attributes(shown: Callable[[Any], dict[str, Any]]) -> None:
    assert "77" not in str(shown(Arguments("acme::shifted", {"position": 77}, seen=set())))


def test_the_reference_takes_the_attributes_of_each_call() -> None:
    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.catalog.define(op_of())
    x = torch.randn(6)
    for position in (1, 2, 3):
        torch.testing.assert_close(dispatcher.call("acme::shifted", x, position), shifted(x, position))
    assert dispatcher.bound("acme::shifted").misses == 1


def test_what_an_implementation_refuses_it_never_runs(work: Work) -> None:
    broken = Shifted()
    broken.refused = ("7x4", "6x9")
    dispatcher = shifting(broken)
    for count in (5, 6, 7, 8, 7):
        for window in (3, 4, 9):
            x = torch.randn(count)
            torch.testing.assert_close(dispatcher.call("acme::shifted", x, 1, window), shifted(x, 1, window))
            told = dispatcher.explain("acme::shifted", x, 1, window)
            refused = f"{count}x{window}" in broken.refused
            assert told.implementation == ("reference" if refused else "acme.shifted")
            assert refused == ("is broken" in str(told))
    assert work.bound == 1


# --- sizes of tensors


@pytest.mark.parametrize(("name", "most"), [("cpp.rows", 80), ("cpp.columns", 16)])
@pytest.mark.thorough
def test_a_compiled_kernel_serves_every_size_without_being_bound_again(work: Work, name: str, most: int) -> None:
    dispatcher = dispatching(compiled("softmax", name))
    for rows in range(1, most):
        right(dispatcher.call("softmax", x := torch.randn(rows, 4096)), x)
    assert dispatcher.explain("softmax", torch.randn(2, 4096)).implementation == name
    assert 1 <= work.bound == work.compiled <= 4
    misses = dispatcher.bound("softmax").misses
    for rows in range(1, most):
        dispatcher.call("softmax", torch.randn(rows, 4096))
    assert dispatcher.bound("softmax").misses == misses, "what was resolved once hits"


def test_a_class_that_binds_in_its_own_way_is_bound_to_each_size() -> None:
    base = compiled("softmax", "cpp.rows")
    bound: list[int] = []

    class Counting(type(base)):  # type: ignore[misc]
        def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Any:
            bound.append(problem.rows)
            return super().bind(problem, config, device, built)

    dispatcher = dispatching(Counting())
    for rows in (5, 6, 7):
        right(dispatcher.call("softmax", x := torch.randn(rows, 40)), x)
    assert bound == [5, 6, 7]


def test_several_leading_sizes_other_strides_and_misaligned_views_are_right(work: Work) -> None:
    dispatcher = dispatching(compiled("softmax", "cpp.rows"), native("softmax"))
    for shape in ((2, 3, 40), (3, 2, 40), (1, 9, 40), (7, 1, 40), (6, 40), (40,)):
        right(dispatcher.call("softmax", x := torch.randn(shape)), x)
    part = torch.randn(4, 10, 40)[:, :5]
    right(dispatcher.call("softmax", part), part)
    right(dispatcher.call("softmax", part.transpose(0, 1)), part.transpose(0, 1))
    for rows in (5, 7, 8):
        shifted_view = torch.randn(rows * 40 + 1)[1:].view(rows, 40)
        assert shifted_view.data_ptr() % 16
        right(dispatcher.call("softmax", shifted_view), shifted_view)
    assert dispatcher.call("softmax", torch.randn(0, 8)).shape == (0, 8)


def test_scratch_and_prepared_weights_follow_the_size(work: Work) -> None:
    torch.manual_seed(0)
    dispatcher = dispatching(compiled("gemm_int4", "cpp.gemm"))
    for n in (16, 32):
        weight = quantize(torch.randn(n, 64, dtype=torch.bfloat16), group_size=32)
        full = weight.dequantize().float().t()
        for shape in ((9, 64), (8, 64), (64, 64), (33, 64), (1, 64), (2, 5, 64), (7, 1, 64)):
            a = torch.randn(shape, dtype=torch.bfloat16)
            expected = (a.float() @ full).bfloat16()
            torch.testing.assert_close(dispatcher.call("gemm_int4", a, weight), expected, rtol=0.02, atol=0.05)


def test_an_op_that_mutates_serves_every_size(work: Work) -> None:
    kernel = CppKernel(
        "void grow(float *x, long long count, long long by) { for (long long i = 0; i < count; ++i) x[i] += by; }",
        "grow",
    )

    class Grow(CppImplementation):
        op, name = "acme::grow", "acme.grow"

        def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
            return Launch(kernel, (1,), ("x", problem.n, "by"))

    def reference(x: torch.Tensor, by: int) -> None:
        x.add_(by)

    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.catalog.define(
        op_of(
            name="acme::grow",
            schema="acme::grow(Tensor(a!) x, int by) -> ()",
            reference=reference,
            fake=reference,
            problem=lambda arguments: Problem("acme::grow", {"n": arguments.tensor("x").numel}),
            dynamic=frozenset({"n"}),
        )
    )
    dispatcher.register(Grow())
    for count in (3, 4, 5, 100):
        x = torch.zeros(count)
        for by in (1, 2):
            dispatcher.call("acme::grow", x, by)
        assert x.eq(3).all()
    assert work.bound == 1


# --- runs that serve every size


class Sizeless(Implementation):
    """softmax by torch, whatever the size; tells which config ran."""

    op = "softmax"
    device_types = frozenset({"cpu"})
    any_size = True

    def __init__(self, name: str = "a.any_size_runs", **behaviour: Any) -> None:
        self.name = name
        self.ran: list[Config] = []
        self.bound = 0
        self._behaviour = behaviour

    def unsupported(self, problem: Problem, device: Device) -> Sequence[str]:
        return list(self._behaviour.get("unsupported", lambda problem: ())(problem))

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(block=self._behaviour.get("blocks", lambda problem: [1, 2, 4])(problem))

    def preference(self, problem: Problem, device: Device) -> float:
        return float(self._behaviour.get("preference", lambda problem: 1.0)(problem))

    def fingerprint(self) -> str:
        return "1"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        self.bound += 1

        def run(outputs: tuple[torch.Tensor, ...], values: tuple[Any, ...], scratch: tuple[torch.Tensor, ...]) -> Any:
            self.ran.append(config)
            if fault := self._behaviour.get("fault", lambda x: None)(values[0]):
                raise fault
            torch.softmax(*values, out=outputs[0])

        return run


def test_a_run_for_every_size_is_bound_once_for_all_that_is_no_size() -> None:
    implementation = Sizeless()
    dispatcher = dispatching(implementation)
    for rows in (5, 1, 2, 6, 7, 24):
        right(dispatcher.call("softmax", x := torch.randn(rows, 8)), x)
    assert implementation.bound == 1
    for x in (torch.randn(5, 9), torch.randn(5, 8).bfloat16(), torch.randn(8, 6).t()):
        dispatcher.call("softmax", x)
    assert implementation.bound == 4
    y = dispatcher.call("softmax", x := torch.randn(5, 8), dim=0)
    torch.testing.assert_close(y, torch.softmax(x, 0))


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.thorough)], ids=["some", "all"])
def test_every_size_gets_the_winner_that_it_would_get_alone(publish: Callable[..., Any], step: int) -> None:
    tuned = {4: 1, 20: 2, 24: 4, 150: 1}
    for rows, block in tuned.items():
        publish({"rows": rows, "cols": 8, "dtype": "float32"}, "a.any_size_runs", {"block": block})
    publish({"rows": 30, "cols": 9, "dtype": "float32"}, "a.any_size_runs", {"block": 2})
    implementation = Sizeless(blocks=lambda problem: [1, 2, 4] if problem.rows < 100 else [1, 2])
    dispatcher = dispatching(implementation)
    for rows in (*range(30, 200, step), *range(1, 30, step), *tuned):
        x = torch.randn(rows, 8)
        right(dispatcher.call("softmax", x), x)
        alone = dispatcher.explain_problem(Problem("softmax", {"rows": rows, "cols": 8, "dtype": "float32"}))
        told = dispatcher.explain("softmax", x)
        assert (told.config, told.step, told.octaves) == (alone.config, alone.step, alone.octaves)
        assert implementation.ran[-1] == alone.config, rows
        assert (told.step == "exact") == (rows in tuned)
        fits = [each for each in tuned if rows < 100 or tuned[each] != 4]
        nearest = min(fits, key=lambda each: (max(each / rows, rows / each), -each))
        assert told.config == {"block": tuned[nearest]}, rows
    assert implementation.bound == 3, "one for each config"


def test_heuristics_are_asked_at_every_size() -> None:
    few = Sizeless("a.few", preference=lambda problem: 2.0 if problem.rows <= 10 else 0.0)
    many = Sizeless("a.many", unsupported=lambda problem: ["odd"] if problem.rows > 40 else [])
    last = Sizeless("a.last", preference=lambda problem: 0.5)
    dispatcher = dispatching(few, many, last)
    for rows in (20, 11, 40, 5, 10, 1, 41, 1000):
        dispatcher.call("softmax", torch.randn(rows, 8))
    assert [len(one.ran) for one in (few, many, last)] == [3, 3, 2]


@pytest.mark.filterwarnings("ignore::registry.DispatchWarning")
def test_a_size_at_which_the_run_fails_is_answered_by_another() -> None:
    def fault(x: torch.Tensor) -> Exception | None:
        return RuntimeError("no such launch") if x.shape[0] == 7 else None

    any_size_runs = Sizeless(fault=fault)
    dispatcher = dispatching(any_size_runs, native("softmax"))
    for rows in (5, 7, 6, 7):
        right(dispatcher.call("softmax", x := torch.randn(rows, 8)), x)
    assert len(any_size_runs.ran) == 3
    told = dispatcher.explain("softmax", torch.randn(7, 8))
    assert told.implementation == "torch.native"
    assert "no such launch" in str(told)


def test_gradients_are_not_lost_at_a_new_size() -> None:
    dispatcher = dispatching(native("softmax"))
    dispatcher.call("softmax", torch.randn(5, 8))
    x = torch.randn(6, 8, requires_grad=True)
    y = dispatcher.call("softmax", x)
    (found,) = torch.autograd.grad(y.square().sum(), x)
    (expected,) = torch.autograd.grad(torch.softmax(x, -1).square().sum(), x)
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        assert not dispatcher.call("softmax", torch.randn(7, 8, requires_grad=True)).requires_grad


# --- looks at a problem that no size may escape


def _matches(problem: Problem) -> bool:
    match problem.dims:
        case {"rows": 1003}:
            return True
    return False


def _class_matches(problem: Problem) -> bool:
    match problem:
        case Problem(op="softmax", rows=1003):
            return True
    return False


def _listed(problem: Problem) -> list[object]:
    return [repr(problem), repr(problem.dims)]


ROWS_1003: dict[str, Value] = {"rows": 1003, "cols": 8, "dtype": "float32"}
LOOKS: dict[str, Callable[[Any], object]] = {
    "repr": repr,
    "conversion": lambda problem: f"{problem!r}",
    "percent": lambda problem: "%r %s" % (problem, problem.dims),  # noqa: UP031
    "pprint": pprint.pformat,
    "in a list": _listed,
    "str": str,
    "vars": lambda problem: str(vars(problem)),
    "vars get": lambda problem: vars(problem).get("rows"),
    "__dict__": lambda problem: list(problem.__dict__.values()),
    "getattr": lambda problem: getattr(problem, "rows"),  # noqa: B009
    "key": lambda problem: problem.key,
    "==": lambda problem: problem == Problem("softmax", ROWS_1003),
    "hash": lambda problem: hash(problem) == hash(Problem("softmax", ROWS_1003)),
    "in a set": lambda problem: problem in {Problem("softmax", ROWS_1003)},
    "copy": lambda problem: copy.copy(problem).rows,
    "deepcopy": lambda problem: copy.deepcopy(problem).rows,
    "pickle": lambda problem: pickle.loads(pickle.dumps(problem)).rows,
    "replace": lambda problem: dataclasses.replace(problem).rows,
    "of its type": lambda problem: type(problem)(problem.op, problem.dims).rows,
    "misaligned": lambda problem: problem.misaligned().rows,
    "misaligned vars": lambda problem: vars(problem.misaligned()).get("rows"),
    "class pattern": _class_matches,
    "dims repr": lambda problem: repr(problem.dims),
    "dims str": lambda problem: str(problem.dims),
    "dims format": lambda problem: f"{problem.dims}",
    "dims by name": lambda problem: "%(rows)s" % problem.dims,  # noqa: UP031
    "dims ==": lambda problem: problem.dims == ROWS_1003,
    "dims |": lambda problem: problem.dims | {"more": 1},
    "| dims": lambda problem: {"more": 1} | problem.dims,
    "dims copy": lambda problem: problem.dims.copy(),
    "dims **": lambda problem: {**problem.dims},
    "dims get": lambda problem: problem.dims.get("rows"),
    "dims values": lambda problem: 1003 in problem.dims.values(),
    "values repr": lambda problem: repr(problem.dims.values()),
    "dims sorted": lambda problem: sorted(problem.dims.items())[-1],
    "dims reversed": lambda problem: [problem.dims[name] for name in reversed(problem.dims)],
    "dims pattern": _matches,
    "tensor": lambda problem: repr(problem.traits.arguments),
    "tensors": lambda problem: problem.traits.arguments.tensors if problem.traits.arguments else "",
    "deepcopy of traits": lambda problem: repr(copy.deepcopy(problem.traits).arguments),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.filterwarnings("error::registry.DispatchWarning")
def test_a_refused_size_never_runs_however_its_problem_is_looked_at(look: str) -> None:
    def unsupported(problem: Problem) -> list[str]:
        seen = LOOKS[look](problem)
        return ["broken"] if seen is True or "1003" in str(seen) else []

    implementation = Sizeless(unsupported=unsupported)
    dispatcher = dispatching(implementation, native("softmax"))
    for rows in (1000, 1001, 1003, 1002, 1003):
        dispatcher.call("softmax", torch.randn(rows, 8))
    assert len(implementation.ran) == 3


# --- capture


def test_a_new_size_of_what_is_loaded_is_captured_and_nothing_else(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    implementation = Shifted()
    implementation.capturable = True
    dispatcher = shifting(implementation)
    dispatcher.call("acme::shifted", torch.randn(6), 1)
    monkeypatch.setattr(call_answers, "capturing", lambda tensors: True)
    for count in (7, 8):
        told = dispatcher.explain("acme::shifted", torch.randn(count), 1)
        assert told.implementation == "acme.shifted"
        dispatcher.call("acme::shifted", torch.randn(count), 1)
    assert dispatcher.explain("acme::shifted", torch.randn(6), 2**40).implementation == "reference"
    assert (work.compiled, work.bound) == (1, 1)
    implementation.capturable = False
    assert dispatcher.explain("acme::shifted", torch.randn(9), 1).implementation == "reference"


def test_nothing_is_read_while_a_stream_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = dispatching(native("softmax"))
    monkeypatch.setattr(call_answers, "capturing", lambda tensors: True)
    monkeypatch.setattr(dispatcher._winners, "of", lambda *given: pytest.fail("read"))
    with pytest.warns(DispatchWarning, match="reference is captured"):
        right(dispatcher.call("softmax", x := torch.randn(5, 8)), x)


def test_a_spec_tells_row_major_with_sizes_of_one() -> None:
    assert TensorSpec((1, 4), torch.float32, (99, 1)).is_contiguous
    assert not TensorSpec((2, 4), torch.float32, (99, 1)).is_contiguous
