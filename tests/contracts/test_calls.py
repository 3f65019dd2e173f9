"""What calls the ops in the box accept, what problem a call poses, and what their references compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import registry
from registry.contract import Op
from registry.contract.outputs import as_tuple
from registry.contracts import BOX, GELU, GEMM_INT4, GEMM_INT4_BACKWARD, RMS_NORM, SOFTMAX, SQUARE, VECTOR_ADD
from registry.errors import InvalidArgumentError, RegistryError
from registry.packed import quantize
from registry.problem import Problem, Value

HALVES = (torch.float16, torch.bfloat16)
BY_NAME = {op.name: op for op in BOX}


def posed(op: Op, *args: Any, **attributes: Any) -> Problem:
    return op.pose(op.arguments(op.bind(args, attributes)))


def computed(op: Op, *args: Any, **attributes: Any) -> torch.Tensor:
    y = op.reference(*op.bind(args, attributes))
    assert isinstance(y, torch.Tensor)
    return y


def packed(n: int = 16, k: int = 256, dtype: torch.dtype = torch.float16, **options: Any) -> Any:
    return quantize(torch.randn(n, k, generator=torch.Generator().manual_seed(1)).to(dtype), **options)


@pytest.mark.parametrize(
    ("shape", "dim", "rows", "cols", "contiguous"),
    [
        ((4, 6), -1, 4, 6, True),
        ((2, 3, 5), 2, 6, 5, True),
        ((2, 3, 5), 1, 10, 3, False),
        ((2, 3, 5), 0, 15, 2, False),
        ((4, 6, 1, 1), 1, 4, 6, True),
        ((7,), 0, 1, 7, True),
        ((), -1, 1, 1, True),
        ((0, 5), -1, 0, 5, True),
        ((5, 0), -1, 5, 0, True),
    ],
)
def test_softmax_reduces_one_dimension_and_counts_the_others_as_rows(
    shape: tuple[int, ...], dim: int, rows: int, cols: int, contiguous: bool
) -> None:
    x = torch.randn(shape)
    problem = posed(SOFTMAX, x, dim)
    assert dict(problem.dims) == {"rows": rows, "cols": cols, "dtype": "float32"}
    assert problem.traits["contiguous"] == contiguous
    y = computed(SOFTMAX, x, dim)
    torch.testing.assert_close(y, torch.softmax(x, dim))
    assert y.is_contiguous()


def test_layout_traits_tell_transposed_and_misaligned_tensors() -> None:
    x = torch.randn(8, 9)
    assert posed(SOFTMAX, x).traits["aligned"]
    assert not posed(SOFTMAX, x.T).traits["contiguous"]
    assert not posed(SQUARE, x.view(-1)[1:]).traits["aligned"]
    assert not posed(VECTOR_ADD, x, torch.randn(9, 8).T).traits["contiguous"]


def test_elementwise_ops_count_elements_of_any_shape() -> None:
    for shape in ((), (1,), (3, 4), (0, 4)):
        x = torch.randn(shape)
        assert posed(SQUARE, x).n == x.numel()
        assert posed(VECTOR_ADD, x, x).n == x.numel()
        assert posed(GELU, x).dims == {"n": x.numel(), "dtype": "float32", "approximate": "tanh"}


def test_elementwise_outputs_keep_the_strides_of_a_dense_input() -> None:
    x = torch.randn(4, 6).T
    for op, values in ((SQUARE, (x,)), (GELU, (x, "none")), (VECTOR_ADD, (x, x))):
        (spec,) = op.output_specs(op.arguments(values), torch.device("cpu")).values()
        y = op.reference(*values)
        assert isinstance(y, torch.Tensor)
        assert spec.strides == y.stride() == x.stride()


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES, torch.float64])
def test_references_keep_the_dtype(dtype: torch.dtype) -> None:
    x = torch.randn(3, 256, dtype=dtype)
    w = packed().to(dtype=torch.float32)
    assert computed(SQUARE, x).dtype == dtype
    assert computed(SOFTMAX, x).dtype == dtype
    assert computed(RMS_NORM, x, torch.ones(256, dtype=dtype)).dtype == dtype
    y = GEMM_INT4.reference(x, w.qweight, w.scales.to(dtype), w.zeros.to(dtype), 4, 128, 256, "gptq")
    assert isinstance(y, torch.Tensor)
    assert y.dtype == dtype


def test_references_are_differentiable() -> None:
    generator = torch.Generator().manual_seed(0)
    x, other = (torch.randn(3, 8, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(2))
    weight = torch.rand(8, dtype=torch.float64, generator=generator, requires_grad=True)
    w = packed(4, 8, torch.float32, group_size=8)
    scales = w.scales.double().requires_grad_()
    gradcheck: Callable[..., bool] = torch.autograd.gradcheck
    assert gradcheck(VECTOR_ADD.reference, (x, other))
    assert gradcheck(SQUARE.reference, (x,))
    assert gradcheck(GELU.reference, (x, "tanh"))
    assert gradcheck(SOFTMAX.reference, (x, 0))
    assert gradcheck(RMS_NORM.reference, (x, weight, 1e-6))
    assert gradcheck(GEMM_INT4.reference, (x, w.qweight, scales, w.zeros.double(), 4, 8, 8, "gptq"))


def test_rms_norm_matches_torch_for_any_leading_dimensions() -> None:
    x, weight = torch.randn(2, 3, 5), torch.randn(5)
    expected = torch.nn.functional.rms_norm(x, (5,), weight, 1e-3)
    torch.testing.assert_close(computed(RMS_NORM, x, weight, eps=1e-3), expected)
    assert dict(posed(RMS_NORM, x, weight).dims) == {"rows": 6, "cols": 5, "dtype": "float32"}
    assert posed(RMS_NORM, x[:0], weight).rows == 0


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
def test_gemm_int4_multiplies_by_the_dequantized_weight(dtype: torch.dtype, symmetric: bool) -> None:
    w = packed(16, 256, dtype, symmetric=symmetric)
    a = torch.randn(2, 3, 256).to(dtype)
    y = computed(GEMM_INT4, a, w)
    assert y.shape == (2, 3, 16)
    # dequantize() rounds weights, which the reference does not
    expected = a.double() @ w.dequantize().double().T
    assert (y.double() - expected).abs().max() < 8 * torch.finfo(dtype).eps * expected.abs().max()
    problem = posed(GEMM_INT4, a, w)
    assert dict(problem.dims) == {
        "m": 6,
        "n": 16,
        "k": 256,
        "group_size": 128,
        "bits": 4,
        "dtype": str(dtype).removeprefix("torch."),
        "symmetric": symmetric,
    }


def test_gemm_int4_takes_vectors_no_rows_and_keywords() -> None:
    w = packed()
    a = torch.randn(256).half()
    assert computed(GEMM_INT4, a, w).shape == (16,)
    assert posed(GEMM_INT4, a, w).m == 1
    assert computed(GEMM_INT4, torch.empty(0, 256).half(), w).shape == (0, 16)
    assert posed(GEMM_INT4, torch.empty(0, 256).half(), w).m == 0
    assert posed(GEMM_INT4, a=a, w=w) == posed(GEMM_INT4, a, w=w) == posed(GEMM_INT4, a, w)


def test_gemm_int4_also_takes_its_schemas_own_arguments() -> None:
    w = packed()
    a = torch.randn(2, 256).half()
    plain = (a, w.qweight, w.scales, w.zeros, 4, 128, 256, "gptq")
    assert posed(GEMM_INT4, *plain) == posed(GEMM_INT4, a, w)


def test_gemm_int4_in_column_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    w, a = packed(37, 256), torch.randn(3, 256).half()
    whole = computed(GEMM_INT4, a, w)
    monkeypatch.setattr("registry.packed.layout.CHUNK", 256 * 8)
    torch.testing.assert_close(computed(GEMM_INT4, a, w), whole)


def test_a_gradient_goes_through_the_frozen_weight_of_gemm_int4(monkeypatch: pytest.MonkeyPatch) -> None:
    w = packed(37, 256)
    dense = w.dequantize().double()
    for chunk in (2**24, 256 * 8):  # in one piece, and in pieces of columns
        monkeypatch.setattr("registry.packed.layout.CHUNK", chunk)
        a, grad_y = torch.randn(2, 3, 256).half().requires_grad_(), torch.randn(2, 3, 37).half()
        with registry.using(gemm_int4="torch.native"):
            y = registry.call("gemm_int4", a, w)
        assert isinstance(y, torch.Tensor)
        y.backward(grad_y)
        assert a.grad is not None
        expected = grad_y.double() @ dense
        assert (a.grad.double() - expected).abs().max() < 8 * 2**-10 * expected.abs().max()
        parts = (w.qweight, w.scales, w.zeros, 4, 128, 256, "gptq")
        reference = GEMM_INT4_BACKWARD.reference(grad_y, *parts)
        # ``dense`` is rounded to half: a sum that cancels errs by more than its own size says
        assert reference.dtype == torch.float16
        assert (reference.double() - expected).abs().max() < 2 * 2**-10 * expected.abs().max()
    with pytest.raises(InvalidArgumentError, match=r"^gemm_int4_backward: grad_y has shape 2x3x36 but w has N=37"):
        posed(GEMM_INT4_BACKWARD, grad_y[..., 1:], *parts)


X = torch.randn(4, 6)
A = torch.randn(2, 256).half()


@pytest.mark.parametrize(
    ("op", "args", "message"),
    [
        (SOFTMAX, (X, 3), r"^softmax: dim=3 but x has 2 dimensions \(shape 4x6\)\n  expected -2 to 1$"),
        (SOFTMAX, (X, -3), "dim=-3 but x has 2 dimensions"),
        (SOFTMAX, (torch.tensor(1.0), 1), r"dim=1 but x has 0 dimensions \(shape scalar\)"),
        (SOFTMAX, (X.long(),), "x is int64, expected float32, float16, bfloat16 or float64"),
        (SOFTMAX, (X.int(),), "x is int32, expected"),
        (SOFTMAX, ([1.0],), "x must be a Tensor"),
        (SOFTMAX, (X, "last"), "dim must be an int"),
        (SQUARE, (X.to(torch.complex64),), "x is complex64"),
        (GELU, (X, "erf"), "approximate must be one of none, tanh, got 'erf'"),
        (VECTOR_ADD, (X, X[:1]), r"x is 4x6 but y is 1x6\n  shapes must be equal; torch.broadcast_tensors"),
        (VECTOR_ADD, (X, X.int()), "y is int32, expected float32, float16, bfloat16 or float64"),
        (VECTOR_ADD, (X, X.to("meta")), "several devices: x on cpu, y on meta"),
        (VECTOR_ADD, (X,), "missing y"),
        (RMS_NORM, (X, torch.ones(5)), r"weight has shape 5 but x has 6 columns \(shape 4x6\)"),
        (RMS_NORM, (X, torch.ones(1, 6)), "weight has shape 1x6"),
        (RMS_NORM, (X, torch.ones(6).half()), "x is float32 but weight is float16"),
        (RMS_NORM, (X, torch.ones(6), float("nan")), r"eps=nan\n  expected a finite number of at least 0"),
        (RMS_NORM, (X, torch.ones(6), True), "eps must be a float, got True"),
        (SOFTMAX, (X, True), "dim must be an int, got True"),
        (SOFTMAX, (X.to_sparse(),), r"x is a sparse_coo tensor, expected a dense one\n  convert it: .to_dense\(\)"),
        (RMS_NORM, (torch.tensor(1.0), torch.ones(1)), "x has no dimension to normalise"),
        (GEMM_INT4, (A, torch.ones(16, 256)), r"w is a Tensor, expected a PackedWeight\n  w = registry.quantize"),
        (GEMM_INT4, (A,), r"got a\n  expected a and w"),
        (GEMM_INT4, (A.float(), packed()), "a is float32, expected float16 or bfloat16"),
        (
            GEMM_INT4,
            (A.bfloat16(), packed()),
            r"a is bfloat16 but the scales of w are float16\n  use w.to\(dtype=torch.bf",
        ),
        (GEMM_INT4, (A[:, :128], packed()), "a has shape 2x128 but w has K=256"),
        (GEMM_INT4, (torch.tensor(1.0).half(), packed()), "a has shape scalar but w has K=256"),
    ],
)
def test_a_call_that_is_not_accepted_says_why(op: Op, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        posed(op, *args)


def test_gemm_int4_given_twice_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="a was given twice"):
        posed(GEMM_INT4, A, packed(), a=A)


def test_gemm_int4_refuses_plain_tensors_that_make_no_weight() -> None:
    w = packed()
    for change in ({"qweight": w.qweight[:-1]}, {"scales": w.scales[:1]}, {"k": 128}, {"layout": "awq"}, {"bits": 3}):
        values = dict(zip(GEMM_INT4.parsed.names, (A, w.qweight, w.scales, w.zeros, 4, 128, 256, "gptq"), strict=True))
        with pytest.raises(InvalidArgumentError, match=r"^gemm_int4: "):
            posed(GEMM_INT4, **{**values, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 8}, "^gemm_int4: bits=8, only 4 is supported"),
        ({"codebook": "nf4", "zeros": None}, "^gemm_int4: layout 'nf4', only 'gptq' is supported"),
        ({"g_idx": torch.arange(256, dtype=torch.int32) % 2}, "^gemm_int4: layout 'gptq_act_order', only 'gptq'"),
        ({"zeros": torch.full((2, 16), 7.5)}, "^gemm_int4: zeros is float32, so any numbers"),
        ({"group_size": 16}, "^gemm_int4: group_size=16\n  expected 32, 64, 128 or K=256"),
        ({"group_size": 256, "k": 250}, "^gemm_int4: K=250 is no multiple of 8"),
        ({"k": 136}, "^gemm_int4: K=136 is no multiple of group_size=128"),
    ],
)
def test_gemm_int4_refuses_packed_weights_that_it_cannot_read(change: dict[str, Any], message: str) -> None:
    parts = {name: value for name, value in change.items() if name in ("codebook", "g_idx", "zeros")}
    k = change.get("k", 256)
    w = replace(packed(**{"k": k, **{name: change[name] for name in change if name not in parts}}), **parts)
    with pytest.raises(InvalidArgumentError, match=message):
        posed(GEMM_INT4, torch.ones(2, k).half(), w)


@pytest.mark.parametrize(
    ("op", "change", "message"),
    [
        (SOFTMAX, {"cols": 0}, "cols must be a positive integer, got 0"),
        (SOFTMAX, {"rows": -1}, "rows must be a positive integer, got -1"),
        (SOFTMAX, {"dtype": "int8"}, "dtype must be one of float32, float16, bfloat16, float64, got 'int8'"),
        (GELU, {"approximate": "erf"}, "approximate must be one of none, tanh"),
        (SQUARE, {"n": "many"}, "n must be a positive integer, got 'many'"),
        (GEMM_INT4, {"dtype": "float32"}, "dtype must be one of float16, bfloat16"),
        (GEMM_INT4, {"k": 100}, "K=100 is no multiple of 8"),
        (GEMM_INT4, {"group_size": 48}, "group_size=48"),
        (GEMM_INT4, {"bits": 8}, "bits=8"),
        (SOFTMAX, {"rows": True}, "rows must be a positive integer, got True"),
        (SOFTMAX, {"cols": True}, "cols must be a positive integer, got True"),
        (GEMM_INT4, {"symmetric": 0}, "symmetric must be one of False, True, got 0"),
        (GEMM_INT4, {"symmetric": "yes"}, "symmetric must be one of False, True"),
        (SOFTMAX, {"columns": 3}, "unknown dimension of softmax 'columns'"),
    ],
)
def test_dimensions_that_make_no_sense_are_refused(op: Op, change: dict[str, Any], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        op.problem_of({**op.examples[0], **change})


@pytest.mark.parametrize("op", BOX, ids=lambda op: op.name)
@pytest.mark.few(20)
def test_kinds_of_inputs_are_all_different_and_in_the_problems_dtype(op: Op) -> None:
    problem = op.problem_of(op.examples[-1])
    made = {}
    for kind in op.kinds:
        values = op.inputs(problem, kind, torch.Generator().manual_seed(0))
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        assert problem.torch_dtype in {tensor.dtype for tensor in tensors}
        made[kind] = tuple(tensor.double().nan_to_num().abs().sum().item() for tensor in tensors)
    assert len(set(made.values())) == len(op.kinds)


def test_floors_count_each_byte_once() -> None:
    assert SOFTMAX.floor(SOFTMAX.problem_of({"rows": 4, "cols": 8, "dtype": "bfloat16"})).bytes == 2 * 4 * 8 * 2
    assert VECTOR_ADD.floor(VECTOR_ADD.problem_of({"n": 10, "dtype": "float32"})).bytes == 120
    assert RMS_NORM.floor(RMS_NORM.problem_of({"rows": 4, "cols": 8, "dtype": "float16"})).bytes == 2 * (64 + 8)
    dims: dict[str, Value] = {
        "m": 2,
        "n": 16,
        "k": 256,
        "group_size": 128,
        "bits": 4,
        "dtype": "float16",
        "symmetric": False,
    }
    floor = GEMM_INT4.floor(GEMM_INT4.problem_of(dims))
    assert floor.bytes == 2 * (2 * 256 + 2 * 16) + 16 * 256 // 2 + 2 * (2 * 2 * 16)
    assert floor.flop == 2 * 2 * 16 * 256


@pytest.mark.parametrize("name", BY_NAME)
def test_a_call_with_meta_tensors_has_the_shapes_and_dtypes_of_one_with_values(name: str) -> None:
    op = BY_NAME[name]
    problem = op.problem_of(op.examples[0])
    values = op.inputs(problem, op.kinds[0], torch.Generator().manual_seed(0))
    without = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), values)
    outputs, expected = as_tuple(registry.call(name, *without)), as_tuple(op.reference(*values))
    assert all(output.is_meta for output in outputs)
    assert [(output.shape, output.dtype) for output in outputs] == [(one.shape, one.dtype) for one in expected]
