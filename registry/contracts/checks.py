"""Checks of arguments and dimensions that several ops share. Each raises InvalidArgumentError."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import torch

from ..contract import RowMajor
from ..errors import ArgumentTypeError, InvalidArgumentError, OutOfRangeError
from ..problem import Arguments, Problem, TensorSpec, Value, check_choice, check_positive, dtype_name
from ..tracing import refuse

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
WIDE = (*FLOATS, torch.float64)
"""Dtypes of most ops. float64 is for torch.autograd.gradcheck and the like; the box's kernels run the others."""
HALVES = (torch.float16, torch.bfloat16)

AS_FIRST = RowMajor(lambda first, *_: [(first.shape, first.dtype)])
"""The fake of one row-major output with the shape and dtype of the first tensor."""


def shape_text(shape: Iterable[int]) -> str:
    """``(4096, 128)`` -> ``"4096x128"``; a tensor without dimensions is ``"scalar"``."""
    return "x".join(map(str, shape)) or "scalar"


def float_tensor(arguments: Arguments, name: str, dtypes: tuple[torch.dtype, ...] = WIDE) -> TensorSpec:
    """The spec of tensor ``name``. Raises InvalidArgumentError if it is missing or has none of ``dtypes``."""
    given = arguments.unrecorded.get(name)
    spec = given if type(given) is TensorSpec else arguments.tensor(name)
    if spec.dtype not in dtypes:
        names = [dtype_name(dtype) for dtype in dtypes]
        raise InvalidArgumentError(
            f"{arguments.op}: {name} is {dtype_name(spec.dtype)}, expected {', '.join(names[:-1])} or {names[-1]}",
            hint=f"convert it, e.g. {name}.to(torch.{names[0]})",
        )
    return spec


