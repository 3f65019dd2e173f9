"""A database's file that something other than SQLite writes to while it is open, as ``cp BACKUP tuning.db`` does.

SQLite does not notice: it goes on with the pages that it has in memory and in its log, and writes those over what has
been put there, so that neither is left whole.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_LOOK_S = 10.0

# https://sqlite.org/walformat.html: how many frames of the log have been written to the file, how many a process has
# begun to write, and the log's salts; between two looks at these a checksum of the file's first MiB. It is a process of
# its own, since to close a file drops this process's locks of it
_LOOK = """
bytes() { od -An -v -tx1 "-j$1" "-N$2" "$3" && echo ,; }
log() { bytes 96 4 "$0-shm" && bytes 128 4 "$0-shm" && bytes 16 8 "$0-wal"; }
log 2>&1; echo "|"; head -c 1048576 "$0" | cksum; echo "|"; log 2>&1
"""


class _Content(NamedTuple):
    """The state of the log, and of the file: its last change in nanoseconds, its size, and a checksum of its start."""

    log: str
    changed_ns: int
    size: int
    checksum: str


class Overwriting:
    """Tells whether the file of a database with a log was overwritten since it was last looked at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: _Content | None = None
        self._looks = 2
        self._happened = False

    def happened(self) -> bool:
        """Whether the file has changed although SQLite did not write to it. Takes a microsecond if it has not.

        The file is looked at, in 10 ms, at the first two calls and the first two after each checkpoint: the log is made
        anew by what is written between them.
        """
        if self._happened or os.name != "posix":
            return self._happened
        known = self._known
        with suppress(OSError):
            found = self._path.stat()
            if known is not None and (found.st_mtime_ns, found.st_size) == (known.changed_ns, known.size):
                if self._looks:
                    self._look(self._looks - 1)
                return self._happened
        self._look(1)
        return self._happened

    def keep_what_is_there(self) -> None:
        """Empty the log, so that SQLite does not write its pages over what was put in the file's place."""
        with suppress(OSError):
            os.truncate(self._path.with_name(self._path.name + "-wal"), 0)

    def _look(self, more: int) -> None:
        known, now = self._known, self._content()
        if known is not None and now is not None and now.log == known.log and now.checksum != known.checksum:
            self._happened = True
        self._known, self._looks = now, more

    def _content(self) -> _Content | None:
        """What is known of the file; None while SQLite writes to it, or where that cannot be told."""
        try:
            found = self._path.stat()
            command = ["/bin/sh", "-c", _LOOK, str(self._path)]
            told = subprocess.run(command, capture_output=True, text=True, timeout=_LOOK_S, check=False).stdout
            before, checksum, after = told.split("|")
            written, begun, *_ = before.split(",")
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
        writing = before.strip() != after.strip() or written.split() != begun.split()
        return None if writing else _Content(before.strip(), found.st_mtime_ns, found.st_size, checksum)
