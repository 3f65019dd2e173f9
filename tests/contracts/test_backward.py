"""The ops that compute gradients: what forward ops name, float64 gradcheck, and what calls they accept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from registry.artifact import Built
from registry.contract import Op, as_tuple
from registry.contracts import (
    BOX,
    GELU,
    GELU_BACKWARD,
    LINEAR,
    LINEAR_BACKWARD,
    RMS_NORM,
    RMS_NORM_BACKWARD,
    SOFTMAX,
    SOFTMAX_BACKWARD,
    SQUARE,
    SQUARE_BACKWARD,
    VECTOR_ADD,
)
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.plans.plan import Candidate, build
from registry.errors import CheckError, InvalidArgumentError
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem, Value
from registry.space import Config
from registry.testing import check_implementation

BY_NAME = {op.name: op for op in BOX}
FORWARD = [op for op in BOX if op.backward is not None]
WITH_KERNEL = [op for op in FORWARD if op.backward is not None and op.backward.op is not None]

Tensor = torch.Tensor
gradcheck: Callable[..., bool] = torch.autograd.gradcheck


def posed(op: Op, *args: Any, **attributes: Any) -> Problem:
    return op.pose(op.arguments(op.bind(args, attributes)))


def tensors_of(op: Op) -> list[str]:
    return [parameter.name for parameter in op.parsed.parameters if parameter.kind == "Tensor"]


def through(op: Op) -> Callable[..., Tensor]:
    """The op's reference as a function that autograd differentiates by the reference of its backward op."""
    assert op.backward is not None
    saved, backward = op.backward.saved, BY_NAME.get(op.backward.op or "")
    tensors = tensors_of(op)

    class ByReference(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values: Any) -> Tensor:
            y = op.reference(*values)
            assert isinstance(y, Tensor)
            named = {**dict(zip(op.parsed.names, values, strict=True)), op.parsed.outputs[0]: y}
            ctx.save_for_backward(*[named[name] for name in saved])
            ctx.attributes = values[len(tensors) :]
            return y

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if backward is None:
                return gradients * len(tensors)
            found = as_tuple(backward.reference(*gradients, *ctx.saved_tensors, *ctx.attributes))
            return *found, *[None] * len(ctx.attributes)

    apply: Callable[..., Tensor] = ByReference.apply
    return apply


def double(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


@pytest.mark.parametrize("shape", [(), (1,), (3, 7), (2, 3, 5)])
def test_gradients_of_elementwise_ops_are_right(shape: tuple[int, ...]) -> None:
    assert gradcheck(through(VECTOR_ADD), (double(*shape), double(*shape, seed=1)))
    assert gradcheck(through(SQUARE), (double(*shape),))
    for approximate in ("none", "tanh"):
        assert gradcheck(through(GELU), (double(*shape), approximate))


@pytest.mark.parametrize(("shape", "dim"), [((), -1), ((7,), 0), ((3, 1), -1), ((3, 5), 0), ((2, 3, 5), 1)])
def test_gradients_of_softmax_are_right(shape: tuple[int, ...], dim: int) -> None:
    assert gradcheck(through(SOFTMAX), (double(*shape), dim))


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 1), (3, 5), (2, 3, 7)])
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_gradients_of_rms_norm_are_right(shape: tuple[int, ...], eps: float) -> None:
    assert gradcheck(through(RMS_NORM), (double(*shape), double(shape[-1], seed=1), eps))


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 1), (2, 3, 7)])
def test_gradients_of_linear_are_right(shape: tuple[int, ...]) -> None:
    assert gradcheck(through(LINEAR), (double(*shape), double(4, shape[-1], seed=1), double(4, seed=2)))


def test_a_backward_of_linear_takes_a_gradient_of_its_outputs_shape() -> None:
    x, weight, bias = torch.randn(2, 3, 5), torch.randn(4, 5), torch.randn(4)
    grad_y = torch.randn(2, 3, 4)
    for given in (None, bias):
        assert posed(LINEAR_BACKWARD, grad_y, x, weight, given).dims == posed(LINEAR, x, weight, given).dims
    with pytest.raises(InvalidArgumentError, match=r"grad_y is 2x3x5 but y is 2x3x4"):
        posed(LINEAR_BACKWARD, x, x, weight)
    with pytest.raises(InvalidArgumentError, match="x is float32 but grad_y is float64"):
        posed(LINEAR_BACKWARD, grad_y.double(), x, weight)


