"""A hash of source code that does not change with comments, docstrings, blanks or line numbers."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
from collections.abc import Iterable
from functools import lru_cache
from types import ModuleType

_C_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\])*")', re.DOTALL)
_C_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\w+|[^\w\s"]+')


def fingerprint(sources: Iterable[ModuleType | str]) -> str:
    """SHA-256 over modules (as normalised Python syntax) and texts (as C++ tokens)."""
    digest = hashlib.sha256()
    for source in sources:
        text = normalised_c(source) if isinstance(source, str) else _module_syntax(source)
        digest.update(text.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def normalised_python(text: str) -> str:
    """The syntax tree of ``text`` without docstrings and positions."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and _has_docstring(
            node
        ):
            node.body = node.body[1:]
    return ast.dump(tree, include_attributes=False)


def normalised_c(text: str) -> str:
    """The tokens of C or C++ ``text``, joined by blanks; directives keep their line ends."""
    bare = _C_COMMENT_OR_STRING.sub(lambda match: match.group(1) or " ", text)
    return "\n".join(" ".join(_C_TOKEN.findall(line)) for line in bare.splitlines() if line.strip())


def _has_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


@lru_cache(maxsize=256)
def _module_syntax(module: ModuleType) -> str:
    return normalised_python(inspect.getsource(module))
