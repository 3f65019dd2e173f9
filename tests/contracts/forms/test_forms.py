"""Calls in the forms of torch's functions and of other libraries: outputs, gradients, torch.compile, and errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import registry
from registry.contract import canonical_call
from registry.contracts import BOX
from registry.errors import ArgumentTypeError, InvalidArgumentError

F = torch.nn.functional
BY_NAME = {op.name: op for op in BOX}


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


X, ROW, BLOCK = drawn(2, 3, 4), drawn(4), drawn(3, 4)
CLASSES = torch.tensor([[1, 2, 0, -100], [0, 0, 1, 1]])


def rms_in_fp32(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """torch's norm of a weight of another dtype, without its warning."""
    return F.rms_norm(x.float(), (4,), weight.float(), 1e-6).to(x.dtype)


# a call, the call of torch that it is equal to, and the tensors that both take
FORMS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], Callable[..., Any]]] = {
    "no weight": ("rms_norm", (X,), {}, lambda x: F.rms_norm(x, (4,), eps=1e-6)),
    "weight is None": ("rms_norm", (X, None), {}, lambda x, _: F.rms_norm(x, (4,), eps=1e-6)),
    "torch's eps": ("rms_norm", (X, ROW, None), {}, lambda x, w, _: F.rms_norm(x, (4,), w)),
    "offset": ("rms_norm", (X, ROW), {"offset": 1.0}, lambda x, w: F.rms_norm(x, (4,), 1 + w, 1e-6)),
    "a narrower weight": ("rms_norm", (X.float(), ROW.bfloat16()), {}, rms_in_fp32),
    "a weight of the other half": ("rms_norm", (X.bfloat16(), ROW.half()), {}, rms_in_fp32),
    "a float32 weight": ("rms_norm", (X, ROW.float()), {}, lambda x, w: F.rms_norm(x, (4,), w.to(x.dtype), 1e-6)),
    "rms of two dimensions": ("rms_norm", (X, BLOCK), {}, lambda x, w: F.rms_norm(x, (3, 4), w, 1e-6)),
    "all dimensions": ("rms_norm", (X,), {"normalized_shape": (2, 3, 4)}, lambda x: F.rms_norm(x, (2, 3, 4), eps=1e-6)),
    "weight and bias of two": ("layer_norm", (X, BLOCK, BLOCK), {}, lambda x, w, b: F.layer_norm(x, (3, 4), w, b)),
    "bias alone": (
        "layer_norm", (X, None, BLOCK), {"normalized_shape": (3, 4)}, lambda x, _, b: F.layer_norm(x, (3, 4), bias=b)
    ),
    "a size": ("layer_norm", (X, ROW), {"normalized_shape": 4}, lambda x, w: F.layer_norm(x, (4,), w)),
    "softmax in float32": (
        "softmax", (X, 1), {"dtype": torch.float32}, lambda x, dim: torch.softmax(x, dim, torch.float32)
    ),
    "softmax dtype None": ("softmax", (X,), {"dtype": None}, lambda x: torch.softmax(x, -1)),
    "alpha": ("vector_add", (X, X), {"alpha": -2.5}, lambda x, y: torch.add(x, y, alpha=-2.5)),
    "a number": ("vector_add", (X, 2), {}, lambda x, y: x + y),
    "a number first": ("vector_add", (0.1, X), {"alpha": 3}, lambda x, y: x + 3 * y),
    "rows": ("vector_add", (X, ROW), {}, lambda x, y: x + y),
    "both broadcast": ("vector_add", (X[:, :1], BLOCK), {"alpha": 2}, lambda x, y: x + 2 * y),
    "a weight that is a vector": ("linear", (X, ROW, ROW[0]), {}, F.linear),
    "classes in the second dimension": (
        "cross_entropy", (X, CLASSES), {"reduction": "none"}, lambda x, t: F.cross_entropy(x, t, reduction="none")
    ),
    "mean over all places": (
        "cross_entropy", (X, CLASSES), {"label_smoothing": 0.1},
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
    ),
    "one sample": ("cross_entropy", (ROW, torch.tensor(2)), {}, F.cross_entropy),
}  # fmt: skip