def test_a_gradient_far_from_0_keeps_its_precision() -> None:
    x = torch.tensor([-1e6, -40.0, 40.0, 1e6], dtype=torch.float64)
    for approximate in ("none", "tanh"):
        slope = GELU_BACKWARD.reference(torch.ones_like(x), x, approximate)
        assert isinstance(slope, Tensor)
        assert slope.tolist() == pytest.approx([0.0, 0.0, 1.0, 1.0], abs=1e-12)


@pytest.mark.parametrize("op", WITH_KERNEL, ids=lambda op: op.name)
def test_a_backward_op_takes_the_gradient_what_is_saved_and_the_attributes(op: Op) -> None:
    assert op.backward is not None
    backward = BY_NAME[str(op.backward.op)]
    attributes = [parameter for parameter in op.parsed.parameters if parameter.kind != "Tensor"]
    gradients = [f"grad_{name}" for name in op.parsed.outputs]
    # which is saved, and has no gradient
    gradients = [name for name in gradients if name not in ("grad_lse", "grad_experts")]
    assert tensors_of(backward) == [*gradients, *op.backward.saved]
    others = backward.parsed.parameters[len(tensors_of(backward)) :]
    # a packed weight is frozen
    learnt = [name for name in tensors_of(op) if op.packed is None or name not in op.weights]
    of_op: dict[str, set[str]] = {
        "cross_entropy": {"target", "weight"},
        "fused_linear_cross_entropy": {"target"},
        "attention": {"mask"},
        "attention_varlen": {"cu_seqlens_q", "cu_seqlens_k"},
        "embedding": {"indices"},
        "apply_rotary": {"positions", "cos_sin_cache"},
        "topk_softmax": set(),
    }
    fixed = of_op.get(op.name, {"offsets"})
    learnt = [name for name in learnt if name not in fixed]
    masks = [f"need_{name}" for name in learnt]
    assert [one for one in others if one.name not in masks] == attributes
    assert [one.name for one in others if one.name in masks] in ([], masks)
    assert backward.parsed.outputs == tuple(f"grad_{name}" for name in learnt)
    assert set(op.backward.saved) <= {*op.parsed.names, *op.parsed.outputs}
    unsaved = {"bias"} - set(op.backward.saved)
    assert (backward.static - unsaved, backward.dynamic) == (op.static - unsaved, op.dynamic)


def test_what_a_gradient_needs_saved() -> None:
    assert [(op.name, op.backward and op.backward.op) for op in FORWARD] == [
        ("vector_add", None),
        ("square", "square_backward"),
        ("gelu", "gelu_backward"),
        ("softmax", "softmax_backward"),
        ("rms_norm", "rms_norm_backward"),
        ("linear", "linear_backward"),
        ("grouped_gemm", "grouped_gemm_backward"),
        ("grouped_gemm_int4", "grouped_gemm_int4_backward"),
        *(
            (name, f"{name}_backward")
            for name in ("gemm_int4", "gemm_int8", "gemm_int2", "gemm_int1", "gemm_nf4", "gemm_w4a16", "gemm_sparse24")
        ),
        ("quantize_per_token", None),
        ("scaled_mm", None),
        ("grouped_scaled_mm", None),
        ("silu_and_mul", "silu_and_mul_backward"),
        ("gelu_and_mul", "gelu_and_mul_backward"),
        ("layer_norm", "layer_norm_backward"),
        ("apply_rotary", "apply_rotary_backward"),
        ("embedding", "embedding_backward"),
        ("topk_softmax", "topk_softmax_backward"),
        ("fused_moe", None),
        ("cross_entropy", "cross_entropy_backward"),
        ("fused_linear_cross_entropy", "fused_linear_cross_entropy_backward"),
        ("attention", "attention_backward"),
        ("attention_varlen", "attention_varlen_backward"),
    ]


