"""Questions to an implementation while a call is resolved: an exception is warned of once, and stops no call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ...device import Device
from ...discovery import answers
from ...errors import UnsupportedError
from ...implementation import Implementation
from ...problem import Problem
from ...space import Config
from ..warning import tell_caller

_Answer = TypeVar("_Answer")


def refusals(implementation: Implementation, problem: Problem, device: Device) -> list[str]:
    """Every reason why an implementation cannot run a problem on a device; an exception counts as a reason."""
    reasons = asked(implementation, "unsupported", lambda: list(answers.refusals(implementation, problem, device)))
    return [reasons] if isinstance(reasons, str) else reasons


def preference_of(implementation: Implementation, problem: Problem, device: Device) -> float | str:
    """The declared preference of an implementation for a problem, or its exception as text."""
    return asked(implementation, "preference", partial(answers.declared_preference, implementation, problem, device))


def default_of(implementation: Implementation, problem: Problem, device: Device) -> Config | str:
    """The default configuration of an implementation, or why it has none: no valid one, or an exception, as text."""
    return asked(implementation, "default", partial(answers.default_config, implementation, problem, device))


def asked(implementation: Implementation, question: str, ask: Callable[[], _Answer]) -> _Answer | str:
    """``ask()``, or its exception as text, which is warned of once per implementation and question."""
    try:
        return ask()
    except UnsupportedError as refusal:
        return refusal.message
    except Exception as fault:
        text = answers.fault_text(implementation, question, fault)
    tell_caller(implementation, question, text)
    return text