def called(op: str, *args: Any, **attributes: Any) -> Any:
    """The first output."""
    outputs = registry.call(op, *args, **attributes)
    return outputs[0] if isinstance(outputs, tuple) else outputs


@pytest.mark.parametrize("form", FORMS)
def test_a_call_in_another_form_is_torchs_and_so_are_its_gradients(form: str) -> None:
    op, args, attributes, theirs = FORMS[form]
    results = []
    functions: tuple[Callable[..., Any], ...] = (partial(called, op, **attributes), theirs)
    for function in functions:
        given = [
            one.clone().requires_grad_() if isinstance(one, torch.Tensor) and one.is_floating_point() else one
            for one in args
        ]
        learnt = [one for one in given if isinstance(one, torch.Tensor) and one.requires_grad]
        y = function(*given)
        weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape)
        results.append([y.detach(), *torch.autograd.grad(y, learnt, weights)])
    torch.testing.assert_close(*results)


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
def test_torch_compile_traces_a_call_in_another_form_whole(form: str) -> None:
    op, args, attributes, theirs = FORMS[form]
    torch.compiler.reset()
    compiled = torch.compile(lambda *given: called(op, *given, **attributes), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*args), theirs(*args))


@pytest.mark.parametrize("form", FORMS)
def test_the_canonical_call_is_canonical_and_is_explained(form: str) -> None:
    op, args, attributes, _ = FORMS[form]
    canonical = canonical_call(BY_NAME[op], args, attributes)
    assert canonical is not None
    assert canonical_call(BY_NAME[op], (), canonical.values) is None
    BY_NAME[op].bind((), canonical.values)
    problem = registry.explain(op, *args, **attributes).problem
    assert problem is not None
    assert problem.op == op


@pytest.mark.parametrize("op", [op for op in BOX if op.forms is not None], ids=lambda op: op.name)
def test_the_schemas_own_calls_are_canonical(op: Any) -> None:
    problem = op.problem_of(op.examples[0])
    values = op.draw(problem, op.kinds[0], torch.Generator().manual_seed(0))
    assert canonical_call(op, tuple(values), {}) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_halves_are_rounded_once_and_have_the_dtype_of_torchs(dtype: torch.dtype) -> None:
    x = drawn(5, 7).to(dtype)
    for y, alpha in ((-1e5, 1), (x, 0.3), (drawn(7).to(dtype), 1e4), (torch.tensor(0.1), 1), (drawn(7).float(), 3)):
        total = registry.call("vector_add", x, y, alpha=alpha)
        assert total.dtype == torch.add(x, y, alpha=alpha).dtype
        wide = y.float() if isinstance(y, torch.Tensor) else y
        assert torch.equal(total, (x.float() + alpha * wide).to(total.dtype))


def test_the_offset_of_a_half_weight_is_added_in_float32() -> None:
    x, weight = drawn(3, 64).bfloat16(), (drawn(64) / 64).bfloat16()
    y = registry.call("rms_norm", x, weight, offset=1.0)
    assert y.dtype == torch.bfloat16
    exact = F.rms_norm(x.double(), (64,), 1.0 + weight.double(), 1e-6)
    assert (y.double() - exact).abs().max() <= 2**-8 * exact.abs().max()


