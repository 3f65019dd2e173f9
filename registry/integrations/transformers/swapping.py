"""Modules whose class is replaced by a subclass with another ``forward``; parameters, buffers and names stay."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

_OWN = "registry_"
"""How the names of attributes begin that a swapped module has in addition."""


class Swapped(torch.nn.Module):
    """The base of all classes that ``swap`` puts before a module's own one.

    An instance stays an instance of its own class, so that PEFT, FSDP and parallel plans find it as before, and its
    ``state_dict`` is unchanged.
    """

    registry_class: type[torch.nn.Module]
    """The module's own class."""
    registry_prefix = "Registry"
    """What the name of the class begins with, before that of the module's own."""
    registry_forward: type[Swapped]
    """The class that ``swap`` was given."""
    registry_constants: str
    """What the forward knows of its module; each class says which."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and files name the module's own class and what was swapped: no file has the class made of both."""
        own, forwards = type(self), []
        while issubclass(own, Swapped):
            forwards.append(own.registry_forward)
            own = own.registry_class  # type: ignore[assignment]
        return _empty, (own, *reversed(forwards)), self.__getstate__()


def swap(module: torch.nn.Module, forward: type[Swapped], constants: tuple[Any, ...] = (), **attributes: Any) -> None:
    """Let ``module`` run the ``forward`` of another class; ``attributes`` are set on it.

    ``constants`` are numbers, strings, None and tuples, which the forward reads by ``constants_of``.
    """
    if constants:
        attributes["constants"] = repr(constants)
    for name, value in attributes.items():
        # past torch's own, which would register a module or a tensor
        object.__setattr__(module, _OWN + name, value)
    module.__class__ = _class(forward, type(module))  # type: ignore[arg-type]


def unswap(module: torch.nn.Module) -> None:
    """Give a swapped module its own class back."""
    assert isinstance(module, Swapped)
    while isinstance(module, Swapped):
        module.__class__ = type(module).registry_class  # type: ignore[assignment]
    for name in [name for name in module.__dict__ if name.startswith(_OWN)]:
        del module.__dict__[name]


def swapped(model: torch.nn.Module) -> Iterator[tuple[str, Swapped]]:
    """Names and modules of a model that were swapped."""
    for name, module in model.named_modules():
        if isinstance(module, Swapped):
            yield name, module


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether a call of a module runs more than its class's forward: hooks, or a forward of its own."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in module.__dict__


@cache
def _class(forward: Any, own: Any) -> Any:
    name = f"{forward.registry_prefix}{own.__name__}"
    return type(
        name, (forward, own), {"__module__": own.__module__, "registry_class": own, "registry_forward": forward}
    )


def _empty(own: Any, *forwards: Any) -> Any:
    """A module of a class without attributes, after ``swap`` by each of ``forwards``."""
    for forward in forwards:
        own = _class(forward, own)
    return own.__new__(own)
