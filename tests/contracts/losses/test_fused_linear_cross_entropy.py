"""fused_linear_cross_entropy: torch's values and gradients, its memory, what it refuses, and mutants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import registry
from registry.contract import Op
from registry.contracts import FUSED_LINEAR_CROSS_ENTROPY, FUSED_LINEAR_CROSS_ENTROPY_BACKWARD
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.errors import InvalidArgumentError
from registry.problem import Value
from registry.testing import check_op

from ...tiers import one_of_each
from ..accepting import accepted
from ..mutants import Mutant, put, tampered

Tensor = torch.Tensor
NAME = "fused_linear_cross_entropy"
BOTH = (FUSED_LINEAR_CROSS_ENTROPY, FUSED_LINEAR_CROSS_ENTROPY_BACKWARD)


forward: Callable[..., Any] = FUSED_LINEAR_CROSS_ENTROPY.reference
backward: Callable[..., Any] = FUSED_LINEAR_CROSS_ENTROPY_BACKWARD.reference
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["torch.native", "torch.chunked"])


def of_both(implementation: str) -> dict[str, str]:
    return {NAME: implementation, f"{NAME}_backward": implementation}


def drawn(rows: int, cols: int, k: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, weight, target and bias; all but the target need a gradient."""
    x, weight, bias = torch.randn(rows, k), torch.randn(cols, k) * k**-0.5, torch.randn(cols)
    x, weight, bias = (each.to(dtype).requires_grad_() for each in (x, weight, bias))
    return x, weight, torch.randint(cols, (rows,)), bias


def torchs(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, **given: Any) -> Tensor:
    return torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, weight, bias), target, **given)


@IMPLEMENTATIONS
def test_values_and_gradients_are_those_of_torch(implementation: str) -> None:
    for reduction, ignored, smoothing, biased in itertools.product(
        ("none", "sum", "mean"), (-100, 3), (0.0, 0.1, 1.0), (False, True)
    ):
        x, weight, target, bias = drawn(9, 70, 13)
        target[2] = ignored
        learnt = [x, weight, bias] if biased else [x, weight]
        given = {"ignore_index": ignored, "reduction": reduction, "label_smoothing": smoothing}
        expected = torchs(x, weight, target, bias if biased else None, **given)
        with registry.using(**of_both(implementation)):
            loss, lse = registry.call(NAME, x, weight, target, bias if biased else None, **given)
            seed = torch.randn_like(loss)
            found = torch.autograd.grad(loss, learnt, seed)
        torch.testing.assert_close(loss, expected)
        for one, other in zip(found, torch.autograd.grad(expected, learnt, seed), strict=True):
            torch.testing.assert_close(one, other)
        logits = torch.nn.functional.linear(x, weight, bias if biased else None)
        torch.testing.assert_close(lse, logits.logsumexp(-1).masked_fill(target == ignored, 0.0))
        assert not lse.requires_grad


def test_gradients_pass_gradcheck_in_float64() -> None:
    x, weight, _, bias = drawn(5, 4, 3, torch.float64)
    target = torch.tensor([0, 3, -100, 2, 1])
    for reduction, smoothing in itertools.product(("none", "sum", "mean"), (0.0, 0.2)):

        def loss(*given: Tensor, how: tuple[str, float] = (reduction, smoothing)) -> Tensor:
            found: Tensor = registry.call(NAME, given[0], given[1], target, given[2], -100, *how)[0]
            return found

        for implementation in ("torch.native", "torch.chunked"):
            with registry.using(**of_both(implementation)):
                assert torch.autograd.gradcheck(loss, (x, weight, bias))


@IMPLEMENTATIONS
def test_gradients_that_are_not_needed_are_left_out(implementation: str) -> None:
    x, weight, target, bias = drawn(6, 20, 8)
    expected = torch.autograd.grad(torchs(x, weight, target, bias), (x, weight, bias))
    for place, learnt in enumerate((x, weight, bias)):
        given = [each if each is learnt else each.detach() for each in (x, weight, bias)]
        with registry.using(**of_both(implementation)):
            loss, _ = registry.call(NAME, given[0], given[1], target, given[2])
            (found,) = torch.autograd.grad(loss, learnt)
        torch.testing.assert_close(found, expected[place])


