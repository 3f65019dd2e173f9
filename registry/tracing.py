"""What torch.compile meets while it traces a call: functions that it runs instead, and errors that it lets through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

from torch.compiler import is_dynamo_compiling

from .errors import InvalidArgumentError, RegistryError

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def constant_while_tracing(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Let torch.compile call ``function`` while it traces, instead of looking into it.

    This is ``torch.compiler.assume_constant_result`` without its import of dynamo, which takes a second and Triton.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def refuse(message: str, *, hint: str = "", kind: type[RegistryError] = InvalidArgumentError) -> NoReturn:
    """Raise ``kind(message, hint=hint)``, to be called where torch.compile may be tracing.

    A plain ``raise`` in traced code becomes torch's own "Observed exception", under ``fullgraph=True`` at least.
    """
    _raise(kind, message, hint, is_dynamo_compiling())
    raise AssertionError("_raise never returns")


@constant_while_tracing
def _raise(kind: type[RegistryError], message: str, hint: str, tracing: bool) -> None:
    fault = kind(message, hint=hint)
    raise let_through(fault) if tracing else fault


def let_through(fault: RegistryError) -> RegistryError:
    """``fault`` as an error that torch.compile hands to the user as it is: of its class and of torch's own besides."""
    try:
        from torch._dynamo.exc import TorchRuntimeError
    except ImportError:
        return fault
    kind = type(fault)
    both: Any = type(kind.__name__, (kind, TorchRuntimeError), {"__module__": kind.__module__})
    # past kind's own __init__, whose arguments are not known here
    traced = both.__new__(both)
    TorchRuntimeError.__init__(traced, str(fault))
    vars(traced).update(vars(fault))
    assert isinstance(traced, RegistryError)
    return traced
