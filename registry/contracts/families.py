"""Builders of contracts: elementwise ops, ops on rows, and matrix products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch

from ..arguments.schema import Parameter, Schema
from ..contract import Floor, Op, Outputs, Tolerance
from ..errors import InvalidArgumentError, InvalidDefinitionError, UnknownNameError
from ..problem import Arguments, Problem, TensorSpec, Value, dtype_name
from . import fills
from .checks import (
    AS_FIRST,
    ELEMENTS,
    FLOATS,
    float_dtype,
    float_tensor,
    gradient_of,
    positive,
    row_examples,
    same_dtype,
    shape_text,
)
from .rounding import fp32_weight, underflow, units

_KINDS = ("normal", "outliers", "spike_last", "constant")
_PRODUCTS = ((1, 64, 128), (3, 33, 257), (17, 128, 96), (65, 72, 512))


def elementwise_op(schema: str, reference: Callable[..., Outputs], *, flop: int, **more: Any) -> Op:
    """The contract of an op whose tensors all have one shape, with the dimensions n (elements) and dtype.

    ``flop`` is per element. Every attribute that ``choices`` names is a dimension. ``more`` as for ``rows_op``.
    """
    parsed = Schema.parse(schema)
    made = {
        "problem": partial(_elementwise_problem, _named(parsed, "Tensor")[-1], _named(parsed, "str")),
        "fake": replace(AS_FIRST, otherwise=reference),
        "static": frozenset({"dtype"}),
        "dynamic": frozenset({"n"}),
        "examples": ELEMENTS,
        "flop": lambda problem: flop * problem.n,
    }
    return _op(parsed, reference, dict.fromkeys(_tensors(parsed), ("n",)), {**made, **more})


def rows_op(
    schema: str, reference: Callable[..., Outputs], *, rows: Sequence[str] = ("x", "y"), flop: int = 4, **more: Any
) -> Op:
    """The contract of an op on rows of ``cols`` elements, with the dimensions rows, cols and dtype.

    ``rows`` names the arguments and outputs of shape [..., cols], an argument first; every other tensor is [cols].
    A ``Tensor?`` and a ``bool`` add a boolean dimension of their name, a ``str`` that ``choices`` names one of its
    values, an ``int`` that ``static`` or ``dynamic`` names an integer; other arguments are drawn with their defaults.
    ``flop`` is per element.
    ``more`` are further fields of ``Op``, which override these.
    """
    parsed = Schema.parse(schema)
    if not {*rows}.intersection(_named(parsed, "Tensor")):
        raise InvalidDefinitionError(
            f"op {parsed.name!r}: rows: no argument is named {' or '.join(rows) or 'there'}, so that none has rows",
            hint=f"say which have, e.g. rows=({_tensors(parsed)[0]!r}, {_tensors(parsed)[-1]!r})",
        )
    for name in rows:
        if name not in {"x", "y", *_tensors(parsed)}:  # ops of a family may share their ``rows``
            raise InvalidDefinitionError(
                f"op {parsed.name!r}: rows: {UnknownNameError('argument or output', name, _tensors(parsed))}"
            )
    shapes = {name: ("rows", "cols") if name in rows else ("cols",) for name in _tensors(parsed)}
    made = {
        "tolerance": Tolerance(units(float32=2.0, half=1.1), underflow(4), _row_scale),
        "static": frozenset({"cols", "dtype"}),
        "dynamic": frozenset({"rows"}),
        "examples": row_examples(),
        "flop": lambda problem: flop * problem.rows * problem.cols,
    }
    return _op(parsed, reference, shapes, {**made, **more})


def gemm_op(schema: str, reference: Callable[..., Outputs], **more: Any) -> Op:
    """The contract of a matrix product, with the dimensions m, n, k and dtype.

    The first tensor is [..., k], the second a weight [n, k], every other one [n], the first output [..., n]. Other
    arguments and ``more`` as for ``rows_op``.
    """
    parsed = Schema.parse(schema)
    if len(_named(parsed, "Tensor")) < 2 or not parsed.outputs:
        raise InvalidDefinitionError(
            f"op {parsed.name!r}: a matrix product takes x [m, k] and a weight [n, k], and returns y [m, n]",
            hint=f"write e.g. {parsed.name}(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor y",
        )
    first, weight, *others = _tensors(parsed)
    shapes = {first: ("m", "k"), weight: ("n", "k"), **dict.fromkeys(others, ("n",)), parsed.outputs[0]: ("m", "n")}
    made = {
        "tolerance": Tolerance(units(float32=2.0, half=1.5), underflow(), _product_scale),
        "static": frozenset({"n", "k", "dtype"}),
        "dynamic": frozenset({"m"}),
        "examples": tuple(
            {"m": m, "n": n, "k": k, "dtype": dtype_name(dtype)} for dtype in FLOATS for m, n, k in _PRODUCTS
        ),
        "flop": lambda problem: 2 * problem.m * problem.n * problem.k,
        "weights": frozenset({weight}),
    }
    return _op(parsed, reference, shapes, {**made, **more})


def _op(
    parsed: Schema, reference: Callable[..., Outputs], shapes: Mapping[str, tuple[str, ...]], given: dict[str, Any]
) -> Op:
    flags = [one.name for one in parsed.parameters if _is_flag(one)]
    flop = given.pop("flop")
    known = given["static"] | given["dynamic"]
    texts = [name for name in _named(parsed, "str") if name in given.get("choices", {})]
    integers = [name for name in _named(parsed, "int") if name in known]
    _check_given(parsed, shapes, given, {*flags, *texts, *integers, *_named(parsed, "Tensor")})
    given["choices"] = {**dict.fromkeys(flags, (True, False)), **given.get("choices", {})}
    given["examples"] = tuple(one for dims in given["examples"] for one in _with_choices(dims, given["choices"]))
    made: dict[str, Any] = {
        "version": 1,
        "problem": partial(
            _problem,
            {name: shapes[name] for name in _named(parsed, "Tensor")},
            (*flags, *texts, *integers),
            given["dynamic"],
        ),
        "inputs": partial(_inputs, parsed, shapes),
        "floor": lambda problem: Floor(_bytes(parsed, shapes, problem), flop(problem)),
        "kinds": _KINDS,
        "check": partial(_check, sorted(known.difference({"dtype"}, integers))),
    }
    return Op(parsed.name, parsed.text, reference=reference, **{**made, **given})


def _check_given(
    parsed: Schema, shapes: Mapping[str, tuple[str, ...]], given: Mapping[str, Any], drawn: Set[str]
) -> None:
    """Raise InvalidDefinitionError for arguments, or fields ``given``, of which a builder cannot make a contract.

    ``drawn`` names the arguments that a builder draws by a problem's dimensions, others by their defaults.
    """
    names = [one.name for one in fields(Op)]
    if unknown := [name for name in given if name not in names]:
        fault = UnknownNameError("field of Op", unknown[0], names)
        raise InvalidDefinitionError(f"op {parsed.name!r}: {fault.message}", hint=fault.hint)
    undrawn = [one.name for one in parsed.parameters if one.required and one.name not in drawn]
    if undrawn and "inputs" not in given:
        raise InvalidDefinitionError(
            f"op {parsed.name!r}: {undrawn[0]} has no default, and a builder draws other arguments by their defaults",
            hint=f"give {undrawn[0]} a default in the schema, or say inputs and problem yourself; a str may have its"
            f' values in choices={{"{undrawn[0]}": (...)}}',
        )
    if "problem" not in given and (unposed := [name for name in given.get("choices", {}) if name not in drawn]):
        raise InvalidDefinitionError(
            f"op {parsed.name!r}: choices: {unposed[0]} is no str or bool argument, by which a builder poses problems",
            hint="make it an argument of the schema, or say problem and inputs yourself",
        )
    sizes = {"dtype"}.union(*shapes.values())
    both = [one.name for one in parsed.parameters if one.name in sizes and (one.kind != "Tensor" or one.optional)]
    if both and not {"problem", "inputs"} <= given.keys():
        raise InvalidDefinitionError(
            f"op {parsed.name!r}: {both[0]} is an argument, and the name of a dimension that a builder makes",
            hint=f"give the argument another name than {', '.join(sorted(sizes))}",
        )


def _tensors(parsed: Schema) -> list[str]:
    return [*_named(parsed, "Tensor"), *parsed.outputs]


def _named(parsed: Schema, kind: str) -> tuple[str, ...]:
    """The names of the parameters of a kind."""
    return tuple(one.name for one in parsed.parameters if one.kind == kind)


def _with_choices(dims: Mapping[str, Value], choices: Mapping[str, tuple[Value, ...]]) -> list[Mapping[str, Value]]:
    """The dimensions in all combinations of values for the choices that they lack."""
    names = [name for name in choices if name not in dims]
    return [
        {**dims, **dict(zip(names, values, strict=True))}
        for values in itertools.product(*(choices[name] for name in names))
    ]


def _check(sizes: Sequence[str], problem: Problem) -> None:
    positive(problem, *sizes)
    float_dtype(problem)


def after_gradient(
    output: str, like: str, problem: Callable[[Arguments], Problem | Mapping[str, Value]]
) -> Callable[[Arguments], Problem | Mapping[str, Value]]:
    """``problem`` of a backward op, which first checks that ``grad_<output>`` has the shape and dtype of ``like``."""

    def checked(arguments: Arguments) -> Problem | Mapping[str, Value]:
        gradient_of(arguments, output, like)
        return problem(arguments)

    return checked


def _elementwise_problem(tensor: str, texts: Sequence[str], arguments: Arguments) -> dict[str, Value]:
    """The dimensions n and dtype, of the last tensor; in a backward op it was compared with the gradient before."""
    x = float_tensor(arguments, tensor)
    dims: dict[str, Value] = {"n": x.numel, "dtype": dtype_name(x.dtype)}
    for name in texts:
        dims[name] = arguments.text(name)
    return dims


def _problem(
    shapes: Mapping[str, tuple[str, ...]], others: Sequence[str], dynamic: Set[str], arguments: Arguments
) -> dict[str, Value]:
    """The dimensions by the tensors' ``shapes``, and those of ``others``, arguments: of a tensor, whether it is given.

    Several leading dimensions are multiplied to one that is ``dynamic``: a weight has no more than its own.
    """
    dims: dict[str, Value] = {}
    first: tuple[str, TensorSpec] | None = None
    for name, along in shapes.items():
        if arguments.optional_tensor(name) is None:
            continue
        spec = float_tensor(arguments, name)
        if first is None:
            first = name, spec
        elif spec.dtype is not first[1].dtype:
            same_dtype(arguments.op, first, (name, spec))
        shape = spec.shape
        if len(along) > 1 and along[0] in dynamic:
            shape = (math.prod(shape[: 1 - len(along)]), *shape[1 - len(along) :]) if shape else shape
        _add_sizes(dims, along, arguments.op, name, spec.shape, shape)
    if first is None:
        raise InvalidArgumentError(f"{arguments.op}: no tensor is given", hint=f"expected {', '.join(shapes)}")
    dims["dtype"] = dtype_name(first[1].dtype)
    for name in others:
        value = arguments[name]
        dims[name] = value if isinstance(value, bool | int | str) else value is not None
    return dims


def _add_sizes(
    dims: dict[str, Value],
    along: tuple[str, ...],
    op: str,
    name: str,
    given: tuple[int, ...],
    sizes: tuple[int, ...],
) -> None:
    """Add the sizes of a tensor of shape ``given`` to ``dims``. Raises InvalidArgumentError if they do not fit."""
    fits = bool(given) and len(sizes) == len(along)
    if not fits or [dims.get(each, size) for each, size in zip(along, sizes, strict=True)] != [*sizes]:
        shown = ", ".join(f"{each}={dims[each]}" if each in dims else each for each in along)
        raise InvalidArgumentError(f"{op}: {name} has shape {shape_text(given)}", hint=f"expected [{shown}]")
    dims.update(zip(along, sizes, strict=True))


def _is_flag(one: Parameter) -> bool:
    """True if the argument is a boolean dimension: an optional tensor, or a flag other than ``need_<input>``."""
    return _is_optional(one) or (one.kind == "bool" and not one.optional and not one.name.startswith("need_"))


def _is_optional(one: Parameter) -> bool:
    return one.kind == "Tensor" and one.optional


def _inputs(
    parsed: Schema, shapes: Mapping[str, tuple[str, ...]], problem: Problem, kind: str, generator: torch.Generator
) -> tuple[Any, ...]:
    drawn: list[Any] = []
    for place, one in enumerate(parsed.parameters):
        if one.kind != "Tensor":
            drawn.append(problem.dims.get(one.name, one.default))
        elif one.optional and not problem.dims[one.name]:
            drawn.append(None)
        else:
            shape = tuple(problem.dims[name] for name in shapes[one.name])
            drawn.append(_filled(shape, kind if place == 0 else "normal", problem.torch_dtype, generator))
    return tuple(drawn)


def _filled(shape: tuple[Any, ...], kind: str, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if kind == "constant":
        return fills.constant(shape, dtype, generator, 0.5)
    x = fills.normal(shape, dtype, generator)
    if kind == "outliers":
        fills.plant_outliers(x, 60.0, generator)
    elif kind == "spike_last":
        # the last column weighs 64 times as much as all the others together
        x[..., -1:] = 8.0 * math.sqrt(shape[-1])
    return x


def _bytes(parsed: Schema, shapes: Mapping[str, tuple[str, ...]], problem: Problem) -> int:
    """Bytes of the floor: every tensor that is given is read once, every result written once."""
    absent = {one.name for one in parsed.parameters if _is_optional(one) and not problem.dims[one.name]}
    moved = [*_tensors(parsed), *(one.name for one in parsed.parameters if one.mutated)]
    sizes = (math.prod(int(problem.dims[name]) for name in shapes[tensor]) for tensor in moved if tensor not in absent)
    return sum(sizes) * problem.torch_dtype.itemsize


def _row_scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output and, in fp32's roundings, to its row's root mean square."""
    rms = reference.square().mean(-1, keepdim=True).sqrt_()
    return reference.abs() + (reference.abs() + rms) * fp32_weight(problem) * (8 + math.sqrt(problem.cols))


def _product_scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output, and to its row's root mean square: a sum of terms that cancel."""
    rms = reference.square().mean(-1, keepdim=True).sqrt_()
    return reference.abs() + rms * (1 + fp32_weight(problem) * math.sqrt(problem.k))
