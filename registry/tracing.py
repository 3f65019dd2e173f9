"""Calls under torch.compile: functions that it runs instead of tracing them, its state, and errors it passes on."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch
from torch._guards import detect_fake_mode
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


@constant_while_tracing
def constants_of(text: str) -> tuple[Any, ...]:
    """The tuple of numbers, strings, None and tuples that ``text`` writes as Python does.

    What an object keeps as such a text costs a compiled program one guard, and as attributes two or three for each:
    torch.compile evaluates this while it traces. Guards are most of a compiled call's time on the host.
    """
    return _read(text)


@cache
def _read(text: str) -> tuple[Any, ...]:
    found: tuple[Any, ...] = ast.literal_eval(text)
    return found


def contents_known(tensor: torch.Tensor) -> bool:
    """False if the size of a result may not depend on what the tensor holds: while torch traces, and under vmap."""
    functorch: Any = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return False
        tensor = functorch.get_unwrapped(tensor)
    return not tensor.is_meta and detect_fake_mode((tensor,)) is None


def version_of(tensor: torch.Tensor) -> int:
    """The number of changes in place that torch has counted of a tensor and its views.

    While torch.compile traces, ``tensor._version`` is a number that only the program knows; this is that of the changes
    which were traced so far. 0 for a tensor of inference mode, of which torch keeps no count.
    """
    if not is_dynamo_compiling():
        return 0 if tensor.is_inference() else tensor._version
    from torch._dynamo.comptime import comptime

    comptime(_note_version)
    return _noted()


def versions_of(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """``version_of`` each tensor, outside of a trace of torch.compile."""
    try:
        return tuple([tensor._version for tensor in tensors])
    except RuntimeError:  # some are of inference mode
        return tuple(map(version_of, tensors))


def traced_operations() -> int:
    """The number of operations that torch.compile has traced so far in the program that it traces."""
    from torch._dynamo.comptime import comptime

    comptime(_note_operations)
    return _noted()


def trace_number() -> int:
    """A number of the trace of torch.compile that runs; other traces have others."""
    from torch._dynamo.comptime import comptime

    comptime(_note_trace)
    return _noted()


_traces = itertools.count()
_notes: list[int] = []
"""What torch.compile told of its state, until the traced code asks for it."""


def _note_version(context: Any) -> None:
    fake = context.get_local("tensor").as_fake()
    _notes.append(0 if fake.is_inference() else fake._version)


def _note_operations(context: Any) -> None:
    _notes.append(len(context.graph().nodes))


def _note_trace(context: Any) -> None:
    graph = context.graph()
    if not hasattr(graph, "registry_trace"):
        graph.registry_trace = next(_traces)
    _notes.append(graph.registry_trace)


@constant_while_tracing
def _noted() -> int:
    return _notes.pop()


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
    """A copy of ``fault`` that torch.compile passes on unchanged: it derives from its class and from torch's own."""
    try:
        from torch._dynamo.exc import TorchRuntimeError
    except ImportError:
        return fault
    kind = type(fault)
    both: Any = type(kind.__name__, (kind, TorchRuntimeError), {"__module__": kind.__module__})
    # without kind's own __init__, whose arguments are not known here
    traced = both.__new__(both)
    TorchRuntimeError.__init__(traced, str(fault))
    vars(traced).update(vars(fault))
    assert isinstance(traced, RegistryError)
    return traced
