"""The headers that kernels share, compiled once: GCC reads the vector intrinsics in 0.25 s, for each kernel again.

A library is the same to the byte with and without. GCC takes the precompiled header where the flags are those that it
was made with, and reads the text where they are not.
"""

from __future__ import annotations

import collections
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...paths import write_whole

_HEADERS = """\
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <type_traits>
#include <utility>
#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif
"""
"""What the preamble includes, which every kernel may count on, and the intrinsics, which are nearly all of the time."""
_NAME = "kernels.hpp"
_PAYS_FROM = 3
"""Compilations in one process: to make the header takes as long as it saves in six."""
_TIMEOUT_SECONDS = 60

_compiled: collections.Counter[Path] = collections.Counter()


def including(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Arguments by which a kernel is compiled with the precompiled header in ``folder``; none where it does not pay.

    ``command`` is GCC with the flags that every kernel is compiled with, in ``environment``. Made by a process that
    compiles its third kernel, and used by whoever finds it. A header that cannot be made is done without.
    """
    header, made = folder / _NAME, folder / f"{_NAME}.gch"
    _compiled[folder] += 1
    if not made.exists() and (_compiled[folder] != _PAYS_FROM or not _make(command, header, made, environment)):
        return []
    return ["-include", str(header)]


def discard(folder: Path) -> None:
    """Remove a precompiled header that the compiler cannot use."""
    (folder / f"{_NAME}.gch").unlink(missing_ok=True)


def _make(command: Sequence[str], header: Path, made: Path, environment: Mapping[str, str]) -> bool:
    """Whether the header could be made. Its text goes first: GCC falls back to it."""
    with tempfile.TemporaryDirectory(prefix="kernel-registry-") as place:
        (Path(place) / _NAME).write_text(_HEADERS)
        making = [*command, "-x", "c++-header", _NAME, "-o", made.name]
        try:
            done = subprocess.run(
                making, cwd=place, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False, env=environment
            )
            if done.returncode == 0:
                write_whole(header, _HEADERS.encode())
                write_whole(made, (Path(place) / made.name).read_bytes())
        except (OSError, subprocess.TimeoutExpired):
            return False
    return done.returncode == 0
