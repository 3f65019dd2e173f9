"""File systems without locks: told at once as what they are, and not as another process that holds the database."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tuning_db.conftest import Make
from tuning_db import Store

NO_LOCKS = """
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REPLACE(name)                                                                                        \\
    int name(int file, int command, ...) {                                                                   \\
        va_list rest;                                                                                        \\
        va_start(rest, command);                                                                             \\
        void *argument = va_arg(rest, void *);                                                               \\
        va_end(rest);                                                                                        \\
        if (command == F_SETLK || command == F_SETLKW || command == F_GETLK) { errno = REFUSED; return -1; } \\
        return syscall(SYS_fcntl, file, command, argument);                                                  \\
    }
REPLACE(fcntl)
REPLACE(fcntl64)
"""
"""Replaces the C library's function that locks files."""

OPEN = """
import sys
from tuning_db import TuningDBError, Store
from tuning_db.snapshot import read_winners
for use in (
    lambda: Store.open(sys.argv[1]),
    lambda: Store.open(sys.argv[1], create=False, migrate=False),
    lambda: read_winners(sys.argv[1], "softmax", {}, "cold", 2.0),
    lambda: Store.open(sys.argv[2]),
):
    try:
        use()
    except TuningDBError as fault:
        print(type(fault).__name__, fault.message.partition(" ")[2], "|", fault.hint)
"""


@pytest.fixture(params=["ENOLCK", "ENOSYS"])
def no_locks(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A library that, loaded first, answers as a file system without locks."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler, or no library that is loaded first")
    source, library = tmp_path / "no_locks.c", tmp_path / "no_locks.so"
    source.write_text(NO_LOCKS)
    options = ["-shared", "-fPIC", f"-DREFUSED={request.param}"]
    subprocess.run([compiler, *options, "-o", library, source], check=True)
    return library


@pytest.mark.timeout(60)
def test_a_file_system_without_locks_is_told(
    file: Path, tmp_path: Path, no_locks: Path, environment_variables: dict[str, str]
) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(file), str(tmp_path / "new.db")],
        capture_output=True, text=True, check=False, env={**environment_variables, "LD_PRELOAD": str(no_locks)},
    )  # fmt: skip
    assert time.monotonic() - began < 20
    told = done.stdout.splitlines()
    assert len(told) == 4, done.stderr
    for line in told:
        assert line.startswith("UnreachableDatabaseError cannot be locked: its file system has no locks (")
        assert "PostgreSQL" in line
    assert not (tmp_path / "new.db").exists()


def test_locks_of_an_open_store_stay(file: Path, make: Make) -> None:
    with Store.open(file) as store:
        run = store.start_run(make.environment)
        Store.open(file).close()
        store.add_trials(run, [make.trial()])
        assert len(store.trials()) == 2
