"""Memory of the checks of ops: in this process, and of right ops in the user's cache folder."""

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

    examples  True if the examples showed anything; None before they were looked at
    sound     the dtypes in which a problem has shown that what was not computed is refused
    shown     by problem and device: True if that showed the op to be right
    """

    examples: bool | None = None
    sound: set[str] = field(default_factory=set)
    shown: dict[tuple[Problem, torch.device], bool] = field(default_factory=dict)


_KNOWN: weakref.WeakKeyDictionary[Op, Known] = weakref.WeakKeyDictionary()


def known_of(op: Op) -> Known:
    """The findings about an op, to be added to."""
    return _KNOWN.setdefault(op, Known())


def is_noted(op: Op, shown_by: Iterable[str]) -> bool:
    """True if the cache holds that ``shown_by``, keys of examples or a dtype, showed this very op to be right."""
    note = _note(op, shown_by)
    return note is not None and note.exists()


def write_note(op: Op, shown_by: Iterable[str]) -> None:
    """Note in the cache that ``shown_by`` showed this very op to be right; nothing where there can be no cache."""
    note = _note(op, shown_by)
    if note is not None:
        with contextlib.suppress(OSError):
            note.touch()


def _note(op: Op, shown_by: Iterable[str]) -> Path | None:
    """The file that says what has shown this very op to be right; None where there can be none."""
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
