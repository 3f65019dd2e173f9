"""CUDA C++ to machine code through NVRTC, with a per-user cache on disk. Needs no GPU."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import CompileError, InvalidDefinitionError, OutOfResourcesError
from ...paths import cache_folder, write_whole
from ...problem import canonical_json

INSTALL_HINT = "pip install kernel-registry[cuda]"

_FORMAT = 1
_SHOWN_LINES = 12
_TOO_MUCH = re.compile(r"uses too much|too many resources|ptxas fatal\s*:\s*\(C7602\)")
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_COUNTS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
    "spill_bytes": re.compile(r"(\d+) bytes spill stores"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
}


@dataclass(frozen=True)
class Source:
    """The input of NVRTC: text, one kernel's name or template instantiation, macros, compiler options, architecture.

    ``options`` are ``maxrregcount`` (int), ``use_fast_math`` (bool) and ``std`` (``c++17`` when absent).
    """

    text: str
    name: str
    constants: Mapping[str, Any]
    architecture: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """The file name for the text in the compiler's messages."""
        return f"{re.sub(r'[^A-Za-z0-9_]', '_', self.name)}.cu"

    @property
    def key(self) -> str:
        """SHA-256 of the exact source, the macros, the options, the architecture and NVRTC's version."""
        parts = [_FORMAT, self.text, self.name, dict(self.constants), dict(self.options)]
        text = canonical_json([*parts, self.architecture, version()])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel in the cache: ``symbol`` is its mangled name, ``resources`` are those that ptxas reports."""

    path: Path
    symbol: str
    resources: Mapping[str, int]
    code: bytes = field(repr=False)


def import_core() -> None:
    """Import what loads kernels, if it is installed: 0.1 s, in which neither a device nor a thread is opened."""
    with contextlib.suppress(ImportError):
        importlib.import_module("cuda.core")


@lru_cache(maxsize=1)
def missing() -> str:
    """The reason why CUDA C++ cannot be compiled on this machine; "" if it can."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None:
        return f"cuda-core is not installed ({INSTALL_HINT})"
    try:
        version()
    except (ImportError, RuntimeError, OSError) as fault:
        return f"NVRTC cannot be loaded: {str(fault).splitlines()[0]} ({INSTALL_HINT})"
    return ""


@lru_cache(maxsize=1)
def version() -> str:
    """NVRTC's version, ``"13.2"``."""
    from cuda.bindings import nvrtc

    status, major, minor = nvrtc.nvrtcVersion()
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"nvrtcVersion: {status}")
    return f"{major}.{minor}"


@lru_cache(maxsize=1)
def include_paths() -> tuple[str, ...]:
    """Folders of the CUDA headers: of the installed wheels, else of the toolkit (``CUDA_HOME``)."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(root) / f"cu{version().split('.')[0]}" for root in (spec and spec.submodule_search_locations) or ()]
    toolkits = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for root in (*wheels, *toolkits, Path("/usr/local/cuda")):
        if (root / "include" / "cuda_fp16.h").is_file():
            folders = (root / "include", root / "include" / "cccl")
            return tuple(str(folder) for folder in folders if folder.is_dir())
    return ()


def compile_source(source: Source) -> Cubin:
    """The compiled kernel from the cache; compiled and added to the cache if it is not there.

    Raises CompileError with the compiler's first lines, OutOfResourcesError when the kernel exceeds ptxas's limits.
    """
    path = cache_folder("cuda") / f"{source.key}.kernel"
    return read(path) or _write(path, *_compile(source))


def read(path: Path) -> Cubin | None:
    """A cached kernel; None when it is not there or is not whole."""
    try:
        header, _, code = path.read_bytes().partition(b"\n")
        found = json.loads(header)
        if found["sha256"] != hashlib.sha256(code).hexdigest():
            return None
        return Cubin(path, found["symbol"], found["resources"], code)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, symbol: str, resources: Mapping[str, int], code: bytes) -> Cubin:
    header = {"symbol": symbol, "resources": dict(resources), "sha256": hashlib.sha256(code).hexdigest()}
    write_whole(path, json.dumps(header).encode() + b"\n" + code)
    return Cubin(path, symbol, resources, code)


def _compile(source: Source) -> tuple[str, Mapping[str, int], bytes]:
    if reason := missing():
        raise CompileError(f"{source.name}: {reason}")
    from cuda.core import Program

    log = io.StringIO()
    try:
        program = Program(source.text, "c++", _program_options(source))
        code = program.compile("cubin", name_expressions=(source.name,), logs=log)
    # not only cuda.core's NVRTCError, which is no public name: any fault of compile() is a fault of this source
    except Exception as fault:
        raise _refused(source, str(fault)) from None
    symbol = code.symbol_mapping[source.name]
    name = symbol.decode() if isinstance(symbol, bytes) else str(symbol)
    return name, _resources(log.getvalue(), name), bytes(code.code)


def _program_options(source: Source) -> Any:
    from cuda.core import ProgramOptions

    options = source.options
    return ProgramOptions(
        name=source.unit,
        arch=source.architecture,
        std=options.get("std", "c++17"),
        define_macro=[(name, macro(name, value)) for name, value in source.constants.items()] or None,
        include_path=list(include_paths()),
        ptxas_options=["-v"],
        max_register_count=options.get("maxrregcount"),
        use_fast_math=options.get("use_fast_math"),
    )


def macro(name: str, value: Any) -> str:
    """A constant as a macro's text: bool as 1 or 0, float as a float literal (``0.5f``), str as it stands."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int | str):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return f"{value!r}f"
    raise InvalidDefinitionError(f"constant {name}={value!r}", hint="expected a bool, int, finite float or str")


def _refused(source: Source, text: str) -> CompileError:
    log = text.split("compilation log:", 1)[-1].rstrip("\0\n ")
    kind = OutOfResourcesError if _TOO_MUCH.search(log) else CompileError
    shown = first_errors(log, ("error", "fatal"))
    return kind(f"NVRTC {version()} refused {source.name} for {source.architecture}:\n  {shown}")


def first_errors(log: str, marks: Iterable[str]) -> str:
    """A few lines of a compiler's log, from the first on that holds one of ``marks``."""
    lines = [line for line in log.splitlines() if line.strip()]
    first = next((place for place, line in enumerate(lines) if any(mark in line for mark in marks)), 0)
    return "\n  ".join(lines[first : first + _SHOWN_LINES])


def _resources(log: str, symbol: str) -> dict[str, int]:
    """Resources of one kernel in the log of ``ptxas -v``; empty for a log without them (an older NVRTC)."""
    parts = _ENTRY.split(log)
    told = dict(zip(parts[1::2], parts[2::2], strict=True)).get(symbol, "")
    found = {name: pattern.search(told) for name, pattern in _COUNTS.items()} if told else {}
    return {name: int(match.group(1)) if match else 0 for name, match in found.items()}