@IMPLEMENTATIONS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_loss_of_halves_has_their_dtype_and_its_lse_float32(dtype: torch.dtype, implementation: str) -> None:
    x, weight, target, _ = drawn(64, 1000, 32, dtype)
    with registry.using(**of_both(implementation)):
        loss, lse = registry.call(NAME, x, weight, target)
        grad_x, grad_weight = torch.autograd.grad(loss, (x, weight))
    assert (loss.dtype, lse.dtype, grad_x.dtype, grad_weight.dtype) == (dtype, torch.float32, dtype, dtype)
    assert loss.item() == pytest.approx(torchs(x.double(), weight.double(), target, None).item(), rel=0.005)


@IMPLEMENTATIONS
def test_ignored_rows_are_not_read(implementation: str) -> None:
    # an odd k in half precision: oneDNN pads rows with what follows them
    x, weight, target, _ = drawn(33, 70, 17, torch.bfloat16)
    x = x.detach()
    target[1::2], x[1::2] = -100, math.nan
    x.requires_grad_()
    with registry.using(**of_both(implementation)):
        loss, lse = registry.call(NAME, x, weight, target)
        grad_x, grad_weight = torch.autograd.grad(loss, (x, weight))
    assert loss.item() == pytest.approx(torchs(x[::2], weight, target[::2], None).item(), rel=0.02)
    assert not lse[1::2].any()
    assert not grad_x[1::2].any()
    assert grad_x.isfinite().all()
    assert grad_weight.isfinite().all()


@IMPLEMENTATIONS
def test_no_row_that_counts_has_a_mean_of_nan_and_a_sum_of_0(implementation: str) -> None:
    x, weight, _, _ = drawn(3, 5, 4)
    with registry.using(**of_both(implementation)):
        for rows in (3, 0):
            given = x[:rows], weight, torch.full((rows,), -100)
            assert registry.call(NAME, *given)[0].isnan()
            assert registry.call(NAME, *given, reduction="sum")[0] == 0
            assert registry.call(NAME, *given, reduction="none")[0].tolist() == [0.0] * rows
        loss, _ = registry.call(NAME, x, weight, torch.full((3,), -100))
        for found in torch.autograd.grad(loss, (x, weight)):
            assert found.equal(torch.zeros_like(found))


@IMPLEMENTATIONS
@pytest.mark.parametrize("outside", [33, -1, 2**40, -(2**63)])
def test_a_target_outside_of_the_vocabulary_is_nan(outside: int, implementation: str) -> None:
    x, weight, _, _ = drawn(4, 33, 8)
    target = torch.tensor([5, outside, 7, 0])
    with registry.using(**of_both(implementation)):
        losses, lse = registry.call(NAME, x, weight, target, reduction="none")
        grad_x, grad_weight = torch.autograd.grad(losses, (x, weight), torch.ones(4))
        assert registry.call(NAME, x, weight, target)[0].isnan()
    assert losses.isnan().tolist() == grad_x.isnan().all(-1).tolist() == [False, True, False, False]
    assert grad_weight.isnan().all()
    torch.testing.assert_close(lse, (x @ weight.T).logsumexp(-1))


