"""State that a forked child makes anew, such as locks: one held by another thread of the parent would never open."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

_Value = TypeVar("_Value")

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


call_in_child(_renew_all)
