"""Modules whose class is replaced by a subclass with another ``forward``; parameters, buffers and names stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import MethodType
from typing import Any, TypeVar

import torch

_Forward = TypeVar("_Forward", bound=Callable[..., Any])

_OWN = "registry_"
"""How the names of attributes begin that a swapped module has in addition."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""How the names of a module's tables of hooks begin."""
_LAYER = "registry_layer"
"""The attribute of the forward of a layer of ours that Hugging Face's kernelize has put on modules, and its name in
those that were swapped afterwards."""


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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make a module of the own class, e.g. for ``type(model).from_pretrained``: nothing of it was replaced."""
        own = own_class(self)
        self.__class__ = own  # type: ignore[assignment]
        own.__init__(self, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and files name the module's own class and what was swapped: no file has the class made of both."""
        own, forwards = _parted(type(self))
        return _empty, (own, *forwards), self.__getstate__()  # type: ignore[no-untyped-call]


def _parted(swapped_class: type[torch.nn.Module]) -> tuple[type[torch.nn.Module], list[type[Swapped]]]:
    """The own class of swapped modules, and the classes that ``swap`` was given, the first one first."""
    forwards: list[type[Swapped]] = []
    while issubclass(swapped_class, Swapped):
        forwards.insert(0, swapped_class.registry_forward)
        swapped_class = swapped_class.registry_class
    return swapped_class, forwards


def own_class(module: torch.nn.Module) -> type[torch.nn.Module]:
    """The class of a module without what ``swap`` has put before it."""
    return _parted(type(module))[0]


def swap(module: torch.nn.Module, forward: type[Swapped], constants: tuple[Any, ...] = (), **attributes: Any) -> None:
    """Let ``module`` run the ``forward`` of another class; ``attributes`` are set on it.

    ``constants`` are numbers, strings, None and tuples, which the forward reads by ``constants_of``.
    """
    if constants:
        attributes["constants"] = repr(constants)
    _let_class_compute(module)
    for name, value in attributes.items():
        # past torch's own, which would register a module or a tensor
        object.__setattr__(module, _OWN + name, value)
    module.__class__ = _class(forward, type(module))  # type: ignore[arg-type]


def unswap(module: torch.nn.Module) -> None:
    """Give a swapped module its own class back."""
    assert isinstance(module, Swapped)
    _let_class_compute(module)
    while isinstance(module, Swapped):
        module.__class__ = type(module).registry_class  # type: ignore[assignment]
    layer = module.__dict__.get(_LAYER)
    if layer is not None and "forward" not in module.__dict__:
        module.forward = MethodType(layer, module)
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
    return any(hooks) or ("forward" in module.__dict__ and not _computes_as_class(module))


def carry_hooks(module: torch.nn.Module, other: torch.nn.Module) -> None:
    """Let a module that takes another one's place have its hooks; their handles go on removing them."""
    for name, hooks in vars(module).items():
        if name.startswith(_HOOKS) and name in vars(other):
            other.__dict__[name] = hooks


def other_forward(module: torch.nn.Module) -> str:
    """Why a module runs another forward than its class's, for a report; "" if it does not."""
    if "forward" not in module.__dict__ or _computes_as_class(module):
        return ""
    forward = module.__dict__["forward"]
    if hasattr(type(module), "kernel_layer_name") and isinstance(forward, MethodType):
        return f"a kernel of {forward.__func__.__module__} computes it"
    return "another program computes it"


def as_layer(forward: _Forward) -> _Forward:
    """Mark the forward of a layer for Hugging Face's kernelize: it computes what the class of its module does."""
    forward.registry_layer = True  # type: ignore[attr-defined]
    return forward


def _computes_as_class(module: torch.nn.Module) -> bool:
    """Whether the forward that an instance has is its class's, as kernelize leaves it, or that of a layer of ours."""
    function = getattr(module.__dict__["forward"], "__func__", None)
    return function is type(module).forward or hasattr(function, _LAYER)


def _let_class_compute(module: torch.nn.Module) -> None:
    """Take away a forward that computes what the module's class does; one of ours is noted, to be put back."""
    if "forward" in module.__dict__ and _computes_as_class(module):
        function = module.__dict__.pop("forward").__func__
        if hasattr(function, _LAYER):
            module.__dict__[_LAYER] = function


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
