"""Triton's interpreter, quicker: it goes through the whole of ``triton.language`` for each program of a launch."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


class _Inspect(ModuleType):
    """The module ``inspect`` for Triton's interpreter, which replaces the functions of a module that are builtin.

    The names of these functions are looked for once; the interpreter looked through all names, in a third of its time.
    """

    def __init__(self) -> None:
        super().__init__("inspect")
        self._names: dict[int, list[str]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    def getmembers(self, holder: Any, predicate: Callable[[Any], bool] | None = None) -> list[tuple[str, Any]]:
        """Triton's builtin functions of a module or class; ``inspect.getmembers`` with a predicate."""
        if predicate is not None:
            return inspect.getmembers(holder, predicate)
        names = self._names.get(id(holder))
        if names is None:
            found = inspect.getmembers(holder)
            names = self._names[id(holder)] = [name for name, member in found if tl.core.is_builtin(member)]
        return [(name, getattr(holder, name)) for name in names]


def make_quicker() -> None:
    """All of these for the interpreter of this process."""
    remember_builtins()
    replace_once()
    check_no_overflow()
    remember_types()
    remember_shapes()


def remember_builtins() -> None:
    """Have Triton's interpreter of this process look for the builtin functions of its language once."""
    interpreter.inspect = _Inspect()


def replace_once() -> None:
    """Have Triton's interpreter replace the functions of its language once for a launch.

    It did so again for each function that a kernel calls, in a fifth of its time. Interpreters of other versions of
    Triton, which replace them elsewhere, stay as they are.
    """
    replace, nothing = getattr(interpreter, "_patch_lang", None), getattr(interpreter, "_LangPatchScope", None)
    if replace is None or nothing is None:
        return
    languages: dict[int, list[ModuleType]] = {}

    def replaced(function: FunctionType) -> Any:
        names = function.__globals__
        if id(names) not in languages:
            languages[id(names)] = [value for value in names.values() if value is tl or value is tl.core]
        left = [language for language in languages[id(names)] if tl.core.is_builtin(language.load)]
        return replace(function) if left else nothing()

    interpreter._patch_lang = replaced


def check_no_overflow() -> None:
    """Have Triton's interpreter add, subtract and multiply integers once, in three quarters of its time.

    It did so in 64 bits, too, and compared, and then asserted nothing: without ``debug`` Triton leaves assertions out.
    """
    with contextlib.suppress(AttributeError, TypeError):
        builder = interpreter.interpreter_builder
        if not builder.options.debug:
            builder.options = replace(builder.options, sanitize_overflow=False)


def remember_types() -> None:
    """Have Triton's interpreter look up NumPy's type for one of Triton's in one table, and unwrap constants alone.

    It made the table anew each time, and asked of each value whether it was one of four kinds of what may be unwrapped.
    """
    look_up, known = getattr(interpreter, "_get_np_dtype", None), dict[str, Any]()
    if look_up is not None:

        def found(kind: Any) -> Any:
            name = kind.scalar.name
            if name not in known:
                known[name] = look_up(kind)
            return known[name]

        interpreter._get_np_dtype = found
    unwrap = getattr(tl.core, "_unwrap_if_constexpr", None)
    if unwrap is not None:
        plain = frozenset({bool, float, int, str, type(None), tl.tensor, tl.dtype, tl.block_type, tl.pointer_type})
        tl.core._unwrap_if_constexpr = lambda value: value if type(value) in plain else unwrap(value)


def remember_shapes() -> None:
    """Have Triton's interpreter check and wrap each shape of a block once, and name a type when its name is read.

    It did so for each type and each tensor that it made, in a third of its time.
    """
    core, known, wrapped = tl.core, dict[Any, tuple[Any, int]](), dict[int, tuple[Any, Any]]()
    make_type, make_tensor = core.block_type.__init__, core.tensor.__init__

    def of_block(self: Any, element_ty: Any, shape: Any) -> None:
        key = tuple(shape.values if type(shape) is core.tuple else shape)
        if not all(type(size) is int for size in key) or key not in known:
            make_type(self, element_ty, shape)
            known.setdefault(tuple(self.shape), (self.shape, self.numel))
            return
        self.element_ty, (self.shape, self.numel) = element_ty, known[key]

    def of_tensor(self: Any, handle: Any, kind: Any) -> None:
        # those of ``known`` stay, so that their ids are of no other shape
        place = id(kind.shape) if kind.is_block() else 0
        if place not in wrapped:
            make_tensor(self, handle, kind)
            if not place or known[tuple(kind.shape)][0] is kind.shape:
                wrapped[place] = self.numel, self.shape
            return
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.numel, self.shape = wrapped[place]

    name = property(lambda self: f"<{self.shape}, {self.element_ty}>", lambda self, name: None)
    core.block_type.name, core.block_type.__init__, core.tensor.__init__ = name, of_block, of_tensor
