"""Checks of the arguments of public functions: each is converted to one type, or refused before any work is done."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from .contract import Op
from .errors import ArgumentTypeError, InvalidArgumentError
from .problem import Problem, Value


def name_of_op(given: Any) -> str:
    """``given``, the name of an op. Raises ArgumentTypeError unless it is a str."""
    if not isinstance(given, str):
        raise ArgumentTypeError(
            f"the name of an op must be a str, got {given!r:.80}", hint='expected e.g. registry.call("softmax", x)'
        )
    return given


def checked_flag(what: str, name: str, given: Any) -> bool:
    """``given``. Raises InvalidArgumentError unless it is True or False."""
    if not isinstance(given, bool):
        raise InvalidArgumentError(f"{what}({name}={given!r:.80})", hint="expected True or False")
    return given


def database_of(what: str, given: Any) -> str | None:
    """A file or an SQLAlchemy URL as text; None for the default place. Raises ArgumentTypeError for other types."""
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if path is None or isinstance(path, str):
        return path
    raise ArgumentTypeError(
        f"{what}(database={given!r:.80})", hint='expected a file or an SQLAlchemy URL, e.g. "tuning.db", or None'
    )


def file_of(what: str, given: Any) -> Path:
    """The path of a file. Raises ArgumentTypeError for anything but a str or a path."""
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if isinstance(path, str):
        return Path(path)
    raise ArgumentTypeError(f"{what}({given!r:.80})", hint='expected a file, e.g. "shapes.yaml"')


def check_limit(what: str, name: str, given: Any, kind: Any) -> None:
    """Raise InvalidArgumentError unless ``given`` is None or a non-negative number of type ``kind``."""
    if given is None or (isinstance(given, kind) and not isinstance(given, bool) and given >= 0):
        return
    shown = "whole number" if kind is Integral else "number of seconds"
    raise InvalidArgumentError(f"{what}({name}={given!r:.80})", hint=f"expected a {shown}, or None")


def names_of(what: str, name: str, given: Any) -> tuple[str, ...]:
    """One name or several as a tuple. Raises ArgumentTypeError for anything but text."""
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    for one in names:
        if not isinstance(one, str):
            raise ArgumentTypeError(
                f"{what}({name}={given!r:.80}): {one!r:.80} is no name", hint='expected names, e.g. ["triton.row"]'
            )
    return names


def problems_of(what: str, op: Op, given: Any) -> list[Problem]:
    """Mappings of dimensions and Problems as problems of ``op``. Raises InvalidArgumentError for anything else."""
    if isinstance(given, str | Mapping | Problem) or not isinstance(given, Iterable):
        raise InvalidArgumentError(f"{what}({op.name!r}): got {given!r:.80}", hint=_LIST)
    return [_problem_of(what, op, one) for one in given]


def _problem_of(what: str, op: Op, given: Mapping[str, Value] | Problem) -> Problem:
    if isinstance(given, Problem):
        if given.op != op.name:
            raise InvalidArgumentError(
                f"{what}({op.name!r}): {given} is a problem of another op",
                hint=f"call {what}({given.op!r}, ...) for it",
            )
        return given
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(f"{what}({op.name!r}): {given!r:.80} is no problem", hint=_LIST)
    return op.problem_of(given)


_LIST = "expected a list of mappings of dimensions, or a file"

WantedProblems = Sequence[Mapping[str, Value] | Problem]
"""Problems as a user writes them."""
