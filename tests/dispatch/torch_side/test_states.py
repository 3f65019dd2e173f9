"""registry.call and torch.ops.kernel_registry.* are right in every state that PyTorch can put them in."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from registry import PackedExperts, Problem, RegistryError, UnknownNameError, UnsupportedError, quantize
from registry.contracts import BOX, SQUARE
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.torch_side import operators as torch_ops

from ...serving import serving
from ...tiers import one_of_each

TRAITS = {"contiguous": True, "aligned": True}

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")

close = torch.testing.assert_close

GRAM = replace(
    SQUARE,
    name="acme::gram",
    schema="acme::gram(Tensor x) -> Tensor y",
    reference=lambda x: x @ x.transpose(-1, -2).contiguous(),
    problem=lambda arguments: Problem("acme::gram", {"n": arguments.tensor("x").numel, "dtype": "float32"}, TRAITS),
    backward=None,
    fake=None,
)


@pytest.fixture(params=["call", "op", "torch.ops"])
def run(request: pytest.FixtureRequest, dispatcher: Dispatcher) -> Callable[[str], Callable[..., Any]]:
    """The three ways to call an op."""
    if request.param == "call":
        return lambda name: lambda *args: dispatcher.call(name, *args)
    if request.param == "op":
        return dispatcher.op
    return lambda name: getattr(torch.ops.kernel_registry, name)


@pytest.mark.few(3)
def test_values_and_gradients(run: Any, case: Any, add: Any) -> None:
    seen = add(case.name)
    f = run(case.name)
    for rows in (4, 5, 4):
        args = [tensor.requires_grad_() for tensor in case.args(rows)]
        y, expected = f(*args), case.plain(*args)
        close(y, expected)
        seed = torch.randn(rows, 8)
        close(torch.autograd.grad(y, args, seed), torch.autograd.grad(expected, args, seed))
        with torch.no_grad():
            assert not f(*args).requires_grad
    assert len(seen.shapes) == 6, "the tuned forward runs, with a gradient and without"


@pytest.mark.few(3)
def test_functorch_transforms(run: Any, case: Any) -> None:
    f, args = run(case.name), case.args()
    tangents = tuple(torch.randn_like(tensor) for tensor in args)
    close(torch.func.jvp(f, args, tangents), torch.func.jvp(case.plain, args, tangents))
    grads, expected = (torch.func.grad(lambda *a, g=g: g(*a).pow(3).sum())(*args) for g in (f, case.plain))
    close(grads, expected)
    dims = tuple(None if case.weight and place == 1 else 0 for place in range(len(args)))
    close(torch.vmap(f, dims)(*args), case.plain(*args))
    hessian, expected = (
        torch.func.hessian(lambda x, g=g: g(x, *args[1:]).pow(3).sum())(args[0]) for g in (f, case.plain)
    )
    close(hessian, expected, rtol=1e-4, atol=1e-5)
    per_row, expected = (
        torch.vmap(torch.func.grad(lambda *a, g=g: g(*a).pow(3).sum()), dims)(*args) for g in (f, case.plain)
    )
    close(per_row, expected)


@pytest.mark.few(3)
def test_forward_mode_duals(run: Any, case: Any, add: Any) -> None:
    add(case.name)
    f, args = run(case.name), case.args()
    f(*args)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(tensor, torch.ones_like(tensor)) for tensor in args]
        found, expected = (forward_ad.unpack_dual(g(*duals)) for g in (f, case.plain))
        close(found.primal, expected.primal)
        close(found.tangent, expected.tangent)
        close(f(*args), case.plain(*args))


@pytest.mark.few(2)
def test_inference_mode_and_autocast(run: Any, case: Any, add: Any) -> None:
    add(case.name)
    f, args = run(case.name), case.args()
    for _ in range(2):
        with torch.inference_mode():
            assert f(*args).is_inference()
        with torch.autocast("cpu", torch.bfloat16):
            close(f(*args), case.plain(*args))
            y = f(*[tensor.requires_grad_() for tensor in case.args()])
        assert y.dtype == torch.float32
        y.sum().backward()


@pytest.mark.few(3)
def test_fake_tensors(run: Any, case: Any, add: Any) -> None:
    seen = add(case.name)
    f, args = run(case.name), case.args()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert isinstance(f(*args), FakeTensor)
        fakes = [mode.from_tensor(tensor) for tensor in args]
        y = f(*fakes)
    assert isinstance(y, FakeTensor)
    assert (y.shape, y.dtype, y.stride()) == ((4, 8), torch.float32, (8, 1))
    assert f(*fakes).shape == (4, 8), "after the mode has ended, too"
    assert f(*[tensor.to("meta") for tensor in args]).device.type == "meta"
    assert not seen.shapes


@pytest.mark.few(2)
def test_make_fx_records_the_operator_which_decides_when_it_runs(run: Any, case: Any, add: Any) -> None:
    f = run(case.name)
    for tracing in ("real", "fake", "symbolic"):
        graph = make_fx(lambda *args: f(*args) + 1, tracing_mode=tracing)(*case.args())
        assert f"torch.ops.kernel_registry.{case.name}.default" in graph.code
        close(graph(*case.args(6)), case.plain(*case.args(6)) + 1) if tracing == "symbolic" else None
    seen = add(case.name)
    graph(*case.args(7))
    assert seen.shapes == [(7, 8)]


@pytest.mark.few(2)
def test_jit_trace(run: Any, case: Any) -> None:
    traced = torch.jit.trace(run(case.name), case.args(), check_trace=False)
    args = tuple(-tensor for tensor in case.args())
    close(traced(*args), case.plain(*args))


@pytest.mark.few(1)
def test_one_tensor_twice(run: Any, add: Any) -> None:
    add("vector_add")
    f = run("vector_add")
    for _ in range(2):
        x = torch.randn(8, requires_grad=True)
        y = f(x, x)
        close(y, 2 * x)
        close(torch.autograd.grad(y.sum(), x), (torch.full_like(x, 2.0),))
    z = torch.randn(8)
    assert make_fx(lambda t: f(t, t))(z)(z).equal(2 * z)


def test_subclasses_see_torch_operations(run: Any) -> None:
    class Named(torch.Tensor):
        pass

    y = run("softmax")(torch.randn(4, 8).as_subclass(Named))
    assert isinstance(y, Named)


def test_flop_counters_and_other_modes_see_the_operator(run: Any, add: Any) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    names: list[str] = []

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.name())
            return func(*args, **kwargs or {})

    seen = add("softmax")
    x = torch.randn(4, 8)
    with Listen():
        y = run("softmax")(x)
    close(y, torch.softmax(x, -1))
    assert names == ["kernel_registry::softmax"]
    assert seen.shapes == [(4, 8)], "and the tuned kernel runs"


def form_of(name: str) -> object:
    """What the definition of an op's operator follows from; a schema alone is read by torch."""
    (op,) = (op for op in BOX if op.name == name)
    return op.backward is not None, op.parsed.mutates, len(op.parsed.results), op.packed is not None


