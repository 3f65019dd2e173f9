"""A hash of source code that does not change with comments, docstrings, blanks, line numbers or Python's version."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import tokenize
from collections.abc import Iterable
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_C_TOKEN = re.compile(
    r"""
      (?P<dropped> //[^\n]* | /\*.*?\*/ | [^\S\n]+ )
    | (?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"   # a raw string
    | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\])'
    | \#[^\S\n]*define[^\S\n]+\w+\(?                              # F(x) is a function, F (x) is none
    | \n | \w+ | (?:(?!//|/\*)[^\w\s"'])+ | .
    """,
    re.DOTALL | re.VERBOSE,
)

_KERNEL = ("__global__", "#include", "torch::Tensor")
"""Marks of a literal that is taken for C++ or CUDA text: one of them is enough."""


class PythonText(str):
    """Python source text among sources, where a plain ``str`` is C++."""


def fingerprint(sources: Iterable[ModuleType | str]) -> str:
    """SHA-256 over modules and PythonText (as normalised syntax) and other texts (as C++ tokens)."""
    return _digest(tuple(map(_normalised, sources)))


def _normalised(source: ModuleType | str) -> str:
    if isinstance(source, ModuleType):
        return normalised_python(module_text(source))
    return normalised_python(source) if isinstance(source, PythonText) else normalised_c(source)


@lru_cache(maxsize=256)
def _digest(texts: tuple[str, ...]) -> str:
    """SHA-256 over texts; remembered, since the variants of a candidate are asked for at each size that it meets."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def is_kernel_text(text: str) -> bool:
    """Whether ``text`` is taken for C++ or CUDA."""
    return any(mark in text for mark in _KERNEL)


@lru_cache(maxsize=256)
def normalised_python(text: str) -> str:
    """The syntax tree of ``text`` without docstrings and positions, equal in every version of Python that parses it.

    Docstrings are those of modules, classes and functions: a string behind a constant stays, and changes the hash.
    Literals that hold kernel text are reduced to C++ tokens, so that comments in them do not count either.
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            node.values = _parts(node.values)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[_has_docstring(node) :]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_kernel_text(node.value):
            node.value = normalised_c(node.value)
    return _syntax(tree)


@lru_cache(maxsize=256)
def normalised_c(text: str) -> str:
    """The tokens of C or C++ ``text``, joined by blanks; directives keep their line ends."""
    lines: list[list[str]] = [[]]
    for match in _C_TOKEN.finditer(text):
        if match.group() == "\n":
            lines.append([])
        elif match.group("dropped") is None:
            lines[-1].append(match.group())
    return "\n".join(" ".join(tokens) for tokens in lines if tokens)


_READ: dict[str, tuple[ModuleType, ModuleSpec | None, str]] = {}


def module_text(module: ModuleType) -> str:
    """The source of a module as it was when first asked for; a reload counts as a new module. Raises OSError."""
    if not _was_read(module):
        _READ[module.__name__] = (module, module.__spec__, _read(module))
    return _READ[module.__name__][2]


def text_of_file(file: Path) -> str:
    """The text of a Python file in its own encoding, as its module's loader reads it. Raises OSError or SyntaxError."""
    with tokenize.open(file) as opened:
        return opened.read()


def _was_read(module: ModuleType) -> bool:
    known = _READ.get(module.__name__)
    return known is not None and known[0] is module and known[1] is module.__spec__


def _read(module: ModuleType) -> str:
    try:
        return inspect.getsource(module)
    except OSError:
        # inspect raises for an empty file
        if module.__file__ and Path(module.__file__).is_file() and not Path(module.__file__).stat().st_size:
            return ""
        raise


def has_source(module: ModuleType) -> bool:
    """Whether a module has a source file: False for a notebook and for a compiled extension."""
    # inspect looks for the file each time, 0.1 ms a module
    return _was_read(module) or (bool(getattr(module, "__file__", None)) and inspect.getsourcefile(module) is not None)


def _parts(values: list[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string, neighbouring texts joined: versions of Python split them differently."""
    found: list[ast.expr] = []
    for value in values:
        last = found[-1] if found else None
        if not (isinstance(value, ast.Constant) and isinstance(value.value, str)):
            found.append(value)
        elif isinstance(last, ast.Constant):
            found[-1] = ast.Constant(f"{last.value!s}{value.value}")
        elif value.value:
            found.append(value)
    return found


def _has_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def _syntax(node: object) -> str:
    """``ast.dump`` as it was before Python 3.13; a field that is empty or new in a version is left out."""
    if isinstance(node, ast.AST):
        told = [(name, value) for name, value in ast.iter_fields(node) if value is not None and value != []]
        return f"{type(node).__name__}({', '.join(f'{name}={_syntax(value)}' for name, value in told)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_syntax, node))}]"
    return ascii(node)