def test_under_autocast_it_keeps_the_dtype_of_its_arguments() -> None:
    x, weight, target, _ = drawn(6, 20, 8)
    with torch.autocast("cpu", torch.bfloat16), registry.using(**of_both("torch.chunked")):
        loss, _ = registry.call(NAME, x, weight, target)
        found = torch.autograd.grad(loss, (x, weight))
    expected = torchs(x, weight, target, None)
    torch.testing.assert_close(loss, expected)
    for one, other in zip(found, torch.autograd.grad(expected, (x, weight)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.thorough
def test_it_is_part_of_a_whole_graph() -> None:
    x, weight, target, _ = drawn(6, 20, 8)
    compiled = torch.compile(lambda *given: registry.call(NAME, *given)[0] * 2.0, fullgraph=True, backend="aot_eager")
    loss = compiled(x, weight, target)
    expected = torchs(x, weight, target, None) * 2.0
    torch.testing.assert_close(loss, expected)
    for one, other in zip(
        torch.autograd.grad(loss, (x, weight)), torch.autograd.grad(expected, (x, weight)), strict=True
    ):
        torch.testing.assert_close(one, other)


# tests/testing/test_op_check.py asks it of some examples of each op
@pytest.mark.thorough
def test_the_parts_of_the_contracts_agree() -> None:
    for op in BOTH:
        assert check_op(op).checked


# --- memory ---


class Largest(TorchDispatchMode):
    """Remembers the elements of the largest tensor that any operator of torch returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        sizes = [each.numel() for each in tree_leaves(found) if isinstance(each, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return found


def largest(op: Op, implementation: str, config: Mapping[str, Value]) -> int:
    """Elements of the largest tensor of a call with 600 x 2000 logits, scratch and outputs among them."""
    dims: dict[str, Value] = {
        "rows": 600, "cols": 2000, "k": 8, "reduction": "mean", "bias": True, "dtype": "bfloat16",
    }  # fmt: skip
    problem, device = op.problem_of(dims), Device.of("cpu")
    values = op.draw(problem, "smoothed", torch.Generator().manual_seed(1))
    one = Catalog().implementation(op.name, implementation)
    plan = build(op, Candidate(one, config), problem, op.arguments(values), device)
    held = [math.prod(spec.shape) for spec in one.scratch(problem, config, device).values()]
    with Largest() as seen:
        plan(*values)
    most: int = max(seen.elements, *held, 0)
    return most


@pytest.mark.parametrize(("op", "chunk"), [(BOTH[0], 256), (BOTH[1], 1024)], ids=["rows", "columns"])
@pytest.mark.few(1)
def test_all_logits_are_never_held(op: Op, chunk: int) -> None:
    whole = 600 * 2000
    assert largest(op, "torch.native", {}) == whole
    part = chunk * 2000 if op is FUSED_LINEAR_CROSS_ENTROPY else 600 * chunk
    assert largest(op, "torch.chunked", {"CHUNK": chunk}) == part < whole


# --- mutants ---


def _next(name: str) -> Callable[[dict[str, Any]], None]:
    def change(named: dict[str, Any]) -> None:
        named[name] = named[name].roll(1, 0)

    return change


def _without_last(name: str, dim: int) -> Callable[[dict[str, Any]], None]:
    def change(named: dict[str, Any]) -> None:
        named[name] = named[name].clone()
        named[name].select(dim, -1).zero_()

    return change


def _no_maximum(x: Tensor, weight: Tensor, target: Tensor, bias: Any, ignored: int, *rest: Any) -> tuple[Tensor, ...]:
    loss, right = forward(x, weight, target, bias, ignored, *rest)
    offset = 0.0 if bias is None else bias.float()
    lse = (x.float() @ weight.float().T + offset).exp().sum(-1).log()
    return loss, torch.where(target == ignored, right, lse)


def _mean_of_all(*values: Any) -> tuple[Tensor, ...]:
    losses, lse = forward(*values[:5], "none", values[6])
    return losses.float().mean().to(losses.dtype), lse


def _zeros_for_outside(*values: Any) -> tuple[Tensor, ...]:
    loss, lse = forward(*values)
    return loss.nan_to_num(0.0), lse


def _in_tf32(*values: Any) -> tuple[Tensor, ...]:
    """float32 with 10 bits of mantissa, as tensor cores read it; halves have no more."""
    x, weight = ((each.float().view(torch.int32) & ~0x1FFF).view(torch.float32) for each in values[:2])
    return tuple(forward(x.to(values[0].dtype), weight.to(values[0].dtype), *values[2:]))


EVERYWHERE = ("none", "sum", "mean")
FORWARD: Mapping[str, tuple[Mutant, tuple[str, ...]]] = {
    "last feature left out": (tampered(FUSED_LINEAR_CROSS_ENTROPY, _without_last("x", 1)), EVERYWHERE),
    "last column left out": (tampered(FUSED_LINEAR_CROSS_ENTROPY, _without_last("weight", 0)), EVERYWHERE),
    "no maximum": (_no_maximum, EVERYWHERE),
    "ignored rows count": (_mean_of_all, ("mean",)),
    "nothing is ignored but -100": (tampered(FUSED_LINEAR_CROSS_ENTROPY, put(ignore_index=-100)), EVERYWHERE),
    "not smoothed": (tampered(FUSED_LINEAR_CROSS_ENTROPY, put(label_smoothing=0.0)), EVERYWHERE),
    "a sum for a mean": (tampered(FUSED_LINEAR_CROSS_ENTROPY, put(reduction="sum")), ("mean",)),
    "a mean for a sum": (tampered(FUSED_LINEAR_CROSS_ENTROPY, put(reduction="mean")), ("sum",)),
    "target of the next row": (tampered(FUSED_LINEAR_CROSS_ENTROPY, _next("target")), ("none",)),
    "weight of the next column": (tampered(FUSED_LINEAR_CROSS_ENTROPY, _next("weight")), EVERYWHERE),
    "x of the next row": (tampered(FUSED_LINEAR_CROSS_ENTROPY, _next("x")), EVERYWHERE),
    "no bias": (tampered(FUSED_LINEAR_CROSS_ENTROPY, put(bias=None)), EVERYWHERE),
    "0 for a target outside": (_zeros_for_outside, EVERYWHERE),
}


def _changed(place: int, change: Callable[[Tensor], Tensor]) -> Mutant:
    def compute(*values: Any) -> tuple[Tensor, ...]:
        gradients = list(backward(*values))
        gradients[place] = change(gradients[place].clone())
        return tuple(gradients)

    return compute


def _by_all_rows(*values: Any) -> tuple[Tensor, ...]:
    gradient, *rest = values
    return tuple(backward(gradient / values[3].numel(), *rest[:6], "sum", *rest[7:]))


def _last_to_0(tensor: Tensor) -> Tensor:
    tensor[-1:] = 0
    return tensor


def _last_feature_to_0(tensor: Tensor) -> Tensor:
    tensor[:, -1:] = 0
    return tensor


TAMPERED_BACKWARD: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "last feature left out": _without_last("x", 1),
    "last column left out": _without_last("weight", 0),
    "nothing is ignored but -100": put(ignore_index=-100),
    "not smoothed": put(label_smoothing=0.0),
    "target of the next row": _next("target"),
    "lse of the next row": _next("lse"),
    "no bias": lambda named: named.update(bias=torch.zeros_like(named["bias"])),
}
BACKWARD: Mapping[str, tuple[Mutant, tuple[str, ...]]] = {
    **{
        name: (tampered(FUSED_LINEAR_CROSS_ENTROPY_BACKWARD, change), EVERYWHERE)
        for name, change in TAMPERED_BACKWARD.items()
    },
    "last column of grad_weight": (_changed(1, _last_to_0), EVERYWHERE),
    "last column of grad_bias": (_changed(2, _last_to_0), EVERYWHERE),
    "last row of grad_x": (_changed(0, _last_to_0), EVERYWHERE),
    "last feature of grad_x": (_changed(0, _last_feature_to_0), EVERYWHERE),
    "another row of grad_x": (_changed(0, lambda tensor: tensor.roll(1, 0)), EVERYWHERE),
    "half of grad_weight": (_changed(1, lambda tensor: tensor * 0.5), EVERYWHERE),
    "divided by all rows": (_by_all_rows, ("mean",)),
    "not divided": (tampered(FUSED_LINEAR_CROSS_ENTROPY_BACKWARD, put(reduction="sum")), ("mean",)),
}


@pytest.mark.parametrize(
    ("dtype", "shape", "op", "mutants"),
    one_of_each(
        [
            pytest.param(dtype, shape, *of, id=f"{of[0].name}-{shape[1]}-{dtype}")
            for of in ((FUSED_LINEAR_CROSS_ENTROPY, FORWARD), (FUSED_LINEAR_CROSS_ENTROPY_BACKWARD, BACKWARD))
            for shape in ((7, 1000, 33), (4, 32000, 64))
            for dtype in ("float32", "float16", "bfloat16")
        ],
        lambda dtype, shape, op, mutants: op.name,
    ),
)
@pytest.mark.few(1)
def test_tolerances_accept_the_reference_and_refuse_mutants(
    op: Op, mutants: Mapping[str, tuple[Mutant, tuple[str, ...]]], shape: tuple[int, int, int], dtype: str
) -> None:
    rows, cols, k = shape
    for reduction in EVERYWHERE if cols < 2000 else ["mean"]:
        dims: dict[str, Value] = {
            "rows": rows, "cols": cols, "k": k, "reduction": reduction, "bias": True, "dtype": dtype,
        }  # fmt: skip
        assert accepted(op, dims, op.reference), dims
        for name, (mutant, reductions) in mutants.items():
            if reduction in reductions:
                assert not accepted(op, dims, mutant), (dims, name)


def test_logits_in_ten_bits_are_refused_in_float32() -> None:
    dims: dict[str, Value] = {
        "rows": 7, "cols": 1000, "k": 64, "reduction": "mean", "bias": False, "dtype": "float32",
    }  # fmt: skip
    assert not accepted(FUSED_LINEAR_CROSS_ENTROPY, dims, _in_tf32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_logits_rounded_to_the_dtype_are_accepted(dtype: str) -> None:
    """As a linear layer writes them."""

    def loss(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        logits = torch.nn.functional.linear(x.float(), weight.float(), bias.float()).to(x.dtype)
        whole: Callable[..., Any] = registry.ops()["cross_entropy"].reference
        found, lse = whole(logits.float(), target, None, *rest)
        return found.to(x.dtype), lse

    dims: dict[str, Value] = {
        "rows": 64, "cols": 1000, "k": 64, "reduction": "mean", "bias": True, "dtype": dtype,
    }  # fmt: skip
    assert accepted(FUSED_LINEAR_CROSS_ENTROPY, dims, loss)


# --- what is refused ---

X, W, T = torch.ones(4, 6), torch.ones(9, 6), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((X[0], W, T), r"x has shape 6, expected \[rows, k\] with k of at least 1\n.*flatten"),
        ((X.view(2, 2, 6), W, T), r"x has shape 2x2x6, expected \[rows, k\]"),
        ((X, W[:, :5], T), r"weight has shape 9x5, expected \[cols, 6\].*x has shape 4x6.*\n.*lm_head"),
        ((torch.ones(4, 9), torch.ones(9, 6), T), r"weight has shape 9x6, expected \[cols, 9\].*\n.*weight\.t\(\)"),
        ((X, W[:0], T), r"weight has shape 0x6, expected \[cols, 6\] with at least one column"),
        ((X.int(), W, T), "x is int32, expected float32"),
        ((X, W.half(), T), "x is float32 but weight is float16"),
        ((X, W, T.int()), r"target is int32, expected int64, a class for each row\n.*target\.long\(\)"),
        ((X, W, T[:3]), r"target has shape 3 but x has 4 rows \(shape 4x6\)"),
        ((X, W, T, X[0]), r"bias has shape 6 but weight has 9 rows"),
        ((X, W, T, W[:, 0].half()), "weight is float32 but bias is float16"),
        ((X, W, T, None, -100, "avg"), "reduction must be one of mean, sum, none, got 'avg'"),
        ((X, W, T, None, -100, "mean", 1.5), "label_smoothing=1.5\n.*from 0 to 1"),
    ],
)
def test_what_does_not_fit_is_told(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{NAME}: {message}"):
        registry.call(NAME, *values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((X[0], X, W, T, None, X[:, 0]), 'grad_loss is 6 but the loss is scalar\n.*with reduction="mean"'),
        ((X[0, 0].half(), X, W, T, None, X[:, 0]), "x is float32 but grad_loss is float16"),
        ((X[0, 0], X, W, T, None, X[0]), f"lse is float32 of shape 6, expected float32 of shape 4\n.*of {NAME}"),
        ((X[0, 0], X, W, T, None, X[:, 0], -100, "none"), "grad_loss is scalar but the loss is 4"),
    ],
)
def test_a_gradient_that_does_not_fit_is_told(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{NAME}_backward: {message}"):
        registry.call(f"{NAME}_backward", *values)
