"""The file of a page: written whole, and never in the place of a file that is no page of ours."""

from __future__ import annotations

from pathlib import Path

from ...errors import RegistryError
from ...paths import resolved, write_whole

_HEAD_BYTES = 2048
_EXAMPLES = {"--out": "report.html", "--json": "check.json", "--trace": "trace.json"}


def check_place(option: str, path: Path, hint: str) -> None:
    """Raises RegistryError for a path where no file can be put, called before any work.

    ``hint`` is for a device or a pipe, which a file would replace: what to do instead.
    """
    if path.is_dir():
        raise RegistryError(f"{option} {path}: a folder", hint=f"name the file, e.g. {path / _EXAMPLES[option]}")
    if not resolved(path).parent.is_dir():
        raise RegistryError(f"{option} {path}: no such folder", hint=f"make {path.parent} first")
    if path.exists() and not path.is_file():
        raise RegistryError(f"{option} {path}: not a regular file", hint=hint)


def check_out(path: Path, *, force: bool | None = None) -> None:
    """Raises RegistryError for an output file that must not, or cannot, be replaced; called before any work.

    ``force`` is None for commands that neither replace a file that is no page nor write to stdout.
    """
    check_place("--out", path, hint="name a file" if force is None else "use --out - for stdout")
    if not path.exists():
        return
    if not force and not _is_report(path):
        hint = "choose another name" + ("" if force is None else ", or replace it by --force")
        raise RegistryError(f"--out {path}: there is a file that is not a report", hint=hint)


def _is_report(path: Path) -> bool:
    from ...report.page import GENERATOR

    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError as fault:
        raise RegistryError(f"--out {path}: {fault.strerror}", hint="expected a file that can be written") from None
    return not head or f'name="generator" content="{GENERATOR}"'.encode() in head


def write(page: str, path: Path) -> None:
    """Writes the file completely or not at all, so that a reader of an existing report never sees half of one."""
    try:
        write_whole(resolved(path), page.encode())
    except OSError as fault:
        raise RegistryError(f"--out {path}: {fault.strerror}", hint="expected a file that can be written") from None
