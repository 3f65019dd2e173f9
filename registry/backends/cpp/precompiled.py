"""A precompiled header for C++ kernels: without it GCC reads the vector intrinsics, 0.25 s, for each kernel.

A library is equal to the byte with and without it. GCC uses the precompiled header if the flags are those that it was
made with, and else reads the header's text.
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
"""The headers that the preamble includes for every kernel, and the intrinsics, which take nearly all of the time."""
_NAME = "kernels.hpp"
_PAYS_FROM = 3
"""The number of the compilation in a process that makes the header: making it takes as long as it saves in six."""
_TIMEOUT_SECONDS = 60

_compiled: collections.Counter[Path] = collections.Counter()


def including(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Arguments that make GCC use the precompiled header in ``folder``; none if there is none.

    The header is made when this process compiles its third kernel, by ``command`` (GCC with the flags of every kernel)
    in ``environment``; other processes use it, too. If it cannot be made, kernels are compiled without it.
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
    """Make the header; False if that fails. Its text is written first, since GCC falls back to it."""
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
