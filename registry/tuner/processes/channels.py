"""What a run does alike with every child: watch its socket, send to it, forget it, and say how it ended."""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable

from ..jobs import Failed
from .process import Child, Message
from .spawning import Ending

MOST_FAILED_STARTS = 3
"""One after the other: what does not start so often will not."""

NONSENSE = Failed("crash", "the process answered what nobody had asked")


def failed(ending: Ending) -> Failed:
    return Failed("out_of_memory" if ending.out_of_memory else "crash", f"the process ended: {ending.why}")


def watch(selector: selectors.BaseSelector, child: Child, readable: Callable[[], None]) -> None:
    selector.register(child, selectors.EVENT_READ, readable)


def send(selector: selectors.BaseSelector, child: Child, message: Message) -> None:
    child.send(message)
    settle(selector, child)


def settle(selector: selectors.BaseSelector, child: Child) -> None:
    """Send what is left over, and watch for room in the socket as long as anything is."""
    if child.has_unsent:
        child.flush()
    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.has_unsent else 0)
    with contextlib.suppress(KeyError, ValueError):
        key = selector.get_key(child)
        if key.events != events:
            selector.modify(child, events, key.data)


def forget(selector: selectors.BaseSelector, child: Child) -> None:
    """Stop watching a child, whether or not it is watched and still has its socket."""
    with contextlib.suppress(KeyError, ValueError):
        selector.unregister(child)
