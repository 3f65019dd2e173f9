"""The error rule, its pieces, and the checks of outputs before anyone looks at their numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from registry.contract import Op, Tolerance
from registry.contracts import BOX, GEMM_INT4, SOFTMAX, SQUARE, VECTOR_ADD
from registry.correctness import bounds as bounds_module
from registry.correctness import numerics
from registry.correctness.bounds import Bounds, bounds_of
from registry.correctness.output_faults import output_faults, poison
from registry.errors import InvalidDefinitionError
from registry.problem import Problem, TensorSpec, dtype_name

from ..tiers import one_of_each

TAKEN = [(op, dtype) for op in BOX for dtype in sorted({str(example["dtype"]) for example in op.examples})]
"""Every op with every dtype that it takes."""


def square(n: int, dtype: str = "float32") -> tuple[Problem, tuple[torch.Tensor, ...]]:
    problem = SQUARE.problem_of({"n": n, "dtype": dtype})
    return problem, SQUARE.inputs(problem, "normal", torch.Generator().manual_seed(0))


def judged(output: torch.Tensor, values: tuple[torch.Tensor, ...], problem: Problem) -> numerics.Comparison:
    reference = numerics.reference64(SQUARE, values)
    return numerics.compare(SQUARE, problem, output, reference, numerics.own_error(SQUARE, problem, values, reference))


def test_widening_takes_every_floating_tensor_and_nothing_else() -> None:
    problem = GEMM_INT4.problem_of(GEMM_INT4.examples[0])
    values = GEMM_INT4.inputs(problem, "normal", torch.Generator())
    wide = numerics.widened(values)
    assert [value.dtype for value in wide if isinstance(value, torch.Tensor)] == [
        torch.float64,
        torch.int32,
        torch.float64,
        torch.float64,
    ]
    assert wide[4:] == values[4:]
    (reference,) = numerics.reference64(GEMM_INT4, values)
    assert reference.dtype == torch.float64


@pytest.mark.parametrize("beyond", [1e-9, 3e-7, 0.0004, 0.7])
def test_an_error_barely_beyond_the_tolerance_is_told_with_the_digits_that_show_it(beyond: float) -> None:
    allowed = 1e-3
    tolerance = Tolerance({"float64": 0.0}, {"float64": allowed}, lambda problem, reference: reference)
    op, problem = replace(SQUARE, tolerance=tolerance), SQUARE.problem_of({"n": 2, "dtype": "float32"})
    reference = torch.zeros(2, dtype=torch.float64)
    output = torch.tensor([0.0, allowed * (1 + beyond)], dtype=torch.float64)
    found = numerics.compare(op, problem, output, reference, (0.0,))
    told = re.search(r": (\S+) times what is allowed", found.message)
    assert told is not None
    assert 1 < float(told[1]) < 2
    numbers = re.search(r"largest error (\S+) is more than (\S+):", _message_of(1 + beyond))
    assert numbers is not None
    assert float(numbers[1]) > float(numbers[2]) == 1


def _message_of(error: float) -> str:
    """The message of an error that the tolerance allows and that is beyond 1, twice that of torch and one rounding."""
    tolerance = Tolerance({"float64": 10.0}, {"float64": 0.0}, lambda problem, reference: torch.ones_like(reference))
    op, problem = replace(SQUARE, tolerance=tolerance), SQUARE.problem_of({"n": 1, "dtype": "float32"})
    wide, output = torch.zeros(1, dtype=torch.float64), torch.full((1,), error, dtype=torch.float64)
    return numerics.compare(op, problem, output, wide, (0.5,)).message


def test_a_wrong_element_is_named_with_what_was_expected() -> None:
    problem, values = square(1000)
    output = values[0] ** 2
    output[321] = 5.0
    found = judged(output, values, problem)
    assert not found.ok
    assert found.where == ("y", (321,))
    assert found.message.startswith("y[321] is 5, expected ")
    assert found.ratio > 1


@pytest.mark.parametrize("chunk", [7, 64, 10_000])
def test_pieces_of_any_size_give_the_same_verdict(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = SOFTMAX.problem_of({"rows": 33, "cols": 64, "dtype": "float32"})
    values = SOFTMAX.inputs(problem, "normal", torch.Generator().manual_seed(0))
    reference = numerics.reference64(SOFTMAX, values)
    output = torch.softmax(values[0], -1)
    output[20, 5] *= 1.5
    whole = numerics.compare(SOFTMAX, problem, output, reference, (0.0,))
    monkeypatch.setattr(numerics, "CHUNK", chunk)
    pieces = numerics.compare(SOFTMAX, problem, output, reference, (0.0,))
    assert whole == pieces
    assert pieces.where == ("y", (20, 5))


def test_non_contiguous_outputs_are_compared_in_their_own_order() -> None:
    problem, values = square(12)
    shaped = (values[0].view(3, 4).T,)
    output = (values[0] ** 2).view(3, 4).T.clone()
    output[2, 1] = -1
    assert judged(output, shaped, problem).where == ("y", (2, 1))


@pytest.mark.parametrize(("value", "where"), [(math.nan, 3), (math.inf, 3), (-math.inf, 3)])
def test_nan_and_infinity_are_wrong_where_the_reference_is_finite(value: float, where: int) -> None:
    problem, values = square(10)
    output = values[0] ** 2
    output[where] = value
    found = judged(output, values, problem)
    assert (found.ok, found.ratio, found.where) == (False, math.inf, ("y", (where,)))


def test_a_finite_number_is_wrong_where_the_reference_is_nan_or_infinite() -> None:
    problem, _ = square(3)
    x = torch.tensor([math.nan, math.inf, 1.0])
    assert judged(torch.tensor([math.nan, math.inf, 1.0]), (x,), problem).ok
    assert not judged(torch.tensor([0.0, math.inf, 1.0]), (x,), problem).ok
    assert not judged(torch.tensor([math.nan, -math.inf, 1.0]), (x,), problem).ok
    assert not judged(torch.tensor([math.nan, math.nan, 1.0]), (x,), problem).ok


def test_what_overflows_the_dtype_must_be_infinite() -> None:
    problem, _ = square(2, "float16")
    x = torch.tensor([1000.0, 1.0], dtype=torch.float16)
    assert judged(x * x, (x,), problem).ok
    assert not judged(torch.tensor([65504.0, 1.0], dtype=torch.float16), (x,), problem).ok


def test_an_error_within_the_tolerance_but_far_above_torchs_own_is_refused() -> None:
    problem, values = square(1000)
    reference = numerics.reference64(SQUARE, values)
    loose = Tolerance({"float32": 1e-2}, {"float32": 0.0}, SQUARE.tolerance.scale)
    op = replace(SQUARE, tolerance=loose)
    own = numerics.own_error(op, problem, values, reference)
    found = numerics.compare(op, problem, (values[0] ** 2) * 1.005, reference, own)
    assert found.ratio < 1
    assert not found.ok
    assert "twice the reference's own in float32" in found.message


def test_empty_and_zero_dimensional_outputs_are_compared() -> None:
    problem, _ = square(1)
    assert judged(torch.empty(0, 3), (torch.empty(0, 3),), problem).ok
    assert judged(torch.tensor(4.0), (torch.tensor(2.0),), problem).ok
    assert judged(torch.tensor(4.5), (torch.tensor(2.0),), problem).where == ("y", ())


def test_poison_leaves_nothing_that_an_output_should_hold() -> None:
    tensors = (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int32))
    poison(tensors)
    assert tensors[0].isnan().all()
    assert tensors[1].isnan().all()
    assert (tensors[2] == 2**31 - 1).all()


def faults(output: object, *values: torch.Tensor) -> list[str]:
    specs = {"y": TensorSpec.contiguous((2, 3), torch.float32)}
    return output_faults((output,), specs, values)  # type: ignore[arg-type]


def test_outputs_of_another_shape_dtype_or_stride_are_named() -> None:
    assert faults(torch.zeros(2, 3)) == []
    assert faults(torch.zeros(3, 2)) == ["y has shape (3, 2), expected (2, 3)"]
    assert faults(torch.zeros(3, 2).T) == ["y has strides (1, 2), expected (3, 1)"]
    assert faults(torch.zeros(2, 3).half()) == ["y is float16, expected float32"]
    assert faults(torch.zeros(2, 3, device="meta")) == ["y is on meta, expected cpu"]
    assert faults(None) == ["y is a NoneType, expected a plain torch.Tensor"]
    assert output_faults((), {"y": TensorSpec.contiguous((1,), torch.float32)}, ()) == [
        "0 outputs returned, expected 1"
    ]


def patched() -> torch.Tensor:
    y = torch.zeros(2, 3)
    y.isnan = lambda: torch.zeros(2, 3, dtype=torch.bool)  # type: ignore[method-assign]
    return y


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: torch.nn.Parameter(torch.zeros(2, 3)), "y is a Parameter, expected a plain torch.Tensor"),
        (fake, "y is a FakeTensor, expected a plain torch.Tensor"),
        (lambda: torch.zeros(2, 3).to_sparse(), "y has the layout torch.sparse_coo, expected a dense tensor"),
        (lambda: torch.zeros(2, 3).to_mkldnn(), "y has the layout torch._mkldnn, expected a dense tensor"),
        (lambda: torch._to_functional_tensor(torch.zeros(2, 3)), "y is no plain tensor: torch treats it as Func"),
        (lambda: torch._efficientzerotensor((2, 3)), "y is no plain tensor: torch treats it as ZeroTensor"),
        (lambda: torch.zeros(2, 3, dtype=torch.cfloat).conj().imag, "y is no plain tensor: torch treats it as Neg"),
        (lambda: torch.zeros(1, 3).expand(2, 3), "y has strides (0, 1), expected (3, 1)"),
        (patched, "y has an attribute isnan that hides torch.Tensor's"),
    ],
)
def test_an_output_that_is_no_plain_tensor_is_named(make: Callable[[], torch.Tensor], fault: str) -> None:
    (found,) = faults(make())
    assert found.startswith(fault)


def test_tensors_of_inference_mode_and_of_a_graph_are_plain() -> None:
    with torch.inference_mode():
        assert faults(torch.zeros(2, 3)) == []
    assert faults(torch.zeros(2, 3, requires_grad=True) * 2) == []


def test_an_output_in_an_arguments_memory_is_named() -> None:
    x = torch.zeros(4, 3)
    assert faults(x[1:3], x) == ["y shares memory with an argument"]
    assert faults(x[2:], x[:2]) == []


def test_two_outputs_in_the_same_memory_are_named() -> None:
    x = torch.zeros(4)
    specs = {name: TensorSpec.contiguous((2,), torch.float32) for name in ("a", "b")}
    assert output_faults((x[:2], x[1:3]), specs, ()) == ["b shares memory with another output"]
    assert output_faults((x[:2], x[2:]), specs, ()) == []


def test_own_error_is_the_references_rounding_in_the_arguments_dtype() -> None:
    problem = VECTOR_ADD.problem_of({"n": 1, "dtype": "bfloat16"})
    values = (torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([2.0**-10], dtype=torch.bfloat16))
    assert numerics.own_error(VECTOR_ADD, problem, values, numerics.reference64(VECTOR_ADD, values)) == (2.0**-10,)


@pytest.mark.parametrize(
    ("op", "dtype"),
    # products by packed weights scale their errors alike
    one_of_each(TAKEN, lambda op, dtype: "gemm" if op.name.startswith("gemm_") else op.name),
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize("places", [3, pytest.param(7, marks=pytest.mark.thorough)])
@pytest.mark.few(4)
def test_bounds_accept_what_the_rule_accepts_and_never_more(op: Op, dtype: str, places: int) -> None:
    problem = op.problem_of(next(example for example in op.examples if example["dtype"] == dtype))
    for kind in op.kinds:
        values = op.inputs(problem, kind, torch.Generator().manual_seed(7))
        reference = numerics.reference64(op, values)
        error = numerics.own_error(op, problem, values, reference)
        right = numerics.results_of(op, values)
        for output, bounds in enumerate(bounds_of(op, problem, values, reference, error)):
            # what an op compares itself may differ from the wide reference and still be right
            assert op.parsed.results[output] in op.compare or bounds.holding(right[output]), kind
            flat = right[output].reshape(-1)
            for place in range(0, flat.numel(), max(1, flat.numel() // places)):
                for factor in (0.0, 0.9, 0.99, 1.001, 1.01, -1.0, torch.nan, torch.inf):
                    other = right[output].clone()
                    other.view(-1)[place] = flat[place] * factor
                    if bounds.holding(other):
                        outputs = (*right[:output], other, *right[output + 1 :])
                        found = numerics.compare(op, problem, outputs, reference, error, values)
                        assert found.ok, (kind, place, factor)


@pytest.mark.parametrize(
    ("op", "dtype"), one_of_each(TAKEN, lambda op, dtype: op.name), ids=lambda value: getattr(value, "name", value)
)
@pytest.mark.few(20)
def test_what_needs_no_care_gets_the_same_bounds_and_error(op: Op, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = op.problem_of(next(example for example in op.examples if example["dtype"] == dtype))
    values = op.inputs(problem, op.kinds[0], torch.Generator().manual_seed(3))
    reference = numerics.reference64(op, values)

    def made() -> tuple[tuple[float, ...], tuple[Bounds, ...]]:
        error = numerics.own_error(op, problem, values, reference)
        return error, bounds_of(op, problem, values, reference, error)

    error, quick = made()
    for module in (numerics, bounds_module):
        monkeypatch.setattr(module, "magnitude", lambda _: math.inf)
    careful_error, careful = made()
    assert error == careful_error
    for one, other in zip(quick, careful, strict=True):
        assert torch.equal(one.low, other.low)
        assert torch.equal(one.high, other.high)
        assert not one.has_nan


def test_bounds_of_the_largest_numbers_do_not_reach_infinity() -> None:
    problem = SQUARE.problem_of({"n": 4, "dtype": "float16"})
    values = (torch.tensor([255.9, 255.93, 256.0, 1.0], dtype=torch.float16),)
    reference = numerics.reference64(SQUARE, values)
    (bounds,) = bounds_of(SQUARE, problem, values, reference, (1e3,))
    right = SQUARE.reference(*values)
    assert isinstance(right, torch.Tensor)
    assert right.isinf().tolist() == [False, False, True, False]
    assert bounds.holding(right)
    for place in range(2):
        wrong = right.clone()
        wrong[place] = math.inf
        assert not bounds.holding(wrong)
    wrong = right.clone()
    wrong[2] = 65504.0
    assert not bounds.holding(wrong)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_error_counts_only_where_both_are_finite(bad: float) -> None:
    problem, values = square(8)
    values[0][3] = bad
    reference = numerics.reference64(SQUARE, values)
    (error,) = numerics.own_error(SQUARE, problem, values, reference)
    assert 0 <= error < 1e-5
    (bounds,) = bounds_of(SQUARE, problem, values, reference, (error,))
    assert bounds.has_nan == math.isnan(bad)
    assert bounds.holding(values[0] * values[0])


EXACT = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""Dtypes whose results must equal the reference, that torch calculates in."""
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Those that torch only stores, converts and compares."""
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def never(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """A scale that must not be asked for."""
    raise AssertionError(f"scale of {reference.dtype}")


def giving(function: Callable[[torch.Tensor], torch.Tensor], **tolerance: Any) -> Op:
    """An op with one output, by that function, and square's tolerance but for these parts."""
    return replace(SQUARE, reference=function, fake=function, tolerance=replace(SQUARE.tolerance, **tolerance))


