"""Paths that were given for files: what else they may be, before something waits for ever for their content."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO, not a file",
    stat.S_IFSOCK: "a socket, not a file",
    stat.S_IFCHR: "a device, not a file",
    stat.S_IFBLK: "a device, not a file",
}


def why_no_file(path: Path) -> str:
    """Why a path is no regular file, e.g. "a FIFO, not a file" or "Permission denied"; "" if it is one."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: text that cannot be a path
        return "no such file"
    except OSError as fault:  # links in a circle, a folder that may not be entered
        return str(fault.strerror)
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "not a file")


def refuse_pipe(path: Path) -> None:
    """Raises OSError for a FIFO that has a name: to open it waits for whoever writes to it.

    The pipes that a shell makes for ``<(command)`` have none, and end with their writer.
    """
    if path.is_fifo() and os.path.exists(os.path.realpath(path)):  # noqa: PTH110  resolve() raises for links in a circle
        raise OSError(errno.EINVAL, "a FIFO, not a file", str(path))


def opened(path: Path) -> BinaryIO:
    """A file that is open for reading, without waiting. Raises OSError for a FIFO as :func:`refuse_pipe` does.

    A FIFO that this process has open already, as /dev/stdin after ``< FIFO``, is read where it is open: to open its
    path a second time waits for another writer.
    """
    number = _descriptor(path)
    if number is not None and path.is_fifo():
        return os.fdopen(os.dup(number), "rb")
    refuse_pipe(path)
    return path.open("rb")


def _descriptor(path: Path) -> int | None:
    """The number in a path of what this process has open, e.g. 3 for /dev/fd/3; None for other paths."""
    if str(path) == "/dev/stdin":
        return 0
    of_process = str(path.parent) in {"/dev/fd", "/proc/self/fd"}
    return int(path.name) if of_process and path.name.isdecimal() else None