def arguments_by_name(
    op: str, required: tuple[str, ...], optional: tuple[str, ...], args: tuple[Any, ...], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a user's call by name. Raises ArgumentTypeError for missing, repeated and unknown ones."""
    names = (*required, *optional)
    given = dict(zip(names, args, strict=False))
    if repeated := given.keys() & attributes.keys():
        refuse(f"{op}: {', '.join(sorted(repeated))} was given twice", kind=ArgumentTypeError)
    given |= attributes
    # torch.compile of torch 2.11 does not trace comparisons of sets
    if any(name not in given for name in required) or any(name not in names for name in given):
        got, more = ", ".join(given) or "no arguments", f", and perhaps {', '.join(optional)}" if optional else ""
        hint = f"expected {', '.join(required[:-1])} and {required[-1]}{more}"
        refuse(f"{op}: got {got}", hint=hint, kind=ArgumentTypeError)
    return given


def refuse_type(op: str, name: str, value: object, expected: str, hint: str) -> NoReturn:
    """Raise ArgumentTypeError for an argument of another type: ``w is a Tensor, expected a PackedWeight``."""
    refuse(f"{op}: {name} is a {type(value).__name__}, expected {expected}", hint=hint, kind=ArgumentTypeError)


def same_dtype(op: str, one: tuple[str, TensorSpec], other: tuple[str, TensorSpec], *, hint: str = "") -> None:
    """Raise InvalidArgumentError unless both tensors have one dtype: a mixed call would hide a conversion."""
    (name, spec), (other_name, other_spec) = one, other
    if spec.dtype != other_spec.dtype:
        raise InvalidArgumentError(
            f"{op}: {name} is {dtype_name(spec.dtype)} but {other_name} is {dtype_name(other_spec.dtype)}",
            hint=hint or f"convert one of them, e.g. {other_name}.to({name}.dtype)",
        )


def gradient_of(arguments: Arguments, output: str, like: str) -> None:
    """Raise InvalidArgumentError unless tensor ``grad_<output>`` has the shape and dtype of ``like``."""
    name = f"grad_{output}"
    gradient, spec = arguments.tensor(name), arguments.tensor(like)
    if gradient.shape != spec.shape:
        raise InvalidArgumentError(
            f"{arguments.op}: {name} is {shape_text(gradient.shape)} but {like} is {shape_text(spec.shape)}",
            hint=f"a gradient has the shape of what it is the gradient of; {name}.expand_as({like}) if it was reduced",
        )
    same_dtype(arguments.op, (like, spec), (name, gradient))


def normalised_dim(op: str, dim: int, spec: TensorSpec, name: str = "x") -> int:
    """``dim`` counted from the front."""
    rank = len(spec.shape)
    if not -rank <= dim < rank:
        check_dim(op, dim, rank, f" (shape {shape_text(spec.shape)})", name)
    return dim % (rank or 1)


def check_dim(op: str, dim: int, rank: int, shown: str = "", name: str = "x") -> None:
    """Raise InvalidArgumentError unless ``dim`` is one of ``rank`` dimensions, from either end; a scalar has one."""
    most = max(rank, 1)
    if not -most <= dim < most:
        refuse(f"{op}: dim={dim} but {name} has {rank} dimensions{shown}", hint=f"expected {-most} to {most - 1}")


def check_eps(op: str, eps: float) -> None:
    """Raise InvalidArgumentError unless ``eps`` is a finite number of at least 0."""
    # written so that NaN fails too
    if not 0.0 <= eps < math.inf:
        refuse(f"{op}: eps={eps}", hint="expected a finite number of at least 0, e.g. 1e-6")


def check_writable(op: str, name: str, spec: TensorSpec) -> None:
    """Raise InvalidArgumentError if several elements of a tensor that is written to share their memory."""
    if spec.is_expanded:
        raise InvalidArgumentError(
            f"{op}: {name} is expanded (shape {shape_text(spec.shape)}, strides {spec.strides}), and is written to",
            hint=f"give each element memory of its own: {name}.contiguous()",
        )


def index_tensor(arguments: Arguments, name: str) -> TensorSpec:
    """The spec of tensor ``name``. Raises InvalidArgumentError unless it is int64 or int32."""
    spec = arguments.tensor(name)
    if spec.dtype not in (torch.int64, torch.int32):
        raise InvalidArgumentError(
            f"{arguments.op}: {name} is {dtype_name(spec.dtype)}, expected int64 or int32",
            hint=f"convert it: {name}.to(torch.int64)",
        )
    return spec


def check_values(op: str, name: str, values: torch.Tensor, wrong: torch.Tensor, allowed: str, hint: str) -> None:
    """Raise OutOfRangeError with the first of ``values`` at which ``wrong`` is True. Waits for the device."""
    places = wrong.nonzero()
    if not places.shape[0]:
        return
    place = places[0].tolist()
    more = f", and {places.shape[0] - 1} more like it" if places.shape[0] > 1 else ""
    value = values[tuple(place)].item()
    element = f"{name}[{', '.join(map(str, place))}]" if place else name
    raise OutOfRangeError(f"{op}: {element} is {value}, expected {allowed}{more}", hint=hint)


def positive(problem: Problem, *names: str) -> None:
    """Raise InvalidArgumentError unless the named dimensions are integers of at least 1."""
    for name in names:
        check_positive(problem.op, name, problem.dims[name])


_SIZES = ((torch.float64, 1000), *((dtype, n) for dtype in FLOATS for n in (1, 7, 1000, 4096, 65_537)))
ELEMENTS: tuple[dict[str, Value], ...] = tuple({"n": n, "dtype": dtype_name(dtype)} for dtype, n in _SIZES)
"""Small problems with the dimensions n and dtype; one in float64."""


def row_examples() -> tuple[dict[str, Value], ...]:
    """Small problems with the dimensions rows, cols and dtype, most sizes odd; one in float64."""
    shapes = ((1, 1), (3, 7), (5, 128), (2, 1000), (33, 1025), (1, 4099))
    pairs = [(torch.float64, (3, 130)), *((dtype, shape) for dtype in FLOATS for shape in shapes)]
    return tuple({"rows": rows, "cols": cols, "dtype": dtype_name(dtype)} for dtype, (rows, cols) in pairs)


def float_dtype(problem: Problem, dtypes: tuple[torch.dtype, ...] = WIDE) -> None:
    """Raise InvalidArgumentError unless the dimension ``dtype`` names one of ``dtypes``."""
    check_choice(problem.op, "dtype", problem.dims["dtype"], [dtype_name(dtype) for dtype in dtypes])
