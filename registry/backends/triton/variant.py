"""The variant of a launch: which parameters are pointers, numbers or constants, and which are multiples of 16."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, KernelInterface

from ...artifact import Signature, Target, Variant
from ...author_code import at, where_defined
from ...errors import InvalidDefinitionError, MisnamedError
from ...fingerprint import fingerprint
from ...implementation import Launch
from ...problem import FULL_ALIGNMENT, TensorSpec, fits_int32
from ...source_files import sources_of
from ..launch_checks import argument_of

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter, on CPU tensors: decided once, by ``TRITON_INTERPRET`` at import."""

_POINTERS = {
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
}

# its default changes with Triton's version, and with it the results' last bits
_PINNED = {"enable_fp_fusion": True}


class Operand(NamedTuple):
    """The argument of one parameter of a kernel. ``kind`` is ``tensor``, ``attribute``, ``number`` or ``constant``.

    A tensor or attribute is value ``place`` of ``group`` (``outputs``, ``arguments``, ``scratch``) of a run. ``value``
    is the number or constant, ``type`` Triton's name of the type. ``aligned``: it is a multiple of 16. A number is
    argument ``argument`` of the launch.
    """

    parameter: str
    kind: str
    type: str
    group: str = ""
    place: int = 0
    value: Any = None
    aligned: bool = False
    argument: int = 0


def kernel_identity(kernel: Any) -> str:
    """``module:qualname`` of a kernel, by which another process finds it. Raises InvalidDefinitionError."""
    if not isinstance(kernel, KernelInterface) or not hasattr(kernel, "arg_names"):
        raise InvalidDefinitionError(
            f"{kernel!r:.80}{at(kernel)} is no Triton kernel", hint="put @triton.jit before it"
        )
    if hasattr(kernel, "configs") or hasattr(kernel, "values"):
        raise InvalidDefinitionError(
            f"kernel {_jit_name(kernel)} is wrapped by triton.autotune or triton.heuristics",
            hint="pass the @triton.jit function itself and list the parameters in space()",
        )
    function = kernel.fn
    if "<locals>" in function.__qualname__:
        raise InvalidDefinitionError(
            f"kernel {function.__qualname__} is defined inside a function{at(kernel)}",
            hint="define it at the top of a module, so that another process can find it",
        )
    return f"{function.__module__}:{function.__qualname__}"


def _jit_name(kernel: Any) -> str:
    """Name and place of the innermost ``@triton.jit`` function of a wrapped kernel."""
    while hasattr(kernel, "fn") and not isinstance(kernel, JITFunction):
        kernel = kernel.fn
    function = getattr(kernel, "fn", kernel)
    return f"{function.__qualname__} ({where_defined(function)})"


def find_kernel(identity: str) -> Any:
    """The kernel that ``identity`` names; imports its module when it is not loaded."""
    module, _, path = identity.partition(":")
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def operands(launch: Launch, signature: Signature) -> tuple[Operand, ...]:
    """One operand per parameter, in the kernel's order. Raises InvalidDefinitionError if the arguments do not fit."""
    kernel_identity(launch.kernel)
    names: list[str] = launch.kernel.arg_names
    free = [name for name in names if name not in launch.constants]
    for name in launch.constants:
        if name not in names:
            hint = MisnamedError("parameter", name, names).hint
            raise launch.fault(f"{_title(launch)} has no parameter {name}; it has {names}", hint)
    if missing := [name for name in constant_parameters(launch.kernel) if name in free]:
        hint = f"expected constants={{{missing[0]!r}: ...}} beside its arguments"
        raise launch.fault(f"{_title(launch)}: the launch gives no constant {', '.join(missing)}", hint)
    if len(free) != len(launch.args):
        raise launch.fault(
            f"{_title(launch)} takes {len(free)} arguments ({', '.join(free)}) beside its constants,"
            f" but the launch has {len(launch.args)}: {list(launch.args)}",
            "expected args=(...) with a name or a number for each of them, in this order",
        )
    places = {name: place for place, name in enumerate(free)}
    return tuple(
        Operand(name, "constant", "constexpr", value=launch.constants[name])
        if name in launch.constants
        else _operand(launch, name, places[name], signature)
        for name in names
    )


def _title(launch: Launch) -> str:
    return f"kernel {launch.kernel.fn.__qualname__}{at(launch.kernel)}"


def _operand(launch: Launch, parameter: str, number: int, signature: Signature) -> Operand:
    argument = launch.args[number]
    if not isinstance(argument, str):
        return _number(launch, Operand(parameter, "number", "", value=argument, argument=number))
    group, place, value = argument_of(launch, lambda: _title(launch), argument, signature)
    if value is None:
        return Operand(parameter, "constant", "constexpr", value=None)
    if isinstance(value, TensorSpec):
        if value.dtype not in _POINTERS:
            raise launch.fault(f"{_title(launch)}: {argument} has dtype {value.dtype}, which Triton has not")
        aligned = value.alignment >= FULL_ALIGNMENT and _is_specialised(launch, parameter)
        return Operand(parameter, "tensor", "*" + _POINTERS[value.dtype], group, place, aligned=aligned)
    attribute = _number(launch, Operand(parameter, "number", "", value=value))
    # an attribute is read from each call, so nothing may be assumed of its value
    return attribute._replace(kind="attribute", group=group, place=place, value=None, aligned=False)


