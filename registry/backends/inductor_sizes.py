"""One torch.compile for problems that differ in their sizes: no compilation for every new one.

torch.compile's own rule: the first size is compiled as it is, the second with sizes that may vary, and whatever comes
after runs what is there. Its guards cost some microseconds a call, which a compilation for one size does not have.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from typing import Any

import torch

from ..artifact import Signature
from ..errors import NotReadyError
from ..implementation import Run, Tensors
from ..problem import TensorSpec
from . import inductor_artifact

_MOST = 256
"""Functions kept. What a plan holds lives on without being kept here."""

_TENSOR = object()
"""Stands for a tensor among an argument list's other values."""


def bind(function: Callable[..., Any], key: Hashable, signature: Signature) -> Run:
    """A run of ``function`` (the schema's values in order -> outputs) that shares its compilations under ``key``."""
    specs = [spec for spec in signature.arguments.values.values() if isinstance(spec, TensorSpec)]
    # Dynamo gives up after eight compilations of one function: dense and other layouts do not share
    forms = tuple((spec.dtype, len(spec.shape), spec.strides[-1:] == (1,)) for spec in specs)
    single = len(signature.outputs) == 1
    compiled: dict[tuple[object, ...], Callable[..., Any]] = {}
    ready: set[tuple[object, ...]] = set()

    def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Any:
        values = tuple(_TENSOR if isinstance(value, torch.Tensor) else value for value in arguments)
        if values not in ready and _capturing():
            raise NotReadyError(
                "torch.compile compiles at the first call of a size", hint="registry.warmup() before the capture begins"
            )
        if values not in compiled:
            compiled[values] = _shared((key, forms), values, function)
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        with torch.no_grad() if values in ready else _compiling():
            returned = compiled[values](*tensors)
        ready.add(values)
        if isinstance(returned, torch.Tensor):
            return returned
        return returned[0] if single else tuple(returned)

    return run


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Around a call that compiles."""
    with inductor_artifact.PATCHING, inductor_artifact.quiet(), torch.no_grad():
        yield


@lru_cache(maxsize=_MOST)
def _shared(_: Hashable, values: tuple[object, ...], function: Callable[..., Any]) -> Callable[..., Any]:
    # Dynamo knows these types
    tensors = tuple(value is _TENSOR for value in values)
    others = tuple(None if value is _TENSOR else value for value in values)

    def of_tensors(*given: torch.Tensor) -> Any:
        each = iter(given)
        return function(*[next(each) if tensor else other for tensor, other in zip(tensors, others, strict=True)])

    compiled: Callable[..., Any] = torch.compile(fresh(of_tensors), fullgraph=True)
    return compiled


def fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy with a code object of its own: Dynamo counts recompilations by code object and gives up after eight."""
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace()
    return types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
