"""Python files with a function of an op's own arguments: ``def softmax(x, dim)``, for an op that is there already."""

from __future__ import annotations

from ..implementation import Implementation
from .foreign_file import ForeignFile
from .submission import Submission

_USUAL = ("custom_kernel", "solution", "run")


def function_of(file: ForeignFile, op: str) -> str:
    """The name of the file's function for an op: the op's own name, the file's, or a usual one; "" if none is there."""
    own = op.rpartition("::")[2]
    return next((name for name in (own, file.path.stem, *_USUAL) if name.isidentifier() and file.defines(name)), "")


def submission(op: str, name: str, file: ForeignFile, function: str) -> Implementation:
    """The implementation by a function that takes the schema's values in order and returns the outputs."""

    return Submission(op, name, lambda _problem, _device: file.member(function), (file.source, function))
