"""SQLite files: checks of their paths, file systems and headers, ways to open them, and connections. No SQLAlchemy."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import threading
from collections import Counter, defaultdict
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import CorruptedDatabaseError, MissingDatabaseError, UnreachableDatabaseError
from .locks import require_locks, require_locks_in

BUSY_SECONDS = 60.0
"""Seconds that a statement waits for another process's lock."""

_MAGIC = b"SQLite format 3\0"
"""The first bytes of every SQLite file (an empty file, or one being made, has none or zeros)."""

# fmt: off
NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fhgfs", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.juicefs", "fuse.mfs",
    "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs",
    "panfs", "smb2", "smb3", "smbfs", "wekafs",
})
# fmt: on
"""Types whose files other hosts can open at the same time."""

MOUNTS = Path("/proc/self/mountinfo")

_Inode = tuple[int, int]

_connections: Counter[_Inode] = Counter()
"""The number of this process's connections to each file."""
_held: defaultdict[_Inode, AbstractContextManager[Any]] = defaultdict(threading.RLock)
"""Locks, held while a file is read without SQLite: to close it drops all that this process has locked of it (POSIX)."""


@dataclass(frozen=True)
class Access:
    """How a file is opened: SQLite's ``mode`` (ro, rw, rwc); ``immutable`` if no other process can be writing to it."""

    path: Path
    mode: str
    immutable: bool = False

    @property
    def uri(self) -> str:
        """The file's URI for SQLite, with these options."""
        return f"file:{quote(str(self.path))}?mode={self.mode}" + ("&immutable=1" if self.immutable else "")


def check_file(path: Path, shown: str, *, create: bool) -> bool:
    """True if there is a file at ``path``; with ``create`` its folder is made when missing.

    Raises MissingDatabaseError without ``create``, UnreachableDatabaseError for a path that can never be a database.
    """
    try:
        if path.is_dir():
            raise UnreachableDatabaseError(
                f"{shown} is a folder, expected a file", hint=f"name a file in it, e.g. {path / 'tuning.db'}"
            )
        if path.exists():
            if not path.is_file():  # to open a FIFO would wait for whoever writes to it
                raise UnreachableDatabaseError(
                    f"{shown} is a {_kind(path)}, expected a file", hint="set KERNEL_REGISTRY_DB (or --db) to a file"
                )
            _check_journals(path)
            _check_header(path, shown)
            return True
        if not create:
            raise MissingDatabaseError(f"there is no database at {shown}", hint="run `tune` to make one")
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        hint = "check the path, or set KERNEL_REGISTRY_DB (or --db) to another place"
        raise UnreachableDatabaseError(f"{shown} cannot be opened ({fault})", hint=hint) from fault
    if not os.access(path.parent, os.W_OK):
        raise UnreachableDatabaseError(
            f"{shown} cannot be made: its folder is not writable",
            hint="set KERNEL_REGISTRY_DB (or --db) to a file in a folder that is writable",
        )
    require_locks_in(path.parent, shown)
    return False


def _check_journals(path: Path) -> None:
    """Raises UnreachableDatabaseError for a FIFO or a folder where SQLite keeps a journal: it would wait for ever."""
    for end in ("-journal", "-wal", "-shm"):
        journal = path.with_name(path.name + end)
        if journal.exists() and not journal.is_file():
            kind = "folder" if journal.is_dir() else _kind(journal)
            raise UnreachableDatabaseError(f"{journal} is a {kind}, expected SQLite's own file", hint="remove it")


def _check_header(path: Path, shown: str) -> None:
    """Raises CorruptedDatabaseError for a file that does not begin as SQLite files do.

    SQLite itself takes any file shorter than a page for an empty database, and would overwrite it.
    """
    if not os.access(path, os.R_OK):
        raise UnreachableDatabaseError(f"{shown} cannot be opened: you may not read it", hint="check its permissions")
    start = _start_of(path, shown)
    if start != _MAGIC and any(start):
        raise CorruptedDatabaseError(
            f"{shown} is not a SQLite database (it begins with {start!r})",
            hint="it was left as it is; set KERNEL_REGISTRY_DB (or --db) to another place",
        )