def checks_of(values: Sequence[Any]) -> Sequence[str] | str:
    """All, or with float8 arguments those that compare none: torch's ``allclose`` has no float8 on a CPU."""
    if any(isinstance(value, torch.Tensor) and value.dtype == torch.float8_e4m3fn for value in values):
        return ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    return "ALL"


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", one_of_each([op.name for op in BOX], form_of))
@pytest.mark.few(2)
def test_every_operator_of_the_box_passes_opcheck(dispatcher: Dispatcher, name: str) -> None:
    op = dispatcher.catalog.op(name)
    values = op.inputs(op.problem_of(op.examples[1]), op.kinds[0], torch.Generator().manual_seed(0))
    overload = torch_ops.define(op)
    torch.library.opcheck(overload, values, test_utils=checks_of(values))
    if op.backward is not None:
        unlearnt = {"cross_entropy": ("weight",), "attention": ("mask",), "apply_rotary": ("cos_sin_cache",)}
        frozen = op.weights if op.packed is not None else unlearnt.get(op.name, ())
        for each, value in zip(op.parsed.names, values, strict=True):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and each not in frozen:
                value.requires_grad_()
        torch.library.opcheck(overload, values, test_utils=checks_of(values))


@pytest.mark.parametrize("name", one_of_each([op.name for op in BOX], form_of))
@pytest.mark.few(2)
def test_a_tensor_of_another_rank_is_refused_where_sizes_are_symbols(dispatcher: Dispatcher, name: str) -> None:
    op = dispatcher.catalog.op(name)
    values = op.draw(op.problem_of(op.examples[0]), op.kinds[0], torch.Generator().manual_seed(0))
    overload = torch_ops.define(op)
    for place, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            continue
        for other in (value.new_zeros(()), value[None]):
            with FakeTensorMode(shape_env=ShapeEnv()) as mode, contextlib.suppress(RegistryError):
                given = [*values[:place], other, *values[place + 1 :]]
                fakes = [mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in given]
                torch_ops.called(overload, op, tuple(fakes))


