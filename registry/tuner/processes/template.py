"""A process that has imported what children need and forks them: a child starts in milliseconds.

Run as ``python -m registry.tuner.processes.template``.

Forking is sound only while nothing but imports has happened: one thread (OpenMP has run no parallel region, OpenBLAS
ends its threads before a fork) and no device in use (a CUDA driver that was initialised is unusable after a fork).
Both are checked before the first fork; where they do not hold the keeper executes its children instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import mmap
import os
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .keeper import receive, send

_HIP_DEVICES = ("/dev/kfd", "/dev/dri")
_CUDA_NOT_INITIALISED = 3
_HIGH_DESCRIPTOR = 500
_MOST_PAGES = 4096
_LONGEST_REASON = 500
_placement: list[Any] = []


def unsound() -> str:
    """Why this process must not be forked; "" when it may be."""
    threads = list(Path("/proc/self/task").iterdir())
    if len(threads) > 1:
        names = sorted((thread / "comm").read_text().strip() for thread in threads)
        return f"it has {len(threads)} threads: {', '.join(names)}"
    if _uses_cuda() or _uses_hip():
        return "it has initialised the GPU's driver"
    return ""


def _uses_cuda() -> bool:
    # asked of the driver only if something has loaded it; NVML, by which torch counts devices, survives a fork
    if "libcuda.so" not in Path("/proc/self/maps").read_text():
        return False
    count = ctypes.c_int()
    return bool(ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)) != _CUDA_NOT_INITIALISED)


def _uses_hip() -> bool:
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()).startswith(_HIP_DEVICES):
                return True
    return False


def main(arguments: Sequence[str]) -> None:
    """``template SOCKET KEEPER [MODULE[:FUNCTION] ...]``: import the modules, call the functions, fork on request."""
    keeper = socket.socket(fileno=int(arguments[0]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # what imports make stays: to look for garbage among it took a sixth of their time
    try:
        for wanted in arguments[2:]:
            name, _, function = wanted.partition(":")
            module = importlib.import_module(name)
            if function:
                getattr(module, function)()
    except Exception as fault:  # a library's import may raise anything
        send(keeper, {"unsound": f"{wanted}: {type(fault).__name__}: {fault}"[:_LONGEST_REASON]}, [])
        return
    gc.freeze()  # modules stay loaded, and a collection in a child must not copy their pages
    gc.enable()
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    reason = unsound()
    send(keeper, {"unsound": reason} if reason else {"ready": True}, [])
    while not reason:
        message, descriptors = receive(keeper)
        if message is None:
            return
        pid = _fork(keeper, message, *descriptors)
        send(keeper, {"forked": pid}, [])


def _fork(keeper: socket.socket, message: dict[str, Any], channel: int, log: int) -> int:
    """Fork twice, so that the child is the keeper's; returns its process id."""
    ours, theirs = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            child = os.fork()
            if child:
                os.write(theirs, str(child).encode())
            else:
                os.close(ours)
                os.close(theirs)
                keeper.close()
                _run(message, channel, log)
        finally:  # also when there are no processes left to fork
            os._exit(0)
    os.close(theirs)
    os.close(channel)
    os.close(log)
    os.waitpid(between, 0)
    pid = int(os.read(ours, 32) or b"0")
    os.close(ours)
    return pid


def _run(message: dict[str, Any], channel: int, log: int) -> None:
    """Be the child: its main function with its environment, folder and log. Never returns."""
    code = 1
    try:
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        # at a number that a stranger's code, which writes to small numbers, does not hit
        import fcntl

        high = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
        os.close(channel)
        _await_adoption(message["keeper"])
        _take_over(message)
        _place_elsewhere()
        importlib.import_module(message["module"]).main([str(high), str(message["keeper"]), *message["arguments"]])
        code = 0
    except SystemExit as fault:
        code = fault.code if isinstance(fault.code, int) else int(fault.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _await_adoption(keeper: int) -> None:
    """Wait until the keeper is this process's parent: only then does ``PR_SET_PDEATHSIG`` mean the keeper."""
    until = time.monotonic() + 10
    while os.getppid() != keeper and time.monotonic() < until:
        time.sleep(0.0005)


def _take_over(message: dict[str, Any]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    template_folder = str(Path.cwd())
    os.chdir(message["folder"])
    if sys.path and sys.path[0] in {"", template_folder}:
        sys.path[0] = message["folder"]
    wanted = {**message["environment"], **message["extra"]}
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)
    tempfile.tempdir = None  # found before, for the template
    sys.argv = [message["module"]]


def _place_elsewhere() -> None:
    """Move the heap by a random amount: forks share one layout of addresses, and finals count on random ones.

    Python's ``random`` is seeded anew in a fork, numpy's is not.
    """
    _placement.append(mmap.mmap(-1, random.randint(1, _MOST_PAGES) * mmap.PAGESIZE))
    _placement.append(bytearray(random.randint(16, 1 << 16)))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


if __name__ == "__main__":
    main(sys.argv[1:])
