"""Products with packed weights: what a call may give, mutants that some inputs refuse, gradients, clear errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

import registry
from registry import InvalidArgumentError, PackedWeight
from registry.contract import Op, as_tuple
from registry.contracts import BOX
from registry.correctness import numerics
from registry.errors import ArgumentTypeError
from registry.packed import symmetric_zero
from registry.problem import Problem, Value

from ..tiers import one_of_each

pytestmark = pytest.mark.usefixtures("without_cpp_kernels")

Tensor = torch.Tensor
FORMS = {"gemm_int8": 8, "gemm_int2": 2, "gemm_int1": 1, "gemm_w4a16": 4, "gemm_nf4": 4}
OPS = {op.name: op for op in BOX if op.name.removesuffix("_backward") in FORMS}
SHAPES: tuple[dict[str, Value], ...] = (
    {"m": 4, "n": 24, "k": 1024, "group_size": 128, "zeros": "integer", "act_order": False, "bias": False},
    {"m": 33, "n": 40, "k": 200, "group_size": 32, "zeros": "float", "act_order": True, "bias": True},
    {"m": 1, "n": 64, "k": 512, "group_size": 512, "zeros": "none", "act_order": False, "bias": True},
)


def weight_of(name: str, n: int = 40, k: int = 256, group_size: int = 64, dtype: torch.dtype = torch.bfloat16) -> Any:
    given = torch.randn(n, k, generator=torch.Generator().manual_seed(0)).to(dtype)
    codebook = "nf4" if name == "gemm_nf4" else None
    return registry.quantize(given, bits=FORMS[name], group_size=group_size, codebook=codebook)


# --- mutants ---


@cache
def problems() -> tuple[Problem, ...]:
    found = []
    for name, op in OPS.items():
        for dims in SHAPES:
            kept = {key: value for key, value in dims.items() if key != "bias" or not name.endswith("_backward")}
            if "nf4" in name:
                kept |= {"zeros": "none", "act_order": False}
            found.append(op.problem_of({**kept, "dtype": "bfloat16"}))
            if dims["zeros"] != "integer":
                found.append(op.problem_of({**kept, "dtype": "float32"}))
    return tuple(found)


@cache
def case(key: str, kind: str) -> tuple[tuple[Any, ...], tuple[Tensor, ...], tuple[float, ...]]:
    problem = next(one for one in problems() if one.key == key)
    op = OPS[problem.op]
    values = op.bind(op.inputs(problem, kind, torch.Generator().manual_seed(7)), {})
    reference = numerics.reference64(op, values)
    return values, reference, numerics.own_error(op, problem, values, reference)


def verdicts(op: Op, problem: Problem, compute: Callable[..., Any]) -> Iterator[tuple[str, numerics.Comparison]]:
    for kind in op.kinds:
        values, reference, own = case(problem.key, kind)
        yield kind, numerics.compare(op, problem, compute(op, *values), reference, own)


def changed(**change: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """The reference on arguments of which some are changed."""

    def compute(op: Op, *values: Any) -> Any:
        named = dict(zip(op.parsed.names, values, strict=True))
        return op.reference(*{**named, **{name: new(named) for name, new in change.items()}}.values())

    return compute


def last_left_out(named: dict[str, Any]) -> Tensor:
    first: Tensor = named["a" if "a" in named else "grad_y"].clone()
    first[..., -1] = 0
    return first


def rotated_fields(named: dict[str, Any]) -> Tensor:
    """Each element takes its neighbour's place in the word."""
    words, bits = named["qweight"].long() & 0xFFFFFFFF, named["bits"]
    rotated: Tensor = (words >> bits) | (words << (32 - bits))
    return rotated.to(torch.int32)


def several_groups(problem: Problem) -> bool:
    return bool(problem.k > problem.group_size)


