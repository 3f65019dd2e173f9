"""Checks of an op or an implementation before it is added to the catalog."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from inspect import getattr_static
from types import MemberDescriptorType
from typing import Any

import torch

from ..author_code import at, at_class
from ..backends.library_function import LibraryFunction
from ..contract import Op
from ..errors import InvalidDefinitionError, did_you_mean
from ..implementation import Implementation, binds_loaded, reads_form_alone
from .backward_check import check_backward
from .hooks import DEFINES
from .plugin import DISTRIBUTION, Hook, Plugin

_DEVICES = frozenset({"cpu", "cuda"})
_EXISTING = "there are 'cpu' and 'cuda', which is torch's type of AMD's GPUs, too"
_GPUS = frozenset({"gpu", "nvidia", "amd", "hip", "rocm"})
"""Other names of what torch calls "cuda"."""
_FLAGS = ("deterministic", "capturable", "returns_outputs", "any_size", "transfers", "mixed")
_OTHERS_VENDORS = {"aten": "torch", "prim": "torch", "prims": "torch", "kernel_registry": "the ops in the box"}
"""Namespaces of ``torch.ops`` that hold operators already, by whose these are."""
_NAME = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)+\Z")


def check_new_op(op: Any, known: Mapping[str, Op], owner: Plugin, plugins: Sequence[Plugin]) -> None:
    """Raise InvalidDefinitionError unless ``op`` is an Op, ``owner`` may use its name, and it fits its backward op.

    ``known`` are the ops so far, ``plugins`` all that were found.
    """
    if not isinstance(op, Op):
        raise InvalidDefinitionError(f"{op!r:.80} is defined as an op", hint="expected one registry.Op at a time")
    for other in known.values():
        if op.hook == other.hook:
            holder = next((plugin for plugin in plugins if other.name in plugin.ops), owner)
            shown = "" if other.name == op.name else f" as {other.name!r}"
            raise InvalidDefinitionError(
                f"op {op.name!r}: its name is taken by {holder}{shown}", hint=_another_name(owner, holder, other)
            )
    if op.hook == DEFINES:
        raise InvalidDefinitionError(
            f"op {op.name!r}: its name is taken by the plugin contract", hint="give the op another name"
        )
    if owner.distribution != DISTRIBUTION:
        _check_vendor(op.name, owner, plugins)
    check_backward(op, known)


def _another_name(owner: Plugin, holder: Plugin, other: Op) -> str:
    """What to do where ``holder`` has defined ``other`` before ``owner`` defines an op of its name."""
    if holder is not owner:
        return "give the op another name"
    if owner.is_file or owner.is_installed:
        return "define each op once"
    return (
        f"this process has defined {other.name} before{at(other.reference)}: restart it, or keep the op in a file,"
        " which registry.load_file() loads and registry.reload() reads again"
    )


def _check_vendor(name: str, owner: Plugin, plugins: Sequence[Plugin]) -> None:
    """Raise InvalidDefinitionError if ``owner``, which is not of the box, may not define an op of that name.

    An installed plugin may define ops of its own vendor only. A file, and ``registry.define``, may use any vendor that
    no installed plugin has; a file also the vendor of its own name, for a plugin under development.
    """
    vendor, _, bare = name.rpartition("::")
    if not vendor:
        raise InvalidDefinitionError(
            f"op {name!r}: bare names belong to the ops in the box", hint=f"name it vendor::{bare}"
        )
    if vendor in _OTHERS_VENDORS:
        raise InvalidDefinitionError(
            f"op {name!r}: torch.ops.{vendor} belongs to {_OTHERS_VENDORS[vendor]}",
            hint=f"take a vendor of your own: acme::{bare}",
        )
    if vendor in owner.vendors:
        return
    for plugin in plugins:
        if plugin.is_installed and not plugin.blocked and vendor in plugin.vendors:
            raise InvalidDefinitionError(
                f"op {name!r}: ops of {vendor}:: belong to {plugin}", hint=f"take a vendor of your own: acme::{bare}"
            )
    if owner.is_installed:
        own = " or ".join(sorted(f"{vendor}::{bare}" for vendor in owner.vendors))
        raise InvalidDefinitionError(f"op {name!r}: the ops of this plugin are named after it", hint=f"name it {own}")


def check_implementation_of(
    op: Op,
    implementation: Any,
    known: Mapping[str, Implementation],
    others: Collection[str] = (),
    hook: Hook | None = None,
) -> None:
    """Raise InvalidDefinitionError unless ``implementation`` is one of ``op``, of a free ``plugin.variant`` name.

    ``known`` are the op's implementations so far; ``others`` the names of other plugins, which the name must not begin
    with; ``hook`` returned the implementation. The error ends with the line of its class, or else of the hook.
    """
    where = f"implementations of {op.name}"
    if fault := _misfit(op, implementation, known):
        raise InvalidDefinitionError(f"{where}: {fault}{_place(implementation, hook)}")
    holder, _, variant = implementation.name.partition(".")
    if holder in others:
        raise InvalidDefinitionError(
            f"{where}: {implementation.name!r} bears the name of another plugin, {holder!r}",
            hint=f"begin it with a name of your own, e.g. 'own.{variant}'{_place(implementation, hook)}",
        )


def _place(implementation: Any, hook: Hook | None) -> str:
    """`` (kernels.py:12)`` of an implementation's class, or else of the hook that returned it."""
    kind = implementation if isinstance(implementation, type) else type(implementation)
    return at_class(kind) or ("" if hook is None else at(hook))