def test_an_error_of_a_traced_call_tells_the_sizes_that_it_has(dispatcher: Dispatcher) -> None:
    weights = PackedExperts.stack([quantize(torch.randn(32, 64), bits=4, group_size=32) for _ in range(2)])
    compiled = torch.compile(
        lambda x: dispatcher.call("grouped_gemm_int4", x, weights, torch.tensor([0, 2, 4])), dynamic=True
    )
    with pytest.raises(Exception, match="grouped_gemm_int4: x has shape scalar but weights have K=64"):
        compiled(torch.tensor(1.0))


def test_without_a_backward_a_gradient_is_an_error_and_no_grad_the_way_out(dispatcher: Dispatcher) -> None:
    weight = quantize(torch.randn(16, 64).bfloat16(), bits=4, group_size=32)
    levels = torch.randint(-127, 128, (3, 64), dtype=torch.int8)
    a = torch.rand(3, 1).requires_grad_()
    compiled = torch.compile(
        lambda t: dispatcher.call("gemm_w4a8", levels, t, weight), fullgraph=True, backend="aot_eager"
    )
    tensors = (weight.qweight, weight.scales, weight.zeros, None, 4, 32, 64, "gptq")
    for f in (
        lambda: dispatcher.call("gemm_w4a8", levels, a, weight),
        lambda: torch.ops.kernel_registry.gemm_w4a8(levels, a, *tensors),
        lambda: make_fx(lambda t: dispatcher.call("gemm_w4a8", levels, t, weight))(a),
        lambda: compiled(a),
    ):
        with pytest.raises(
            UnsupportedError, match=r"gemm_w4a8: an input needs a gradient.*\n.*torch\.no_grad"
        ) as caught:
            f()
        assert isinstance(caught.value, RegistryError)
        with torch.no_grad():
            f()
    with torch.no_grad():
        direct = torch.compile(lambda t: torch.ops.kernel_registry.gemm_w4a8(levels, t, *tensors), backend="aot_eager")
        direct(a)
    with pytest.raises(Exception, match="an input needs a gradient, but the op has no backward"):
        direct(a)


def test_reference_mode_has_every_gradient(dispatcher: Dispatcher) -> None:
    dispatcher.configure(mode="reference")
    drawn = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    weight = quantize(drawn.bfloat16(), bits=4, group_size=32)
    a = torch.randn(3, 64).bfloat16().requires_grad_()
    compiled = torch.compile(lambda t: dispatcher.call("gemm_int4", t, weight), fullgraph=True, backend="aot_eager")
    expected = torch.ones(3, 16).bfloat16() @ weight.dequantize()
    for f in (
        lambda: dispatcher.call("gemm_int4", a, weight),
        lambda: compiled(a),
    ):
        close(torch.autograd.grad(f().sum(), a)[0], expected, rtol=2e-2, atol=2e-2)
    x = torch.randn(4, 8, requires_grad=True)
    (once,) = torch.autograd.grad(dispatcher.call("softmax", x).pow(2).sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(once.sum(), x)
    assert twice.isfinite().all()


def test_operators_run_for_the_dispatcher_that_is_served(dispatcher: Dispatcher, add: Any) -> None:
    seen = add("softmax")
    other = Dispatcher(Catalog(entry_points=()))
    x = torch.randn(4, 8)
    torch.ops.kernel_registry.softmax(x)
    with serving(other):
        torch.ops.kernel_registry.softmax(x)
    assert len(seen.shapes) == 1
    # another dispatcher than the served one is traced as plain torch, never as an operator that runs elsewhere
    assert "kernel_registry" not in make_fx(lambda t: other.call("softmax", t))(x).code
    close(torch.compile(lambda t: other.call("softmax", t), fullgraph=True, backend="eager")(x), torch.softmax(x, -1))
    schema = "acme::own(Tensor x) -> Tensor y"
    other.catalog.define(replace(SQUARE, name="acme::own", schema=schema, backward=None))
    close(make_fx(lambda t: other.call("acme::own", t))(x)(x), x * x)


def saved_and_loaded(model: torch.nn.Module) -> Any:
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


def test_models_that_hold_packed_weights_are_copied_and_pickled(dispatcher: Dispatcher) -> None:
    class Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = quantize(torch.randn(16, 64).bfloat16(), bits=4, group_size=32)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = dispatcher.call("gemm_int4", a, self.weight)
            return y

    model, a = Linear(), torch.randn(3, 64).bfloat16()
    twin = copy.deepcopy(model)
    assert twin.weight.qweight.data_ptr() != model.weight.qweight.data_ptr()
    assert twin(a).equal(model(a))
    holder = torch.nn.Module()
    vars(holder)["weight"] = model.weight
    for weight in (pickle.loads(pickle.dumps(holder)).weight, saved_and_loaded(holder).weight):
        assert weight.qweight.data_ptr() != model.weight.qweight.data_ptr()
        assert dispatcher.call("gemm_int4", a, weight).equal(model(a))
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for rows in (3, 5):
        b = torch.randn(rows, 64).bfloat16()
        assert compiled(b).equal(model(b))


def test_an_unknown_op_is_the_same_error_in_traced_code(dispatcher: Dispatcher) -> None:
    with pytest.raises(UnknownNameError, match="did you mean softmax"):
        torch.compile(lambda t: dispatcher.call("sofmax", t), fullgraph=True, backend="eager")(torch.randn(4))


def test_autocast_does_not_reach_into_an_op(run: Any, dispatcher: Dispatcher) -> None:
    """In the dtype of its inputs: of a product, which autocast would lower, and of halves in another dtype."""
    dispatcher.catalog.define(GRAM)
    torch_ops.define(GRAM)
    gram: Any = (
        torch.ops.acme.gram if run("softmax") is torch.ops.kernel_registry.softmax else dispatcher.op("acme::gram")
    )
    w = quantize(torch.randn(64, 128).half(), group_size=32)
    parts = (w.qweight, w.scales, w.zeros, 4, 32, 128, "gptq")
    gemm = run("gemm_int4")
    x, a = torch.randn(5, 8, 8), torch.randn(3, 4, 128).half()
    product = gemm(a, *parts)

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **kwargs or {})

    ways: list[Callable[[Any, torch.Tensor], torch.Tensor]] = [
        lambda f, t: f(t),
        lambda f, t: torch.vmap(f)(t),
        lambda f, t: torch.vmap(torch.vmap(f))(t) if f is not gram else f(t),
        lambda f, t: torch.func.jvp(f, (t,), (t,))[0],
    ]
    with torch.no_grad():
        # each way without autocast: a batch of products may be summed in another order than they are one by one
        rights = [way(gram, x) for way in ways]
    for right in rights:
        close(right, x @ x.transpose(-1, -2), rtol=1e-5, atol=1e-5)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for way, right in zip(ways, rights, strict=True):
            assert torch.equal(way(gram, x), right)
            close(way(lambda t: gemm(t, *parts), a), product, rtol=1e-3, atol=1e-2)
        with Listen():
            assert torch.equal(gram(x), rights[0])
        with FakeTensorMode() as mode:
            assert gram(mode.from_tensor(x)).dtype == torch.float32


