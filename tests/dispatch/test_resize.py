"""Other sizes of an answered call: the miss is spared what a size cannot change, and sees to all that is unusual."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import registry_torch
from registry import Config, Device, Floor, Implementation, Op, Problem, Tolerance, quantize
from registry.artifact import Built, Signature
from registry.contract import RowMajor
from registry.discovery.catalog import Catalog
from registry.dispatch.bound_op import BoundOp
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.miss import Miss
from registry.dispatch.resize import MOST_FAMILIES
from registry.dispatch.torch_side.torch_private import below_autograd
from registry.implementation import Run, Tensors, by_form


@pytest.fixture
def dispatcher() -> Dispatcher:
    made = Dispatcher(Catalog(entry_points=()))
    for op in ("softmax", "softmax_backward", "vector_add"):
        offered = getattr(registry_torch, f"{op}_implementations")()
        made.register(next(one for one in offered if one.name == "torch.native"))
    return made


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes that were resolved from scratch."""
    seen: list[int] = []
    whole = Miss._first_that_runs

    def counting(self: Miss, asked: object, *given: object) -> object:
        seen.append(asked.tensors[0].shape[0])  # type: ignore[attr-defined]
        return whole(self, asked, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Miss, "_first_that_runs", counting)
    return seen


SHIFTED = Op(
    name="acme::shifted",
    schema="acme::shifted(Tensor x, int position) -> Tensor y",
    version=1,
    reference=lambda x, position: x + position,
    fake=lambda x, _: torch.empty_like(x),
    problem=lambda arguments: {"n": arguments.tensor("x").numel, "position": arguments.integer("position")},
    inputs=lambda problem, _kind, _generator: (torch.zeros(int(problem.n)), problem.position),
    floor=lambda _: Floor(0, 0),
    tolerance=Tolerance({}, {}, lambda _, reference: reference),
    static=frozenset(),
    dynamic=frozenset({"n", "position"}),
)


class Shifted(Implementation):
    """Adds the position that a call gives; where it was bound ``early``, that which it was bound by."""

    op, name = "acme::shifted", "acme.shifted"
    device_types = frozenset({"cpu"})
    any_size = True

    def __init__(self, early: bool) -> None:
        self.early, self.bound = early, list[int]()

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        arguments = problem.traits.arguments
        assert arguments is not None
        position = arguments.integer("position") if self.early else None
        self.bound.append(-1 if position is None else position)

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            torch.add(arguments[0], arguments[1] if position is None else position, out=outputs[0])

        return run


@pytest.mark.parametrize("early", [False, True])
def test_an_int_that_grows_at_each_call_is_a_size_unless_binding_looked_at_it(early: bool) -> None:
    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.catalog.define(SHIFTED)
    dispatcher.register(shifted := Shifted(early))
    for position in (3, 4, 5):
        x = torch.randn(8)
        torch.testing.assert_close(dispatcher.call("acme::shifted", x, position), x + position)
    assert shifted.bound == ([3, 4, 5] if early else [-1])


def shifting() -> Dispatcher:
    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.catalog.define(SHIFTED)
    dispatcher.register(Shifted(early=False))
    return dispatcher


def test_each_of_many_ints_at_one_shape_has_its_own_answer_and_is_a_hit_again() -> None:
    dispatcher, x = shifting(), torch.randn(8)
    positions = [0, 1, -1, 300, 70_000, -70_000, 2**31 - 1]
    for again in (False, True):
        for position in (int(str(one)) for one in positions):  # equal ints that are not identical
            torch.testing.assert_close(dispatcher.call("acme::shifted", x, position), x + position)
            told = dispatcher.explain("acme::shifted", x, position)
            assert told.problem is not None
            assert (told.problem.position, told.calls) == (position, 1 + again)
    assert dispatcher.bound("acme::shifted").miss.count == len(positions)


FACTORS = {2: 1, 3: 1.0, 4: True, 5: 0.0, 6: -0.0, 7: -0.0, 8: 0.0}


class Factor(Implementation):
    """Writes the sign and the type of a static dimension by which it was bound."""

    op, name = "acme::factor", "acme.factor"
    device_types = frozenset({"cpu"})
    any_size = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        told = float(len(repr(problem.factor)))
        return lambda outputs, *_: outputs[0].fill_(told)


