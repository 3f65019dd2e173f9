"""The contract of an op from a plain torch function and example inputs: a file to begin with."""

from __future__ import annotations

import ast
import inspect
import itertools
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..contract import as_tuple
from ..discovery.loading import import_file
from ..errors import RegistryError
from ..problem import dtype_name
from .naming import split_op
from .rendering import rendered

INPUTS = "inputs"
"""The function of the author's file that returns example arguments."""

_NUMBERS = {bool: "bool", int: "int", float: "float"}


@dataclass(frozen=True)
class ExampleArgument:
    """An argument of the function: its name, the names of its dimensions or its value, and its dtype's text.

    ``dtype`` is "" for the dtype that the problem names; ``high`` bounds the numbers of an integer tensor.
    """

    name: str
    dims: tuple[str, ...] = ()
    dtype: str = ""
    high: int = 0
    value: bool | int | float | None = None

    @property
    def is_tensor(self) -> bool:
        return self.value is None


def op_from_reference(file: Path, name: str) -> str:
    """The text of a file that defines the op ``vendor::name`` by the function ``name`` of an author's ``file``.

    The file holds that function, which takes and returns tensors and numbers, and ``inputs()``, which returns example
    arguments. Extents of the example that are equal are one dimension. Raises RegistryError.
    """
    vendor, module = split_op(name)
    try:
        source = file.read_text(encoding="utf-8")
        loaded = import_file(file.resolve())
    except Exception as fault:
        raise RegistryError(f"{file}: {type(fault).__name__}: {fault}", hint="expected a Python file") from fault
    function, inputs = (_function(loaded, each, file) for each in (module, INPUTS))
    values = _with_defaults(function, inputs, file)
    arguments, extents = _arguments(function, values, file)
    outputs = _outputs(function, values, arguments)
    first = next(each for each in arguments if each.is_tensor and not each.dtype)
    example = {**extents, "dtype": dtype_name(values[arguments.index(first)].dtype)}
    return rendered(
        "scaffold/reference.py",
        {
            "op": name, "vendor": vendor, "module": module, "source": _without_inputs(source), "arguments": arguments,
            "first": first, "dims": list(extents), "example": example, "examples": _examples(example),
            "schema": _schema(name, arguments, outputs), "outputs": outputs,
        },
    )  # fmt: skip


def _function(loaded: object, name: str, file: Path) -> Callable[..., Any]:
    found = getattr(loaded, name, None)
    if not callable(found):
        raise RegistryError(f"{file}: there is no function {name}", hint=f"expected `def {name}(...)`")
    function: Callable[..., Any] = found
    return function


def _with_defaults(function: Callable[..., Any], inputs: Callable[[], Any], file: Path) -> tuple[Any, ...]:
    """The example arguments that ``inputs`` returns, and the function's defaults for those that it leaves out."""
    try:
        values = as_tuple(inputs())
    except Exception as fault:
        raise RegistryError(f"{file}: {INPUTS}(): {type(fault).__name__}: {fault}") from fault
    parameters = list(inspect.signature(function).parameters.values())
    odd = [str(one) for one in parameters if one.kind not in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD}]
    if odd:
        raise RegistryError(
            f"{file}: {function.__name__} takes {', '.join(odd)}", hint="an op's arguments are taken by their places"
        )
    left = parameters[len(values) :]
    if len(values) > len(parameters) or any(one.default is one.empty for one in left):
        raise RegistryError(
            f"{file}: {INPUTS}() returns {len(values)} values, the function takes {len(parameters)}",
            hint=f"expected one value for each of {', '.join(one.name for one in parameters)}, in this order",
        )
    return (*values, *(one.default for one in left))


def _arguments(
    function: Callable[..., Any], values: Sequence[Any], file: Path
) -> tuple[list[ExampleArgument], dict[str, int]]:
    """The arguments, and the extents of the example by dimension: equal ones are one dimension."""
    names = list(inspect.signature(function).parameters)
    letters = itertools.chain(
        string.ascii_lowercase[string.ascii_lowercase.index("m") :], map("d{}".format, itertools.count())
    )
    dims: dict[int, str] = {}
    floating = [value.dtype for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]
    if not floating:
        raise RegistryError(f"{file}: {INPUTS}() returns no floating tensor", hint="the dtype of one is the problem's")
    found = []
    for name, value in zip(names, values, strict=True):
        if isinstance(value, torch.Tensor):
            for size in value.shape:
                if size not in dims:
                    dims[size] = next(letters)
            dtype = "" if value.dtype == floating[0] else f"torch.{dtype_name(value.dtype)}"
            high = 0 if value.is_floating_point() else int(value.max()) + 1 if value.numel() else 1
            found.append(ExampleArgument(name, tuple(dims[size] for size in value.shape), dtype, high))
        elif type(value) in _NUMBERS:
            found.append(ExampleArgument(name, value=value))
        else:
            raise RegistryError(f"{file}: {name} is {value!r:.60}", hint="expected a tensor, a bool, an int or a float")
    return found, {name: size for size, name in dims.items()}


def _outputs(
    function: Callable[..., Any], values: Sequence[Any], arguments: Sequence[ExampleArgument]
) -> tuple[str, ...]:
    try:
        returned = as_tuple(function(*values))
    except Exception as fault:
        raise RegistryError(f"{function.__name__} of its example inputs: {type(fault).__name__}: {fault}") from fault
    if not returned or not all(isinstance(each, torch.Tensor) for each in returned):
        told = ", ".join(type(each).__name__ for each in returned)
        raise RegistryError(f"{function.__name__} returns {told or 'nothing'}", hint="expected tensors")
    taken = {each.name for each in arguments}
    wanted = ["y"] if len(returned) == 1 else [f"y{number}" for number in range(len(returned))]
    return tuple(name if name not in taken else f"{name}_out" for name in wanted)


def _examples(example: dict[str, Any]) -> list[dict[str, Any]]:
    """The example, and one of half precision."""
    return [example, {**example, "dtype": "bfloat16"}] if example["dtype"] != "bfloat16" else [example]


def _schema(name: str, arguments: Sequence[ExampleArgument], outputs: Sequence[str]) -> str:
    told = [
        f"Tensor {each.name}" if each.is_tensor else f"{_NUMBERS[type(each.value)]} {each.name}={each.value}"
        for each in arguments
    ]
    returned = ", ".join(f"Tensor {output}" for output in outputs)
    return f"{name}({', '.join(told)}) -> {returned if len(outputs) == 1 else f'({returned})'}"


def _without_inputs(source: str) -> str:
    """The author's file without ``inputs``, its docstring and its imports from the future."""
    lines, gone = source.splitlines(), set[int]()
    for place, node in enumerate(ast.parse(source).body):
        is_text = place == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_inputs = isinstance(node, ast.FunctionDef) and node.name == INPUTS
        is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        is_torch = isinstance(node, ast.Import) and [each.name for each in node.names] == ["torch"]
        if is_text or is_inputs or is_future or is_torch:
            gone |= set(range(node.lineno - 1, node.end_lineno or node.lineno))
    return "\n".join(line for number, line in enumerate(lines) if number not in gone).strip()
