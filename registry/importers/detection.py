"""Which form a file has, and what it becomes: an op, or an implementation of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ..contract import Op
from ..errors import InvalidDefinitionError
from ..implementation import Implementation
from ..problem import Value
from . import flashinfer_bench, function_file, gpu_mode, hf_kernels, inline_source, kernelbench
from .foreign_file import ForeignFile, plain_name
from .submission import Submission

FORMS = (
    "KernelBench (Model and get_inputs), GPU MODE (ref_kernel and generate_input) "
    "or FlashInfer-Bench (a definition's JSON)"
)

_BY_FORM: Mapping[str, tuple[Any, Callable[[ForeignFile], Any]]] = {
    flashinfer_bench.VENDOR: (flashinfer_bench, flashinfer_bench.Definition),
    kernelbench.VENDOR: (kernelbench, kernelbench.KernelBenchProblem),
    gpu_mode.VENDOR: (gpu_mode, gpu_mode.GpuModeProblem),
}
"""The module of each form, and the class of its problems."""


@dataclass(frozen=True)
class ImportedProblem:
    """A problem file as an op: ``source`` knows its form."""

    form: str
    source: Any
    name: str

    @cached_property
    def op(self) -> Op:
        """The op that the file defines."""
        made: Op = self.source.op(self.name)
        return made

    @property
    def file(self) -> ForeignFile:
        """The problem file, which defines the op."""
        found: ForeignFile = self.source.file
        return found

    def problems(self, workloads: Path | None = None) -> list[dict[str, Value]]:
        """Dimensions of the problems that the file, or a file of workloads, tells."""
        if self.form == flashinfer_bench.VENDOR:
            if workloads is None:
                raise InvalidDefinitionError(
                    f"{self.file.path} tells no sizes", hint="give --workloads FILE, JSON lines with their axes"
                )
            found: list[dict[str, Value]] = self.source.problems(flashinfer_bench.workloads_of(workloads))
            return found
        return [dict(case.dims) for case in self.source.cases]

    def reference(self) -> Implementation:
        """The file's own reference, as the implementation that others are compared with."""
        op = self.op
        return Submission(op.name, op.baseline, self.source.reference_caller, (self.file.text,), preference=0.0)


def problem_path(path: Path) -> Path:
    """The problem file at a path: of a folder its reference.py. Raises InvalidDefinitionError."""
    if path.is_dir() and (found := gpu_mode.reference_beside(path)) is not None:
        return found
    if not path.is_file():
        raise InvalidDefinitionError(f"{path}: no problem file", hint=f"expected a file of {FORMS}")
    return path


@lru_cache(maxsize=256)
def imported(path: Path, sha256: str = "") -> ImportedProblem:
    """The problem of a file. Raises InvalidDefinitionError for a file of no known form."""
    file = ForeignFile(problem_path(path).resolve(), sha256)
    own = file.path.parent.name if file.path.name == "reference.py" else file.path.stem
    for form, (module, kind) in _BY_FORM.items():
        if module.is_problem(file):
            return ImportedProblem(form, kind(file), f"{form}::{plain_name(own)}")
    raise InvalidDefinitionError(f"{path}: no problem of a known form", hint=f"expected {FORMS}")


def reference_of(path: str, sha256: str = "") -> Implementation:
    """The problem file's own reference, as the implementation that others are compared with."""
    return imported(Path(path), sha256).reference()


def op_of(path: str | Path, sha256: str = "") -> Op:
    """The op that a problem file defines; ``sha256`` pins the file."""
    return imported(Path(path), sha256).op


def submission_of(
    path: str, op: str, name: str, problem: str | Path | None = None, sha256: str = "", function: str = ""
) -> Implementation:
    """A foreign kernel as an implementation of the op of that name. Nothing of it is run.

    ``problem``: the problem file that defines ``op``; None for an op that was there. ``path``: a file, or
    ``FOLDER:function`` or ``ORG/NAME@COMMIT:function`` for a package of HF ``kernels``. ``sha256`` pins it. Raises
    InvalidDefinitionError for what has no known form.
    """
    if not Path(path).is_file():
        return hf_kernels.submission(op, name, hf_kernels.package_of(path, sha256))
    file = ForeignFile(Path(path).resolve(), sha256)
    if inline_source.is_submission(file):
        return inline_source.submission(op, name, file, function)
    if problem is not None:
        there = imported(Path(problem))
        if _BY_FORM[there.form][0].is_submission(file):
            made: Implementation = there.source.submission(op, name, file)
            return made
    if file.path.suffix == ".py" and (found := function or function_file.function_of(file, op)):
        return function_file.submission(op, name, file, found)
    raise InvalidDefinitionError(
        f"{path}: no implementation of {op} that is known",
        hint="expected ModelNew, custom_kernel, a solution's JSON, a .cpp or .cu file, or a Python function named "
        + op.rpartition("::")[2],
    )
