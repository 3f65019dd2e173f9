"""Products of float8 and int8 operands: what scales mean, mutants that some inputs refuse, and what is no call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import torch

import registry
from registry.contracts import SCALED_MM
from registry.correctness import numerics
from registry.errors import InvalidArgumentError
from registry.problem import Problem, Value

pytestmark = pytest.mark.usefixtures("without_cpp_kernels")

Tensor = torch.Tensor
Computation = Callable[..., Tensor]
DTYPES = {"float8_e4m3fn": torch.float8_e4m3fn, "int8": torch.int8}
KINDS = ("tensor", "row", "block")
PROBLEMS: tuple[Mapping[str, Value], ...] = tuple(
    {"m": m, "n": n, "k": k, "scales": scales, "bias": True, "out_dtype": out_dtype, "dtype": dtype}
    for dtype in DTYPES
    for m, n, k, scales, out_dtype in (
        (5, 40, 1000, "tensor", "float32"),
        (5, 40, 2048, "row", "bfloat16"),
        (5, 150, 1000, "block", "float16"),
    )
)


def scaled_mm(*values: Any) -> Tensor:
    y = SCALED_MM.reference(*values)
    assert isinstance(y, Tensor)
    return y


@cache
def case(place: int, kind: str) -> tuple[Problem, tuple[Any, ...], tuple[Tensor, ...], tuple[float, ...]]:
    problem = SCALED_MM.problem_of(PROBLEMS[place])
    values = SCALED_MM.draw(problem, kind, torch.Generator().manual_seed(3))
    reference = numerics.reference64(SCALED_MM, values)
    return problem, values, reference, numerics.own_error(SCALED_MM, problem, values, reference)


def verdicts(place: int, compute: Computation) -> dict[str, numerics.Comparison]:
    found = {}
    for kind in SCALED_MM.kinds:
        problem, values, reference, own = case(place, kind)
        found[kind] = numerics.compare(SCALED_MM, problem, compute(*values), reference, own, values)
    return found


def changed(**change: Callable[[Tensor], Tensor]) -> Computation:
    """The reference on arguments of which some are changed."""

    def compute(*values: Any) -> Tensor:
        named = dict(zip(SCALED_MM.parsed.names, values, strict=True))
        return scaled_mm(*{**named, **{name: new(named[name]) for name, new in change.items()}}.values())

    return compute


def without_last(levels: Tensor) -> Tensor:
    kept = levels.clone()
    kept.view(torch.uint8)[..., -1] = 0
    return kept


def wide(levels: Tensor, scales: Tensor, rows: int) -> Tensor:
    """Dequantised, in float32."""
    if scales.dim() < 2 or scales.shape[1] == 1:
        return levels.float() * scales
    spread = scales.repeat_interleave(128, 1)[:, : levels.shape[1]].repeat_interleave(rows, 0)
    return levels.float() * spread[: levels.shape[0]]


def stepwise(dtype: torch.dtype) -> Computation:
    """Sixteen products at a time, as a tensor core's k; the accumulator rounded to ``dtype`` in between."""

    def compute(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor, out_dtype: str) -> Tensor:
        left, right = wide(a, scale_a, 1), wide(b, scale_b, 128)
        total = torch.zeros(a.shape[0], b.shape[0])
        for one, other in zip(left.split(16, 1), right.split(16, 1), strict=True):
            total = (total + one @ other.T).to(dtype).float()
        return (total + bias).to(getattr(torch, out_dtype))

    return compute


def hopper(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor, out_dtype: str) -> Tensor:
    """As wgmma adds float8: 32 products and the sum cut to 13 bits below the largest; added in fp32 every 128 k's."""
    left, right = wide(a, scale_a, 1), wide(b, scale_b, 128)
    total = torch.zeros(a.shape[0], b.shape[0])
    for many, others in zip(left.split(128, 1), right.split(128, 1), strict=True):
        part = torch.zeros_like(total).unsqueeze(-1)
        for one, other in zip(many.split(32, 1), others.split(32, 1), strict=True):
            terms = torch.cat([part, one[:, None] * other[None]], -1)
            step = 2.0 ** (terms.abs().amax(-1, keepdim=True).clamp_min(1e-30).log2().floor() - 13)
            part = ((terms / step).trunc() * step).sum(-1, keepdim=True)
        total += part.squeeze(-1)
    return (total + bias).to(getattr(torch, out_dtype))


MUTANTS: Mapping[str, tuple[Computation, tuple[str, ...]]] = {
    "zeros": (lambda *values: torch.zeros_like(scaled_mm(*values)), KINDS),
    "last k left out": (changed(a=without_last), KINDS),
    "next row of a": (changed(a=lambda a: a.roll(1, 0)), KINDS),
    "next row's scale": (changed(scale_a=lambda scale: scale.roll(1, 0)), ("row", "block")),
    "next column's scale": (changed(scale_b=lambda scale: scale.roll(1, 0)), ("row", "block")),
    "next block's scale of a": (changed(scale_a=lambda scale: scale.roll(1, 1)), ("block",)),
    "next block's scale of b": (changed(scale_b=lambda scale: scale.roll(1, 1)), ("block",)),
    "one block's scale for all": (changed(scale_a=lambda scale: scale[:, :1].expand_as(scale)), ("block",)),
    "last block's scale left out": (
        changed(scale_a=lambda scale: torch.cat([scale[:, :-1], scale[:, -2:-1]], 1)),
        ("block",),
    ),
    "bias ignored": (changed(bias=torch.zeros_like), KINDS),
    "bias of the next column": (changed(bias=lambda bias: bias.roll(1)), KINDS),
    "summed in bfloat16": (stepwise(torch.bfloat16), KINDS),
    "summed in float16": (stepwise(torch.float16), ("int8",)),
}
CASES = [
    pytest.param(place, compute, id=f"{dims['dtype']}-{dims['scales']}-{name}")
    for place, dims in enumerate(PROBLEMS)
    for name, (compute, kinds) in MUTANTS.items()
    if dims["scales"] in kinds or dims["dtype"] in kinds
]