def test_a_backward_call_poses_the_forward_calls_dimensions() -> None:
    x, weight = torch.randn(2, 3, 5), torch.randn(5)
    assert posed(SQUARE_BACKWARD, x, x).dims == posed(SQUARE, x).dims
    assert posed(GELU_BACKWARD, x, x, "none").dims == posed(GELU, x, "none").dims
    for dim in (-1, 0, 1):
        forward, backward = posed(SOFTMAX, x, dim), posed(SOFTMAX_BACKWARD, x, x, dim)
        assert (backward.dims, backward.traits["contiguous"]) == (forward.dims, forward.traits["contiguous"])
    assert posed(RMS_NORM_BACKWARD, x, x, weight).dims == posed(RMS_NORM, x, weight).dims
    assert posed(RMS_NORM_BACKWARD, x[:0], x[:0], weight).rows == 0


def test_an_expanded_gradient_is_not_contiguous() -> None:
    x = torch.randn(4, 6)
    grad_y = torch.ones(()).expand(4, 6)
    assert not posed(SOFTMAX_BACKWARD, grad_y, x).traits["contiguous"]
    (spec,) = SQUARE_BACKWARD.output_specs(SQUARE_BACKWARD.arguments((grad_y, x)), x.device).values()
    assert spec.strides == (6, 1)


def test_no_rows_have_a_weight_gradient_of_0() -> None:
    x, weight = torch.empty(0, 5), torch.ones(5)
    grad_x, grad_weight = RMS_NORM_BACKWARD.reference(x, x, weight)
    assert grad_x.shape == (0, 5)
    assert grad_weight.equal(torch.zeros(5))


@pytest.mark.parametrize("needs", [(True, False), (False, True)], ids=str)
def test_a_gradient_of_rms_norm_that_nobody_needs_is_empty(needs: tuple[bool, bool]) -> None:
    values = (torch.randn(3, 5), torch.randn(3, 5), torch.randn(5), 1e-6)
    both = as_tuple(RMS_NORM_BACKWARD.reference(*values))
    told = RMS_NORM_BACKWARD.output_specs(RMS_NORM_BACKWARD.arguments((*values, *needs)), torch.device("cpu"))
    implementations = Catalog().implementations("rms_norm_backward")
    native = next(one for one in implementations if one.name == "torch.native")
    problem = posed(RMS_NORM_BACKWARD, *values, need_x=needs[0], need_weight=needs[1])
    arguments = RMS_NORM_BACKWARD.arguments((*values, *needs))
    plan = build(RMS_NORM_BACKWARD, Candidate(native, {}), problem, arguments, Device.of("cpu"))
    for outputs in (as_tuple(RMS_NORM_BACKWARD.reference(*values, *needs)), plan(*values, *needs)):
        for found, spec, needed, whole in zip(outputs, told.values(), needs, both, strict=True):
            assert tuple(found.shape) == spec.shape == (tuple(whole.shape) if needed else (0,))
            assert not needed or torch.allclose(found, whole)


def test_autograd_asks_for_the_gradients_of_rms_norm_that_it_needs() -> None:
    asked = []

    class Spy(Implementation):
        op, name, returns_outputs, device_types = "rms_norm_backward", "acme.spy", True, frozenset({"cpu"})

        def preference(self, _problem: Problem, _device: Device) -> float:
            return 99.0

        def bind(self, _problem: Problem, _config: Config, _device: Device, _built: Built) -> Run:
            def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
                asked.append(arguments[-2:])
                return as_tuple(RMS_NORM_BACKWARD.reference(*arguments))

            return run

    dispatcher = Dispatcher(Catalog())
    dispatcher.register(Spy())
    for needs in ((True, False), (False, True), (True, True)):
        x, weight = (torch.randn(shape, requires_grad=need) for shape, need in zip(((3, 5), (5,)), needs, strict=True))
        dispatcher.call("rms_norm", x, weight).sum().backward()
        assert (x.grad is not None, weight.grad is not None) == needs
    assert asked == [(True, False), (False, True), (True, True)]


X, W = torch.randn(4, 6), torch.ones(6)


