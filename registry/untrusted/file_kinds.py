"""Paths that were given for files: what else they may be, before something waits for ever for their content."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

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
