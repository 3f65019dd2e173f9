"""One function under torch.compile for problems that differ in their sizes, to avoid a compilation for each size.

torch.compile's own rule: the first size is compiled as a constant, the second with varying sizes, and later sizes run
that code, except for sizes of 1. Its guards cost microseconds a call, which code compiled for one size does not have.
Editing this module makes no stored winner stale: a winner is compiled for its size.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch

from ...artifact import Signature
from ...errors import NotReadyError
from ...forking import renewed_in_child
from ...implementation import Run, Tensors
from ...problem import TensorSpec
from . import artifact as inductor_artifact

_MOST = 256
"""The most functions kept, each with up to eight compilations. A dropped function lives on in the plans that use it."""
_QUIET = 2
"""The number of a function's first compilations whose warnings are silenced: they are expected."""

# here and not in the lock's module, whose text is part of fingerprints
inductor_artifact.PATCHING = renewed_in_child(inductor_artifact, "PATCHING", threading.RLock)

_TENSOR = object()
"""Placeholder for a tensor in a key of a call's values."""


class _Shared:
    """A function under torch.compile. Dynamo gives up after eight compilations; then a fresh copy takes its place."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled = self._fresh()
        self._compilations = 0

    def __call__(self, tensors: Sequence[torch.Tensor], *, may_compile: bool) -> Any:
        compiled = self._compiled
        with self._compiling() if may_compile else torch.no_grad():
            try:
                return compiled(*tensors)
            except Exception as fault:
                # by name, since torch's class is private
                if type(fault).__name__ != "FailOnRecompileLimitHit":
                    raise
            if self._compiled is compiled:
                self._compiled = self._fresh()
            return self._compiled(*tensors)

    def _fresh(self) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(fresh(self._function), fullgraph=True)
        return compiled

    @contextlib.contextmanager
    def _compiling(self) -> Iterator[None]:
        quiet = inductor_artifact.quiet() if self._compilations < _QUIET else contextlib.nullcontext()
        with inductor_artifact.PATCHING, quiet, inductor_artifact.own_caches(), torch.no_grad():
            yield
        self._compilations += 1


def bind(function: Callable[..., Any], key: Hashable, signature: Signature) -> Run:
    """A run of ``function`` (the schema's values in order -> outputs); runs of equal ``key`` share compilations.

    It raises NotReadyError during capture, unless it has run before on tensors of this kind.
    """
    specs = [spec for spec in signature.arguments.values.values() if isinstance(spec, TensorSpec)]
    # dense and other layouts do not share, since a function has few compilations
    forms = tuple((spec.dtype, len(spec.shape), spec.strides[-1:] == (1,)) for spec in specs)
    single = len(signature.outputs) == 1
    shared: dict[Hashable, _Shared] = {}
    ready: set[Hashable] = set()

    def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Any:
        # detached: torch.compile would compile again for a Parameter and for a tensor that requires a gradient
        tensors = [value.detach() for value in arguments if isinstance(value, torch.Tensor)]
        values = tuple(_told(value) for value in arguments)
        state = values, *_kind(tensors)
        is_new = state not in ready
        if is_new and _capturing():
            raise NotReadyError(
                "torch.compile compiles at the first call of a size", hint="call it once before the capture begins"
            )
        if values not in shared:
            shared[values] = _shared((key, forms), values, _Bound(function, arguments))
        returned = shared[values](tensors, may_compile=is_new)
        ready.add(state)
        if isinstance(returned, torch.Tensor):
            return returned
        return returned[0] if single else tuple(returned)

    return run


class _Bound:
    """``function`` with all its arguments but the tensors bound."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        # tuples of bools and plain values, which Dynamo can trace
        tensors = tuple(isinstance(value, torch.Tensor) for value in arguments)
        others = tuple(None if isinstance(value, torch.Tensor) else value for value in arguments)

        def of_tensors(*given: torch.Tensor) -> Any:
            each = iter(given)
            return function(*[next(each) if tensor else other for tensor, other in zip(tensors, others, strict=True)])

        self.of_tensors = of_tensors
        self._owner = getattr(function, "__self__", function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bound) and self._owner is other._owner

    def __hash__(self) -> int:
        return id(self._owner)


@lru_cache(maxsize=_MOST)
def _shared(_key: Hashable, _values: Hashable, bound: _Bound) -> _Shared:
    return _Shared(bound.of_tensors)


def _told(value: object) -> Hashable:
    """A value as part of a key; a float as text, since 0.0 equals -0.0 and NaN equals nothing."""
    if isinstance(value, torch.Tensor):
        return _TENSOR
    return repr(value) if isinstance(value, float) else value


def _kind(tensors: Sequence[torch.Tensor]) -> tuple[bool, ...]:
    """The state besides sizes that torch.compile compiles for, and that may differ between calls of one plan."""
    modes = torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled()
    return (*modes, *[tensor.is_inference() for tensor in tensors])


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy with a code object of its own: Dynamo counts recompilations by code object and gives up after eight."""
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace()
    return types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
