"""The file of a recording: a shapes file with counts, to which counts are added, replaced in one step."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ...contract import COUNT
from ...device import Device
from ...errors import RegistryError, ShapesFileError
from ...paths import resolved, write_whole
from ...problem import Problem, Value, canonical_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MOST_PROBLEMS = 10_000
"""The most problems of one recording: calls of further problems are left out, and the file tells their number."""

_MARK = "# Recorded by kernel-registry"
_ORIGIN = "# on "
_LEFT_OUT = "# left out: "
_LEFT_OUT_LINE = re.compile(rf"{_LEFT_OUT}(\d+) ")

_MOST_BITS = 256

RecordedRow = tuple[Mapping[str, Any], int]
"""The dimensions of a problem, and the number of its calls."""


@dataclass
class Recorded:
    """A file's content: rows by op and canonical dimensions, the places of recording, the number of left out calls."""

    rows: dict[str, dict[str, RecordedRow]] = field(default_factory=dict)
    origins: list[str] = field(default_factory=list)
    left_out: int = 0

    def add(self, problem: Problem, count: int) -> None:
        rows = self.rows.setdefault(problem.op, {})
        key = canonical_json(dict(problem.dims))
        if key in rows:
            rows[key] = (rows[key][0], rows[key][1] + count)
        elif sum(map(len, self.rows.values())) < MOST_PROBLEMS:
            rows[key] = (problem.dims, count)
        else:
            self.left_out += count


def checked(path: str | Path) -> Path:
    """The absolute path, links resolved. Raises RegistryError for a path that could not be written later.

    An existing file must be a recording: its counts are kept, any other text would be lost.
    """
    target = resolved(path)
    try:
        if target.exists():
            read(target)
            with target.open("r+b"):
                pass
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as fault:
        raise RegistryError(
            f"record: {target} cannot be written: {fault.strerror}", hint="expected a file in a folder that is there"
        ) from None
    return target


def add(path: Path, counts: Mapping[Problem, int], left_out: int, place: str, date: str) -> None:
    """Add counts to the file, also while other processes do; readers never see half a file."""
    with _alone(path.parent):
        recorded = read(path) if path.exists() else Recorded()
        for problem, count in counts.items():
            recorded.add(problem, count)
        recorded.left_out += left_out
        # only the last date of a place is kept
        others = [origin for origin in recorded.origins if not origin.startswith(f"{place}, ")]
        recorded.origins = [*others, f"{place}, {date}"]
        write_whole(path, text(recorded, path.name).encode())


def add_now(path: Path, counts: Mapping[Problem, int], left_out: int) -> None:
    """``add`` with this hardware and torch, ``NVIDIA H200, torch 2.11.0``, and the current minute.

    A GPU is only initialised if the program has used it.
    """
    device = Device.of("cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu")
    add(path, counts, left_out, f"{device.name}, torch {torch.__version__}", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")


def read(path: Path) -> Recorded:
    """An earlier recording. Raises ShapesFileError for any other file."""
    from ...untrusted.yaml_document import Document, bounded_text

    if path.exists() and not (path.is_file() or path.is_dir()):
        raise _no_recording(path)  # reading a pipe would wait for its writer
    try:
        content = bounded_text(path)
        data = Document(path, content).data
    except (UnicodeDecodeError, ShapesFileError):
        raise _no_recording(path) from None
    if data is None and not content.strip():
        return Recorded()
    if not content.startswith(_MARK) or not isinstance(data, dict | None):
        raise _no_recording(path)
    recorded = Recorded()
    for line in content.splitlines():
        if line.startswith(_ORIGIN):
            recorded.origins.append(line.removeprefix(_ORIGIN))
        elif told := _LEFT_OUT_LINE.match(line):
            recorded.left_out = int(told[1])
    for op, entries in (data or {}).items():
        recorded.rows[str(op)] = _rows(path, op, entries)
    return recorded


def text(recorded: Recorded, name: str) -> str:
    """The text of the file: comments on its origin, then the entries, one per line, sorted."""
    from ... import __version__

    lines = [
        f"{_MARK} {__version__}: what a program called, and how often (docs/shapes.md). To tune it by weight:",
        f"#   tune --shapes {name}",
        *(f"{_ORIGIN}{origin}" for origin in recorded.origins),
    ]
    if recorded.left_out:
        lines.append(f"{_LEFT_OUT}{recorded.left_out} calls of problems beyond the first {MOST_PROBLEMS}")
    for op in sorted(recorded.rows):
        lines += ["", *entry_lines(op, sorted(recorded.rows[op].values(), key=lambda row: _order(row[0])))]
    return "\n".join(lines) + "\n"


def entry_lines(op: str, rows: Iterable[RecordedRow]) -> list[str]:
    """The lines of a shapes file for one op: its name, then an entry with its count for each problem."""
    lines = [f"{op if op.replace('::', '_').isidentifier() else _scalar(op)}:"]
    for dims, count in rows:
        pairs = ", ".join(f"{_scalar(key)}: {_written(value)}" for key, value in {**dims, COUNT: count}.items())
        lines.append(f"  - {{{pairs}}}")
    return lines


def _rows(path: Path, op: object, entries: object) -> dict[str, RecordedRow]:
    rows: dict[str, RecordedRow] = {}
    for number, entry in enumerate(entries if isinstance(entries, list) else [None]):
        count = entry.get(COUNT, 1) if isinstance(entry, dict) else None
        if type(count) is not int or count < 1 or not all(map(_writable, entry.values())):
            raise ShapesFileError(
                f"{path}, {op}[{number}]: got {_shown(entry):.80}",
                hint="expected {dimension: value, ..., count: number}",
            )
        dims = {str(name): value for name, value in entry.items() if name != COUNT}
        key = canonical_json(dims)
        rows[key] = (dims, count + (rows[key][1] if key in rows else 0))
    return rows


def _shown(entry: object) -> str:
    try:
        return repr(entry)
    except ValueError:  # Python does not write numbers of more than 4300 digits
        return "a number of thousands of digits"


def _writable(value: object) -> bool:
    """True if a recording can hold the value: no date, and no number that is too long for Python to write."""
    if isinstance(value, list):
        return all(map(_writable, value))
    return isinstance(value, str | bool | float) or (isinstance(value, int) and value.bit_length() < _MOST_BITS)


def _no_recording(path: Path) -> ShapesFileError:
    return ShapesFileError(
        f"record: {path} is there and is no recording", hint="its text would be lost: give another path"
    )


def _order(dims: Mapping[str, Any]) -> list[tuple[int, float, str]]:
    return [
        (0, value, "") if isinstance(value, int | float) else (1, 0.0, str(value))
        for _, value in sorted(dims.items(), key=lambda pair: isinstance(pair[1], str))
    ]


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else _scalar(value) if isinstance(value, str | float) else _flow(value)


@lru_cache(maxsize=256)
def _scalar(value: Value) -> str:
    return _flow(value)


def _flow(value: Any) -> str:
    import yaml

    return yaml.safe_dump([value], default_flow_style=True, width=10_000).strip()[1:-1]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock for writing; where the file system has no locks, the later of two writers overwrites."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
