"""The type of the file system that a path lies on: SQLite's WAL needs memory shared by all who open the file."""

from __future__ import annotations

import re
from pathlib import Path

# fmt: off
NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fhgfs", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.juicefs", "fuse.mfs",
    "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs",
    "panfs", "smb2", "smb3", "smbfs", "wekafs",
})
# fmt: on
"""Types whose files other hosts can open at the same time."""

MOUNTS = Path("/proc/self/mountinfo")


def network_file_system(path: Path, mounts: Path | None = None) -> str | None:
    """The type of the network file system that ``path`` lies on ("nfs4"), or None when it is a local one.

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