def test_a_run_of_any_size_serves_equal_static_dimensions_of_one_type_and_sign() -> None:
    dispatcher = Dispatcher(Catalog(entry_points=()))
    op = replace(
        SHIFTED,
        name="acme::factor",
        reference=torch.clone,
        schema="acme::factor(Tensor x) -> Tensor y",
        fake=torch.empty_like,
        problem=lambda arguments: {"n": (n := arguments.tensor("x").numel), "factor": FACTORS[n]},
        static=frozenset({"factor"}),
        dynamic=frozenset({"n"}),
    )
    dispatcher.catalog.define(op)
    dispatcher.register(Factor())
    written = [float(dispatcher.call("acme::factor", torch.zeros(n))[0]) for n in FACTORS]
    assert written == [len(repr(factor)) for factor in FACTORS.values()]


def test_an_answer_in_another_state_of_torch_is_that_of_the_same_ints() -> None:
    if below_autograd is None:
        pytest.skip("this torch has no such state")
    dispatcher, x = shifting(), torch.randn(8)
    for position in (3, 4, 5):
        dispatcher.call("acme::shifted", x, position)
    with below_autograd():
        dispatcher.call("acme::shifted", torch.randn(7), 4)
        torch.testing.assert_close(dispatcher.call("acme::shifted", x, 4), x + 4)
    entries = dispatcher.bound("acme::shifted").table.now.shapes[torch.Size([8])]
    assert [entry[-1].problem.position for entry in entries] == [4, 5, 4, 3]
    assert entries[0][-1] is entries[2][-1]


def test_a_fake_is_asked_again_where_what_it_reads_has_changed() -> None:
    asked: list[int] = []

    def fake(x: torch.Tensor, _position: int) -> torch.Tensor:
        asked.append(x.shape[0])
        return torch.empty_like(x)

    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.catalog.define(replace(SHIFTED, fake=fake))
    dispatcher.register(Shifted(early=False))
    for size, position in ((8, 2), (8, 3), (8, 4)):
        dispatcher.call("acme::shifted", torch.randn(size), position)
    asked.clear()
    for size, position in ((8, 5), (8, 6), (7, 6), (7, 8), (8, 9)):
        x = torch.randn(size)
        torch.testing.assert_close(dispatcher.call("acme::shifted", x, position), x + position)
    assert asked == [7, 8], "its position is read by nobody"


def sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * 2, x.sum(1).to(torch.float64 if x.shape[0] > 4 else x.dtype)


SUMS = Op(
    name="acme::sums",
    schema="acme::sums(Tensor x) -> (Tensor y, Tensor z)",
    version=1,
    reference=sums,
    fake=RowMajor(
        lambda x: [(x.shape, x.dtype), (x.shape[:1], torch.float64 if x.shape[0] > 4 else x.dtype)], otherwise=sums
    ),
    problem=lambda arguments: {"rows": arguments.tensor("x").shape[0], "cols": arguments.tensor("x").shape[1]},
    inputs=lambda problem, _kind, _generator: (torch.zeros(problem.rows, problem.cols),),
    floor=lambda _: Floor(0, 0),
    tolerance=Tolerance({}, {}, lambda _, reference: reference),
    static=frozenset({"cols"}),
    dynamic=frozenset({"rows"}),
)


class Sums(Implementation):
    op, name = "acme::sums", "acme.sums"
    device_types = frozenset({"cpu"})
    any_size = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            for output, result in zip(outputs, sums(arguments[0]), strict=True):
                output.copy_(result)

        return run


def test_each_of_several_outputs_has_the_shape_and_dtype_of_its_size(resolved: list[int]) -> None:
    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.catalog.define(SUMS)
    dispatcher.register(Sums())
    for rows in (2, 3, 4, 5, 6, 1, 7, 2):
        x = torch.randn(rows, 6)
        for found, expected in zip(dispatcher.call("acme::sums", x), sums(x), strict=True):
            assert (found.shape, found.dtype, found.stride()) == (expected.shape, expected.dtype, expected.stride())
            torch.testing.assert_close(found, expected)
    assert resolved == [2]


@pytest.mark.parametrize("marked", [False, True])
def test_a_signature_of_the_new_size_is_made_for_whoever_may_read_sizes(
    dispatcher: Dispatcher, resolved: list[int], marked: bool
) -> None:
    seen: list[tuple[int, int]] = []

    class Loaded(Implementation):
        op, name = "softmax", "a.loaded"
        device_types = frozenset({"cpu"})
        bound = False

        def preference(self, problem: Problem, device: Device) -> float:
            return 9.0

        def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
            self.bound = True
            return lambda outputs, values, scratch: torch.softmax(*values, out=outputs[0])

        def bind_loaded(
            self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
        ) -> Run | None:
            specs = signature.arguments.tensor("x"), signature.outputs["y"]
            if like is not None:
                seen.append((specs[0].shape[0], specs[1].shape[0]))
            return self.bind(problem, config, device, Built(signature)) if self.bound else None

        if marked:
            bind_loaded = by_form(bind_loaded)

    dispatcher.register(Loaded())
    for rows in (3, 4, 5, 6):
        right(dispatcher, torch.randn(rows, 33))
        assert dispatcher.explain("softmax", torch.randn(rows, 33)).implementation == "a.loaded"
    assert resolved == [3]
    assert seen == ([(4, 4), (4, 4)] if marked else [(5, 5), (6, 6)]), "the form of the plan's own, or the new size"


