"""Kinds of tensor subclasses: those that behave like plain tensors, and those that change torch's functions.

A class changes torch's functions by ``__torch_function__`` and ``__torch_dispatch__``. The weights of vLLM and FSDP are
subclasses of ``Parameter`` that describe how a weight is loaded, and do not change torch's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import getattr_static
from typing import Any, Literal

import torch

from ...contract import as_tuple

ClassKind = Literal["memory", "named", "heard", "own"]
"""``memory``: torch's functions do not call the class, e.g. ``Parameter``. ``named``: their results are of the class,
e.g. a subclass of ``Tensor`` without overrides. ``heard``: they call the class, which only passes on torch's result.
``own``: it has a behaviour of its own, so that only torch's functions may process its tensors."""

_DISABLED = torch._C._disabled_torch_function_impl
_DEFAULT = getattr_static(torch.Tensor, "__torch_function__")
_DISPATCH = getattr_static(torch.Tensor, "__torch_dispatch__")
_LOOKED_AT = frozenset(
    {"shape", "size", "stride", "dtype", "device", "layout", "numel", "dim", "data_ptr", "untyped_storage"}
    | {"storage_offset", "is_contiguous", "is_nested", "is_inference", "requires_grad", "_version"}
)
"""Attributes that dispatch reads from a tensor directly: a class that overrides one has a behaviour of its own."""


class _Kinds(dict[type, ClassKind]):
    """Kinds by class, each determined at its first look-up."""

    def __missing__(self, kind: type) -> ClassKind:
        if len(self) >= _MOST_CLASSES:
            self.clear()
        found = self[kind] = _kind(kind)
        return found


_MOST_CLASSES = 1024

KINDS = _Kinds()


def _kind(kind: type) -> ClassKind:
    if kind in {torch.Tensor, torch.nn.Parameter}:
        return "memory"
    if not issubclass(kind, torch.Tensor):  # e.g. None, for a missing argument
        return "own"
    classes = kind.__mro__[: kind.__mro__.index(torch.Tensor)]
    if _LOOKED_AT.intersection(name for one in classes for name in vars(one)):
        return "own"
    if getattr_static(kind, "__torch_dispatch__") is not _DISPATCH:
        return "own"
    functions = [vars(one)["__torch_function__"] for one in kind.__mro__ if "__torch_function__" in vars(one)]
    final = next((one for one in functions if not _hands_on(one)), None)
    if final is _DISABLED:
        return "memory" if functions[0] is _DISABLED else "heard"
    return "named" if final is _DEFAULT else "own"


class _Direct(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


class _WithDefault(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if kwargs is None:
            kwargs = {}
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def _text(function: Any) -> tuple[object, ...]:
    code = getattr(getattr(function, "__func__", None), "__code__", None)
    return (code.co_code, code.co_names, code.co_freevars, code.co_argcount) if code is not None else ()


_HANDING_ON = frozenset(_text(vars(one)["__torch_function__"]) for one in (_Direct, _WithDefault))


def _hands_on(function: Any) -> bool:
    """True if a class method only calls ``super()``'s method, as in vLLM's parameters for Dynamo."""
    return _text(function) in _HANDING_ON


def in_line(tensors: Iterable[torch.Tensor]) -> bool:
    """True if, of the classes of kind ``named``, one derives from all others: it is the class of torch's results."""
    named = [type(one) for one in tensors if KINDS[type(one)] == "named"]
    return any(all(issubclass(one, other) for other in named) for one in named) if named else True


def as_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a plain ``torch.Tensor``, unless its class has a behaviour of its own."""
    return tensor.as_subclass(torch.Tensor) if KINDS[type(tensor)] in {"named", "heard"} else tensor


def keeping_class(run: Callable[..., Any], tensors: Iterable[torch.Tensor]) -> Callable[..., Any]:
    """``run`` with ``__torch_function__`` disabled, and with outputs of the class that torch's functions return."""
    classes = {type(one) for one in tensors}
    kinds = {KINDS[one] for one in classes}
    if kinds <= {"memory"}:
        return run
    named = [one for one in classes if KINDS[one] == "named"]
    given = next((one for one in named if all(issubclass(one, other) for other in named)), None)

    def unseen(*values: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            outputs = run(*values)
            if given is None or outputs is None:
                return outputs
            made = tuple([one.as_subclass(given) for one in as_tuple(outputs)])
            return made if isinstance(outputs, tuple) else made[0]

    return unseen