def _number(launch: Launch, operand: Operand) -> Operand:
    value = operand.value
    if isinstance(value, bool):
        return operand._replace(type="u1")
    if isinstance(value, float):
        return operand._replace(type="fp32")
    if not isinstance(value, int):
        raise launch.fault(
            f"{_title(launch)}: {operand.parameter} is {value!r}", "an argument is a tensor's name or a number"
        )
    aligned = value % FULL_ALIGNMENT == 0 and _is_specialised(launch, operand.parameter)
    return operand._replace(type="i32" if fits_int32(value) else "i64", aligned=aligned)


def _is_specialised(launch: Launch, parameter: str) -> bool:
    return parameter in specialised_parameters(launch.kernel)


@lru_cache(maxsize=1024)
def constant_parameters(kernel: Any) -> tuple[str, ...]:
    """Parameters that a kernel declares as ``tl.constexpr``, in its order."""
    declared = getattr(kernel.fn, "__annotations__", {})
    return tuple(name for name in kernel.arg_names if declared.get(name) in {tl.constexpr, "tl.constexpr", "constexpr"})


@lru_cache(maxsize=1024)
def specialised_parameters(kernel: Any) -> frozenset[str]:
    """Parameters whose divisibility by 16 a kernel is compiled for; none for a kernel of the interpreter."""
    return frozenset(
        parameter.name
        for parameter in getattr(kernel, "params", None) or ()
        if not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment)
    )


def number_form(kernel: Any, parameter: str, value: Any) -> Hashable:
    """The key of a number for ``parameter``: all of it that a compiled kernel depends on."""
    if type(value) is not int:
        return type(value).__name__
    return fits_int32(value), value % FULL_ALIGNMENT == 0 and parameter in specialised_parameters(kernel)


def variant_of(launch: Launch, signature: Signature, target: Target) -> Variant:
    """The variant of a launch on arguments of a signature, for a target."""
    bound = operands(launch, signature)
    spec = {
        "signature": [[operand.parameter, operand.type] for operand in bound],
        "constants": {op.parameter: _encode(launch, op.value) for op in bound if op.kind == "constant"},
        "aligned": [operand.parameter for operand in bound if operand.aligned],
        "options": _options(launch, target),
    }
    return Variant("triton", kernel_identity(launch.kernel), spec, kernel_fingerprint(launch.kernel))


def _options(launch: Launch, target: Target) -> dict[str, Any]:
    """The launch's compiler options without constants: a launch may give its whole configuration as options."""
    known = _option_names(target)
    check_options(launch, known)
    return {**_PINNED, **{name: value for name, value in launch.options.items() if name in known}}


def check_options(launch: Launch, known: frozenset[str] | None = None) -> None:
    """Raise MisnamedError for a compiler option that is neither known nor a constant of the launch.

    Without ``known`` the options of all GPUs are known: so the interpreter, which needs none, refuses misspelt ones.
    """
    known = known or _option_names(Target("cuda", "sm_90")) | _option_names(Target("hip", "gfx942", 64))
    for name in launch.options:
        if name not in known and name not in launch.constants:
            raise MisnamedError("Triton option", name, known, f"in the Launch at {launch.place}")
    warps = launch.options.get("num_warps", 1)
    if not isinstance(warps, int) or warps < 1 or warps & (warps - 1):
        raise launch.fault(f"{_title(launch)}: num_warps is {warps!r}", "expected a power of two: 1, 2, 4, 8, 16 or 32")


@lru_cache(maxsize=16)
def _option_names(target: Target) -> frozenset[str]:
    return frozenset(make_backend(gpu_target(target)).parse_options(dict(_PINNED)).__dict__)


def _encode(launch: Launch, value: Any) -> Any:
    if isinstance(value, tl.dtype):
        return {"dtype": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise launch.fault(
        f"{_title(launch)}: constant {value!r}", "a constant is None, a bool, an int, a float, a str or a tl.dtype"
    )


def gpu_target(target: Target) -> GPUTarget:
    """``sm_90`` as Triton names it: capability 90; a gfx name stays as it is."""
    digits = target.architecture.removeprefix("sm_")
    return GPUTarget(target.backend, int(digits) if digits.isdigit() else target.architecture, target.warp_size)


def source_of(variant: Variant) -> ASTSource:
    """The source that ``triton.compile`` takes; equal for equal variants, whose second compile is a disk-cache hit."""
    kernel = find_kernel(variant.kernel)
    if not isinstance(kernel, JITFunction):
        raise InvalidDefinitionError(
            f"{variant.kernel} cannot be compiled: it was made for Triton's interpreter",
            hint="unset TRITON_INTERPRET to run on a GPU",
        )
    names = list(kernel.arg_names)
    constants = {
        (names.index(name),): tl.dtype(value["dtype"]) if isinstance(value, dict) else value
        for name, value in variant.spec["constants"].items()
    }
    attributes = {(names.index(name),): [["tt.divisibility", FULL_ALIGNMENT]] for name in variant.spec["aligned"]}
    return ASTSource(kernel, dict(variant.spec["signature"]), constants, attributes)


@lru_cache(maxsize=1024)
def kernel_fingerprint(kernel: Any) -> str:
    """Hash of the modules that a kernel is made of."""
    return fingerprint(sources_of(kernel.fn))
