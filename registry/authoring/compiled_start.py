"""An implementation file that begins with the Triton kernels that torch.compile writes for an op's reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..contract import Op
from ..errors import RegistryError
from ..problem import Problem, Value, dtype_name
from .inductor_module import WrittenLaunch, WrittenModule, WrittenTensor, read_module
from .inductor_source import written_by_inductor
from .kernel_rewriting import HELPERS, ReadableKernel, readable
from .rendering import rendered

_START_BYTES = 8 << 10
"""The most bytes that the first problem moves: Triton's interpreter checks it in seconds, and a row is more than a few
elements, which torch.compile would write out one by one."""


@dataclass
class _Start:
    """The parts of the file: kernels by name, launches as Python, scratch by name."""

    kernels: dict[str, ReadableKernel] = field(default_factory=dict)
    launches: list[str] = field(default_factory=list)
    scratch: dict[str, WrittenTensor] = field(default_factory=dict)


def start_from_compile(op: Op, problem: Problem, vendor: str) -> str:
    """The text of an implementation file ``vendor.compiled`` of ``op``, for one problem.

    Raises RegistryError for an op that torch.compile does not compute by Triton kernels alone.
    """
    values = _drawn(op, problem)
    names = [name for name, value in values.items() if isinstance(value, torch.Tensor)]
    # numbers that nothing else in a kernel is: where one stands, the argument stands
    floats = [name for name, value in values.items() if type(value) is float]
    marks = {name: 0.0312591734 + 0.0071346291 * number for number, name in enumerate(floats)}
    marked = {**values, **marks}

    def of_tensors(*given: torch.Tensor) -> Any:
        return op.reference(*{**marked, **dict(zip(names, given, strict=True))}.values())

    module = read_module(written_by_inductor(of_tensors, [values[name] for name in names]))
    start = _started(op, module, _tensor_names(op, module, names), {mark: name for name, mark in marks.items()})
    kernels = list(start.kernels.values())
    for name in floats:
        if not any(name in kernel.numbers for kernel in kernels):
            raise RegistryError(f"torch.compile computes with {name} of {op.name} what no argument of a kernel can be")
    known = {
        "op": op.name,
        "vendor": vendor,
        "dims": dict(problem.dims),
        "title": op.name.rpartition("::")[2].title().replace("_", ""),
        "kernels": [kernel.text for kernel in kernels],
        "helpers": [HELPERS[name].strip() for name in sorted({each for one in kernels for each in one.helpers})],
        "launches": start.launches,
        "space": _space(kernels),
        "scratch": {name: (each.shape, each.dtype) for name, each in start.scratch.items()},
    }
    return rendered("scaffold/compiled.py", known)


def _drawn(op: Op, problem: Problem) -> dict[str, Any]:
    """Arguments of a call by name. Raises RegistryError where kernels of torch.compile cannot take them."""
    if op.parsed.mutates:
        raise RegistryError(
            f"{op.name} writes into its arguments", hint="begin with `registry new plugin --backend torch`"
        )
    values = op.draw(problem, op.kinds[0], torch.Generator().manual_seed(0))
    dense = all(value.is_contiguous() for value in values if isinstance(value, torch.Tensor))
    if not dense or any(isinstance(value, list | tuple) for value in values):
        raise RegistryError(f"{op.name} takes lists of tensors, or tensors with gaps", hint="write it by hand")
    return dict(zip(op.parsed.names, values, strict=True))


def _tensor_names(op: Op, module: WrittenModule, names: Sequence[str]) -> dict[str, str]:
    """The op's names of the module's tensors: arguments, outputs, and ``scratch_0`` ... for what lies between."""
    outputs = op.parsed.outputs
    if len(module.inputs) != len(names) or len(module.outputs) != len(outputs):
        raise RegistryError(f"torch.compile gives {op.name} other arguments or outputs than its schema")
    found = dict(zip(module.inputs, names, strict=True))
    for written, name in zip(module.outputs, outputs, strict=True):
        if written in found:
            raise RegistryError(f"{op.name} returns an argument, or one tensor twice", hint="write it by hand")
        found[written] = name
    between = [name for name in module.tensors if name not in found]
    return found | {name: f"scratch_{number}" for number, name in enumerate(between)}


def _started(op: Op, module: WrittenModule, names: Mapping[str, str], numbers: Mapping[float, str]) -> _Start:
    start = _Start()
    for written, name in names.items():
        tensor = module.tensors.get(written)
        if name.startswith("scratch_") and tensor is not None:
            start.scratch[name] = tensor
    base = op.name.rpartition("::")[2]
    for launch in module.launches:
        number = len(start.kernels)
        name = f"{base}_kernel{f'_{number + 1}' if number else ''}"
        start.kernels[name] = kernel = _kernel(module, launch, name, names, numbers)
        start.launches.append(_launch_text(kernel, module, launch, names))
    return start


def _parameters(module: WrittenModule, launch: WrittenLaunch) -> list[str]:
    """The names of a kernel's arguments, as Inductor wrote them, without the constants."""
    function = module.kernels.get(launch.kernel)
    if function is None:
        raise RegistryError(f"torch.compile launches {launch.kernel}, which it did not write")
    found = [each.arg for each in function.args.args if each.annotation is None]
    if len(found) != len(launch.arguments):
        raise RegistryError(f"torch.compile launches {launch.kernel} with other arguments than it takes")
    return found


