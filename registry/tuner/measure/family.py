"""Processes of one tuning run, as Linux shows them: the run, what starts its children for it, and these."""

from __future__ import annotations

import contextlib
from pathlib import Path

_INIT = 1
"""The parent of processes whose own has ended."""


def is_of_the_run(pid: int, own: int) -> bool:
    """Whether the process is of the run whose child ``own`` is: beside it, or above it; not what it has started itself.

    False where the system does not tell.
    """
    parent = _parent(own)
    return parent > _INIT and (pid in {parent, _parent(parent)} or _parent(pid) == parent)


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        # the state and the parent follow the name, which is in brackets and may hold anything
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
