"""Gradients by references that read data: one operator in traced programs, and none in eager calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from registry import Backward, UnsupportedError
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.torch_side import operators as torch_ops

from .toys import toy

close = torch.testing.assert_close
Tensors = tuple[torch.Tensor, ...]
BY_REFERENCE = Backward.reference()


def by_segment(x: torch.Tensor, weights: Tensors, ends: torch.Tensor, scale: float) -> torch.Tensor:
    """The rows of ``x`` times a weight each segment; the ends are read as numbers, and rows of 0 are left out."""
    parts, start = [], 0
    for weight, end in zip(weights, ends.tolist(), strict=True):
        parts.append(x[start:end] @ weight * scale)
        start = end
    found = torch.cat(parts)
    kept = found.abs().sum(-1).nonzero()[:, 0]
    return torch.zeros_like(found).index_copy(0, kept, found[kept])


SEGMENTS = toy(
    "acme::segments(Tensor x, Tensor[] weights, Tensor ends, *, float scale=2.0) -> Tensor y",
    by_segment,
    BY_REFERENCE,
    fake=lambda x, weights, ends, scale: x.new_empty(x.shape[0], weights[0].shape[1]),
    flop=7,
)


def given(rows: int = 5) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    shapes = [(rows, 4), (4, 3), (4, 3)]
    learnt = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    return [*learnt, torch.tensor([2, rows])]


def plain(x: torch.Tensor, one: torch.Tensor, other: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return by_segment(x, (one, other), ends, 0.5)


@pytest.fixture
def segments(dispatcher: Dispatcher) -> Callable[..., Any]:
    dispatcher.catalog.define(SEGMENTS)
    return lambda x, one, other, ends: dispatcher.call("acme::segments", x, [one, other], ends, scale=0.5)


def gradients_of(run: Callable[..., Any], args: Sequence[torch.Tensor]) -> Tensors:
    return torch.autograd.grad(run(*args).square().sum(), [one for one in args if one.requires_grad])


class Heard(TorchDispatchMode):
    """Notes the names of torch's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **kwargs or {})


OPERATOR = "acme::segments_reference_gradient"


@pytest.mark.parametrize(
    ("backend", "dynamic"),
    [
        ("aot_eager", True),
        pytest.param("aot_eager", False, marks=pytest.mark.thorough),
        pytest.param("inductor", True, marks=pytest.mark.thorough),
        pytest.param("inductor", False, marks=pytest.mark.thorough),
    ],
)
def test_a_reference_that_reads_data_compiles_whole(segments: Callable[..., Any], backend: str, dynamic: bool) -> None:
    compiled = torch.compile(
        lambda x, *more: segments(x * 2, *more) + 1, fullgraph=True, backend=backend, dynamic=dynamic
    )
    for rows in (5, 7):
        args = given(rows)
        close(gradients_of(compiled, args), gradients_of(lambda x, *more: plain(x * 2, *more) + 1, args))


@pytest.mark.parametrize("needed", [(0,), (2,), (0, 1)])
@pytest.mark.few(1)
def test_only_gradients_that_are_needed_are_computed_in_compiled_code(
    segments: Callable[..., Any], needed: tuple[int, ...]
) -> None:
    args = [one.detach().requires_grad_(place in needed) for place, one in enumerate(given()[:3])] + given()[3:]
    compiled = torch.compile(segments, fullgraph=True, backend="aot_eager")
    y = compiled(*args).square().sum()
    with Heard() as heard:
        found = torch.autograd.grad(y, [args[place] for place in needed])
    assert heard.names.count(OPERATOR) == 1
    close(found, gradients_of(plain, args))


def test_an_eager_call_needs_no_operator(segments: Callable[..., Any]) -> None:
    args = given()
    y = segments(*args)
    with Heard() as heard:
        torch.autograd.grad(y.square().sum(), args[:3])
    assert OPERATOR not in heard.names
    assert "aten::mm" in heard.names


