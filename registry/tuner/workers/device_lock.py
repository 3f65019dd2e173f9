"""One measuring process at a time on a device: a file lock, which ends with the process that holds it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from ...device import Device
from ...errors import RegistryError
from ...paths import cache_folder
from ..measure.nvml import identity_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class DeviceLock:
    """Two files under the cache folder's ``locks``, locked with ``flock``: the kernel frees them when the holder dies.

    A process locks ``.queue`` first and keeps it until it has locked ``.device``, so that a process which comes back at
    once finds the queue held, and two runs take turns. The holder writes its id into ``.device``.
    """

    def __init__(self, device: Device) -> None:
        self._files = _files(device)

    @contextlib.contextmanager
    def held(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the device. ``waiting`` is called once before it blocks, if it must.

        Where no lock file can be had (a read-only folder, a file system without locks), no other process is excluded.
        """
        if self._files is None:
            yield
            return
        queue, device = self._files
        _take(queue, waiting)
        try:
            _take(device, waiting)
        finally:
            fcntl.flock(queue, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):  # on a full disk the holder's id is not written, but the lock holds
            os.ftruncate(device, 0)
            os.pwrite(device, str(os.getpid()).encode(), 0)
        try:
            yield
        finally:
            fcntl.flock(device, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._files or ():
            os.close(descriptor)
        self._files = None


def holder_of(device: Device) -> int | None:
    """The id of the process that holds the device, or held it last; None where no process has written one."""
    with contextlib.suppress(OSError, RegistryError, ValueError):
        return int(_path(device, "device").read_text())
    return None


def _path(device: Device, end: str) -> Path:
    name = hashlib.sha256(f"{socket.gethostname()} {identity_of(device)}".encode()).hexdigest()[:24]
    return cache_folder("locks") / f"{device.type}-{name}.{end}"


def _files(device: Device) -> tuple[int, int] | None:
    if fcntl is None:
        return None
    with contextlib.suppress(OSError, RegistryError):
        queue, held = (_opened(_path(device, end)) for end in ("queue", "device"))
        return queue, held
    return None


def _opened(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        pass  # held by another process, so locks do work here
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _take(descriptor: int, waiting: Callable[[], None]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