def right(dispatcher: Dispatcher, x: torch.Tensor) -> None:
    torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))


def test_only_the_first_size_is_resolved_from_scratch(dispatcher: Dispatcher, resolved: list[int]) -> None:
    for rows in (3, 4, 5, 1, 4097):
        right(dispatcher, torch.randn(rows, 33))
    assert resolved == [3]
    told = dispatcher.explain("softmax", torch.randn(5, 33))
    assert (told.step, told.implementation, told.calls) == ("default", "torch.native", 1)


def test_on_a_cpu_a_size_is_as_quick_for_an_implementation_that_no_graph_can_capture(resolved: list[int]) -> None:
    class Uncapturable(Shifted):
        capturable = False

    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.catalog.define(SHIFTED)
    dispatcher.register(Uncapturable(early=False))
    for size in (3, 4, 5):
        x = torch.randn(size)
        torch.testing.assert_close(dispatcher.call("acme::shifted", x, 1), x + 1)
    assert resolved == [3]


def test_every_form_of_a_call_is_another_size_of_the_first(dispatcher: Dispatcher, resolved: list[int]) -> None:
    right(dispatcher, torch.randn(2, 33))
    call, rows = dispatcher.op("softmax"), iter(range(3, 20))
    for args, attributes in [((), {}), ((-1,), {}), ((), {"dim": -1}), ((1,), {})]:
        for form in (call, partial(dispatcher.call, "softmax")):
            x = torch.randn(next(rows), 33)
            torch.testing.assert_close(form(x, *args, **attributes), torch.softmax(x, -1))
            x = torch.randn(next(rows), 33)
            if not args:
                torch.testing.assert_close(form(x=x, **attributes), torch.softmax(x, -1))
    assert resolved == [2]
    assert dispatcher.bound("softmax").misses == 1 + 12


def test_a_packed_weight_is_taken_apart_by_the_call_alone(monkeypatch: pytest.MonkeyPatch, resolved: list[int]) -> None:
    dispatcher = Dispatcher(Catalog(entry_points=()))
    offered = registry_torch.gemm_int4_implementations()
    dispatcher.register(next(one for one in offered if one.name == "torch.native"))
    weight = quantize(torch.randn(16, 64, dtype=torch.bfloat16), group_size=32)
    full = weight.dequantize().float().t()
    generic, taken = BoundOp.generic, list[int]()

    def counting(self: BoundOp, args: tuple[Any, ...], attributes: Any) -> Any:
        taken.append(attributes["a"].shape[0])
        return generic(self, args, attributes)

    monkeypatch.setattr(BoundOp, "generic", counting)
    call = dispatcher.op("gemm_int4")
    for rows in (3, 4, 5, 1):
        a = torch.randn(rows, 64, dtype=torch.bfloat16)
        torch.testing.assert_close(call(a, weight).float(), a.float() @ full, rtol=0.05, atol=0.2)
    assert resolved == taken == [3]


def test_every_kind_of_call_is_a_family_of_its_own(dispatcher: Dispatcher, resolved: list[int]) -> None:
    right(dispatcher, torch.randn(2, 33))
    right(dispatcher, torch.randn(3, 33, dtype=torch.float64))
    right(dispatcher, torch.randn(4, 2, 33))
    with torch.inference_mode():
        right(dispatcher, torch.randn(5, 33))
    assert resolved == [2, 3, 4, 5]


CACHE = torch.randn(40, 64)
"""Of which a call gets more rows each time, as attention does of a cache."""