@pytest.mark.parametrize("tracing", ["real", "fake", "symbolic"])
def test_make_fx_records_one_operator(segments: Callable[..., Any], tracing: str) -> None:
    args = given()
    graph = make_fx(lambda *given: gradients_of(segments, given), tracing_mode=tracing)(*args)
    assert graph.code.count(f"{OPERATOR.replace('::', '.')}.default") == 1
    close(graph(*args), gradients_of(plain, args))


def test_fake_tensors_get_fake_gradients(segments: Callable[..., Any]) -> None:
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(one) for one in given()]
    with mode:
        y = segments(*fakes).sum()
        found = torch.autograd.grad(y, fakes[:3], retain_graph=True)
    for one, other in zip(found, torch.autograd.grad(y, fakes[:3]), strict=True):
        assert (one.shape, one.stride()) == (other.shape, other.stride())
    assert [one.shape for one in found] == [(5, 4), (4, 3), (4, 3)]


def test_many_gradients_at_once_of_a_compiled_call(segments: Callable[..., Any]) -> None:
    args, seeds = given(), torch.randn(3, 5, 3)
    compiled = torch.compile(segments, fullgraph=True, backend="aot_eager")
    (found,) = torch.autograd.grad(compiled(*args), args[0], seeds, is_grads_batched=True)
    close(found, torch.stack([torch.autograd.grad(plain(*args), args[0], seed)[0] for seed in seeds]))


def test_a_compiled_call_under_autocast_and_deterministic_algorithms(segments: Callable[..., Any]) -> None:
    def lowered(*args: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y: torch.Tensor = segments(*args)
        return y

    args = given()
    compiled = torch.compile(lowered, fullgraph=True, backend="aot_eager")
    torch.use_deterministic_algorithms(True)
    try:
        found = gradients_of(compiled, args)
    finally:
        torch.use_deterministic_algorithms(False)
    close(found, gradients_of(plain, args))
    y = compiled(*args).square().sum()
    with torch.autocast("cpu", torch.bfloat16):
        close(torch.autograd.grad(y, args[:3]), found)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.thorough
def test_compiled_autograd_calls_the_operator(segments: Callable[..., Any]) -> None:
    args = given()
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda: segments(*args).square().sum().backward(), backend="aot_eager")()
    close(tuple(one.grad for one in args[:3]), gradients_of(plain, args))


def test_recomputation_in_compiled_code(segments: Callable[..., Any]) -> None:
    def step(*args: torch.Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda *args: segments(*args) * 2, *args, use_reentrant=False)

    args = given()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    close(gradients_of(compiled, args), gradients_of(lambda *args: plain(*args) * 2, args))


def test_flops_of_fake_gradients_are_twice_the_floors(segments: Callable[..., Any]) -> None:
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(one) for one in given()]
    with mode, FlopCounterMode(display=False) as counter:
        torch.autograd.grad(segments(*fakes).sum(), fakes[:3])
    counts = {str(packet).rpartition(".")[2]: count for packet, count in counter.get_flop_counts()["Global"].items()}
    assert counts == {"segments": 7, "segments_reference_gradient": 14}


def test_an_inlined_reference_is_traced_and_is_no_operator(dispatcher: Dispatcher) -> None:
    schema = "acme::gate(Tensor x, Tensor y) -> Tensor z"
    dispatcher.catalog.define(toy(schema, lambda x, y: x.sigmoid() * y, Backward.reference(inline=True)))
    x, y = (torch.randn(4, requires_grad=True) for _ in range(2))
    graph = make_fx(lambda x, y: gradients_of(lambda x, y: dispatcher.call("acme::gate", x, y), (x, y)))(x, y)
    assert "acme.gate.default" in graph.code
    assert "reference_gradient" not in graph.code
    assert "sigmoid_backward" in graph.code
    close(graph(x, y), gradients_of(lambda x, y: x.sigmoid() * y, (x, y)))


