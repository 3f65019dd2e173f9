"""Starts the commands ``tune`` and ``registry``.

This is a package outside ``registry``, because importing ``registry`` imports torch, which takes seconds and half a
GiB: Ctrl-C during that time must end a command as it does later, with a line and exit code 130, and commands that only
read stored results do not need torch.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

INTERRUPTED = 130
_PRELOADED = "registry.tuner.workers.preloading:preload"
_KEEPER = "registry.tuner.processes.keeper"


def tune() -> None:
    """Entry point of the script ``tune``."""
    _start("tune", "registry.cli.tune")


def registry() -> None:
    """Entry point of the script ``registry``."""
    _start("registry", "registry.cli.main")


def _start(program: str, module: str) -> None:
    """Runs the program. SIGTERM, by which job schedulers and ``timeout`` end one, is a Ctrl-C to it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    open_streams()
    try:
        keeper = _early_keeper([program, *sys.argv[1:]])
        if keeper is None:
            _import_late()
        main = import_module(module).main
        if keeper is not None:
            import_module("registry.tuner.processes.spawning").adopt(keeper)
        main()
    except KeyboardInterrupt:
        hear_no_more()
        sys.stderr.write(f"{program}: interrupted\n")
        sys.exit(INTERRUPTED)


def open_streams() -> None:
    """Makes the standard streams such that any text can be written to them.

    A closed one goes nowhere: else the next file or socket, such as the database, would get its number, and be written
    to. What the encoding of stdout lacks (an ASCII locale has no "µ") is escaped as stderr does it.
    """
    if os.name == "posix":
        for number in range(3):
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def hear_no_more() -> None:
    """Ignores Ctrl-C from here on: the process is ending, and its exit handlers would show a traceback."""
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if signal.getsignal(signal.SIGTERM) is signal.default_int_handler:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
        except KeyboardInterrupt:  # another Ctrl-C, in between
            continue
        return


def _import_late() -> None:
    """Makes ``registry`` a package that imports its public names, and torch with them, when one is first asked for."""
    spec = None if "registry" in sys.modules else find_spec("registry")
    if spec is None or spec.loader is None:
        return
    package = sys.modules["registry"] = module_from_spec(spec)
    loader = spec.loader

    def asked(name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        if find_spec(f"registry.{name}") is not None:
            # `from .. import shipped` asks for it too, in the middle of a module that the public names need whole
            return import_module(f"registry.{name}")
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = asked


def _early_keeper(words: Sequence[str]) -> Any:
    """Starts the process that forks the children of a tuning command; it imports torch while this process does."""
    if sys.platform != "linux" or "tune" not in words[:2] or {"-h", "--help", "--dry-run"} & {*words}:
        return None
    package = find_spec("registry")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parents[1].joinpath(*_KEEPER.split(".")).with_suffix(".py")
    spec = spec_from_file_location("kernel_registry_keeper", path)
    if spec is None or spec.loader is None or not path.is_file():
        return None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.launch(_PRELOADED)