@pytest.mark.parametrize(
    ("op", "args", "attributes", "message"),
    [
        ("rms_norm", (X, drawn(2, 4)), {}, "weight has shape 2x4 but x has shape 2x3x4"),
        ("rms_norm", (X,), {"offset": 1.0}, "offset=1.0 without a weight that it is added to"),
        ("rms_norm", (X, ROW), {"offset": float("inf")}, "offset=inf\n  expected a finite number, e.g. 1.0 for Gemma"),
        ("rms_norm", (X, ROW), {"normalized_shape": (3, 4)}, "normalized_shape is 3x4 but weight is 4"),
        ("rms_norm", (X,), {"normalized_shape": "all"}, "normalized_shape='all'\n  expected sizes"),
        ("rms_norm", (X.long(),), {}, "x is int64, expected float32"),
        ("rms_norm", (X.to(torch.complex64), None, None), {}, "x is complex64, expected float32"),
        ("rms_norm", (X.float(), ROW), {}, "x is float32 but weight is float64\n  convert one of them, e.g. weight.to"),
        ("layer_norm", (X, BLOCK, ROW), {}, "weight is 3x4 but bias is 4"),
        ("layer_norm", (X,), {"normalized_shape": ()}, "normalized_shape has shape scalar"),
        ("softmax", (X,), {"dtype": "float32"}, "dtype='float32'\n  expected a floating torch.dtype"),
        ("softmax", (X,), {"dtype": torch.int32}, "dtype=torch.int32\n  expected a floating"),
        ("vector_add", (X, X[:, :2]), {}, "x is 2x3x4 but y is 2x2x4\n  sizes must be equal, or 1"),
        ("vector_add", (X, X), {"alpha": True}, "alpha=True\n  expected a number"),
        ("vector_add", (X.long(), 2), {"alpha": 2}, "x is int64, expected float32"),
        ("vector_add", (X.float(), 1e300), {}, r"a number is 1e\+300, too large for float32"),
        ("vector_add", (X.float(), 10**400), {}, "a number is 1000"),
        ("vector_add", (X.half(), X.half()), {"alpha": 1e39}, r"alpha is 1e\+39, too large for float32"),
        ("vector_add", (X.to(torch.int8), 300), {}, "x is int8, expected float32"),
        ("cross_entropy", (X, X), {}, "target is float64, expected int64, a class for each row\n  of probabilities"),
        ("cross_entropy", (X, CLASSES[:, :2]), {}, r"logits has shape 2x3x4, expected \[rows, cols\]"),
    ],
)
def test_a_form_that_is_wrong_says_why(op: str, args: Any, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{op}: {message}"):
        registry.call(op, *args, **attributes)


@pytest.mark.parametrize(
    ("op", "args", "attributes", "message"),
    [
        ("vector_add", (1.0, 2.0), {"alpha": 2}, "x must be a Tensor, got 1.0"),
        ("vector_add", (X, 1j), {}, "y must be a Tensor, got 1j"),
        ("vector_add", (X,), {"alpha": 2}, "missing y"),
        ("vector_add", (X, X), {"beta": 2}, "no argument 'beta'"),
        ("rms_norm", ([1.0], ROW), {"offset": 1.0}, "x must be a Tensor"),
        ("rms_norm", (X, "ones"), {}, "weight must be a Tensor, got 'ones'"),
        ("softmax", (X,), {"dtype": None, "axis": 1}, "no argument 'axis'"),
    ],
)
def test_arguments_of_no_form_are_refused_as_ever(op: str, args: Any, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^{op}: {message}"):
        registry.call(op, *args, **attributes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_norm_without_an_eps_has_torchs_where_it_decides(dtype: torch.dtype) -> None:
    x, weight = (torch.randn(4, 64) * 1e-3).to(dtype), torch.ones(64, dtype=dtype)
    expected = torch.nn.functional.rms_norm(x, (64,), weight)
    found = registry.call("rms_norm", x, weight, eps=None)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-3)


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("weight", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("x", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_norm_of_any_two_dtypes_is_torchs_or_refused_with_the_remedy(x: torch.dtype, weight: torch.dtype) -> None:
    given = X.to(x), ROW.to(weight)
    if weight == torch.float64 != x:
        with pytest.raises(InvalidArgumentError, match=r"e\.g\. weight\.to\(x\.dtype\)"):
            registry.call("rms_norm", *given)
        return
    y = registry.call("rms_norm", *given)
    torch.testing.assert_close(y, F.rms_norm(given[0], (4,), given[1], 1e-6))