def _kernel(
    module: WrittenModule, launch: WrittenLaunch, name: str, names: Mapping[str, str], numbers: Mapping[float, str]
) -> ReadableKernel:
    given = zip(_parameters(module, launch), launch.arguments, strict=True)
    pointers = {parameter: names.get(each, each) for parameter, each in given if isinstance(each, str)}
    if len(set(pointers.values())) < len(pointers):
        raise RegistryError(f"{launch.kernel} takes one tensor twice", hint="write it by hand")
    return readable(module.kernels[launch.kernel], name, pointers, numbers)


def _launch_text(kernel: ReadableKernel, module: WrittenModule, launch: WrittenLaunch, names: Mapping[str, str]) -> str:
    """The launch as Python; programs share the rows or elements among them."""
    given = [repr(names.get(each, each)) if isinstance(each, str) else str(each) for each in launch.arguments]
    given += [repr(each) for each in kernel.numbers]
    size = dict(zip(_parameters(module, launch), launch.arguments, strict=True)).get("xnumel", 1)
    block = next((each for each in ("BLOCK", "ROWS") if each in kernel.blocks), "")
    grid = f"(-(-{size} // config[{block!r}]),)" if block else f"({size},)"
    constants = ", ".join(f"{each!r}: config[{each!r}]" for each in kernel.blocks)
    arguments = [
        f"{kernel.name},", f"grid={grid},", f"args=({', '.join(given)},),", f"constants={{{constants}}},",
        "options=options,",
    ]  # fmt: skip
    return "\n".join(["Launch(", *(" " * 16 + each for each in arguments), " " * 12 + ")"])


_DOMAINS: Mapping[str, tuple[int, ...]] = {
    "BLOCK": (1024, 256, 512, 2048),
    "ROWS": (1, 2, 4, 8),
    "COLS": (1024, 256, 512, 2048),
}


def _space(kernels: Sequence[ReadableKernel]) -> dict[str, tuple[int, ...]]:
    blocks = {block for kernel in kernels for block in kernel.blocks}
    return {name: domain for name, domain in _DOMAINS.items() if name in blocks} | {"num_warps": (4, 1, 2, 8)}


def problem_to_begin_with(op: Op, dims: Mapping[str, Value] | None) -> Problem:
    """The problem of the given dimensions; else the greatest of the op's small examples.

    It is one of float32, unless another dtype is given, or no example has it.
    """
    if dims:
        given = {"dtype": dtype_name(torch.float32)} if any("dtype" in each for each in op.examples) else {}
        return op.problem_of({**given, **dims})
    problems = [op.problem_of(each) for each in op.examples]
    plain = [one for one in problems if one.dims.get("dtype") == dtype_name(torch.float32)] or problems
    small = [one for one in plain if op.floor(one).bytes <= _START_BYTES]
    if small:
        return max(small, key=lambda one: op.floor(one).bytes)
    return min(plain, key=lambda one: op.floor(one).bytes)
