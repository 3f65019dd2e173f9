"""Notes on checked ops: in this process, and, for ops that passed, in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..contract import Op
from ..errors import RegistryError
from ..paths import cache_folder
from ..problem import Problem, canonical_json

_VERSION = 5


@dataclass
class Known:
    """Findings of this process about one op.

    examples  True if the op passed on its examples, False if they decide nothing; None before they were checked
    sound     the dtypes in which the op passed on a problem
    shown     by problem and device: True if the op passed on it, False if it decides nothing
    """

    examples: bool | None = None
    sound: set[str] = field(default_factory=set)
    shown: dict[tuple[Problem, torch.device], bool] = field(default_factory=dict)


_KNOWN: weakref.WeakKeyDictionary[Op, Known] = weakref.WeakKeyDictionary()


def known_of(op: Op) -> Known:
    """The findings about an op, which the caller may change."""
    return _KNOWN.setdefault(op, Known())


def is_noted(op: Op, shown_by: Iterable[str]) -> bool:
    """True if the cache notes that this op, by its source, passed on ``shown_by``: keys of examples or a dtype."""
    note = _note(op, shown_by)
    return note is not None and note.exists()


def write_note(op: Op, shown_by: Iterable[str]) -> None:
    """Note in the cache that this op, by its source, passed on ``shown_by``; nothing if there is no cache."""
    note = _note(op, shown_by)
    if note is not None:
        with contextlib.suppress(OSError):
            note.touch()


def _note(op: Op, shown_by: Iterable[str]) -> Path | None:
    """The file of the note that this op passed on ``shown_by``; None if the source or the cache is not available."""
    texts = [f"{_VERSION} {torch.__version__}", op.name, op.schema, str(op.version), repr(op.kinds)]
    tolerances = [op.tolerance, *op.tolerances.values()]
    texts += [canonical_json([{**each.rtol}, {**each.atol}]) for each in tolerances] + [*op.tolerances, *op.compare]
    texts += shown_by
    try:
        scales: list[Callable[..., object]] = [each.scale for each in tolerances]
        for code in (op.reference, op.inputs, *scales, *op.compare.values()):
            texts.append(Path(inspect.getfile(inspect.unwrap(code))).read_text())
        folder = cache_folder("contracts")
    except (OSError, TypeError, RegistryError):
        return None
    return folder / hashlib.sha256("\0".join(texts).encode()).hexdigest()
