"""Marks of transformers' layers for ``kernels``, as its decorators put them.

A transformers that does not accept the installed release of kernels leaves its layers unmarked. There its decorators
are read from its files, and put by kernels' own functions for the time of a test.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any, NamedTuple

import pytest

DECORATOR = "use_kernel_forward_from_hub"


class Marked(NamedTuple):
    """A class or function of transformers that is marked, with its source."""

    file: Path
    mark: str
    name: str
    source: str


def put_marks(patch: pytest.MonkeyPatch, *files: ModuleType) -> None:
    """Mark what a transformers that accepts the installed kernels marks in these files of its own."""
    import kernels

    for file in files:
        made = set()
        for name, decorator, argument in _decorated(file):
            if decorator == "use_kernelized_func":
                if argument in made:
                    marked = getattr(file, name)
                    patch.setattr(marked, "__init__", marked.__init__)
                    kernels.use_kernelized_func(getattr(file, argument))(marked)
            elif isinstance(getattr(file, name), type):
                patch.setattr(getattr(file, name), "kernel_layer_name", argument, raising=False)
            else:
                made |= _put_on_function(patch, file, name, argument)


def _decorated(file: ModuleType) -> Iterator[tuple[str, str, str]]:
    """Names in a file that kernels' decorators stand on, with the decorator, and the mark or function that it gets."""
    for node in ast.parse(inspect.getsource(file)).body:
        for decorator in getattr(node, "decorator_list", ()):
            match decorator:
                case ast.Call(ast.Name(name), [ast.Constant(str() as given)]) if name == DECORATOR:
                    yield node.name, name, given  # type: ignore[attr-defined]
                case ast.Call(ast.Name("use_kernelized_func" as name), [ast.Name(given)]):
                    yield node.name, name, given  # type: ignore[attr-defined]


def _put_on_function(patch: pytest.MonkeyPatch, file: ModuleType, name: str, mark: str) -> set[str]:
    """Put a module of kernels in the place of a function, or take that which is there without another test's kernel.

    Returns the function's name if a module was made.
    """
    import kernels

    function = getattr(file, name)
    own: Any = getattr(function, "registry_own", function)
    is_plain = inspect.isfunction(own)
    if is_plain:
        own = kernels.use_kernel_forward_from_hub(mark)(own)
    patch.setitem(vars(own), "forward", MethodType(type(own).forward, own))
    patch.setattr(file, name, own)
    return {name} if is_plain else set()


def marked_sources(*marks: str) -> Iterator[Marked]:
    """The marked classes and functions in the files of the installed transformers."""
    import transformers

    root = Path(transformers.__file__).parent
    pattern = re.compile(rf'^@{DECORATOR}\("({"|".join(marks)})"\)\n(?:@.*\n)*(class|def) (\w+)', re.MULTILINE)
    for path in [root / "activations.py", *sorted(root.glob("models/*/modeling_*.py"))]:
        text = path.read_text(encoding="utf-8")
        for found in pattern.finditer(text):
            yield Marked(path, found[1], found[3], top_level(text, f"{found[2]} {found[3]}"))


def top_level(text: str, start: str) -> str:
    """The definition in a file that begins with these words, with all its lines."""
    found = re.search(rf"^{start}\b.*\n(?:(?:[ \t)].*)?\n)*", text, re.MULTILINE)
    assert found is not None
    return found[0]
