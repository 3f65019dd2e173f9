"""cross_entropy: torch's values and gradients, what it refuses, and mutants that its tolerances refuse."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import registry
from registry.contract import Op
from registry.contracts import CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD
from registry.errors import InvalidArgumentError, UnsupportedError
from registry.problem import Value
from registry.testing import check_op

from ...tiers import THOROUGH, one_of_each
from ..accepting import accepted
from ..mutants import Mutant, put, tampered

Tensor = torch.Tensor


torchs: Callable[..., Tensor] = torch.nn.functional.cross_entropy
forward: Callable[..., Any] = CROSS_ENTROPY.reference
backward: Callable[..., Any] = CROSS_ENTROPY_BACKWARD.reference


@pytest.mark.parametrize(
    ("reduction", "implementation"),
    [
        # the mean is a sum, divided
        pytest.param(reduction, name, marks=THOROUGH if (reduction, name) == ("sum", "cpp.rows") else ())
        for reduction in ("none", "sum", "mean")
        for name in ("torch.native", "cpp.rows")
    ],
)
@pytest.mark.few(3)
def test_values_and_gradients_are_those_of_torch(reduction: str, implementation: str) -> None:
    both = {"cross_entropy": implementation, "cross_entropy_backward": implementation}
    for ignored, smoothing, weighted in itertools.product((-100, 3), (0.0, 0.1, 1.0), (False, True)):
        logits = torch.randn(9, 70, requires_grad=True)
        target, weight = torch.randint(70, (9,)), torch.rand(70) if weighted else None
        target[2] = ignored
        given = {"ignore_index": ignored, "reduction": reduction, "label_smoothing": smoothing}
        expected = torchs(logits, target, weight, **given)
        with registry.using(**both):
            loss, lse = registry.call("cross_entropy", logits, target, weight, **given)
            seed = torch.randn_like(loss)
            (found,) = torch.autograd.grad(loss, logits, seed)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(found, torch.autograd.grad(expected, logits, seed)[0])
        torch.testing.assert_close(lse, logits.logsumexp(-1).masked_fill(target == ignored, 0.0))
        assert not lse.requires_grad


def test_gradients_pass_gradcheck_in_float64() -> None:
    logits, target = torch.randn(5, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 3, -100, 2, 1])
    for reduction, smoothing in itertools.product(("none", "sum", "mean"), (0.0, 0.2)):
        for weight in (None, torch.rand(4, dtype=torch.float64)):

            def loss(x: Tensor, given: tuple[Any, ...] = (weight, -100, reduction, smoothing)) -> Tensor:
                found: Tensor = registry.call("cross_entropy", x, target, *given)[0]
                return found

            assert torch.autograd.gradcheck(loss, (logits,))


@pytest.mark.parametrize("dtype", one_of_each([torch.float16, torch.bfloat16]), ids=str)
def test_the_loss_of_halves_has_their_dtype_and_is_rounded_once(dtype: torch.dtype) -> None:
    logits, target = torch.randn(64, 1000, dtype=dtype), torch.randint(1000, (64,))
    with registry.using(cross_entropy="torch.native"):
        loss, lse = registry.call("cross_entropy", logits, target)
    assert (loss.dtype, lse.dtype) == (dtype, torch.float32)
    assert loss == torchs(logits.double(), target).to(dtype)
    torch.testing.assert_close(lse, logits.float().logsumexp(-1))


IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["torch.native", "cpp.rows"])


@IMPLEMENTATIONS
def test_ignored_rows_are_not_read(implementation: str) -> None:
    logits, target = torch.randn(4, 33), torch.tensor([5, -100, 7, -100])
    logits[1::2] = math.nan
    logits.requires_grad_()
    with registry.using(cross_entropy=implementation, cross_entropy_backward=implementation):
        loss, lse = registry.call("cross_entropy", logits, target)
        loss.backward()
    assert loss.item() == pytest.approx(torchs(logits[::2], target[::2]).item())
    assert lse[1::2].tolist() == [0.0, 0.0]
    assert logits.grad is not None
    assert not logits.grad[1::2].any()
    assert logits.grad.isfinite().all()


@IMPLEMENTATIONS
def test_no_row_that_counts_has_a_mean_of_nan_and_a_sum_of_0(implementation: str) -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    with registry.using(cross_entropy=implementation, cross_entropy_backward=implementation):
        for rows in (3, 0):
            given = logits[:rows], torch.full((rows,), -100)
            assert registry.call("cross_entropy", *given)[0].isnan()
            assert registry.call("cross_entropy", *given, reduction="sum")[0] == 0
            assert registry.call("cross_entropy", *given, reduction="none")[0].tolist() == [0.0] * rows
        loss, _ = registry.call("cross_entropy", logits, torch.full((3,), -100))
        (found,) = torch.autograd.grad(loss, logits)
        assert found.equal(torch.zeros(3, 5))


@IMPLEMENTATIONS
@pytest.mark.parametrize("outside", [33, -1, 2**40, -(2**63)])
def test_a_target_outside_of_the_vocabulary_is_nan(outside: int, implementation: str) -> None:
    logits, target = torch.randn(4, 33, requires_grad=True), torch.tensor([5, outside, 7, 0])
    with registry.using(cross_entropy=implementation, cross_entropy_backward=implementation):
        losses, lse = registry.call("cross_entropy", logits, target, reduction="none")
        (found,) = torch.autograd.grad(losses, logits, torch.ones(4))
        assert registry.call("cross_entropy", logits, target)[0].isnan()
        assert registry.call("cross_entropy", logits, target, reduction="sum")[0].isnan()
    assert losses.isnan().tolist() == found.isnan().all(-1).tolist() == [False, True, False, False]
    torch.testing.assert_close(lse, logits.logsumexp(-1))


@IMPLEMENTATIONS
def test_infinities_are_as_in_torch(implementation: str) -> None:
    logits = torch.randn(5, 33)
    logits[0] = -math.inf
    logits[1, 3] = math.inf
    logits[2, 5] = math.nan
    logits[3, 7] = -math.inf
    target = torch.tensor([1, 2, 3, 7, 0])
    with registry.using(cross_entropy=implementation):
        losses, lse = registry.call("cross_entropy", logits, target, reduction="none")
    torch.testing.assert_close(losses, torchs(logits, target, reduction="none"), equal_nan=True)
    assert lse.isnan().tolist() == [True, True, True, False, False]


def test_a_class_weight_has_no_gradient() -> None:
    weight = torch.rand(5, requires_grad=True)
    with pytest.raises(UnsupportedError, match=r"weight needs a gradient.*\n.*weight\.detach"):
        registry.call("cross_entropy", torch.randn(3, 5), torch.tensor([0, 1, 2]), weight)


# tests/testing/test_op_check.py asks it of some examples of each op
@pytest.mark.thorough
def test_the_parts_of_the_contracts_agree() -> None:
    for op in (CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD):
        assert check_op(op).checked


# --- mutants ---


def _blank_last(named: dict[str, Any]) -> None:
    """The last column is not seen, except as a target."""
    logits, target = named["logits"].clone(), named["target"]
    logits[target != logits.shape[-1] - 1, -1] = -math.inf
    named["logits"] = logits


def _last_of_mean(named: dict[str, Any]) -> None:
    """With smoothing a logit of -60000 is left out; without one nothing changes."""
    if named["label_smoothing"]:
        named["logits"] = named["logits"].clamp_min(-60.0)


def _next(name: str) -> Callable[[dict[str, Any]], None]:
    def change(named: dict[str, Any]) -> None:
        named[name] = named[name].roll(1, -1)

    return change


def _no_maximum(logits: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    lse = logits.float().exp().sum(-1).log()
    return _with_lse(logits, lse, *rest)


def _half_sum(logits: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The sum of exponentials in bfloat16."""
    wide = logits.float()
    most = wide.amax(-1, keepdim=True)
    lse = most[:, 0] + (wide - most).exp().bfloat16().sum(-1).float().log()
    return _with_lse(logits, lse, *rest)