def _start_of(path: Path, shown: str) -> bytes:
    """The first bytes of a file that can be locked; none of one to which there is a connection, whose locks must stay.

    Without its lock another process takes a database for closed, and removes the log to which this one still writes.
    """
    inode = _inode(path)
    with _held[inode]:
        if _connections[inode] > 0:
            return b""
        with path.open("rb") as file:
            require_locks(file.fileno(), shown)
            return file.read(len(_MAGIC))


def _inode(path: Path) -> _Inode:
    found = path.stat()
    return found.st_dev, found.st_ino


def _kind(path: Path) -> str:
    """The kind of a path that is neither file nor folder."""
    mode = path.stat().st_mode
    kinds = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
    return kinds.get(stat.S_IFMT(mode), "special file")


def second_access(path: Path, code: int | None) -> Access | None:
    """Another way to open a file, after SQLite's ``code`` at a read-only connection; None where no other helps.

    A crashed writer's journal must be rolled back, which only a writer can. A log without an index, in a folder where
    no index can be made, needs ``immutable``, which is only safe while no -wal file lies beside the database.
    """
    if code not in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}:
        return None
    if writable(path):
        return Access(path, "rw")
    log = path.with_name(path.name + "-wal")
    if os.access(path, os.R_OK) and not (log.exists() and log.stat().st_size):
        return Access(path, "ro", immutable=True)
    return None


def writable(path: Path) -> bool:
    """True if file and folder can be written: the journal is made in the folder."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


class _Connection(sqlite3.Connection):
    """A connection that is counted until it is closed."""

    _inode: _Inode | None = None

    def count(self, path: Path) -> None:
        """Count a connection among those to the file at ``path``, before its first statement locks the file."""
        with suppress(OSError):  # the file is gone: another one at the path is not locked
            inode = _inode(path)
            with _held[inode]:
                self._inode = inode
                _connections[inode] += 1

    def close(self) -> None:
        super().close()
        inode, self._inode = self._inode, None
        if inode is not None:
            with _held[inode]:
                _connections[inode] -= 1


def connect(access: Access, *, foreign_keys: bool = True, seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """A connection in driver autocommit, whose statements wait ``seconds`` for another process's lock."""
    connection = sqlite3.connect(
        access.uri, uri=True, timeout=seconds, isolation_level=None, check_same_thread=False, factory=_Connection
    )
    try:
        connection.count(access.path)
        # what a file's own views and triggers may call: nothing that reaches beyond the file
        connection.execute("PRAGMA trusted_schema=OFF")
        # 64 MiB: with SQLite's 2 MiB, pages of ten thousand winners or of a large import are read several times over
        connection.execute("PRAGMA cache_size=-65536")
        connection.execute(f"PRAGMA foreign_keys={'ON' if foreign_keys else 'OFF'}")
        if access.mode != "ro" and journal_of(connection) == "wal":
            # with a log, NORMAL risks the last transactions at a power cut but never the file
            connection.execute("PRAGMA synchronous=NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def journal_of(connection: sqlite3.Connection) -> str:
    """SQLite's journal mode: ``wal``, ``delete``."""
    return str(connection.execute("PRAGMA journal_mode").fetchone()[0])


def network_file_system(path: Path, mounts: Path | None = None) -> str | None:
    """The type of the network file system that ``path`` lies on ("nfs4"), or None when it is a local one:
    SQLite's WAL needs memory shared by all who open the file.

    Where the system keeps no table of mounts (not Linux), every path counts as local.
    """
    try:
        table = (mounts or MOUNTS).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    kind = file_system(path.resolve(), table)
    return kind if kind in NETWORK else None


def file_system(path: Path, table: str) -> str | None:
    """The type of the innermost mount that holds ``path``, from the text of a mountinfo table (proc(5))."""
    best, kind = -1, None
    for line in table.splitlines():
        left, separator, right = line.partition(" - ")
        if not separator:
            continue
        point = Path(_unescaped(left.split()[4]))
        # of two mounts on one point the later one covers the earlier
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), right.split()[0]
    return kind


def _unescaped(field: str) -> str:
    """``field`` of a mountinfo table with its octal escapes (``\\040`` is a blank) replaced."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _after_fork() -> None:
    """Forgets what a forked child does not inherit: its parent's locks, of this process and of files."""
    _held.clear()
    _connections.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
