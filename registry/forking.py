"""State that a forked child makes anew, such as locks: one held by another thread of the parent would never open."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

_Value = TypeVar("_Value")

_PACKAGES = ("registry", "tuning_db")
"""What the names of this project's packages begin with."""

_renewed: weakref.WeakKeyDictionary[Any, dict[str, Callable[[], Any]]] = weakref.WeakKeyDictionary()


def renewed_in_child(owner: Any, name: str, make: Callable[[], _Value]) -> _Value:
    """``make()``, which is called again in each child forked later to set attribute ``name`` of ``owner``.

    ``make`` is e.g. ``threading.Lock``. ``owner`` is held weakly, so that ``make`` must not hold it.
    """
    _renewed.setdefault(owner, {})[name] = make
    return make()


def call_in_child(function: Callable[[], Any]) -> None:
    """Call ``function`` in each child forked later; nothing on Windows, which has no fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def _renew_all() -> None:
    for owner, values in list(_renewed.items()):
        for name, make in values.items():
            setattr(owner, name, make())


def _renew_cached_properties() -> None:
    """Makes a new lock for each cached property of this project: Python 3.11 has one for all objects of a class."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGES):
            named = list(vars(module).values())
            kinds = [kind for kind in named if isinstance(kind, type) and kind.__module__ == name]
            for each in (each for kind in kinds for each in list(vars(kind).values())):
                if isinstance(each, cached_property):
                    vars(each)["lock"] = threading.RLock()


call_in_child(_renew_all)
if sys.version_info < (3, 12):
    call_in_child(_renew_cached_properties)
