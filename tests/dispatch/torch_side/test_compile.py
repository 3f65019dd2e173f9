"""Under torch.compile and torch.export: one operator, no graph break, and the winner of the shape that runs."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry import (
    Arguments,
    ArgumentTypeError,
    InvalidArgumentError,
    InvalidDefinitionError,
    PackedWeight,
    UnsupportedError,
    quantize,
)
from registry.contracts import SQUARE
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.torch_side import operators as torch_ops

from ...tiers import one_of_each

close = torch.testing.assert_close


@pytest.mark.parametrize(("form", "dynamic"), [("call", None), ("op", True), ("torch.ops", False)])
@pytest.mark.few(1)
def test_values_and_gradients_through_one_graph(dispatcher: Dispatcher, case: Any, form: str, dynamic: Any) -> None:
    bound = dispatcher.op(case.name)
    forms = {"call": lambda *args: dispatcher.call(case.name, *args), "op": bound}
    f = forms.get(form, getattr(torch.ops.kernel_registry, case.name))
    compiled = torch.compile(lambda *args: f(*args) * 2, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (4, 5, 6):
        args = [tensor.requires_grad_() for tensor in case.args(rows)]
        y, expected = compiled(*args), case.plain(*args) * 2
        close(y, expected)
        seed = torch.randn(rows, 8)
        close(torch.autograd.grad(y, args, seed), torch.autograd.grad(expected, args, seed))


def count_graphs() -> tuple[Any, list[torch.fx.GraphModule]]:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    return backend, graphs


def test_one_graph_runs_the_winner_of_each_token_count(dispatcher: Dispatcher, add: Any) -> None:
    few, many = add("softmax", "a.few", only_rows=5), add("softmax", "a.many", only_rows=9)
    backend, graphs = count_graphs()
    compiled = torch.compile(lambda t: dispatcher.call("softmax", t) + 1, fullgraph=True, backend=backend, dynamic=True)
    for rows in (5, 9, 33, 5):
        x = torch.randn(rows, 8)
        close(compiled(x), torch.softmax(x, -1) + 1)
    assert len(graphs) == 1
    assert (few.shapes, many.shapes) == ([(5, 8), (5, 8)], [(9, 8)])
    assert dispatcher.explain("softmax", torch.randn(5, 8)).calls == 2


@pytest.mark.thorough
def test_what_is_registered_later_runs_in_what_was_compiled_before(dispatcher: Dispatcher, add: Any) -> None:
    compiled = torch.compile(lambda t: dispatcher.call("softmax", t), fullgraph=True, backend="eager")
    x = torch.randn(4, 8)
    compiled(x)
    seen = add("softmax")
    compiled(x)
    assert seen.shapes == [(4, 8)]


def test_using_is_asked_when_a_compiled_program_runs(dispatcher: Dispatcher, add: Any) -> None:
    one, other = add("softmax", "a.one"), add("softmax", "a.other")
    compiled = torch.compile(lambda t: dispatcher.call("softmax", t), fullgraph=True, backend="eager")
    x = torch.randn(4, 8)
    with dispatcher.using(softmax="a.other"):
        compiled(x)
    compiled(x)
    assert (len(one.shapes), len(other.shapes)) == (1, 1)
    add("softmax", "a.narrow", only_rows=3)
    with dispatcher.using(softmax="a.narrow"), pytest.raises(UnsupportedError, match=r"a\.narrow cannot run"):
        compiled(x)


@pytest.mark.parametrize(
    ("dynamic", "symmetric"),
    one_of_each(itertools.product((None, True), (False, True)), lambda dynamic, symmetric: dynamic),
)
@pytest.mark.thorough
def test_packed_weights_pass_as_tensors_and_numbers(dispatcher: Dispatcher, symmetric: bool, dynamic: Any) -> None:
    w = quantize(torch.randn(16, 64).bfloat16(), bits=4, group_size=32, symmetric=symmetric)

    def closed_over(a: torch.Tensor) -> Any:
        return dispatcher.call("gemm_int4", a, w) * 2

    def given(a: torch.Tensor, w: PackedWeight) -> Any:
        return dispatcher.call("gemm_int4", a, w=w) * 2

    def made(a: torch.Tensor, qweight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> Any:
        return dispatcher.call("gemm_int4", a, PackedWeight(qweight, scales, zeros, 4, 32, (16, 64))) * 2

    more: dict[Any, tuple[Any, ...]] = {closed_over: (), given: (w,), made: (w.qweight, w.scales, w.zeros)}
    for f, rest in more.items():
        compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        for rows in (3, 4):
            a = torch.randn(rows, 64).bfloat16()
            close(compiled(a, *rest), dispatcher.call("gemm_int4", a, w) * 2)


@pytest.mark.parametrize(
    ("op", "args", "message", "dynamic"),
    one_of_each(
        [
            (*case, dynamic)
            for case in (
                ("softmax", (7,), "^softmax: dim=7 but x has 2 dimensions"),
                ("rms_norm", (torch.ones(7),), "^rms_norm: weight has shape 7 but x has 8 columns"),
                ("rms_norm", (torch.ones(8), -1.0), "^rms_norm: eps=-1.0\n  expected a finite number"),
            )
            for dynamic in (False, True)
        ],
        lambda op, args, message, dynamic: message,
    ),
)
@pytest.mark.few(1)
def test_a_bad_call_is_the_same_error_when_it_runs(
    dispatcher: Dispatcher, op: str, args: tuple[Any, ...], message: str, dynamic: bool
) -> None:
    compiled = torch.compile(
        lambda t: dispatcher.call(op, t, *args) + 1, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    with pytest.raises(InvalidArgumentError, match=message):
        compiled(torch.randn(4, 8))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.few(1)
def test_an_exported_program_holds_the_operator_and_runs(
    dispatcher: Dispatcher, case: Any, add: Any, strict: bool
) -> None:
    class Model(torch.nn.Module):
        def forward(self, *args: torch.Tensor) -> Any:
            return dispatcher.call(case.name, *args) + 1

    rows = torch.export.Dim("rows")
    dims = tuple({0: rows} if tensor.dim() == 2 else None for tensor in case.args())
    program = torch.export.export(Model(), case.args(), dynamic_shapes=(dims,), strict=strict)
    assert f"kernel_registry.{case.name}" in str(program.graph)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    seen = add(case.name)
    for one in (program, torch.export.load(file)):
        close(one.module()(*case.args(9)), case.plain(*case.args(9)) + 1)
    assert seen.shapes == [(9, 8)] * 2


def test_an_exported_program_takes_packed_weights(dispatcher: Dispatcher) -> None:
    class Model(torch.nn.Module):
        def forward(self, a: torch.Tensor, w: PackedWeight) -> Any:
            return dispatcher.call("gemm_int4", a, w)

    w = quantize(torch.randn(16, 64).bfloat16(), bits=4, group_size=32)
    a = torch.randn(3, 64).bfloat16()
    program = torch.export.export(Model(), (a, w))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for one in (program, torch.export.load(file)):
        close(one.module()(a, w), dispatcher.call("gemm_int4", a, w))


@pytest.mark.few(1)
def test_vmap_and_autocast_inside_compiled_code(dispatcher: Dispatcher, case: Any) -> None:
    dims = tuple(None if case.weight and place == 1 else 0 for place in range(case.tensors))

    def batched(*args: torch.Tensor) -> Any:
        return torch.vmap(dispatcher.op(case.name), dims)(*args)

    f = torch.compile(batched, fullgraph=True, backend="aot_eager")
    close(f(*case.args()), case.plain(*case.args()))

    def under_autocast(*args: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return dispatcher.call(case.name, *args)

    y = torch.compile(under_autocast, fullgraph=True, backend="aot_eager")(*case.args())
    assert y.dtype == torch.float32


@pytest.mark.usefixtures("shared_headers")
def test_inductor_compiles_around_it(dispatcher: Dispatcher, add: Any) -> None:
    seen, back = add("softmax"), add("softmax_backward", "a.back")
    compiled = torch.compile(lambda t: dispatcher.call("softmax", t * 2) + 1, fullgraph=True, dynamic=True)
    for rows in (4, 7):
        x = torch.randn(rows, 8, requires_grad=True)
        y, expected = compiled(x), torch.softmax(x * 2, -1) + 1
        close(y, expected)
        seed = torch.randn(rows, 8)
        close(torch.autograd.grad(y, x, seed), torch.autograd.grad(expected, x, seed))
    assert (len(seen.shapes), len(back.shapes)) == (2, 2)


@pytest.mark.parametrize(
    ("args", "message", "dynamic"),
    one_of_each(
        [
            (*case, dynamic)
            for case in (
                (("last",), "^softmax: dim must be an int, got 'last'"),
                ((True,), "^softmax: dim must be an int, got True"),
                ((0, 1), "^softmax: 3 positional arguments given, at most 2"),
            )
            for dynamic in (False, True)
        ],
        lambda args, message, dynamic: message,
    ),
)
@pytest.mark.few(1)
def test_a_call_of_the_wrong_form_is_an_error_when_it_is_traced(
    dispatcher: Dispatcher, args: tuple[Any, ...], message: str, dynamic: bool
) -> None:
    for f in (lambda t: dispatcher.call("softmax", t, *args), lambda t: dispatcher.op("softmax")(t, *args)):
        compiled = torch.compile(f, fullgraph=True, backend="eager", dynamic=dynamic)
        with pytest.raises(ArgumentTypeError, match=message):
            compiled(torch.randn(4, 8))


def test_a_strangers_op_is_an_operator_of_its_own_namespace(dispatcher: Dispatcher) -> None:
    schema = "acme::shift(Tensor(a!) x, *, float by=1.0) -> Tensor y"
    op = replace(SQUARE, name="acme::shift", schema=schema, reference=shift, backward=None, fake=shifted)
    dispatcher.catalog.define(op)
    assert torch_ops.define(op).name() == "acme::shift"

    def f(x: torch.Tensor) -> Any:
        x = x * 1
        y = dispatcher.call("acme::shift", x, by=2.0)
        return x + y

    for compiled in (f, torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=True)):
        close(compiled(torch.zeros(3)), torch.full((3,), 4.0))
    x = torch.zeros(3)
    close(torch.ops.acme.shift(x), torch.ones(3))
    assert x.eq(1).all()
    assert x._version >= 1
    torch.library.opcheck(torch.ops.acme.shift.default, (x,), {"by": 3.0})
    with pytest.raises(UnsupportedError, match="an input needs a gradient"):
        torch.ops.acme.shift(torch.zeros(3, requires_grad=True) * 1)


def shift(x: torch.Tensor, by: float) -> torch.Tensor:
    return x.add_(by).clone()


def shifted(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.empty_like(x)


def losses(logits: torch.Tensor, target: torch.Tensor, factor: float) -> torch.Tensor:
    """As a fake torch makes tensors of a symbolic size in it."""
    return torch.nn.functional.cross_entropy(logits, target, reduction="none") * factor


def test_a_reference_serves_as_a_fake_of_symbolic_sizes_and_scalars_are_constants(dispatcher: Dispatcher) -> None:
    schema = "acme::losses(Tensor logits, Tensor target, Scalar factor=1) -> Tensor y"

    def dims_of(arguments: Arguments) -> dict[str, Any]:
        return {"n": arguments.tensor("logits").shape[0], "dtype": "float32"}

    dispatcher.catalog.define(
        replace(SQUARE, name="acme::losses", schema=schema, reference=losses, backward=None, fake=None, problem=dims_of)
    )

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def f(logits: torch.Tensor, target: torch.Tensor, factor: float) -> Any:
        return dispatcher.call("acme::losses", logits, target, factor)

    for rows, factor in ((4, 2), (7, 2), (9, 3), (4, 0.5)):
        given = torch.randn(rows, 5), torch.randint(5, (rows,)), factor
        close(f(*given), losses(*given))
    assert dispatcher.call(
        "acme::losses", torch.empty(3, 5, device="meta"), torch.empty(3, dtype=torch.long, device="meta")
    ).shape == (3,)


@pytest.mark.thorough
def test_an_op_without_outputs_writes_in_eager_and_compiled_code(dispatcher: Dispatcher) -> None:
    schema = "acme::bump(Tensor(a!) x, *, float by=1.0) -> ()"
    dispatcher.catalog.define(
        replace(SQUARE, name="acme::bump", schema=schema, reference=bump, backward=None, fake=lambda x, by: None)
    )

    def f(x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        assert dispatcher.call("acme::bump", x, by=2.0) is None
        dispatcher.op("acme::bump")(x)
        return x

    for backend in ("eager", "aot_eager"):
        close(torch.compile(f, fullgraph=True, backend=backend, dynamic=True)(torch.zeros(3)), torch.full((3,), 3.0))
    close(f(torch.zeros(3)), torch.full((3,), 3.0))
    x = torch.zeros(3)
    assert torch.ops.acme.bump(x) is None
    close(x, torch.ones(3))
    torch.library.opcheck(torch.ops.acme.bump.default, (x,), {"by": 3.0})


def bump(x: torch.Tensor, by: float) -> None:
    x.add_(by)


def test_a_name_that_another_library_has_taken_is_an_error_where_it_is_traced(dispatcher: Dispatcher) -> None:
    library = torch.library.Library("acme", "FRAGMENT")
    library.define("taken(Tensor x) -> Tensor y")
    op = replace(SQUARE, name="acme::taken", schema="acme::taken(Tensor x) -> Tensor y", backward=None)
    dispatcher.catalog.define(op)
    x = torch.randn(3)
    close(dispatcher.call("acme::taken", x), x * x)
    with pytest.raises(InvalidDefinitionError, match=r"torch\.ops\.acme\.taken cannot be defined"):
        torch.compile(lambda t: dispatcher.call("acme::taken", t), fullgraph=True, backend="eager")(x)


@pytest.mark.thorough
def test_several_ops_are_met_for_the_first_time_in_one_trace(dispatcher: Dispatcher) -> None:
    def f(x: torch.Tensor, weight: torch.Tensor) -> Any:
        y = dispatcher.call("rms_norm", x, weight)
        return dispatcher.call("softmax", dispatcher.op("gelu")(y)) + dispatcher.call("softmax", y)

    compiled = torch.compile(f, fullgraph=True, backend="eager")
    args = torch.randn(4, 8), torch.randn(8)
    close(compiled(*args), f(*args))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.thorough
def test_compiled_autograd_traces_the_backward_of_an_eager_call(dispatcher: Dispatcher) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(torch.softmax(x, -1).pow(2).sum(), x)

    def step() -> None:
        dispatcher.call("softmax", x).pow(2).sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(step, backend="eager")()
    assert x.grad is not None
    close(x.grad, expected)
