"""Plugin files that point to foreign files, by path and hash: worker processes and users load these."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidDefinitionError, RegistryError
from ..paths import expanded
from ..untrusted.file_kinds import why_no_file
from . import hf_kernels
from .detection import ImportedProblem, submission_of
from .foreign_file import ForeignFile, plain_name

_HEAD = '''"""Made by `registry import-kernel`: it points to files that stay where they are, pinned by their hashes."""

import registry
from registry.importers import op_of, reference_of, submission_of

KERNEL_REGISTRY_API = 1
'''


@dataclass(frozen=True)
class ForeignKernel:
    """A submission: its path, or text of a kernels package, the implementation's name, and its hash."""

    path: str
    name: str
    sha256: str
    label: str


def entrants(
    paths: Sequence[str], op: str, problem: ImportedProblem | None
) -> tuple[list[ForeignKernel], dict[str, str]]:
    """The submissions at paths and in folders, and why others are none, by path. Nothing of them is run."""
    found: list[ForeignKernel] = []
    refused: dict[str, str] = {}
    for path in _files(paths, problem):
        label = Path(path).name if Path(path).is_file() or Path(path).is_absolute() else path
        name = _free(f"race.{plain_name(Path(path.partition('@')[0].rpartition(':')[0] or path).stem)}", found)
        try:
            sha256 = _digest(path)
            submission_of(path, op, name, None if problem is None else problem.file.path, sha256)
        except RegistryError as fault:
            refused[label] = f"{fault.message} ({fault.hint})" if fault.hint else fault.message
            continue
        found.append(ForeignKernel(path, name, sha256, label))
    if paths and not found and not refused:
        packages = any((Path(path) / each).is_dir() for path in paths for each in ("build", "torch-ext"))
        hint = f"a package of HF kernels is {paths[0]}:FUNCTION" if packages else "expected .py, .cu, .cpp or .json"
        raise InvalidDefinitionError(f"{', '.join(paths)}: no submission in it", hint=hint)
    return found, refused


def plugin_text(op: str, problem: ImportedProblem | None, submissions: Sequence[ForeignKernel]) -> str:
    """The text of a plugin file with an imported op, if any, and submissions."""
    lines, where = [_HEAD], ""
    if problem is not None:
        where = ", PROBLEM"
        lines += [
            f"PROBLEM = {str(problem.file.path)!r}",
            f"PROBLEM_SHA256 = {problem.file.digest!r}\n\n",
            "@registry.defines\ndef ops():\n    return [op_of(PROBLEM, PROBLEM_SHA256)]\n\n",
        ]
    lines.append(f"@registry.implements({op!r})\ndef implementations():\n    return [")
    if problem is not None:
        lines.append("        reference_of(PROBLEM, PROBLEM_SHA256),")
    for one in submissions:
        lines.append(f"        submission_of({one.path!r}, {op!r}, {one.name!r}{where}, sha256={one.sha256!r}),")
    lines.append("    ]\n")
    return "\n".join(lines)


def _files(paths: Sequence[str], problem: ImportedProblem | None) -> list[str]:
    found: list[str] = []
    for path in paths:
        place = Path(path)
        if place.is_dir():
            inside = sorted(each for each in place.rglob("*") if each.suffix in {".py", ".cu", ".cpp", ".cc", ".json"})
            own = None if problem is None else problem.file.path
            found += [
                str(each.resolve()) for each in inside
                if each.resolve() != own and not each.name.startswith(("_", ".")) and "__pycache__" not in each.parts
            ]  # fmt: skip
        elif place.is_file():
            found.append(str(place.resolve()))
        elif ":" in path:
            folder, _, function = path.rpartition(":")
            here = expanded(folder)
            found.append(f"{here.resolve()}:{function}" if here.is_dir() else path)
        else:
            raise InvalidDefinitionError(f"{path}: {why_no_file(place)}", hint="expected submissions, or their folder")
    return found


def _digest(path: str) -> str:
    if Path(path).is_file():
        return hashlib.sha256(ForeignFile(Path(path)).text.encode()).hexdigest()
    return hf_kernels.package_of(path).digest()


def _free(name: str, taken: Sequence[ForeignKernel]) -> str:
    names, number, free = {one.name for one in taken}, 1, name
    while free in names:
        number += 1
        free = f"{name}_{number}"
    return free
