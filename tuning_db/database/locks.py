"""File systems that refuse to lock files: SQLite takes their refusal for another process's lock, and waits for it."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from ..errors import UnreachableDatabaseError

try:
    import fcntl
except ImportError:  # Windows, whose file systems all lock
    fcntl = None  # type: ignore[assignment]

_UNUSED_BYTE = 0x4000_0000 + 4096
"""A byte that SQLite never locks: it locks 512 of those from 2^30 on."""

_NONE = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""What systems answer that have no locks: NFS without its lock daemon, Lustre without ``flock``."""

_HINT = (
    "mount it with locks (NFS: without nolock and with its lock daemon; Lustre: with flock), or set KERNEL_REGISTRY_DB"
    " (or --db) to a file on a local disk or to a PostgreSQL URL"
)


def require_locks(descriptor: int, shown: str) -> None:
    """Raises UnreachableDatabaseError where the system does not lock the open file, a database that is called so.

    To close the file drops the process's locks of it: there may be no connection to it.
    """
    if fcntl is None:
        return
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _UNUSED_BYTE, os.SEEK_SET)
    except OSError as fault:
        if fault.errno in _NONE:
            told = f"{shown} cannot be locked: its file system has no locks ({fault.strerror})"
            raise UnreachableDatabaseError(told, hint=_HINT) from None


def require_locks_in(folder: Path, shown: str) -> None:
    """Raises UnreachableDatabaseError where files of a folder, in which a database is to be made, cannot be locked."""
    # a full disk is SQLite's to tell
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\0")
        require_locks(file.fileno(), shown)