VIEWS: dict[str, Callable[[int], torch.Tensor]] = {
    "columns of a wider tensor": lambda rows: CACHE[:rows, :32],
    "transposed": lambda rows: torch.randn(32, rows).t(),
    "not aligned": lambda rows: torch.randn(1 + rows * 32)[1:].view(rows, 32),
    "neither": lambda rows: CACHE[:rows, 1:32],
    "expanded": lambda rows: torch.randn(1, 32).expand(rows, 32),
    "for training": lambda rows: torch.randn(rows, 32, requires_grad=True),
    "a view for training": lambda rows: torch.randn(rows, 64, requires_grad=True)[:, :32],
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_layout_an_alignment_or_a_gradient_of_its_own_is_a_family(
    dispatcher: Dispatcher, resolved: list[int], view: str
) -> None:
    right(dispatcher, torch.randn(2, 32))
    for rows in (3, 4, 39, 5):
        x = VIEWS[view](rows)
        y = dispatcher.call("softmax", x)
        torch.testing.assert_close(y, torch.softmax(x, -1))
        assert y.requires_grad is x.requires_grad
    right(dispatcher, torch.randn(6, 32))
    assert resolved == [2, 3]


def test_gradients_of_a_new_size_are_right(dispatcher: Dispatcher, resolved: list[int]) -> None:
    for rows in (3, 4, 5):
        x, weight = torch.randn(rows, 33, requires_grad=True), torch.randn(rows, 33)
        given = torch.autograd.grad((dispatcher.call("softmax", x) * weight).sum(), x)[0]
        torch.testing.assert_close(given, torch.autograd.grad((torch.softmax(x, -1) * weight).sum(), x)[0])
    assert resolved == [3, 3], "softmax and softmax_backward, once each"


def test_a_view_that_becomes_row_major_leaves_its_family(dispatcher: Dispatcher, resolved: list[int]) -> None:
    block = torch.randn(1, 4, 8, 32)
    for tokens in (3, 5):
        right(dispatcher, block[:, :, :tokens])
    right(dispatcher, block)
    right(dispatcher, block[:, :1, :7])  # one head: row-major, too
    assert [dispatcher.explain("softmax", block[:, :, :tokens]).calls for tokens in (3, 5, 8)] == [1, 1, 1]
    assert resolved == [1, 1], "the first view, and the first row-major tensor"


def test_strides_that_always_change_do_not_drive_other_families_out(
    dispatcher: Dispatcher, resolved: list[int]
) -> None:
    right(dispatcher, torch.randn(2, 32))
    for width in range(33, 33 + 3 * MOST_FAMILIES):
        right(dispatcher, torch.randn(3, width)[:, :32])
    right(dispatcher, torch.randn(4, 32))
    assert 4 not in resolved


class TakesHalfAligned(Implementation):
    """Softmax of float32 tensors that start at a multiple of 8 bytes."""

    op, name = "softmax", "acme.half_aligned"
    device_types = frozenset({"cpu"})
    any_size = True

    def preference(self, problem: Problem, device: Device) -> float:
        return 9.0

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        arguments = problem.traits.arguments
        if arguments is not None and arguments.tensor("x").alignment < 8:
            yield "expected multiples of 8 bytes"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            assert arguments[0].data_ptr() % 8 == 0
            torch.softmax(arguments[0], -1, out=outputs[0])

        return run


@pytest.mark.parametrize("other_size", [0, 1])
def test_an_answer_to_tensors_at_multiples_of_8_bytes_is_not_given_to_others(
    dispatcher: Dispatcher, other_size: int
) -> None:
    dispatcher.register(TakesHalfAligned())
    chosen = []
    for call, start in enumerate((2, 1, 2, 4)):
        x = torch.randn(4 + (3 + call * other_size) * 32)[start:][: (3 + call * other_size) * 32].view(-1, 32)
        right(dispatcher, x)
        chosen.append(dispatcher.explain("softmax", x).implementation)
    assert chosen == ["acme.half_aligned", "torch.native", "acme.half_aligned", "acme.half_aligned"]


def test_states_of_torch_are_met_by_the_miss(dispatcher: Dispatcher, resolved: list[int]) -> None:
    right(dispatcher, torch.randn(2, 33))
    with torch.autocast("cpu", torch.bfloat16):
        right(dispatcher, torch.randn(3, 33))
    with torch.device("cpu"):  # a TorchFunctionMode
        right(dispatcher, torch.randn(4, 33))
    assert resolved == [2, 3, 4]


def test_a_family_that_was_met_without_gradients_does_not_answer_calls_that_need_one(dispatcher: Dispatcher) -> None:
    with torch.no_grad():
        for rows in (2, 3):
            right(dispatcher, torch.randn(rows, 33, requires_grad=True))
    x = torch.randn(4, 33, requires_grad=True)
    weight = torch.randn(4, 33)
    given = torch.autograd.grad((dispatcher.call("softmax", x) * weight).sum(), x)[0]
    torch.testing.assert_close(given, torch.autograd.grad((torch.softmax(x, -1) * weight).sum(), x)[0])
    with torch.no_grad():
        right(dispatcher, torch.randn(5, 33, requires_grad=True))


def test_one_tensor_given_twice_is_met_by_the_miss(dispatcher: Dispatcher, resolved: list[int]) -> None:
    x, y = torch.randn(2, 33), torch.randn(2, 33)
    torch.testing.assert_close(dispatcher.call("vector_add", x, y), x + y)
    x = torch.randn(3, 33)
    torch.testing.assert_close(dispatcher.call("vector_add", x, x), x + x)
    assert resolved == [2, 3]


def test_a_nested_tensor_does_not_reach_the_guard(dispatcher: Dispatcher) -> None:
    right(dispatcher, torch.randn(2, 33))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    with pytest.raises(Exception, match=r"nested|dense|strided"):
        dispatcher.call("softmax", nested)


def test_wrong_arguments_are_told_as_ever(dispatcher: Dispatcher) -> None:
    right(dispatcher, torch.randn(2, 33))
    with pytest.raises(TypeError, match=r"3 positional arguments|dim"):
        dispatcher.call("softmax", torch.randn(3, 33), -1, 2)
    with pytest.raises(ValueError, match="dim=3 but x has 2 dimensions"):
        dispatcher.call("softmax", torch.randn(3, 33), dim=3)


def test_using_and_reconfiguring_are_obeyed_at_a_new_size(dispatcher: Dispatcher, resolved: list[int]) -> None:
    right(dispatcher, torch.randn(2, 33))
    with dispatcher.using(softmax="torch.native"):
        right(dispatcher, torch.randn(3, 33))
    dispatcher.configure(mode="reference")
    right(dispatcher, torch.randn(4, 33))
    assert dispatcher.explain("softmax", torch.randn(4, 33)).step == "reference"
    assert resolved == [2, 3, 4]


def test_a_size_that_was_answered_in_another_state_of_torch_keeps_its_plan_and_count(dispatcher: Dispatcher) -> None:
    if below_autograd is None:
        pytest.skip("this torch has no such state")
    right(dispatcher, torch.randn(2, 33))
    with below_autograd():
        right(dispatcher, torch.randn(3, 33))
        right(dispatcher, torch.randn(2, 33))
    table = dispatcher.bound("softmax").table.now.shapes
    assert len(table[torch.Size([2, 33])]) == 2
    assert len({id(entry[-1]) for entry in table[torch.Size([2, 33])]}) == 1
    assert dispatcher.explain("softmax", torch.randn(2, 33)).calls == 2


class Breaking(Implementation):
    """Softmax that raises from its third run on, at any size."""

    op, name = "softmax", "acme.breaking"
    device_types = frozenset({"cpu"})
    any_size = True

    def __init__(self) -> None:
        self.runs = 0

    def preference(self, problem: Problem, device: Device) -> float:
        return 9.0

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            self.runs += 1
            if self.runs > 2:
                raise ValueError("broken")
            torch.softmax(arguments[0], -1, out=outputs[0])

        return run


@pytest.mark.filterwarnings("ignore::registry.DispatchWarning")
def test_a_hit_of_a_further_size_that_fails_is_answered_by_another_implementation(dispatcher: Dispatcher) -> None:
    dispatcher.register(breaking := Breaking())
    right(dispatcher, torch.randn(2, 33))
    x = torch.randn(3, 33)
    right(dispatcher, x)
    assert breaking.runs == 2
    right(dispatcher, x)  # a hit
    assert breaking.runs == 3
    told = dispatcher.explain("softmax", x)
    assert told.implementation == "torch.native"
    assert any("acme.breaking" in str(line) and "broken" in str(line) for line in str(told).splitlines())


def test_a_further_size_is_explained_with_its_own_plan(dispatcher: Dispatcher) -> None:
    right(dispatcher, torch.randn(2, 33))
    for rows in (3, 4):
        x = torch.randn(rows, 33)
        right(dispatcher, x)
        told = dispatcher.explain("softmax", x)
        assert told.problem is not None
        assert (told.problem.rows, told.implementation, told.calls) == (rows, "torch.native", 1)
        entry = dispatcher.bound("softmax").kept((x, -1))
        assert entry is not None
        plan = entry.resolved.plan
        assert plan is entry.resolved.plan
        assert (plan.problem.rows, plan.signature.outputs["y"].shape) == (rows, (rows, 33))
        assert plan.call is entry.run