def rounded_to(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """Ten times x in a dtype; in float64 where the dtype is floating and x is float64."""
    return lambda x: (x * 10).to(x.dtype if dtype.is_floating_point and x.dtype == torch.float64 else dtype)


def verdict(op: Op, x: torch.Tensor, output: torch.Tensor) -> tuple[numerics.Comparison, bool]:
    """By ``compare``, and whether the bounds hold it."""
    problem = op.problem_of({"n": 10, "dtype": "float32"})
    reference = numerics.reference64(op, (x,))
    error = numerics.own_error(op, problem, (x,), reference)
    (bounds,) = bounds_of(op, problem, (x,), reference, error)
    return numerics.compare(op, problem, output, reference, error), bool(bounds.holding(output))


@pytest.mark.parametrize("dtype", [*EXACT, *UNSIGNED], ids=str)
@pytest.mark.parametrize("shape", [(60,), (3, 20), ()], ids=str)
def test_what_is_not_floating_must_be_equal(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    op = giving(rounded_to(dtype), scale=never)
    x = torch.rand(shape)
    right = (x * 10).to(dtype)
    found, held = verdict(op, x, right)
    assert found == numerics.Comparison(True, 0.0, 0.0, ("y", (0,) * len(shape)))
    assert held
    wide = right.to(torch.int64)
    wide.view(-1)[-1] = 1 - wide.view(-1)[-1].clamp(max=1)
    last = tuple(size - 1 for size in shape)
    found, held = verdict(op, x, wide.to(dtype))
    assert (found.ok, found.ratio, found.where, held) == (False, math.inf, ("y", last), False)
    assert "not allowed at all" in found.message


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64], ids=str)
def test_integers_that_float64_does_not_tell_apart_are_told_apart(dtype: torch.dtype) -> None:
    large = torch.arange(10) + 2**61
    op = giving(lambda x: large.to(dtype), scale=never)
    found, held = verdict(op, torch.rand(10), large.to(dtype))
    assert found.ok
    assert held
    wrong = large.clone()
    wrong[7] += 1
    found, held = verdict(op, torch.rand(10), wrong.to(dtype))
    assert found.message == f"y[7] is {2**61 + 8}, expected {2**61 + 7}: not allowed at all"
    assert not held


