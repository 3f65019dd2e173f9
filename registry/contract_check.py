"""Whether an op can tell a right result from none: its own tolerance must refuse what was not computed.

Three results cost nothing: all zeros, one number everywhere, and the result of a previous call; and of an argument that
is mutated, what it held before. An op whose tolerance accepts one of them on all its examples and every kind of inputs
would let such an implementation win.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .bounds import Bounds, bounds_of
from .contract import Op, as_tuple
from .errors import InvalidDefinitionError, RegistryError
from .numerics import reference64
from .paths import cache_folder
from .problem import Problem, canonical_json, dtype_name

_VERSION = 3
_SEEDS = (1, 2)
_CPU = torch.device("cpu")
_HANDY_BYTES = 256 << 10
"""Examples up to this size come first, the largest of them at the head: one such case settles most questions."""
_FEW = 8
"""A dynamic dimension is not made smaller than this: one row alone may have the same result whatever is in it."""

_NOT_THE_OPS = (torch.OutOfMemoryError, torch.AcceleratorError)
"""Faults of a GPU that say nothing about the op."""

_ZEROS = "an all-zero output"
_CONSTANT = "an all-constant output"
_PREVIOUS = "the output of a previous call with other inputs"
_UNCHANGED = "what was there before"


@dataclass
class _Known:
    """What this process has found out about one op.

    examples  whether they showed anything; None before they were looked at
    sound     the dtypes in which a problem has shown that what was not computed is refused
    shown     whether a problem, on a device, has shown which it is
    """

    examples: bool | None = None
    sound: set[str] = field(default_factory=set)
    shown: dict[tuple[Problem, torch.device], bool] = field(default_factory=dict)


_KNOWN: weakref.WeakKeyDictionary[Op, _Known] = weakref.WeakKeyDictionary()


def is_in_the_box(op: Op) -> bool:
    """Those ops are checked by the tests; whoever starts a process need not wait for it."""
    from .contracts import BOX

    return any(op is ours for ours in BOX)


def refuse_blind(op: Op) -> bool:
    """Raise InvalidDefinitionError if the op's tolerance accepts what was not computed on all its examples.

    Returns whether there was anything to see: without examples, or where the op fails on all of them, there is not.
    What was found right is remembered in the user's cache, by the op's source.
    """
    known = _known(op)
    if known.examples is None:
        known.examples = _examples_show(op)
    return known.examples


def refuse_unseen(op: Op, problem: Problem, device: torch.device) -> None:
    """Raise InvalidDefinitionError as ``refuse_blind`` does, on ``problem``, for an op whose examples show nothing.

    It has none, or fails on all of them, for instance because it needs ``device``. The problem is looked at on that
    device, with its dynamic dimensions cut down; in full, and then on the CPU, where that shows nothing. Once a problem
    of its dtype has shown the op to be right, no other is looked at. A problem whose right result is itself zero,
    constant or the same for other inputs decides nothing.
    """
    if is_in_the_box(op) or refuse_blind(op) or _is_known_sound(op, _dtype(problem)):
        return
    small = _smaller(op, problem)
    looks = ((small, device), (problem, device), (small, _CPU))
    for one, place in dict.fromkeys(looks):
        if _problem_shows(op, one, place):
            return


def blind_spots(op: Op, problems: Sequence[Problem]) -> list[str]:
    """What the op's tolerance accepts on all these problems and every kind of inputs, in words; empty when nothing."""
    return _spots(op, _seen(op, problems, _CPU))


def _known(op: Op) -> _Known:
    return _KNOWN.setdefault(op, _Known())


def _examples_show(op: Op) -> bool:
    examples = _examples(op)
    note = _note(op, [problem.key for problem in examples])
    if examples and note is not None and note.exists():
        return True
    results = _seen(op, examples, _CPU)
    _refuse(op, _spots(op, results))
    if results:
        _write(note)
    return bool(results)


def _problem_shows(op: Op, problem: Problem, device: torch.device) -> bool:
    """Whether it shows the op to be right; raises if its tolerance is shown to accept what was not computed."""
    known = _known(op)
    if (problem, device) not in known.shown:
        results = _seen(op, [problem], device)
        _refuse(op, _spots(op, results, but_degenerate=True))
        right = bool(results) and not _spots(op, results)
        if right:
            known.sound.add(_dtype(problem))
            _write(_note(op, [_dtype(problem)]))
        known.shown[problem, device] = right
    return known.shown[problem, device]


