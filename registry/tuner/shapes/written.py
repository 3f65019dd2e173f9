"""Writes problems as a shapes file, for a person to read, to edit and to tune."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...dispatch.recording.recording_file import entry_lines
from ...errors import InvalidArgumentError
from ...paths import write_whole
from .shapes import Shapes


def write_shapes(path: Path, shapes: Shapes, remarks: Iterable[str]) -> None:
    """Write a new file with an entry for each problem and its count, and ``remarks`` as comments at its head.

    Raises InvalidArgumentError for a file that is there already, since it may have been edited, and for one that cannot
    be written.
    """
    lines = [f"# {remark}" for remark in remarks]
    for op, problems in shapes.problems.items():
        lines += ["", *entry_lines(op, ((problem.dims, shapes.counts.get(problem, 1)) for problem in problems))]
    if path.exists():
        raise InvalidArgumentError(f"{path} is there already", hint="its text would be lost: give another name")
    try:
        write_whole(path, ("\n".join(lines) + "\n").encode())
    except OSError as fault:
        raise InvalidArgumentError(
            f"{path} cannot be written: {fault.strerror}", hint="expected a file in a folder that is there"
        ) from None