def test_the_trace_for_another_dispatcher_has_no_operator(segments: Callable[..., Any]) -> None:
    other = Dispatcher(Catalog(entry_points=()))
    other.catalog.define(toy("acme::own(Tensor x) -> Tensor y", lambda x: x * x, BY_REFERENCE))
    x = torch.randn(3, requires_grad=True)
    y = other.call("acme::own", x)
    graph = make_fx(lambda seed: torch.autograd.grad(y, x, seed, retain_graph=True))(torch.ones(3))
    assert "reference_gradient" not in graph.code


def test_a_reference_without_gradient_is_told_when_a_compiled_program_runs(dispatcher: Dispatcher) -> None:
    dispatcher.catalog.define(toy("acme::cut(Tensor x) -> Tensor y", lambda x: x.detach() * 2, BY_REFERENCE))
    compiled = torch.compile(lambda x: dispatcher.call("acme::cut", x), fullgraph=True, backend="aot_eager")
    y = compiled(torch.ones(3, requires_grad=True))
    with pytest.raises(UnsupportedError, match=r"acme::cut: .* by its reference y does not depend on x\n.*detach\(\)"):
        y.sum().backward()


TWO = "(Tensor x, Tensor y, Tensor[] more, Tensor? needed=None) -> Tensor z"
"""One argument is named as the operator's own last."""


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("shared", lambda x, y, more, needed: x + y),
        ("unused", lambda x, y, more, needed: x * 2),
        ("parts", lambda x, y, more, needed: torch.cat([x, y, *more])),
        ("expanded", lambda x, y, more, needed: (x * y).sum()),
        ("transposed", lambda x, y, more, needed: x.t() @ y if needed is None else x.t() @ y + needed.sum()),
    ],
)
def test_gradients_are_dense_and_share_no_memory(
    dispatcher: Dispatcher, name: str, reference: Callable[..., torch.Tensor]
) -> None:
    op = toy(f"acme::{name}{TWO}", reference, BY_REFERENCE)
    dispatcher.catalog.define(op)
    torch_ops.define(op)
    x, y = torch.randn(4, 4).t(), torch.randn(4, 4)
    more = [torch.randn(4, 4)]
    z = reference(x, y, (*more,), None)
    operator = getattr(torch.ops.acme, f"{name}_reference_gradient").default
    every = ([True, True, True, False], [False, True, False, False])
    # one tensor is the gradient and an argument
    for seed in (torch.ones_like(z), *([x] if z.shape == x.shape else [])):
        for needed in every[: 1 if name == "unused" else 2]:
            values = ([seed], x, y, more, None, needed)
            found = operator(*values)
            assert all(one.is_contiguous() and one.storage_offset() == 0 for one in found)
            torch.library.opcheck(
                operator, values, test_utils=("test_schema", "test_autograd_registration", "test_faketensor")
            )


def test_an_argument_without_effect_has_a_gradient_of_zeros_in_compiled_code(dispatcher: Dispatcher) -> None:
    dispatcher.catalog.define(toy(f"acme::unused{TWO}", lambda x, y, more, needed: x * 2, BY_REFERENCE))
    compiled = torch.compile(
        lambda x, y: dispatcher.call("acme::unused", x, y, []), fullgraph=True, backend="aot_eager"
    )
    x, y = (torch.randn(3, requires_grad=True) for _ in range(2))
    close(gradients_of(compiled, (x, y)), (8 * x, torch.zeros(3)))


@pytest.mark.parametrize("dynamic", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_training_step_of_fused_moe_compiles_whole(dispatcher: Dispatcher, dynamic: bool) -> None:
    op = dispatcher.catalog.op("fused_moe")
    compiled = torch.compile(dispatcher.op("fused_moe"), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for tokens in (5, 9):
        problem = op.problem_of({**op.examples[1], "tokens": tokens, "dtype": "float32"})
        values = op.inputs(problem, "normal", torch.Generator().manual_seed(tokens))
        learnt = [one.requires_grad_() for one in values[:4]]
        found, expected = (run(*values).square().sum() for run in (compiled, op.reference))
        close(torch.autograd.grad(found, learnt), torch.autograd.grad(expected, learnt))