MUTANTS: dict[str, tuple[Callable[..., Any], Callable[[Problem], bool]]] = {
    "zeros": (lambda op, *values: tuple(map(torch.zeros_like, as_tuple(op.reference(*values)))), lambda _: True),
    "last element of the sum left out": (
        lambda op, *values: changed(**{op.parsed.names[0]: last_left_out})(op, *values),
        lambda _: True,
    ),
    "scales of the next group": (changed(scales=lambda named: named["scales"].roll(1, 0)), several_groups),
    "scales of the next column": (changed(scales=lambda named: named["scales"].roll(1, 1)), lambda _: True),
    "zero points of the next group": (
        changed(zeros=lambda named: named["zeros"].roll(1, 0)),
        lambda problem: several_groups(problem) and problem.zeros != "none",
    ),
    "zero points off by one": (
        changed(zeros=lambda named: named["zeros"] + 1),
        lambda problem: problem.zeros != "none",
    ),
    "no zero points": (changed(zeros=lambda named: None), lambda problem: problem.zeros != "none"),
    "fields in another order": (changed(qweight=rotated_fields), lambda _: True),
    "order ignored": (changed(g_idx=lambda named: None), lambda problem: problem.act_order),
    "bias ignored": (changed(bias=lambda named: None), lambda problem: bool(problem.dims.get("bias"))),
    "bias of the next column": (
        changed(bias=lambda named: named["bias"].roll(1)),
        lambda problem: bool(problem.dims.get("bias")),
    ),
}


CASES = [
    pytest.param(problem, compute, id=f"{problem}-{name}")
    for problem in problems()
    for name, (compute, applies) in MUTANTS.items()
    if applies(problem)
]


@pytest.mark.parametrize(("problem", "compute"), one_of_each(CASES, lambda problem, compute: (problem.op, compute)))
@pytest.mark.few(20)
def test_a_mutant_is_refused_by_some_kind(problem: Problem, compute: Callable[..., Any]) -> None:
    assert any(not verdict.ok for _, verdict in verdicts(OPS[problem.op], problem, compute))


def zeros_apart(op: Op, a: Tensor, qweight: Tensor, scales: Tensor, zeros: Any, g_idx: Any, *rest: Any) -> Tensor:
    """Raw levels times the activations, the zero points times their sum taken off afterwards."""
    bits, _, k, _, bias = rest
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    q = ((qweight.unsqueeze(1) >> shifts[:, None]) & (2**bits - 1)).flatten(0, 1)[:k].float()
    group = torch.arange(k) // rest[1] if g_idx is None else g_idx
    total = torch.zeros(a.shape[0], qweight.shape[1])
    for one in range(scales.shape[0]):
        left = a[:, group == one].float()
        zero = symmetric_zero(bits) if zeros is None else zeros[one].float()
        total += (left @ q[group == one] - left.sum(-1, keepdim=True) * zero) * scales[one].float()
    return (total if bias is None else total + bias.float()).to(a.dtype)


OF_INTEGERS = [one for one in problems() if one.dtype == "bfloat16" and one.op in FORMS and one.op != "gemm_nf4"]


@pytest.mark.parametrize("problem", OF_INTEGERS, ids=str)
@pytest.mark.few(4)
def test_zero_points_apart_are_accepted_on_every_kind(problem: Problem) -> None:
    refused = {kind: one.message for kind, one in verdicts(OPS[problem.op], problem, zeros_apart) if not one.ok}
    assert not refused


# --- calls ---


@pytest.mark.parametrize(
    ("name", "dtype"),
    one_of_each(itertools.product(FORMS, (torch.float32, torch.bfloat16, torch.float16)), lambda name, dtype: name),
)
def test_a_call_multiplies_by_the_weight(name: str, dtype: torch.dtype) -> None:
    w = weight_of(name, dtype=dtype)
    a, bias = torch.randn(2, 3, 256).to(dtype), torch.randn(40).to(dtype)
    exact = a.double() @ w.dequantize().double().T
    limit = 1e-4 if dtype == torch.float32 else 0.3
    torch.testing.assert_close(registry.call(name, a, w).double(), exact, rtol=limit / 10, atol=limit)
    for y in (registry.call(name, a, w, bias), registry.call(name, a, w=w, bias=bias)):
        torch.testing.assert_close(y.double(), exact + bias.double(), rtol=limit / 10, atol=limit)