def test_bounds_of_what_is_not_floating_are_the_reference_once() -> None:
    x = torch.arange(10)
    op = giving(lambda x: x, scale=never)
    (bounds,) = bounds_of(op, op.problem_of({"n": 10, "dtype": "float32"}), (x,), x, (0.0,))
    assert torch.equal(bounds.low, x)
    assert (bounds.high is bounds.low, bounds.low.dtype, bounds.nbytes) == (True, torch.int64, x.nbytes)
    x += 1
    assert bounds.holding(x - 1)
    assert bounds.holding(torch.stack([x - 1, x - 1]))
    assert not bounds.holding(torch.stack([x - 1, x]))


def float8_op(dtype: torch.dtype) -> Op:
    name, unit = dtype_name(dtype), torch.finfo(dtype).eps / 2
    return giving(rounded_to(dtype), rtol={name: 1.1 * unit}, atol={name: 0.01})


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("shape", [(60,), (3, 20)], ids=str)
def test_float8_is_held_to_its_own_tolerance(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5
    right = (x * 10).to(dtype)
    found, held = verdict(float8_op(dtype), x, right)
    assert found.ok
    assert held
    for wrong in (1.25, -1.0, 0.0, math.nan):
        output = right.float()
        output.view(-1)[-1] *= wrong
        found, held = verdict(float8_op(dtype), x, output.to(dtype))
        assert (found.ok, found.where[1], held) == (False, tuple(size - 1 for size in shape), False)
    with pytest.raises(InvalidDefinitionError, match=f"has a result of {dtype_name(dtype)} but no tolerance for it"):
        verdict(giving(rounded_to(dtype)), x, right)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_where_float8_overflows_it_is_as_torch_rounds_it(dtype: torch.dtype) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 1e9, -1e9, 1.0])
    right = (x * 10).to(dtype)
    found, held = verdict(float8_op(dtype), x, right)
    assert (found.ok, held) == (True, True), found.message
    for place, value in ((0, 0.0), (1, 1.0), (3, 1.0), (3, -math.inf), (4, 0.0)):
        output = right.float()
        output[place] = value
        wrong = output.to(dtype)
        # e4m3fn has no infinity: torch 2.11 makes NaN of what is too large, as it does of infinity
        same = wrong.float().nan_to_num(nan=-1.0).equal(right.float().nan_to_num(nan=-1.0))
        found, held = verdict(float8_op(dtype), x, wrong)
        assert (found.ok, held) == (same, same), (place, value)