def _misfit(op: Op, implementation: Any, known: Mapping[str, Implementation]) -> str:
    """Why an object is no implementation of ``op`` by a free name; "" if it is one."""
    if isinstance(implementation, type) and issubclass(implementation, Implementation):
        return f"{implementation.__name__} is a class, expected an instance of it"
    if not isinstance(implementation, Implementation):
        return f"{implementation!r} is no Implementation"
    shown = type(implementation).__name__
    if getattr(implementation, "op", None) != op.name:
        return f"{shown}.op is {getattr(implementation, 'op', None)!r}, expected {op.name!r}"
    if isinstance(implementation, LibraryFunction) and (why := implementation.misfit(op)):
        return f"{implementation.name}: {why}"
    return _misdeclared(implementation) or _misnamed(implementation, known)


def _misdeclared(implementation: Implementation) -> str:
    """Why attributes of an implementation that hold several texts, or True or False, cannot be used; "" if they can."""
    shown = type(implementation).__name__
    if isinstance(implementation.preloads, str):
        return f"{shown}.preloads is a text, expected a tuple, ({implementation.preloads!r},)"
    if isinstance(implementation.device_types, str):
        return f"{shown}.device_types is a text, expected a set, {{{implementation.device_types!r}}}"
    for name in _FLAGS:
        # a property could answer the tuner and a call differently
        given = getattr_static(implementation, name)
        if isinstance(given, MemberDescriptorType):
            # the attribute of an object with slots, as of dataclass(slots=True)
            given = getattr(implementation, name, given)
        if type(given) is not bool:
            what = "a property" if isinstance(given, property) else f"{given!r:.80}"
            return f"{shown}.{name} is {what}, expected True or False, of the class or set by __init__()"
    kind = type(implementation)
    if implementation.any_size and binds_loaded(kind) and reads_form_alone(kind):
        # its run would be called at a size whose numbers it does not have, and write beyond tensors
        return (
            f"{shown}.any_size is True, but its run has the grid and the numbers of one size: leave any_size out: a"
            " call of another size asks launch() again, and compiles nothing"
        )
    return _no_device_types(shown, implementation.device_types)


def _no_device_types(shown: str, given: Any) -> str:
    """Why device types, of which ops run on "cpu" and "cuda", cannot be used; "" if they can."""
    if not isinstance(given, Collection) or not all(isinstance(one, str) for one in given):
        return f'{shown}.device_types is {given!r:.80}, expected a set, e.g. {{"cuda"}}'
    for name in sorted({*given}.difference(_DEVICES)):
        if not _is_torchs(name):
            near = "cuda" if name in _GPUS or name.startswith("cuda:") else ""
            hint = f"did you mean {near}?" if near else did_you_mean(name, _DEVICES)
            return f"{shown}.device_types has {name!r}, which is no device type; {_EXISTING}{hint and f'; {hint}'}"
    if not _DEVICES.intersection(given):
        return f"{shown}.device_types is {given!r:.80}, so that it never runs; {_EXISTING}"
    return ""


def _is_torchs(name: str) -> bool:
    """True for a device type of torch, also of one on which no op runs."""
    try:
        return torch.device(name).type == name
    except RuntimeError:
        return False


def _misnamed(implementation: Implementation, known: Mapping[str, Implementation]) -> str:
    """Why an implementation may not have its name; "" if it may."""
    shown, name = type(implementation).__name__, getattr(implementation, "name", None)
    if not isinstance(name, str) or not _NAME.match(name):
        return f"{shown}.name is {name!r}, expected plugin.variant, e.g. 'acme.row'"
    if name in known:
        return f"the name {name!r} is taken by {known[name]!r}; the later one is refused"
    return ""
