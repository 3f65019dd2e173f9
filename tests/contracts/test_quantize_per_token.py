"""Activations in int8 and float8: what a level and a scale are, which mutants are refused, and what is no call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from registry.contracts import QUANTIZE_PER_TOKEN
from registry.contracts.quantize_per_token import LARGEST, LEAST_SCALE, rounded
from registry.correctness.numerics import judged
from registry.errors import InvalidArgumentError
from registry.problem import Problem

Tensor = torch.Tensor
Computation = Callable[..., tuple[Tensor, Tensor]]
OUT = pytest.mark.parametrize("out_dtype", LARGEST)


def quantized(x: Tensor, out_dtype: str, group_size: int = 0, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    outputs = QUANTIZE_PER_TOKEN.reference(x, out_dtype, group_size, scale)
    assert isinstance(outputs, tuple)
    return outputs[0], outputs[1]


def verdicts(out_dtype: str, group_size: int, static: bool, compute: Computation) -> list[bool]:
    dims = {
        "m": 9,
        "k": 300,
        "group_size": group_size or 300,
        "out_dtype": out_dtype,
        "scale": static,
        "dtype": "bfloat16",
    }
    op = QUANTIZE_PER_TOKEN
    problem = op.problem_of(dims)
    found = []
    for kind in op.kinds:
        values = op.draw(problem, kind, torch.Generator().manual_seed(3))
        found.append(judged(op, problem, compute(*values), values).ok)
    return found


def levels_of(change: Callable[[Tensor], Tensor]) -> Computation:
    """The reference with its levels, as numbers, changed before they are stored."""

    def compute(x: Tensor, out_dtype: str, group_size: int, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        q, scales = quantized(x, out_dtype, group_size, scale)
        return change(q.float()).to(q.dtype), scales

    return compute


def times(factor: float) -> Computation:
    """As kernels do: fp32 products with one over the scale; and with a factor, which moves levels up or down."""

    def compute(x: Tensor, out_dtype: str, group_size: int, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        _, scales = quantized(x, out_dtype, group_size, scale)
        spread = (1 / scales).repeat_interleave(group_size or x.shape[-1], -1)[..., : x.shape[-1]]
        return rounded(x.float() * spread * factor, out_dtype), scales

    return compute


MUTANTS: Mapping[str, Computation] = {
    "all zeros": levels_of(torch.zeros_like),
    "last column left out": levels_of(lambda q: torch.cat([q[:, :-1], 0 * q[:, -1:]], 1)),
    "next row": levels_of(lambda q: q.roll(1, 0)),
    "greater by a tenth": levels_of(lambda q: q * 1.1),
    "towards zero": times(0.97),
    "scales of the next row": lambda *v: (quantized(*v)[0], quantized(*v)[1].roll(1, 0) * 1.0001),
    "halfway away from zero": times(1 + 2.0**-20),
    "halfway towards zero": times(1 - 2.0**-20),
}


@OUT
@pytest.mark.parametrize(("group_size", "static"), [(0, False), (128, False), (0, True)])
@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.few(12)
def test_a_mutant_is_refused_by_some_kind(out_dtype: str, group_size: int, static: bool, mutant: str) -> None:
    assert not all(verdicts(out_dtype, group_size, static, MUTANTS[mutant]))


@OUT
@pytest.mark.parametrize(("group_size", "static"), [(0, False), (128, False), (0, True)])
@pytest.mark.parametrize("compute", [quantized, times(1.0)], ids=("the reference", "by reciprocal"))
def test_right_levels_are_accepted(out_dtype: str, group_size: int, static: bool, compute: Computation) -> None:
    assert all(verdicts(out_dtype, group_size, static, compute))


@OUT
def test_a_row_of_zeros_has_levels_of_zero_and_no_nan(out_dtype: str) -> None:
    x = torch.randn(3, 64)
    x[1] = 0
    q, scales = quantized(x, out_dtype)
    assert scales.shape == (3, 1)
    assert scales[1].item() == LEAST_SCALE
    assert not q[1].float().any()


@OUT
def test_what_a_static_scale_does_not_reach_saturates(out_dtype: str) -> None:
    most = LARGEST[out_dtype]
    q, scales = quantized(torch.tensor([[-1e6, most + 40, -most, 1e30]]), out_dtype, 0, torch.ones(()))
    assert q.float().tolist() == [[-most, most, -most, most]]
    assert scales.tolist() == [1.0]


def test_half_a_level_goes_to_the_even_one() -> None:
    q, _ = quantized(torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, 127.0]]), "int8")
    assert q.tolist() == [[0, 2, 2, 0, -2, 127]]


@OUT
@pytest.mark.parametrize("group_size", [0, 32])
def test_levels_times_scales_are_the_tensor(out_dtype: str, group_size: int) -> None:
    x = torch.randn(5, 2, 100)
    q, scales = quantized(x, out_dtype, group_size)
    assert scales.shape == (5, 2, 4 if group_size else 1)
    spread = scales.repeat_interleave(group_size or 100, -1)[..., :100]
    error = (q.float() * spread - x).abs()
    allowed = 0.5 * spread if out_dtype == "int8" else (x.abs() * 2.0**-4).clamp_min(2.0**-10 * spread.max().item())
    assert bool((error <= 1.001 * allowed).all())


def posed(*args: Any, **attributes: Any) -> Problem:
    op = QUANTIZE_PER_TOKEN
    return op.pose(op.arguments(op.bind(args, attributes)))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.ones(2, 4), "int4"), "out_dtype must be one of int8, float8_e4m3fn, got 'int4'"),
        ((torch.ones(2, 4, dtype=torch.float64), "int8"), "x is float64, expected float32, float16 or bfloat16"),
        ((torch.ones(2, 0), "int8"), "x has shape 2x0"),
        ((torch.ones(2, 4), "int8", 100), "group_size=100"),
        ((torch.ones(2, 4), "int8", 128, torch.ones(1)), "group_size=128 beside a scale"),
        ((torch.ones(2, 4), "int8", 0, torch.ones(2)), "scale has shape 2"),
        ((torch.ones(2, 4), "int8", 0, torch.ones(1).half()), "scale is float16, expected float32"),
    ],
)
def test_what_is_no_call_is_refused(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        posed(*args)
