"""Python processes that have imported torch and nothing of ours: forked from one, so that torch is imported once.

``fresh.py`` by itself is that one, for all processes of a test run: of each connection to its socket it reads an order
a line as JSON, forks, and writes the exit code of the child. A child ends as Python does, up to and including exit
handlers, but for taking its modules apart: that took 0.25 to 0.45 s of a core, since it writes to what was shared with
the parent.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Done = subprocess.CompletedProcess[str]

BARE = f"""
import sys, types
if "registry" not in sys.modules:
    sys.modules["registry"] = types.ModuleType("registry")
    sys.modules["registry"].__path__ = [{str(Path(__file__).parents[1] / "registry")!r}]
"""
"""Code after which those of our modules that need no torch are imported without it: the package's own is not run."""


def run(
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    limit_s: int = 200,
    taken_apart: bool = False,
) -> Done:
    """``python ARGUMENTS``: a script, ``-c`` with code, or ``-m`` with a module. Killed after ``limit_s``.

    taken_apart  whether the modules are taken apart at the end, as Python does
    """
    words = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "out"), Path(folder, "err")
        order = {"arguments": words, "environment": dict(os.environ if env is None else env), "limit_s": limit_s}
        order |= {"folder": str(cwd or Path.cwd()), "told": [str(path) for path in told], "taken_apart": taken_apart}
        code = _code(json.dumps(order).encode() + b"\n")
        out, err = (path.read_text() for path in told)
    return subprocess.CompletedProcess(words, code, out, err)


def _code(order: bytes) -> int:
    """The exit code of a process. Asked again of another server, if one ended when the last before this had ended."""
    for _ in range(3):
        with contextlib.suppress(OSError):
            server = _server()
            server.write(order)
            server.flush()
            if told := server.readline():
                return int(told)
        _server.cache_clear()
    raise ConnectionError("the server of fresh processes does not answer")


_LONGEST_PATH = 100
"""Bytes of a socket's path: the system takes 107 at most, and 104 with another kernel."""


@functools.cache
def _server() -> Any:
    """A connection, as a file, to the server of all processes of a test run; the first that asks starts it."""
    from filelock import FileLock

    name = f"fresh-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    place = Path(tempfile.gettempdir(), name)
    if len(os.fsencode(place)) > _LONGEST_PATH:
        place = Path("/tmp", name)
    with FileLock(place.with_suffix(".lock")):
        if not place.exists():
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(place))
                listener.listen()
                listener.set_inheritable(True)
                words = [sys.executable, __file__, str(listener.fileno()), str(place)]
                nothing = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0), (os.POSIX_SPAWN_DUP2, 0, 1)]
                # it outlives this process where others ask it, too
                os.posix_spawn(sys.executable, words, os.environ, file_actions=nothing, setsid=True)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(place))
        except OSError:
            place.unlink()  # it was killed
            connection.close()
            raise
    with connection:
        server = connection.makefile("rwb")
    atexit.register(server.close)
    return server


def main(listener: socket.socket, place: Path) -> None:
    """Fork on request, until the last that has asked has ended; a child goes on as the process that was asked for."""
    gc.disable()
    import torch  # noqa: F401

    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                asking = listener.accept()[0]
                selector.register(asking, selectors.EVENT_READ, asking.makefile("rwb"))
            elif line := key.data.readline():
                if os.fork() == 0:
                    _answer(json.loads(line), key.data)
                    return
            else:
                selector.unregister(key.fileobj)
        if len(selector.get_map()) == 1:
            place.unlink()
            place.with_suffix(".lock").unlink()
            return


def _answer(order: Mapping[str, Any], asking: Any) -> None:
    """Write the exit code of the process that was asked for; that one returns at its end, if it is taken apart."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:
        asking.write(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        asking.flush()
        os._exit(0)
    if not order["taken_apart"]:
        os._exit(_ended(order))
    _become(order)


def _ended(order: Mapping[str, Any]) -> int:
    """The exit code of the process that was asked for, after its threads, its exit handlers and its last output."""
    code = 0
    try:
        _become(order)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    return code & 0xFF


def _become(order: Mapping[str, Any]) -> None:
    signal.alarm(order["limit_s"])
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for number, path in enumerate([os.devnull, *order["told"]]):
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    first, *rest = order["arguments"]
    sys.path[0] = str(Path(first).parent) if first.endswith(".py") else ""
    sys.path[1:1] = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    if first == "-c":
        sys.argv = [first, *rest[1:]]
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(module))
    elif first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
