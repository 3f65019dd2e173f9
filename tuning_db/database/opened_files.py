"""Files of an open SQLite database that are deleted or replaced: SQLite goes on with what has no name any more.

What is written then is gone when the process ends, and a log that stays behind destroys the next database at its path.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import platformdirs

from ..errors import MovedDatabaseError

_Inode = tuple[int, int]

_LOGS = ("-wal", "-shm")
"""What SQLite appends to a database's name for its log and the log's index."""


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
        self._copy: Path | None = None

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Context that makes a connection. Raises MovedDatabaseError where it would be to another database."""
        if self._inode is not None and (told := self._moved()):
            raise MovedDatabaseError(f"{self._shown} {told} while it was open", hint=_AGAIN)
        yield
        if self._inode is None:
            # not before: a container's file system copies a file of its image when it is first opened for writing
            self._inode = _inode(self._path)
        # a forked child's are its own: its parent's log may have gone with the parent's last connection
        if self._logged and self._process != os.getpid():
            paths = [self._path.with_name(self._path.name + end) for end in _LOGS]
            self._logs = {path: inode for path in paths if (inode := _inode(path)) is not None}
            self._process = os.getpid()

    def check(self, connect: Callable[[], sqlite3.Connection] | None) -> None:
        """Raises MovedDatabaseError for files that are no longer at their paths.

        What the database holds is saved first, through a connection of ``connect``, which is made before it was moved;
        without ``connect`` there is nothing to save. To be called after a transaction, so that the copy has it, too.
        """
        told = self._moved() or self._lost_log()
        if not told:
            return
        told = f"{self._shown} {told} while it was open"
        if connect is None:
            raise MovedDatabaseError(told, hint=_AGAIN)
        with self._lock:
            copy = self._save(connect())
            if copy is None:
                raise MovedDatabaseError(f"{told}, and no folder takes a copy of what it held", hint=_AGAIN)
            if self._moved():
                self._remove_logs()
        hint = f"`registry export FILE --db {copy}` and `registry import FILE` add it to another database"
        raise MovedDatabaseError(f"{told}; what it held is saved in {copy}", hint=hint)

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

    def _save(self, connection: sqlite3.Connection) -> Path | None:
        """The path of a copy of the database, the same for each call; None if there is no room for one."""
        folders = [self._path.parent, Path(tempfile.gettempdir())]
        with suppress(RuntimeError):  # a user without a home folder
            folders.insert(1, platformdirs.user_data_path("kernel-registry"))
        name = f"{self._path.name}.saved-{uuid.uuid4().hex[:8]}"
        for path in [self._copy] if self._copy else [folder / name for folder in folders]:
            try:
                if path.parent != self._path.parent:
                    path.parent.mkdir(parents=True, exist_ok=True)
                with closing(sqlite3.connect(path)) as copy:
                    connection.backup(copy)
            except (sqlite3.Error, OSError):
                with suppress(OSError):
                    path.unlink()
                continue
            self._copy = path
            return path
        return None

    def _remove_logs(self) -> None:
        """Removes the log that stayed behind: SQLite would take its pages for those of the next database there."""
        for path, inode in self._logs.items():
            if _inode(path) == inode:
                with suppress(OSError):
                    path.unlink()


_AGAIN = "leave the files of a database where they are while a process has it open, and run this again"


def _inode(path: Path) -> _Inode | None:
    """The numbers that tell a file from all others; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
