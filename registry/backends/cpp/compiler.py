"""The system's C++ compiler: its identity, a cache of the libraries it built, and loading one into this process."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ...errors import CacheError, CompileError
from ...forking import call_in_child
from ...paths import cache_folder, write_whole
from ...problem import canonical_json
from ..compiler_environment import host_compiler
from ..kernel_limit import check_room
from .precompiled import discard, including

# ISO mode turns contraction off, so that without -ffp-contract a * b + c is no FMA. -ffast-math is left out on
# purpose: it links start-up code that flushes denormals in the whole process, and it breaks NaN.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fPIC",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
)
_TIMEOUT_SECONDS = 300
_DIGEST = 16


@dataclass(frozen=True)
class Compiler:
    """A working C++17 compiler with OpenMP. ``identity`` changes with its version and the CPU's instruction set."""

    command: tuple[str, ...]
    identity: str
    is_gcc: bool = False


@dataclass(frozen=True)
class NoCompiler:
    """The reason why no C++ can be compiled on this machine."""

    reason: str


def find_compiler() -> Compiler | NoCompiler:
    """The compiler that ``CXX`` names, else ``c++``."""
    return _probe(os.environ.get("CXX") or "c++")


@lru_cache(maxsize=8)
def _probe(text: str) -> Compiler | NoCompiler:
    """The compiler that runs by ``text``, or why it does not work; its predefined macros are its identity.

    The macros include the version and, under -march=native, the instruction set.
    """
    command = tuple(shlex.split(text))
    probe = [*command, *FLAGS, "-dM", "-E", "-x", "c++", "-"]
    try:
        done = subprocess.run(
            probe, input="#include <omp.h>\n", capture_output=True, text=True, timeout=60, check=False, env=_c_locale()
        )
    except FileNotFoundError:
        return NoCompiler(f"no C++ compiler: {text!r} was not found (install g++ or clang++, or set CXX)")
    except (OSError, subprocess.TimeoutExpired) as fault:
        return NoCompiler(f"the C++ compiler {text!r} does not run: {fault}")
    if done.returncode != 0:
        return NoCompiler(_explain(text, done.stderr))
    if "#define _OPENMP " not in done.stdout:
        return NoCompiler(f"the C++ compiler {text!r} has no OpenMP (set CXX to one that has, e.g. g++)")
    identity = hashlib.sha256(canonical_json([command, done.stdout]).encode()).hexdigest()
    return Compiler(command, identity, "#define __GNUC__ " in done.stdout and "#define __clang__ " not in done.stdout)


def _explain(text: str, stderr: str) -> str:
    first = _first_error(stderr)
    if "openmp" in stderr.lower() or "omp.h" in stderr:
        return f"the C++ compiler {text!r} has no OpenMP ({first}): install libomp, or set CXX to e.g. g++"
    return f"the C++ compiler {text!r} is not usable: {first}"


def build(source: str, flags: Sequence[str], kernel: str) -> Path:
    """The shared library of ``source``, from the user's cache or compiled now.

    Keyed by the exact source (macros included), the flags, the compiler's identity and the environment that it obeys.
    The file's name ends in a digest of its content, so that a damaged file is noticed (and built again) and two
    compilers at once cannot disturb each other. Raises CompileError.
    """
    compiler = find_compiler()
    if isinstance(compiler, NoCompiler):
        raise CompileError(f"{kernel}: {compiler.reason}")
    where = [compiler.identity, *sorted(host_compiler().items())]
    key = _digest([source, [*FLAGS, *flags], *where])
    folder = cache_folder("cpp", key[:2])
    for found in sorted(folder.glob(f"{key}-*.so")):
        if is_intact(found):
            return found
        found.unlink(missing_ok=True)
    # not in the cache: leftovers of a killed build are removed with the temporary files
    with tempfile.TemporaryDirectory(prefix="kernel-registry-") as place:
        headers = cache_folder("cpp", "headers", _digest([FLAGS, *where])) if compiler.is_gcc else None
        library = _compile(compiler, source, flags, Path(place), kernel, headers)
        target = folder / f"{key}-{content_digest(library)}.so"
        try:
            write_whole(target, library.read_bytes())
        except OSError as fault:
            told = f"{target} cannot be written: {fault.strerror}"
            raise CacheError(told, hint="is the cache's disk full?") from fault
        return target


def _c_locale(**more: str) -> dict[str, str]:
    """The environment with a compiler's messages in English, since faults are recognised by their words."""
    return {**os.environ, "LC_ALL": "C", **more}


def _digest(identity: Sequence[object]) -> str:
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()


def _compile(
    compiler: Compiler, source: str, flags: Sequence[str], place: Path, kernel: str, headers: Path | None
) -> Path:
    """Compile ``source`` in folder ``place``. ``headers``: the folder of the precompiled header, None without one."""
    (place / "unit.cpp").write_text(source)
    environment, common = _c_locale(TMPDIR=str(place)), [*compiler.command, *FLAGS]
    # relative names, so that equal input gives an equal library whatever the temporary folder is called
    command = [*common, *flags, "-shared", "unit.cpp", "-o", "unit.so"]
    included = [] if headers is None else including(common, headers, environment)
    if included and not _run([*command, *included], place, kernel, environment):
        return place / "unit.so"
    if stderr := _run(command, place, kernel, environment):
        shown = "\n  ".join(stderr.splitlines()[:12])
        raise CompileError(f"{kernel}: {_first_error(stderr)}", hint=f"{shlex.join(command)}\n  {shown}")
    if headers is not None and included:
        discard(headers)
    return place / "unit.so"


def _run(command: Sequence[str], place: Path, kernel: str, environment: dict[str, str]) -> str:
    """The messages of a compiler that failed; "" if it succeeded. Raises CompileError if it does not end in time."""
    try:
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise CompileError(f"{kernel}: {shlex.join(command)} did not finish: {fault}") from fault
    return "" if done.returncode == 0 else done.stderr or f"it ended with {done.returncode}"


def _first_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = (line for line in lines if "error" in line or "undefined reference" in line)
    return next(errors, lines[0] if lines else "it said nothing")


def content_digest(library: Path) -> str:
    """The start of a file's SHA-256, with which the name of a built library ends."""
    return hashlib.sha256(library.read_bytes()).hexdigest()[:_DIGEST]


def is_intact(library: Path) -> bool:
    """True if the digest in a library's name is its content's; loading a truncated library kills the process."""
    try:
        return library.stem.endswith(f"-{content_digest(library)}")
    except FileNotFoundError:
        return False


class _Loaded:
    """The loaded libraries, and whether this process is a forked child, which has no OpenMP threads."""

    def __init__(self) -> None:
        self.libraries: dict[str, ctypes.CDLL] = {}
        self.forked = False

    def after_fork(self) -> None:
        self.forked = True
        for library in self.libraries.values():
            library.registry_make_serial()


_LOADED = _Loaded()
call_in_child(_LOADED.after_fork)


def load(path: str) -> ctypes.CDLL:
    """The library at ``path``, loaded once a process.

    Raises CompileError when the file is gone or damaged, OutOfResourcesError where too many are loaded already.
    """
    found = _LOADED.libraries.get(path)
    if found is None:
        check_room(len(_LOADED.libraries), "C++")
        if not is_intact(Path(path)):
            raise CacheError(f"{path} is gone or damaged", hint="run again: it will be compiled anew")
        found = ctypes.CDLL(path)
        found.registry_make_serial.restype = None
        if _LOADED.forked:
            found.registry_make_serial()
        _LOADED.libraries[path] = found
    return found