def _is_known_sound(op: Op, dtype: str) -> bool:
    known = _known(op)
    if dtype not in known.sound:
        note = _note(op, [dtype])
        if note is None or not note.exists():
            return False
        known.sound.add(dtype)
    return True


def _dtype(problem: Problem) -> str:
    return str(problem.dims.get("dtype", "any dtype"))


def _refuse(op: Op, spots: Sequence[str]) -> None:
    if spots:
        raise InvalidDefinitionError(
            f"op {op.name!r}: {'; '.join(spots)}",
            hint="a tolerance must refuse what was not computed: lower rtol, atol or the scale, or let inputs() and"
            " examples make outputs that differ",
        )


def _smaller(op: Op, problem: Problem) -> Problem:
    """The problem with its largest dynamic dimensions halved until it is handy, as far as the op allows it."""
    names = set(op.dynamic)
    while names and op.floor(problem).bytes > _HANDY_BYTES:
        name = max(sorted(names), key=lambda name: int(problem.dims[name]))
        size = int(problem.dims[name]) // 2
        if size < _FEW:
            break
        try:
            problem = op.problem_of({**problem.dims, name: size})
        except RegistryError:
            names.remove(name)
    return problem


@torch.no_grad()
def _seen(op: Op, problems: Sequence[Problem], device: torch.device) -> dict[tuple[str, str], _Seen]:
    """What these problems show of every result (name, dtype); empty where the op fails on all of them.

    A GPU that is out of memory or broken raises.
    """
    results: dict[tuple[str, str], _Seen] = {}
    for problem, kind in _cases(op, problems):
        dtypes = {dtype for _, dtype in results}
        if (
            results
            and problem.dims.get("dtype", min(dtypes)) in dtypes
            and not any(s.by_tolerance.found for s in results.values())
        ):
            continue
        try:
            _look(op, problem, kind, results, device)
        except Exception as fault:  # an op that fails on its own examples: check_op tells
            if device.type != "cpu" and isinstance(fault, _NOT_THE_OPS):
                raise
    return results


def _spots(op: Op, results: Mapping[tuple[str, str], _Seen], *, but_degenerate: bool = False) -> list[str]:
    """What was accepted everywhere, in words; ``but_degenerate``: unless the right results are just that."""
    accepted: dict[tuple[str, str], list[str]] = {}
    for (name, dtype), seen in results.items():
        for what in seen.by_tolerance.found:
            if not (but_degenerate and seen.is_right(what)):
                accepted.setdefault((what, name), []).append(dtype)
    kinds = ", ".join(op.kinds)
    return [
        f"its tolerance accepts {what} as {name} ({', '.join(dtypes)}) on every kind of inputs ({kinds})"
        for (what, name), dtypes in accepted.items()
    ]


@dataclass
class _Accepted:
    """Which results that cost nothing, and which constants, every case so far has accepted.

    ``stale`` says what old result is looked at, "" for none.
    """

    stale: str
    keeps_stale: bool = True
    zeros: bool = True
    low: float = -math.inf
    high: float = math.inf

    def take_in(self, low: torch.Tensor, high: torch.Tensor, old: torch.Tensor | None) -> None:
        """One case, by the interval of every element; ``old`` is a result that nobody computed."""
        self.zeros = self.zeros and bool(((low <= 0) & (high >= 0)).all())
        self.low, self.high = max(self.low, low.max().item()), min(self.high, high.min().item())
        if old is not None:
            self.keeps_stale = self.keeps_stale and bool(((low <= old) & (old <= high)).all())

    @property
    def found(self) -> list[str]:
        """Those that were accepted everywhere."""
        found = [_ZEROS] if self.zeros else [_CONSTANT] if self.low <= self.high else []
        return found + ([self.stale] if self.stale and self.keeps_stale else [])


