"""Threads that a candidate leaves running: they take a core, and the interpreter's lock, from all that comes after."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch

# bound at import, so that a candidate's later patch is not called
_frames, _own, _sleep = sys._current_frames, threading.get_ident, time.sleep

_GRACE_S = 0.02
"""Time in which work that is about to end may end."""
_PYTHONS = sysconfig.get_paths()["stdlib"]
_SITE = f"{os.sep}site-packages{os.sep}"
_TORCH = Path(torch.__file__).parent
_OTHERS = tuple(f"{folder}{os.sep}" for folder in (_TORCH, _TORCH.parent / "triton", Path(__file__).parents[2]))
_AT_FIRST = frozenset(_frames())
"""Threads that were there before any plugin was."""


def threads_left_running() -> tuple[str, ...]:
    """The code of Python's threads that run beside this one and do not end within 20 ms.

    A thread runs if it is in code that is neither of Python's library, nor of torch, Triton or this package: one that
    waits for work, such as an executor's, is in Python's own.
    """
    if not any(_running()):
        return ()
    _sleep(_GRACE_S)
    return tuple(sorted(set(_running())))


def _running() -> Iterator[str]:
    for ident, frame in _frames().items():
        if ident != _own() and ident not in _AT_FIRST and not _is_idle(frame):
            yield f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"


def _is_idle(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    is_pythons = file.startswith(_PYTHONS) and _SITE not in file
    return is_pythons or file.startswith(("<frozen", *_OTHERS))