@pytest.mark.parametrize("mode", ["tuned", "reference"])
@pytest.mark.thorough
def test_autocast_does_not_reach_into_what_torch_compile_traces(dispatcher: Dispatcher, mode: Any) -> None:
    w, a = quantize(torch.randn(64, 128).bfloat16(), group_size=32), torch.randn(3, 128).bfloat16()
    dispatcher.configure(mode=mode)
    f = dispatcher.op("gemm_int4")
    with torch.no_grad():
        right = f(a, w)
        compiled = torch.compile(lambda t: f(t, w), backend="aot_eager", fullgraph=True)
        for on in (False, True, False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=on):
                assert torch.equal(compiled(a), right)

    def within(t: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return f(t, w)

    with torch.no_grad():
        assert torch.equal(torch.compile(within, backend="aot_eager", fullgraph=True)(a), right)


def test_fx_records_a_call_as_one_operator(run: Any, add: Any) -> None:
    add("softmax")
    graph = torch.fx.symbolic_trace(lambda x: run("softmax")(x, 0) + 1)
    kinds = [node.op for node in graph.graph.nodes]
    assert kinds == ["placeholder", "call_function", "call_function", "output"]
    x = torch.randn(4, 8)
    close(graph(x), torch.softmax(x, 0) + 1)


class Calls(torch.nn.Module):
    """Gives a call further arguments."""

    def __init__(self, call: Callable[..., Any], *more: Any) -> None:
        super().__init__()
        self.call, self.more = call, more

    def forward(self, x: torch.Tensor) -> Any:
        """One call."""
        return self.call(x, *self.more)


def test_fx_takes_a_packed_weight_for_constants_and_refuses_a_wrong_form(dispatcher: Dispatcher) -> None:
    w, a = quantize(torch.randn(64, 128).bfloat16(), group_size=32), torch.randn(3, 128).bfloat16()
    for call in (dispatcher.op("gemm_int4"), lambda *given: dispatcher.call("gemm_int4", *given)):
        graph = torch.fx.symbolic_trace(Calls(call, w))
        assert torch.equal(graph(a), call(a, w))
        with pytest.raises(RegistryError, match="at most 2 expected"):
            torch.fx.symbolic_trace(Calls(call, w, 3))
