"""The callables of ``registry.op(name)`` as attributes: ``calls.softmax``, and ``calls.vendor__name`` of a vendor's op.

For pickling: a model that holds ``registry.op("softmax")`` is saved with a reference to this module, and loads wherever
the op is known. ``registry.call`` is saved as a reference to the dispatcher of the loading process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import registry

if TYPE_CHECKING:
    from .dispatch.dispatcher import Dispatcher


def dispatcher_of_process() -> Dispatcher:
    """The dispatcher behind ``registry.call`` in this process."""
    return registry.api.dispatcher


def __getattr__(name: str) -> Callable[..., Any]:
    if not name.startswith("__"):
        for op in registry.ops().values():
            if op.hook == name:
                return registry.op(op.name)
    raise AttributeError(f"registry.calls has no {name!r}: no op of that name is known here")
