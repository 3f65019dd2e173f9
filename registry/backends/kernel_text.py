"""Fingerprints of implementations whose Python module holds C++ or CUDA text in string literals."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import lru_cache
from types import ModuleType

from ..fingerprint import fingerprint, normalised_c, normalised_tree

_MARKS = ("__global__", "#include", "torch::Tensor")


def fingerprint_with_kernels(sources: Iterable[ModuleType | str]) -> str:
    """As ``registry.fingerprint.fingerprint``; comments in kernel text inside a module do not count either."""
    return fingerprint(sources, normalised_module)


@lru_cache(maxsize=256)
def normalised_module(text: str) -> str:
    """Python ``text`` as normalised syntax, with every literal that holds kernel text reduced to its C++ tokens."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and any(m in node.value for m in _MARKS):
            node.value = normalised_c(node.value)
    return normalised_tree(tree)
