"""Ops as pluggy hooks: the two decorators of a plugin, and the hookspec of an op."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import pluggy

from ..errors import InvalidDefinitionError

if TYPE_CHECKING:
    from ..contract import Op
    from ..implementation import Implementation

PROJECT = "kernel_registry"
"""Name of the pluggy project and of the entry-point group."""

API_VERSION = 1
"""The version of the contract between host and plugin, which a plugin's ``KERNEL_REGISTRY_API`` must equal."""

DEFINES = "kernel_registry_ops"
"""The hook by which a plugin brings ops of its own."""

_Implementing = TypeVar("_Implementing", bound="Callable[..., Iterable[Implementation]]")
_Defining = TypeVar("_Defining", bound="Callable[..., Iterable[Op]]")

_implementation_marker = pluggy.HookimplMarker(PROJECT)
_specification_marker = pluggy.HookspecMarker(PROJECT)


def implements(op: str) -> Callable[[_Implementing], _Implementing]:
    """Mark a function without arguments that returns this plugin's implementations of ``op``.

    The function is called once, when the op is first used: put heavy imports inside. Its own name does not matter.
    Raises InvalidDefinitionError when ``op`` is no name, or when what is marked is no function or marked already.
    """
    if not isinstance(op, str):
        raise InvalidDefinitionError(f"implements({op!r})", hint='expected an op\'s name: @implements("softmax")')

    def mark(function: _Implementing) -> _Implementing:
        _check_marked(function)
        return _implementation_marker(function, specname=hook_of(op))

    return mark


def defines(function: _Defining) -> _Defining:
    """Mark a function without arguments that returns the ops which this plugin defines, named ``vendor::name``.

    Raises InvalidDefinitionError when what is marked is no function, or marked already.
    """
    _check_marked(function)
    return _implementation_marker(function, specname=DEFINES)


def hook_of(op: str) -> str:
    """The hook's name: ``vendor::name`` -> ``vendor__name``."""
    return op.replace("::", "__")


def op_of(hook: str) -> str:
    """The op of a hook, by the hook's name: ``vendor__name`` -> ``vendor::name``."""
    return hook.replace("__", "::", 1)


def specification(hook: str, doc: str) -> ModuleType:
    """The hookspec of that name, as a namespace for pluggy.

    It is a module, which has few other names: pluggy looks at each, and at a class's in half of a catalog's loading.
    """

    def specified() -> None:
        pass

    specified.__doc__ = doc
    namespace = ModuleType(hook)
    setattr(namespace, hook, _specification_marker(specified))
    return namespace


def _check_marked(function: object) -> None:
    """Raise InvalidDefinitionError for what is no function, or is marked already."""
    if not callable(function) or isinstance(function, type):
        hint = "mark a function without arguments that returns a list"
        raise InvalidDefinitionError(f"{function!r:.80} is no function", hint=hint)
    # pluggy would silently keep only the outer mark
    if getattr(function, f"{PROJECT}_impl", None) is not None:
        name = getattr(function, "__name__", repr(function))
        raise InvalidDefinitionError(f"{name} is marked twice", hint="write one function for each op")
