"""Runs a command with a profiler in each of its processes that imports the registry."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..dispatch.torch_side.profiles import PROFILE_VARIABLE
from ..errors import RegistryError

_SIGNALLED = 128
"""A shell's exit code of a command that a signal ended is this and the signal's number."""


def run_profiled(command: Sequence[str], folder: Path) -> int:
    """Run a command to its end; its processes write their traces into ``folder``. Returns its exit code.

    A ``.py`` file is run by this Python. Raises RegistryError for a command that cannot be started.
    """
    whole = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    try:
        done = subprocess.run(whole, env={**os.environ, PROFILE_VARIABLE: str(folder)}, check=False)
    except OSError as fault:
        raise RegistryError(
            f"{whole[0]}: {fault.strerror}", hint="expected a command, e.g. registry profile -- python script.py"
        ) from None
    return done.returncode if done.returncode >= 0 else _SIGNALLED - done.returncode
