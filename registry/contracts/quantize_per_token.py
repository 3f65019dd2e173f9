"""quantize_per_token: activations in int8 or float8 with float32 scales, for the products of scaled_mm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..contract import Backward, Floor, Op, RowMajor, Tolerance
from ..errors import InvalidArgumentError
from ..problem import Arguments, Problem, TensorSpec, Value, check_choice, dtype_name
from . import fills
from .checks import FLOATS, float_dtype, float_tensor, positive, shape_text
from .rounding import FLOAT32_UNIT, underflow

LARGEST: Mapping[str, float] = {"int8": 127.0, "float8_e4m3fn": 448.0}
"""The greatest level of each dtype; -128 is not used, so that int8 is symmetric."""
LEAST_SCALE = 2.0**-126
"""float32's least normal number: the scale of a row of zeros, whose levels are 0."""
GROUP_SIZES = (0, 16, 32, 64, 128, 256, 512, 1024)
KINDS = ("normal", "outliers", "spike_last", "groups", "ties")

_CHUNK = 2**22
"""Elements compared at a time."""


def quantize_per_token_reference(
    x: torch.Tensor, out_dtype: str, group_size: int = 0, scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Levels ``q`` [..., k] and ``scales``, with x about ``q * scales``: one scale per row [..., 1]; with a
    ``group_size`` one per group of a row [..., ceil(k / group_size)]; with a ``scale`` a copy of it [1].

    A row's scale is its largest magnitude over 448 (float8_e4m3fn) or 127 (int8), at least 2**-126. ``x / scale`` is
    clamped to these levels, so that a static scale saturates, and rounded to the nearest level, halfway to the even
    one. A NaN makes the scale of its row or group NaN; a level that is no number is NaN in float8, 0 in int8.
    """
    most = LARGEST[out_dtype]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if scale is not None:
        scales = scale.to(wide.dtype, copy=True).reshape(1)
        quotient = wide / scales
    else:
        size = group_size or x.shape[-1]
        padded = torch.nn.functional.pad(wide, (0, -x.shape[-1] % size)).unflatten(-1, (-1, size))
        grouped = (padded.abs().amax(-1, keepdim=True) / most).clamp_min(LEAST_SCALE)
        quotient = (padded / grouped).flatten(-2)[..., : x.shape[-1]]
        scales = grouped.squeeze(-1)
    return rounded(quotient, out_dtype).contiguous(), scales.contiguous()


def rounded(quotient: torch.Tensor, out_dtype: str) -> torch.Tensor:
    """The nearest level of each number; those beyond the levels saturate."""
    most = LARGEST[out_dtype]
    clamped = quotient.clamp(-most, most)
    if out_dtype == "int8":
        return clamped.round().nan_to_num(0.0).to(torch.int8)
    return clamped.to(torch.float8_e4m3fn)


def _outputs(x: Any, out_dtype: str, group_size: int = 0, scale: Any = None) -> list[tuple[Any, torch.dtype]]:
    k = x.shape[-1]
    per_row = -(-k // group_size) if group_size else 1
    scales = (*x.shape[:-1], per_row) if scale is None else (1,)
    return [(x.shape, getattr(torch, out_dtype)), (scales, torch.float32)]


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    x, scale = float_tensor(arguments, "x", FLOATS), arguments.optional_tensor("scale")
    group_size, out_dtype = arguments.integer("group_size"), arguments.text("out_dtype")
    check_choice(arguments.op, "out_dtype", out_dtype, tuple(LARGEST))
    if not x.shape or not x.shape[-1]:
        raise InvalidArgumentError(
            f"{arguments.op}: x has shape {shape_text(x.shape)}", hint="expected [..., k] with at least one column"
        )
    _check_group_size(arguments.op, group_size, scale is not None)
    if scale is not None:
        _check_scale(arguments.op, scale)
    return {
        "m": math.prod(x.shape[:-1]),
        "k": x.shape[-1],
        # one scale per row, whether or not a group size says so
        "group_size": group_size if 0 < group_size < x.shape[-1] else x.shape[-1],
        "out_dtype": out_dtype,
        "scale": scale is not None,
        "dtype": dtype_name(x.dtype),
    }


def _check_scale(op: str, scale: TensorSpec) -> None:
    if scale.numel != 1 or len(scale.shape) > 1:
        raise InvalidArgumentError(
            f"{op}: scale has shape {shape_text(scale.shape)}",
            hint="a static scale is one number for the whole tensor: [] or [1]; leave it out for one scale a row",
        )
    if scale.dtype != torch.float32:
        raise InvalidArgumentError(
            f"{op}: scale is {dtype_name(scale.dtype)}, expected float32", hint="convert it: scale.float()"
        )


def _check_group_size(op: str, group_size: int, static: bool) -> None:
    if group_size not in GROUP_SIZES:
        raise InvalidArgumentError(
            f"{op}: group_size={group_size}", hint="expected 0 (one scale a row), or a power of two from 16 to 1024"
        )
    if group_size and static:
        raise InvalidArgumentError(
            f"{op}: group_size={group_size} beside a scale", hint="a static scale is one number for the whole tensor"
        )


def _check(problem: Problem) -> None:
    positive(problem, "m", "k")
    float_dtype(problem, FLOATS)
    if problem.group_size != problem.k:
        _check_group_size(problem.op, int(problem.group_size), bool(problem.scale))
        if problem.group_size > problem.k:
            raise InvalidArgumentError(
                f"{problem.op}: group_size={problem.group_size} but k={problem.k}",
                hint=f"expected {problem.k}: one scale a row",
            )


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    x = fills.normal((problem.m, problem.k), problem.torch_dtype, generator)
    most, size = LARGEST[problem.out_dtype], problem.group_size
    group = torch.arange(problem.k, device=x.device) // size
    # the largest activations exceed the range of a static scale
    scale = 3.0 / most
    if kind == "outliers":
        fills.plant_outliers(x, 300.0, generator)
    elif kind == "spike_last":
        x[:, -1:] = 60.0
    elif kind == "groups":
        # factors 1, 4, 16 in turn along k: a neighbour's scale is wrong by at least a factor of 4
        x *= (4.0 ** (group % 3)).to(x.dtype)
        fills.plant_in_rows(x, (torch.nan,), generator)
    elif kind == "ties":
        x, scale = _ties(problem, generator), 1.0
        # the last of each group has its greatest level, so that its scale is 1
        x[:, (torch.arange(problem.k, device=x.device) % size == size - 1)] = most
        x[:, -1:] = most
        # one row of zeros
        x[1:2] = 0.0
    given = torch.full((1,), scale, device=x.device) if problem.scale else None
    return x, problem.out_dtype, 0 if size == problem.k else size, given


def _ties(problem: Problem, generator: torch.Generator) -> torch.Tensor:
    """Numbers, about half of them halfway between two levels, at a scale of 1."""
    shape, device = (problem.m, problem.k), generator.device
    sign = torch.randint(2, shape, device=device, generator=generator) * 2 - 1
    if problem.out_dtype == "int8":
        drawn = torch.randint(0, 254, shape, device=device, generator=generator) * 0.5
    else:  # five significant bits, of which float8 keeps four
        exponent = torch.randint(-4, 4, shape, device=device, generator=generator)
        drawn = torch.randint(16, 32, shape, device=device, generator=generator) * 2.0**exponent
    return (drawn * sign).to(problem.torch_dtype)


def wrong_levels(
    problem: Problem, values: Mapping[str, Any], results: Mapping[str, torch.Tensor], _: Mapping[str, torch.Tensor]
) -> Iterator[str]:
    """A fault if a level is not the nearest one to ``x / scales``, by the call's own scales.

    fp32 may round the quotient across the middle of two levels; where a scale is a power of two it is exact, and the
    level must be the reference's.
    """
    k, size = problem.k, problem.group_size
    x, q, scales = values["x"].reshape(-1, k), results["q"].reshape(-1, k), results["scales"]
    spread = scales.reshape(1, 1) if problem.scale else scales.reshape(x.shape[0], -1)
    step = max(1, _CHUNK // k)
    for first in range(0, x.shape[0], step):
        rows = slice(first, first + step)
        scale = spread if problem.scale else spread[rows].repeat_interleave(size, -1)[:, :k]
        wrong = _not_nearest(x[rows].double() / scale.double(), scale, q[rows], problem.out_dtype)
        if bool(wrong.any()):
            row, col = wrong.nonzero()[0].tolist()
            quotient = (x[first + row, col].double() / scale.expand(wrong.shape)[row, col].double()).item()
            yield f"q[{first + row}, {col}] is {q[first + row, col].item()}, the level next to {quotient:.9g} expected"
            return


def _not_nearest(quotient: torch.Tensor, scale: torch.Tensor, q: torch.Tensor, out_dtype: str) -> torch.Tensor:
    most, level = LARGEST[out_dtype], q.float().double()
    exact = torch.frexp(scale).mantissa == 0.5
    expected = rounded(quotient.float(), out_dtype).float().double()
    clamped = quotient.clamp(-most, most)
    if out_dtype == "int8":
        half = torch.full_like(clamped, 0.5)
    else:  # three bits of mantissa, and subnormals below 2**-6
        half = 2.0 ** (torch.frexp(clamped).exponent.clamp_min(-5) - 5).double()
    near = (level - clamped).abs() <= half + 4 * FLOAT32_UNIT * clamped.abs()
    same = (level == expected) | (level.isnan() & expected.isnan())
    return ~torch.where(exact | quotient.isnan(), same, near)


def _floor(problem: Problem) -> Floor:
    m, k = problem.m, problem.k
    scales = 1 if problem.scale else m * -(-k // problem.group_size)
    return Floor(bytes=m * k * (problem.torch_dtype.itemsize + 1) + 4 * scales, flop=3 * m * k)


def _examples() -> tuple[dict[str, Value], ...]:
    shapes = (
        (1, 64, 64, False),
        (3, 257, 257, False),
        (7, 300, 128, False),
        (5, 1000, 1000, True),
        (33, 96, 32, False),
    )
    return tuple(
        {"m": m, "k": k, "group_size": size, "scale": static, "out_dtype": out_dtype, "dtype": dtype_name(dtype)}
        for step, out_dtype in enumerate(LARGEST)
        for place, (m, k, size, static) in enumerate(shapes)
        for dtype in (FLOATS[(place + step) % 3],)
    )


QUANTIZE_PER_TOKEN = Op(
    name="quantize_per_token",
    schema=(
        "quantize_per_token(Tensor x, str out_dtype, int group_size=0, Tensor? scale=None) -> (Tensor q, Tensor scales)"
    ),
    version=1,
    reference=quantize_per_token_reference,
    fake=RowMajor(_outputs),
    problem=_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(
        # one rounding of the quotient, two more where it is a product with a reciprocal
        rtol={"float32": 3 * FLOAT32_UNIT},
        atol={"float32": underflow()["float32"]},
        scale=lambda _, reference: reference.abs(),
    ),
    compare={"q": wrong_levels},
    static=frozenset({"k", "group_size", "dtype"}),
    dynamic=frozenset({"m"}),
    choices={"out_dtype": tuple(LARGEST), "scale": (False, True)},
    kinds=KINDS,
    examples=_examples(),
    check=_check,
    backward=Backward.none(),
    weights=frozenset({"scale"}),
)
