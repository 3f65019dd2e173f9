"""Python processes that have imported torch and nothing of ours: forked from one, so that torch is imported once.

``fresh.py`` by itself is that one: it reads an order a line as JSON, forks, and writes the exit code of the child. A
child ends as Python does, up to and including exit handlers, but for taking its modules apart: that took 0.25 to 0.45 s
of a core, since it writes to what was shared with the parent.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import signal
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
    server, words = _server(), [str(argument) for argument in arguments]
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "out"), Path(folder, "err")
        order = {"arguments": words, "environment": dict(os.environ if env is None else env), "limit_s": limit_s}
        order |= {"folder": str(cwd or Path.cwd()), "told": [str(path) for path in told], "taken_apart": taken_apart}
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        out, err = (path.read_text() for path in told)
    return subprocess.CompletedProcess(words, code, out, err)


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    server.kill()
    server.communicate()


def main() -> None:
    """Fork on request; a child goes on as the process that was asked for, to the end of the interpreter."""
    gc.disable()
    import torch  # noqa: F401

    gc.freeze()
    gc.enable()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            order = json.loads(line)
            if order["taken_apart"]:
                _become(order)
                return
            os._exit(_ended(order))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def _ended(order: Mapping[str, Any]) -> int:
    """The exit code of the process that was asked for, after its threads, its exit handlers and its last output."""
    code = 0
    try:
        _become(order)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
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
    main()
