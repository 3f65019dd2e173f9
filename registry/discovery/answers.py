"""The answers of an implementation to the host's questions, checked: a plugin's mistake is reported with its line."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable, Mapping
from inspect import CO_VARARGS, signature
from types import FunctionType, GeneratorType, MethodType
from typing import Any

from ..arguments.specs import TensorSpec, quick_spec
from ..author_code import at, at_method
from ..contract import Op
from ..device import Device
from ..errors import InvalidDefinitionError, RegistryError, UnsupportedError, WrongAnswerError
from ..implementation import Implementation, Run
from ..problem import Problem
from ..space import Config, Space

HOW_TO_IMPLEMENT = (
    "give an Implementation to registry.register(), or name a file that has one by --plugin"
    " (docs/writing-a-plugin.md shows how to write it); `registry plugins` lists what is loaded"
)

UNSAID = "unsupported() should have given a reason"
"""The remedy of an implementation that finds too late that it cannot run."""

_PLAIN = frozenset({GeneratorType, list, tuple})
"""Types that are known to be iterable: checking that takes two microseconds."""


def refusals(implementation: Implementation, problem: Problem, device: Device) -> tuple[str, ...]:
    """Every reason why an implementation cannot run a problem on a device; empty when it can.

    Raises WrongAnswerError when ``unsupported`` returns anything but an iterable of texts, and its own exceptions.
    """
    if device.type not in implementation.device_types:
        return (f"it runs on {', '.join(sorted(implementation.device_types))}, not on {device.type}",)
    if problem.traits["mixed"] and not implementation.mixed:
        return ("tensors differ in dtype that were alike when it was verified",)
    for name, values in problem.traits.added.items():
        value = problem.dims[name]
        if value in values and value not in implementation.added.get(name, ()):
            return (f"it does not say that it takes {name}={value}, which {implementation.op} got later",)
    given = implementation.unsupported(problem, device)
    if type(given) in _PLAIN or (isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)):
        reasons: tuple[Any, ...] | None = tuple(given)
    else:
        reasons = None
    if reasons == ():
        return reasons
    if reasons is None or not all(isinstance(reason, str) and reason.strip() for reason in reasons):
        shown = given if reasons is None else list(reasons)
        expected = "reasons: yield each as a text that is not empty, and nothing where it runs"
        raise _wrong(implementation, "unsupported", shown, expected)
    return reasons


def space_of(implementation: Implementation, problem: Problem, device: Device) -> Space:
    """The space of an implementation. Raises WrongAnswerError if it is no Space, and the exceptions of ``space``."""
    given: Any = implementation.space(problem, device)
    if not isinstance(given, Space):
        raise _wrong(implementation, "space", given, "a Space, e.g. Space(BLOCK=[128, 256])")
    return given


def checked_run(implementation: Implementation, run: Any) -> Run:
    """``run``, which ``bind`` returned. Raises WrongAnswerError unless it takes outputs, arguments and scratch."""
    if not callable(run):
        raise _wrong(implementation, "bind", run, "a function of (outputs, arguments, scratch)")
    function = run.__func__ if isinstance(run, MethodType) else run
    if isinstance(function, FunctionType) and not _takes(function, 4 if isinstance(run, MethodType) else 3):
        told = f"{implementation.name}: bind() returned {function.__name__}{signature(run)}"
        raise WrongAnswerError(f"{told}, expected a function of (outputs, arguments, scratch){at(function)}")
    return run  # type: ignore[no-any-return]


def scratch_specs(
    implementation: Implementation, problem: Problem, config: Config, device: Device
) -> dict[str, TensorSpec]:
    """Specs of the scratch tensors of an implementation, by name, on the device.

    Raises WrongAnswerError if ``scratch`` returns no mapping of names to specs, and the exceptions of ``scratch``.
    """
    given: Any = implementation.scratch(problem, config, device)
    if not given and type(given) is dict:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(spec, TensorSpec) for spec in given.values()):
        example = '{"partial": registry.TensorSpec.contiguous((problem.rows,), torch.float32)}'
        raise _wrong(implementation, "scratch", given, f"a mapping of names to specs, e.g. {example}")
    where = device.torch
    return {name: quick_spec(spec.shape, spec.dtype, spec.strides, where) for name, spec in given.items()}


def check_own_names(op: Op, implementation: Implementation, prepared: Iterable[str], scratch: Iterable[str]) -> None:
    """Raise WrongAnswerError if a prepared or a scratch tensor has the name of another operand of the op's kernels.

    A launch names arguments, outputs, prepared and scratch tensors alike, so that one of two would never be reached.
    """
    taken = dict.fromkeys(op.parsed.names, "an argument") | dict.fromkeys(op.parsed.outputs, "an output")
    for question, kind, names in (
        ("prepared", "a prepared tensor", prepared),
        ("scratch", "a scratch tensor", scratch),
    ):
        for name in names:
            if name in taken:
                place = at_method(implementation, question)
                told = f"{question}() names a tensor {name!r}, as {taken[name]} of {op.name} is named"
                raise WrongAnswerError(f"{implementation.name}: {told}: take another name{place}")
            taken[name] = kind


def _takes(function: FunctionType, count: int) -> bool:
    """Whether a function can be called with so many arguments by position, and none by name."""
    code = function.__code__
    fewest = code.co_argcount - len(function.__defaults__ or ())
    named = code.co_kwonlyargcount > len(function.__kwdefaults__ or {})
    return not named and fewest <= count and (count <= code.co_argcount or bool(code.co_flags & CO_VARARGS))


def default_config(implementation: Implementation, problem: Problem, device: Device) -> Config:
    """The default configuration of an implementation.

    Raises UnsupportedError when no configuration of its space is valid, WrongAnswerError when ``default`` returns no
    point of the space, and the exceptions of ``space`` and ``default``.
    """
    space = space_of(implementation, problem, device)
    try:
        given = implementation.default(problem, device)
    except Exception:
        _refuse_empty(implementation, space)
        raise
    return checked_default(implementation, space, given)


def checked_default(implementation: Implementation, space: Space, given: Any) -> Config:
    """``given`` if it is a point of the space. Raises as ``default_config``."""
    if not isinstance(given, Mapping):
        raise _wrong(implementation, "default", given, "a mapping of the space's parameters to values")
    if violations := space.violations(given):
        _refuse_empty(implementation, space)
        place = at_method(implementation, "default")
        told = f"its default is not in its space: {'; '.join(violations)}"
        raise WrongAnswerError(f"{implementation.name}: {told}{place}")
    return given


def _refuse_empty(implementation: Implementation, space: Space) -> None:
    """Raise UnsupportedError for a space without a valid configuration: no default can be right."""
    if space.is_empty:
        place = at_method(implementation, "space")
        raise UnsupportedError(f"{implementation.name}: {space.why_empty()}{place}; {UNSAID}")


def declared_preference(implementation: Implementation, problem: Problem, device: Device) -> float:
    """The declared preference of an implementation. Raises WrongAnswerError, and the exceptions of ``preference``."""
    given = implementation.preference(problem, device)
    if type(given) is float and -math.inf < given < math.inf:
        return given
    # a number of numpy or torch is accepted, too
    if isinstance(given, str | bytes) or not hasattr(given, "__float__") or not math.isfinite(given):
        raise _wrong(implementation, "preference", given, "a finite number")
    return float(given)


def no_implementation(op: Op) -> str:
    """The reason why an op that nobody implements is not tuned, its line, and how to add an implementation."""
    return f"nobody implements {op.name}{at(op.reference)}: {HOW_TO_IMPLEMENT}"


def fault_text(implementation: Implementation, question: str, fault: BaseException) -> str:
    """The exception of ``question``, a method of an implementation, as text with the line of its code.

    A fault that ``space`` raised is told as its own where ``default`` was asked; one of a Space names itself.
    """
    if isinstance(fault, WrongAnswerError | UnsupportedError):
        return fault.message
    if question == "default" and _went_through(fault, type(implementation).space):
        question = "space"
    place = at_method(implementation, question, fault)
    if isinstance(fault, InvalidDefinitionError):
        return f"{implementation.name}: {fault.message}{fault.hint and f' ({fault.hint})'}{place}"
    told = f"{fault.message}{fault.hint and f' ({fault.hint})'}" if isinstance(fault, RegistryError) else str(fault)
    return f"{implementation.name}: {question}() raised {type(fault).__name__}: {told}{place}"


def _went_through(fault: BaseException, function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return any(frame.f_code is code for frame, _ in traceback.walk_tb(fault.__traceback__))


def _wrong(implementation: Implementation, question: str, given: Any, expected: str) -> WrongAnswerError:
    place = at_method(implementation, question)
    return WrongAnswerError(f"{implementation.name}: {question}() returned {given!r:.80}, expected {expected}{place}")
