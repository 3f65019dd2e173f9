"""Runs a command with a profiler in each of its processes that imports the registry."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..dispatch.torch_side.profiles import PROFILE_VARIABLE
from ..errors import RegistryError
from ..untrusted.file_kinds import refuse_pipe

_SIGNALLED = 128
"""A shell's exit code of a command that a signal ended is this and the signal's number."""


def run_profiled(command: Sequence[str], folder: Path) -> int:
    """Run a command to its end; its processes write their traces into ``folder``. Returns its exit code.

    A ``.py`` file is run by this Python. Raises RegistryError for a command that cannot be started.
    """
    whole = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    try:
        if (file := _python_file(whole)) is not None:
            refuse_pipe(file)
        done = subprocess.run(whole, env={**os.environ, PROFILE_VARIABLE: str(folder)}, check=False)
    except OSError as fault:
        raise RegistryError(
            f"{fault.filename or whole[0]}: {fault.strerror}",
            hint="expected a command, e.g. registry profile -- python script.py",
        ) from None
    return done.returncode if done.returncode >= 0 else _SIGNALLED - done.returncode


def _python_file(words: Sequence[str]) -> Path | None:
    """The file that a command gives Python to run, which would wait for the writer of a FIFO; None for others."""
    if not Path(words[0]).name.startswith(("python", "pypy")):
        return None
    rest = words[1:]
    given = next((place for place, word in enumerate(rest) if not word.startswith("-")), None)
    if given is None or any(word.startswith(("-c", "-m")) for word in rest[:given]):
        return None
    return Path(rest[given])
