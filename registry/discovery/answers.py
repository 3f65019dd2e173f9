"""The answers of an implementation to the host's questions, checked: a plugin's mistake is reported with its line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import GeneratorType
from typing import Any

from ..author_code import at, at_method
from ..contract import Op
from ..device import Device
from ..errors import UnsupportedError, WrongAnswerError
from ..implementation import Implementation
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
    given = implementation.unsupported(problem, device)
    if type(given) in _PLAIN or (isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)):
        reasons: tuple[Any, ...] | None = tuple(given)
    else:
        reasons = None
    if reasons == ():
        return reasons
    if reasons is None or not all(isinstance(reason, str) for reason in reasons):
        shown = given if reasons is None else list(reasons)
        raise _wrong(implementation, "unsupported", shown, "reasons: yield each as a text, and nothing where it runs")
    return reasons


def default_config(implementation: Implementation, problem: Problem, device: Device) -> Config:
    """The default configuration of an implementation.

    Raises UnsupportedError when no configuration of its space is valid, WrongAnswerError when ``default`` returns no
    point of the space, and the exceptions of ``space`` and ``default``.
    """
    space = implementation.space(problem, device)
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
    """The exception of ``question``, a method of an implementation, as text with the line of its code."""
    if isinstance(fault, WrongAnswerError | UnsupportedError):
        return fault.message
    place = at_method(implementation, question, fault)
    return f"{implementation.name}: {question}() raised {type(fault).__name__}: {fault}{place}"


def _wrong(implementation: Implementation, question: str, given: Any, expected: str) -> WrongAnswerError:
    place = at_method(implementation, question)
    return WrongAnswerError(f"{implementation.name}: {question}() returned {given!r:.80}, expected {expected}{place}")
