"""Calls of the registry by shims, counted, so that a test is known to have run an op of ours."""

from __future__ import annotations

from typing import Any

import registry


class CallCounter:
    """The number of calls that shims have made in this process."""

    made = 0


def ours(op: str, *args: Any, **attributes: Any) -> Any:
    """``registry.call``, counted."""
    CallCounter.made += 1
    return registry.call(op, *args, **attributes)
