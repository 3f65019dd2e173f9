"""A child's socket in an event loop: send to it, forget it."""

from __future__ import annotations

import contextlib
import selectors

from .process import Child, Message

MOST_FAILED_STARTS = 3
"""A command is given up when its process fails to start this many times in a row."""


def send(selector: selectors.BaseSelector, child: Child, message: Message) -> None:
    """Send the child a message; the part without room in the socket is sent when ``settle`` is called."""
    child.send(message)
    settle(selector, child)


def settle(selector: selectors.BaseSelector, child: Child) -> None:
    """Send the part of earlier messages that waits, and watch for room in the socket while a part still waits."""
    if child.has_unsent:
        child.flush()
    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.has_unsent else 0)
    with contextlib.suppress(KeyError, ValueError):
        key = selector.get_key(child)
        if key.events != events:
            selector.modify(child, events, key.data)


def forget(selector: selectors.BaseSelector, child: Child) -> None:
    """Stop watching a child. A child that is not watched, or has no socket any more, is left as it is."""
    with contextlib.suppress(KeyError, ValueError):
        selector.unregister(child)
