"""C++ and CUDA files for ``load_inline``: a function over ``torch::Tensor`` in a .cpp or .cu file."""

from __future__ import annotations

import re

from ..backends import load_inline
from ..errors import InvalidDefinitionError
from ..implementation import Implementation
from .foreign_file import ForeignFile

SUFFIXES = frozenset({".cpp", ".cc", ".cu"})
_RETURNS = r"(?:(?:torch|at)::Tensor|std::(?:vector|tuple)<[\w:,\s]*Tensor[\w:,\s]*>)"
_FUNCTION = re.compile(rf"^[ \t]*(?P<head>{_RETURNS}\s+(?P<name>\w+)\s*\([^)]*\))\s*\{{", re.MULTILINE)
_BINDING = re.compile(r"^\s*PYBIND11_MODULE\s*\(", re.MULTILINE)


def is_submission(file: ForeignFile) -> bool:
    """Whether a file is C++ or CUDA text."""
    return file.path.suffix in SUFFIXES


def submission(op: str, name: str, file: ForeignFile, function: str = "") -> Implementation:
    """The implementation by a function of the file: ``function``, or one of the op's or the file's name, or the last.

    Raises InvalidDefinitionError if the file defines no function that returns tensors, or not ``function``.
    """
    found = {one["name"]: one["head"] for one in _FUNCTION.finditer(file.text)}
    if not found or (function and function not in found):
        raise InvalidDefinitionError(
            f"{file.path} defines {', '.join(found) or 'no function'} over torch::Tensor, wanted {function or 'one'}",
            hint=f"expected: torch::Tensor {op.rpartition('::')[2]}(torch::Tensor x, ...) {{",
        )
    if _BINDING.search(file.text):
        raise InvalidDefinitionError(
            f"{file.path} has a PYBIND11_MODULE of its own", hint="leave it out: load_inline writes one"
        )
    likely = [function, op.rpartition("::")[2], file.path.stem, list(found)[-1]]
    chosen = next(one for one in likely if one in found)
    is_cuda = file.path.suffix == ".cu"
    return load_inline(
        op, name, function=chosen,
        cpp_source=f"#include <torch/types.h>\n{found[chosen]};" if is_cuda else file.text,
        cuda_source=file.text if is_cuda else "",
        device_types=("cuda",) if is_cuda else ("cpu",),
    )  # fmt: skip