@pytest.mark.parametrize(("place", "compute"), CASES)
@pytest.mark.few(14)
def test_a_mutant_is_refused_by_some_kind(place: int, compute: Computation) -> None:
    assert not all(verdict.ok for verdict in verdicts(place, compute).values())


@pytest.mark.parametrize("compute", [scaled_mm, stepwise(torch.float32), hopper], ids=("reference", "fp32", "hopper"))
@pytest.mark.parametrize("place", range(len(PROBLEMS)))
@pytest.mark.few(6)
def test_right_sums_are_accepted_on_every_kind(place: int, compute: Computation) -> None:
    if PROBLEMS[place]["dtype"] == "int8" and compute is not scaled_mm:
        pytest.skip("sums of int8 are exact")
    refused = {kind: verdict.message for kind, verdict in verdicts(place, compute).items() if not verdict.ok}
    assert not refused


def test_sums_of_int8_are_exact() -> None:
    a, b = torch.full((2, 4096), 127, dtype=torch.int8), torch.full((3, 4096), -128, dtype=torch.int8)
    b[:, -1] = 1
    one = torch.ones(())
    y = registry.call("scaled_mm", a, b, one, one, out_dtype="float32")
    # one rounding, of an integer that float32 does not hold
    assert y.unique().tolist() == [float(torch.tensor(-4095 * 127 * 128 + 127, dtype=torch.int64).float())]


@pytest.mark.parametrize("out_dtype", DTYPES)
@pytest.mark.parametrize("scales", KINDS)
def test_what_quantize_per_token_makes_is_taken_as_it_is(out_dtype: str, scales: str) -> None:
    x, weight = torch.randn(2, 3, 300), torch.randn(200, 300)
    static = torch.tensor([4.5 / (127 if out_dtype == "int8" else 448)])
    more: dict[str, Any] = {"tensor": {"scale": static}, "row": {}, "block": {"group_size": 128}}[scales]
    a, scale_a = registry.call("quantize_per_token", x, out_dtype, **more)
    if scales == "block":
        b, scale_b = weight.to(DTYPES[out_dtype]), torch.ones(2, 3)
        weight = b.float()
    else:
        b, scale_b = registry.call("quantize_per_token", weight, out_dtype, **more)
    y = registry.call("scaled_mm", a, b, scale_a, scale_b, out_dtype="float32")
    expected = x @ weight.T
    assert y.shape == (2, 3, 200)
    assert (y - expected).norm() < 0.05 * expected.norm()


def posed(*args: Any, **attributes: Any) -> Problem:
    return SCALED_MM.pose(SCALED_MM.arguments(SCALED_MM.bind(args, attributes)))


A, B = torch.ones(2, 300, dtype=torch.int8), torch.ones(200, 300, dtype=torch.int8)
ONE = torch.ones(())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.ones(2, 4), B, ONE, ONE), r"a is float32, expected float8_e4m3fn or int8\n  .*quantize_per_token"),
        ((A, B.to(torch.float8_e4m3fn), ONE, ONE), r"a is int8 but b is float8_e4m3fn\n  quantise both"),
        ((A, B.T, ONE, ONE), r"a is 2x300 and b is 300x200\n  expected a of shape \[..., k\] and b of shape \[n, k\]"),
        ((A, B, ONE.half(), ONE), "scale_a is float16, expected float32"),
        ((A, B, torch.ones(2, 1), ONE), r"one a row of a and b, \[2, 1\] and \[200, 1\]"),
        ((A, B, torch.ones(2, 3), torch.ones(2, 2)), r"one a block of 128, \[2, 3\] and \[2, 3\]"),
        ((A, B, ONE, ONE, torch.ones(3)), r"bias is float32 of shape 3\n  expected bfloat16, as the output, of shape"),
        ((A, B, ONE, ONE, None, "int32"), "out_dtype must be one of bfloat16, float16, float32, got 'int32'"),
        ((A[:, :1].expand(2, 2**17), A[:, :1].expand(2, 2**17), ONE, ONE), "k=131072 products of int8 may not fit"),
    ],
)
def test_what_is_no_call_is_refused(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        posed(*args)


def test_one_scale_a_row_and_one_a_block_are_told_apart_where_they_look_alike() -> None:
    b = torch.ones(200, 100, dtype=torch.int8)
    assert posed(A[:, :100], b, torch.ones(2, 1), torch.ones(200, 1)).scales == "row"
    assert posed(A[:, :100], b, torch.ones(2, 1), torch.ones(2, 1)).scales == "block"
    assert posed(A[:, :100], b, torch.ones(1), ONE).scales == "tensor"