@pytest.mark.parametrize("name", FORMS)
def test_torchs_own_operators_multiply_by_the_weight_of_any_width(name: str) -> None:
    w, a, bias = weight_of(name), torch.randn(3, 256).bfloat16(), torch.randn(40).bfloat16()
    with registry.using(**{name: "torch.native"}):
        y = registry.call(name, a, w, bias)
    torch.testing.assert_close(y.double(), a.double() @ w.dequantize().double().T + bias.double(), rtol=0.03, atol=0.3)


@pytest.mark.parametrize("name", FORMS)
def test_a_gradient_goes_through_the_frozen_weight(name: str) -> None:
    w = weight_of(name, dtype=torch.float32)
    a, bias = torch.randn(3, 5, 256, requires_grad=True), torch.randn(40, requires_grad=True)
    grad = torch.randn(3, 5, 40)
    registry.call(name, a, w, bias).backward(grad)
    assert a.grad is not None
    assert bias.grad is not None
    torch.testing.assert_close(a.grad, grad @ w.dequantize(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(bias.grad, grad.sum((0, 1)))


def test_a_weight_that_wants_a_gradient_is_refused() -> None:
    w = weight_of("gemm_int8", dtype=torch.float32)
    w.scales.requires_grad_()
    with pytest.raises(registry.RegistryError, match="scales needs a gradient"):
        registry.call("gemm_int8", torch.randn(2, 256), w)


INT8 = weight_of("gemm_int8")
A = torch.randn(2, 256).bfloat16()
WRONG = [
    (("gemm_int8", A, torch.ones(40, 256)), ArgumentTypeError, "w is a Tensor, expected a PackedWeight"),
    (("gemm_int8", A), ArgumentTypeError, "missing w"),
    (("gemm_int8", A, weight_of("gemm_int2")), InvalidArgumentError, "w has 2 bits in layout 'gptq', expected 8 bits"),
    (("gemm_nf4", A, registry.quantize(torch.randn(8, 256).bfloat16())), InvalidArgumentError, "layout 'nf4'"),
    (("gemm_int8", A[:, :128], INT8), InvalidArgumentError, "a has shape 2x128 but w has K=256"),
    (("gemm_int8", A.float(), INT8), InvalidArgumentError, "a is float32 but the scales of w are bfloat16"),
    (("gemm_int8", A.double(), INT8), InvalidArgumentError, "a is float64"),
    (("gemm_int8", A, INT8, torch.ones(39).bfloat16()), InvalidArgumentError, "bias has shape 39"),
    (("gemm_int8", A, INT8, torch.ones(40)), InvalidArgumentError, "a is bfloat16 but bias is float32"),
]


@pytest.mark.parametrize(("given", "kind", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_a_wrong_call_is_refused(given: tuple[Any, ...], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        registry.call(*given)


def test_zero_points_of_a_shapes_file_are_checked() -> None:
    dims: dict[str, Value] = {
        "m": 1,
        "n": 8,
        "k": 64,
        "group_size": 64,
        "dtype": "float32",
        "zeros": "integer",
        "act_order": False,
    }
    with pytest.raises(InvalidArgumentError, match="zeros 'integer' beside float32 scales"):
        OPS["gemm_int8"].problem_of({**dims, "bias": False})


def test_every_zero_kind_is_a_problem_of_its_own() -> None:
    w = INT8
    wide = PackedWeight(w.qweight, w.scales, w.zeros.float(), 8, w.group_size, w.shape)
    same = PackedWeight(w.qweight, w.scales, None, 8, w.group_size, w.shape)
    op = OPS["gemm_int8"]
    kinds = [op.pose(op.arguments(op.bind((A, each), {}))).zeros for each in (w, wide, same)]
    assert kinds == ["integer", "float", "none"]