@dataclass
class _Seen:
    """What has been seen of one result in one dtype: what the tolerance accepts, and what one rounding accepts.

    ``drawn``: inputs differ from draw to draw. Where they do not, it is no wonder that results do not.
    """

    by_tolerance: _Accepted
    by_rounding: _Accepted
    drawn: bool = False

    def take_in(self, bounds: Bounds, right: torch.Tensor, unit: float, old: torch.Tensor | None) -> None:
        """One case, ``right`` in float64. Only finite numbers count: that NaN must be NaN says nothing about a
        tolerance."""
        finite = bounds.low.isfinite() & bounds.high.isfinite()
        if not finite.any():
            return
        wide, before = right[finite].double(), None if old is None else old[finite]
        room = unit * wide.abs().max()
        self.by_tolerance.take_in(bounds.low[finite], bounds.high[finite], before)
        self.by_rounding.take_in(wide - room, wide + room, before)

    def is_right(self, what: str) -> bool:
        """Whether that is the right result in every case, whatever the inputs."""
        return self.drawn and what in self.by_rounding.found


def _look(op: Op, problem: Problem, kind: str, results: dict[tuple[str, str], _Seen], device: torch.device) -> None:
    values = _drawn(op, problem, kind, _SEEDS[0], device)
    reference = reference64(op, values)
    others = _drawn(op, problem, kind, _SEEDS[1], device)
    # what is timed is the first kind; others, such as constants, may not differ from draw to draw
    drawn = kind == op.kinds[0] and _differ(values, others)
    dtypes = [result.dtype for result in _results(op, _drawn(op, problem, kind, _SEEDS[0], device))]
    # what the tolerance alone accepts; the comparison with torch's own error comes on top
    bounds = bounds_of(op, problem, values, reference, (math.inf,) * len(reference), dtypes)
    old = op.results(as_tuple(op.reference(*others)), values)
    for name, dtype, within, wide, stale in zip(op.parsed.results, dtypes, bounds, reference, old, strict=True):
        if stale.numel():
            fresh = partial(_Accepted, _PREVIOUS if name in op.parsed.outputs else _UNCHANGED)
            seen = results.setdefault((name, dtype_name(dtype)), _Seen(fresh(), fresh()))
            seen.drawn = seen.drawn or drawn
            unit = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
            seen.take_in(within, wide, unit, stale if kind == op.kinds[0] else None)


def _results(op: Op, values: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    return op.results(op.reference(*values), values)


def _differ(values: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    pairs = zip(values, others, strict=True)
    return any(isinstance(value, torch.Tensor) and not torch.equal(value, other) for value, other in pairs)


def _cases(op: Op, problems: Sequence[Problem]) -> Iterator[tuple[Problem, str]]:
    def order(problem: Problem) -> tuple[bool, int]:
        size = op.floor(problem).bytes
        return size > _HANDY_BYTES, size if size > _HANDY_BYTES else -size

    for kind in op.kinds:
        for problem in sorted(problems, key=order):
            yield problem, kind


def _examples(op: Op) -> list[Problem]:
    try:
        return [op.problem_of(dims) for dims in op.examples]
    except RegistryError:
        # check_op says what is wrong with them
        return []


def _drawn(op: Op, problem: Problem, kind: str, seed: int, device: torch.device) -> tuple[Any, ...]:
    return op.parsed.bind(op.inputs(problem, kind, torch.Generator(device).manual_seed(seed)), {})


def _write(note: Path | None) -> None:
    if note is not None:
        with contextlib.suppress(OSError):
            note.touch()


def _note(op: Op, shown_by: Iterable[str]) -> Path | None:
    """The file that says what has shown this very op to be right; None where there can be none."""
    texts = [f"{_VERSION} {torch.__version__}", op.name, op.schema, str(op.version), repr(op.kinds)]
    texts += [canonical_json({**op.tolerance.rtol}), canonical_json({**op.tolerance.atol})]
    texts += shown_by
    try:
        for code in (op.reference, op.inputs, op.tolerance.scale):
            texts.append(Path(inspect.getfile(inspect.unwrap(code))).read_text())
        folder = cache_folder("contracts")
    except (OSError, TypeError, RegistryError):
        return None
    return folder / hashlib.sha256("\0".join(texts).encode()).hexdigest()
