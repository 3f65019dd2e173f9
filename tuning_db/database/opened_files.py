"""Files of an open SQLite database that are deleted or replaced: SQLite goes on with what has no name any more.

What is written then is gone when the process ends, and a log that stays behind destroys the next database at its path.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import platformdirs

from ..errors import MovedDatabaseError
from .files import BUSY_SECONDS

_Inode = tuple[int, int]

_LOGS = ("-wal", "-shm")
"""What SQLite appends to a database's name for its log and the log's index."""

COPY_WAIT_S = BUSY_SECONDS
"""Seconds after which a copy is given up while another process holds the database."""


class OpenedFiles:
    """The files at a database's path as the first connection has found them; messages call it ``shown``.

    ``logged``: whether a log stays where it is while there is a connection.
    """

    def __init__(self, path: Path, shown: str, *, logged: bool) -> None:
        self._path = path
        self._shown = shown
        self._logged = logged
        self._inode: _Inode | None = None
        self._logs: dict[Path, _Inode] = {}
        self._process = 0
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._written = 0
        self._copied = 0
        self._copy: Path | None = None

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Context that makes a connection. Raises MovedDatabaseError where it would be to another database."""
        if self._inode is not None and (told := self._moved()):
            raise self._error(told)
        yield
        if self._inode is None:
            # not before: a container's file system copies a file of its image when it is first opened for writing
            self._inode = _inode(self._path)
        # a forked child's are its own: its parent's log may have gone with the parent's last connection
        if self._logged and self._process != os.getpid():
            paths = [self._path.with_name(self._path.name + end) for end in _LOGS]
            self._logs = {path: inode for path in paths if (inode := _inode(path)) is not None}
            self._process = os.getpid()

    def check(self, connection: sqlite3.Connection, *, wrote: bool) -> None:
        """Raises MovedDatabaseError for files that are no longer at their paths.

        To be called after each transaction, with its connection and whether it ``wrote``: what this process has written
        is saved in a copy first, of which the error says whether it has this transaction. A copy that was told is left
        to whoever uses it: what is written later goes to another one.
        """
        if wrote:
            with self._counting:
                self._written += 1
        told = self._moved() or self._lost_log()
        if not told:
            return
        if not self._written:
            raise self._error(told)
        with self._lock:
            if self._copied < self._written or not (self._copy and self._copy.exists()):
                self._save(connection, told)
            if self._moved():
                self._remove_logs()
            raise self._error(told, stored=wrote)

    def _error(self, told: str, *, stored: bool = False) -> MovedDatabaseError:
        """What is told of files of which ``told`` is known, with the place of the last copy if there is one."""
        told = f"{self._shown} {told} while it was open"
        if self._copy is None:
            return MovedDatabaseError(told, hint=_AGAIN)
        hint = f"`registry export FILE --db {self._copy}` and `registry import FILE` add it to another database"
        return MovedDatabaseError(f"{told}; what it held is saved in {self._copy}", hint=hint, stored=stored)

    def _moved(self) -> str:
        """What happened to the database's file; "" if it is where it was."""
        found = _inode(self._path)
        if found is None:
            return "was deleted or moved"
        return "" if found == self._inode else "was replaced by another file"

    def _lost_log(self) -> str:
        if self._process != os.getpid():
            return ""
        lost = (path for path, inode in self._logs.items() if _inode(path) != inode)
        return next((f"lost its file {path.name}, which was deleted or replaced," for path in lost), "")

    def _save(self, connection: sqlite3.Connection, told: str) -> None:
        """Saves a copy of the database under a new name. Raises MovedDatabaseError if no folder takes one."""
        written = self._written  # before the copy: what is written meanwhile may not be in it
        deadline = time.monotonic() + COPY_WAIT_S
        name = f"{self._path.name}.saved-{uuid.uuid4().hex[:8]}"
        for folder in self._folders():
            with suppress(sqlite3.Error, OSError):
                if folder != self._path.parent:
                    folder.mkdir(parents=True, exist_ok=True)
                _copy(connection, folder / name, deadline)
                self._copy, self._copied = folder / name, written
                return
        before = f"; what it held before that is saved in {self._copy}" if self._copy else ""
        raise MovedDatabaseError(
            f"{self._shown} {told} while it was open, and no folder takes a copy of what it held{before}", hint=_AGAIN
        )

    def _folders(self) -> list[Path]:
        """Where a copy may lie, the best place first."""
        folders = [self._path.parent, Path(tempfile.gettempdir())]
        with suppress(RuntimeError):  # a user without a home folder
            folders.insert(1, platformdirs.user_data_path("kernel-registry"))
        return folders

    def _remove_logs(self) -> None:
        """Removes the log that stayed behind: SQLite would take its pages for those of the next database there."""
        for path, inode in self._logs.items():
            if _inode(path) == inode:
                with suppress(OSError):
                    path.unlink()


_AGAIN = "leave the files of a database where they are while a process has it open, and run this again"


def _copy(connection: sqlite3.Connection, path: Path, deadline: float) -> None:
    """Copies a database to a new file at ``path``, which stays only if it is whole.

    Raises FileExistsError where there is one, TimeoutError if another process holds the database at the ``deadline``.
    """

    def waited(status: int, _left: int, _pages: int) -> None:
        if status in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED} and time.monotonic() > deadline:
            raise TimeoutError

    path.touch(exist_ok=False)
    try:
        with closing(sqlite3.connect(path)) as copy:
            connection.backup(copy, progress=waited, sleep=0.05)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def _inode(path: Path) -> _Inode | None:
    """The numbers that tell a file from all others; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