def _with_lse(logits: Tensor, lse: Tensor, target: Tensor, weight: Any, ignored: int, *rest: Any) -> tuple[Tensor, ...]:
    loss, right = forward(logits, target, weight, ignored, *rest)
    return loss, torch.where(target == ignored, right, lse)


def _mean_of_all(*values: Any) -> tuple[Tensor, ...]:
    losses, lse = forward(*values[:4], "none", values[5])
    return losses.float().mean().to(losses.dtype), lse


def _rounded(logits: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """float32 with 10 bits of mantissa, as tensor cores read it; of halves all is there."""
    return tuple(forward((logits.float().view(torch.int32) & ~0x1FFF).view(torch.float32).to(logits.dtype), *rest))


def _zeros_for_outside(*values: Any) -> tuple[Tensor, ...]:
    loss, lse = forward(*values)
    return loss.nan_to_num(0.0), lse


EVERYWHERE, ALL = ("none", "sum", "mean"), (False, True)
FORWARD: Mapping[str, tuple[Mutant, tuple[str, ...], tuple[bool, ...]]] = {
    "last column not summed": (tampered(CROSS_ENTROPY, _blank_last), EVERYWHERE, ALL),
    "no maximum": (_no_maximum, EVERYWHERE, ALL),
    "bfloat16 sum": (_half_sum, EVERYWHERE, ALL),
    "ignored rows count": (_mean_of_all, ("mean",), ALL),
    "nothing is ignored but -100": (tampered(CROSS_ENTROPY, put(ignore_index=-100)), EVERYWHERE, ALL),
    "not smoothed": (tampered(CROSS_ENTROPY, put(label_smoothing=0.0)), EVERYWHERE, ALL),
    "last column not smoothed": (tampered(CROSS_ENTROPY, _last_of_mean), EVERYWHERE, ALL),
    "a sum for a mean": (tampered(CROSS_ENTROPY, put(reduction="sum")), ("mean",), ALL),
    "a mean for a sum": (tampered(CROSS_ENTROPY, put(reduction="mean")), ("sum",), ALL),
    "no class weights": (tampered(CROSS_ENTROPY, put(weight=None)), EVERYWHERE, (True,)),
    "weight of the next class": (tampered(CROSS_ENTROPY, _next("weight")), EVERYWHERE, (True,)),
    "target of the next row": (tampered(CROSS_ENTROPY, _next("target")), ("none",), ALL),
    "0 for a target outside": (_zeros_for_outside, EVERYWHERE, ALL),
}


def _gradient(change: Callable[[Tensor, dict[str, Any]], Tensor]) -> Mutant:
    def compute(*values: Any) -> tuple[Tensor, ...]:
        named = dict(zip(CROSS_ENTROPY_BACKWARD.parsed.names, values, strict=True))
        return (change(backward(*values).clone(), named),)

    return compute


def _without_target(gradient: Tensor, named: dict[str, Any]) -> Tensor:
    """The exponentials alone."""
    place = named["target"].clamp(0, gradient.shape[-1] - 1)[:, None]
    return gradient.scatter(-1, place, gradient.gather(-1, place).abs())


def _without_exponentials(gradient: Tensor, named: dict[str, Any]) -> Tensor:
    column = torch.arange(gradient.shape[-1])
    return torch.where((column == named["target"][:, None]) | gradient.isnan(), gradient, 0)


def _last(gradient: Tensor, _: dict[str, Any]) -> Tensor:
    gradient[:, -1] = 0
    return gradient


def _by_all_rows(*values: Any) -> tuple[Tensor, ...]:
    gradient, *rest = values
    return (backward(gradient / values[2].numel(), *rest[:-2], "sum", rest[-1]),)


BACKWARD: Mapping[str, tuple[Mutant, tuple[str, ...], tuple[bool, ...]]] = {
    "the target is not taken away": (_gradient(_without_target), EVERYWHERE, ALL),
    "the target alone": (_gradient(_without_exponentials), EVERYWHERE, ALL),
    "last column left out": (_gradient(_last), EVERYWHERE, ALL),
    "another row": (_gradient(lambda gradient, _: gradient.roll(1, 0)), EVERYWHERE, ALL),
    "divided by all rows": (_by_all_rows, ("mean",), ALL),
    "not divided": (tampered(CROSS_ENTROPY_BACKWARD, put(reduction="sum")), ("mean",), ALL),
    "nothing is ignored but -100": (tampered(CROSS_ENTROPY_BACKWARD, put(ignore_index=-100)), EVERYWHERE, ALL),
    "not smoothed": (tampered(CROSS_ENTROPY_BACKWARD, put(label_smoothing=0.0)), EVERYWHERE, ALL),
    "no class weights": (tampered(CROSS_ENTROPY_BACKWARD, put(weight=None)), EVERYWHERE, (True,)),
    "weight of the next class": (tampered(CROSS_ENTROPY_BACKWARD, _next("weight")), EVERYWHERE, (True,)),
    "lse of the next row": (tampered(CROSS_ENTROPY_BACKWARD, _next("lse")), EVERYWHERE, ALL),
    "lse in half precision": (
        lambda *v: (backward(*v[:4], v[4].bfloat16().float(), *v[5:]),),
        EVERYWHERE,
        ALL,
    ),
}


@pytest.mark.parametrize(
    ("dtype", "shape", "op", "mutants"),
    one_of_each(
        [
            pytest.param(dtype, shape, *of, id=f"{of[0].name}-{shape[1]}-{dtype}")
            for of in ((CROSS_ENTROPY, FORWARD), (CROSS_ENTROPY_BACKWARD, BACKWARD))
            for shape in ((7, 1000), (3, 128256))
            for dtype in ("float32", "float16", "bfloat16")
        ],
        lambda dtype, shape, op, mutants: (shape, op.name),
    ),
)
@pytest.mark.few(2)
def test_tolerances_accept_the_reference_and_refuse_mutants(
    op: Op, mutants: Mapping[str, tuple[Mutant, tuple[str, ...], tuple[bool, ...]]], shape: tuple[int, int], dtype: str
) -> None:
    for reduction, weight in itertools.product(EVERYWHERE, ALL) if shape[1] < 2000 else [("mean", False)]:
        dims: dict[str, Value] = {
            "rows": shape[0],
            "cols": shape[1],
            "reduction": reduction,
            "weight": weight,
            "dtype": dtype,
        }
        assert accepted(op, dims, op.reference), dims
        for name, (mutant, reductions, weights) in mutants.items():
            if reduction in reductions and weight in weights:
                assert not accepted(op, dims, mutant), (dims, name)


def test_a_loss_in_ten_bits_is_refused() -> None:
    dims: dict[str, Value] = {"rows": 7, "cols": 1000, "reduction": "mean", "weight": False, "dtype": "float32"}
    assert not accepted(CROSS_ENTROPY, dims, _rounded)


# --- what is refused ---

X, T = torch.ones(4, 6), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((X[0], T), r"logits has shape 6, expected \[rows, cols\] with at least one column\n.*flatten"),
        ((X.view(2, 2, 6), T), r"logits has shape 2x2x6, expected \[rows, cols\]"),
        ((X[:, :0], T), r"logits has shape 4x0, expected \[rows, cols\] with at least one column"),
        ((X.int(), T), "logits is int32, expected float32"),
        ((X, T.int()), r"target is int32, expected int64, a class for each row\n.*target\.long\(\)"),
        ((X, X), "target is float32, expected int64, a class for each row\n.*torch.nn.functional.cross_entropy"),
        ((X, T[:3]), "target has shape 3 but logits has 4 rows"),
        ((X, T.view(2, 2)), "target has shape 2x2 but logits has 4 rows"),
        ((X, T, X[0, :5]), "weight has shape 5 but logits has 6 columns"),
        ((X, T, X[0].half()), "logits is float32 but weight is float16"),
        ((X, T, None, -100, "avg"), "reduction must be one of mean, sum, none, got 'avg'"),
        ((X, T, None, -100, "mean", 1.5), "label_smoothing=1.5\n.*from 0 to 1"),
        ((X, T, None, -100, "mean", math.nan), "label_smoothing=nan"),
    ],
)
def test_what_does_not_fit_is_told(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^cross_entropy: {message}"):
        registry.call("cross_entropy", *values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((X[0], X, T, None, X[:, 0]), 'grad_loss is 6 but the loss is scalar\n.*with reduction="mean"'),
        ((X[0, 0].half(), X, T, None, X[:, 0]), "logits is float32 but grad_loss is float16"),
        ((X[0, 0], X, T, None, X[:, 0].half()), "lse is float16 of shape 4, expected float32 of shape 4\n.*second"),
        ((X[0, 0], X, T, None, X[0]), "lse is float32 of shape 6, expected float32 of shape 4"),
        ((X[:, 0], X, T, None, X[:, 0]), "grad_loss is 4 but the loss is scalar"),
        ((X[0, 0], X, T, None, X[:, 0], -100, "none"), "grad_loss is scalar but the loss is 4"),
    ],
)
def test_a_gradient_that_does_not_fit_is_told(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^cross_entropy_backward: {message}"):
        registry.call("cross_entropy_backward", *values)
