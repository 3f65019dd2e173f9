"""What ``registry.op(name)`` returns, by name: ``registry.calls.softmax``; of ``vendor::name``, ``vendor__name``.

It is there for pickling: a model that keeps ``registry.op("softmax")`` is saved with a reference to here, and read
back where that op is known. ``registry.call`` refers to the dispatcher of the process that reads it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import registry

if TYPE_CHECKING:
    from .dispatch.dispatcher import Dispatcher


def dispatcher_of_process() -> Dispatcher:
    """The one behind ``registry.call``."""
    return registry.api.dispatcher


def __getattr__(name: str) -> Callable[..., Any]:
    if not name.startswith("__"):
        for op in registry.ops().values():
            if op.hook == name:
                return registry.op(op.name)
    raise AttributeError(f"registry.calls has no {name!r}: no op of that name is known here")