@pytest.mark.parametrize(
    ("op", "args", "message"),
    [
        (SQUARE_BACKWARD, (X[:1], X), r"^square_backward: grad_y is 1x6 but x is 4x6\n  .*grad_y.expand_as\(x\)"),
        (SQUARE_BACKWARD, (X.half(), X), r"x is float32 but grad_y is float16\n  .*grad_y.to\(x.dtype\)"),
        (SQUARE_BACKWARD, (X.int(), X.int()), "x is int32, expected float32, float16, bfloat16 or float64"),
        (GELU_BACKWARD, (X, X[0]), "grad_y is 4x6 but x is 6"),
        (GELU_BACKWARD, (X, X, "erf"), "approximate must be one of none, tanh, got 'erf'"),
        (SOFTMAX_BACKWARD, (X, X, 2), r"dim=2 but y has 2 dimensions \(shape 4x6\)\n  expected -2 to 1$"),
        (SOFTMAX_BACKWARD, (X.T, X), "grad_y is 6x4 but y is 4x6"),
        (SOFTMAX_BACKWARD, (X,), "missing y"),
        (RMS_NORM_BACKWARD, (X[:2], X, W), "grad_y is 2x6 but x is 4x6"),
        (RMS_NORM_BACKWARD, (X, X, W[:5]), "weight has shape 5 but x has 6 columns"),
        (RMS_NORM_BACKWARD, (X, X, W.half()), "x is float32 but weight is float16"),
        (RMS_NORM_BACKWARD, (X.half(), X, W), "x is float32 but grad_y is float16"),
        (RMS_NORM_BACKWARD, (X, X, W, float("nan")), "^rms_norm_backward: eps=nan"),
        (RMS_NORM_BACKWARD, (X, X.to("meta"), W), "several devices: grad_y on cpu, x on meta"),
    ],
)
def test_a_call_that_is_not_accepted_says_why(op: Op, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        posed(op, *args)


def test_y_of_softmax_backward_is_a_softmax() -> None:
    problem = SOFTMAX_BACKWARD.problem_of({"rows": 30, "cols": 64, "dtype": "float32"})
    for kind in SOFTMAX_BACKWARD.kinds:
        _, y, _ = SOFTMAX_BACKWARD.inputs(problem, kind, torch.Generator().manual_seed(0))
        torch.testing.assert_close(y.sum(-1), torch.ones(30))


def test_floors_count_each_byte_once() -> None:
    rows: dict[str, Value] = {"rows": 4, "cols": 8, "dtype": "bfloat16"}
    assert SOFTMAX_BACKWARD.floor(SOFTMAX_BACKWARD.problem_of(rows)).bytes == 3 * 4 * 8 * 2
    assert RMS_NORM_BACKWARD.floor(RMS_NORM_BACKWARD.problem_of(rows)).bytes == (3 * 4 * 8 + 2 * 8) * 2
    assert SQUARE_BACKWARD.floor(SQUARE_BACKWARD.problem_of({"n": 10, "dtype": "float32"})).bytes == 120


class _Faulty(Implementation):
    """Right in the first output; the second is what ``second`` makes of it."""

    op, name, device_types = "rms_norm_backward", "test.faulty", frozenset({"cpu"})

    def __init__(self, second: Callable[[Tensor, Tensor], Any]) -> None:
        self._second = second

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            grad_x, grad_weight = RMS_NORM_BACKWARD.reference(*arguments)
            outputs[0].copy_(grad_x)
            self._second(outputs[1], grad_weight)

        return run


def _faults() -> Iterator[Any]:
    yield pytest.param(lambda out, right: None, "grad_weight", id="not written")
    yield pytest.param(lambda out, right: out.copy_(right.roll(1)), "grad_weight", id="wrong column")
    yield pytest.param(lambda out, right: out[:-1].copy_(right[:-1]), r"grad_weight\[999\] is nan", id="last column")
    yield pytest.param(
        lambda out, right: (out.copy_(right), out.as_strided((1,), (1,), out.storage_offset() + 1000).fill_(0)),
        "writes outside its outputs",
        id="beside it",
    )


ONE_PROBLEM: list[dict[str, Value]] = [{"rows": 3, "cols": 1000, "dtype": "float32"}]


@pytest.mark.parametrize(("second", "message"), list(_faults()))
def test_a_second_output_that_is_wrong_is_refused(second: Callable[[Tensor, Tensor], Any], message: str) -> None:
    with pytest.raises(CheckError, match=message):
        check_implementation(_Faulty(second), RMS_NORM_BACKWARD, problems=ONE_PROBLEM, device="cpu")


def test_a_second_output_that_is_right_passes() -> None:
    right = _Faulty(lambda out, grad_weight: out.copy_(grad_weight))
    assert check_implementation(right, RMS_NORM_BACKWARD, problems=ONE_PROBLEM, device="cpu").ok