@pytest.mark.parametrize("value", [0.0, 0.003, 0.1, 0.33, 4.4, 44.0, 46.0, 47.0, 5700.0])
@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.few(4)
def test_float8_bounds_accept_what_the_rule_accepts_and_never_more(dtype: torch.dtype, value: float) -> None:
    op, every = float8_op(dtype), torch.arange(256, dtype=torch.uint8).view(dtype)
    problem = op.problem_of({"n": 10, "dtype": "float32"})
    x = torch.full((256,), value)
    reference = numerics.reference64(op, (x,))
    error = numerics.own_error(op, problem, (x,), reference)
    (bounds,) = bounds_of(op, problem, (x,), reference, error)
    for place in range(256):
        output = (x * 10).to(dtype)
        output[0] = every[place]
        right = numerics.compare(op, problem, output, reference, error).ok
        assert bounds.holding(output) <= right, every[place]


def test_a_complex_result_has_no_rule() -> None:
    op = giving(lambda x: torch.complex(x, x))
    for run in (lambda: numerics.reference64(op, (torch.rand(3),)), lambda: verdict(op, torch.rand(3), torch.rand(3))):
        with pytest.raises(
            InvalidDefinitionError, match=r"a result of complex128, y: there is no error rule"
        ) as raised:
            run()
        assert "view_as_real" in str(raised.value)


def test_a_reference_that_returns_too_much_is_named() -> None:
    op = giving(lambda x: (x, x))  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidDefinitionError, match=r"its reference returned 2 outputs \(.*\n  its schema names 1, y"):
        numerics.reference64(op, (torch.rand(3),))


def test_outputs_in_a_list_are_told_to_be_one() -> None:
    op = replace(giving(lambda x: x), schema="giving(Tensor x) -> (Tensor y, Tensor z)", name="giving")
    op = replace(op, reference=lambda x: [x, x])
    with pytest.raises(InvalidDefinitionError, match=r"returned 1 output \(.*\n.* 2, y, z: return them as a tuple"):
        numerics.reference64(op, (torch.rand(3),))
