"""Whether an op can tell a right output from none: its own tolerance must refuse what was not computed.

Three outputs cost nothing: all zeros, one number everywhere, and the result of a previous call. An op whose tolerance
accepts one of them on all its examples and every kind of inputs would let such an implementation win.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .bounds import Bounds, bounds_of
from .contract import Op
from .errors import InvalidDefinitionError, RegistryError
from .numerics import as_tuple, reference64
from .paths import cache_folder
from .problem import Problem, canonical_json, dtype_name

_VERSION = 2
_SEEDS = (1, 2)
_CPU = torch.device("cpu")
_HANDY_BYTES = 256 << 10
"""Examples up to this size come first, the largest of them at the head: one such case settles most questions."""

_ZEROS = "an all-zero output"
_CONSTANT = "an all-constant output"
_PREVIOUS = "the output of a previous call with other inputs"


def refuse_blind(op: Op, problems: Sequence[Problem] | None = None, device: torch.device = _CPU) -> bool:
    """Raise InvalidDefinitionError if the op's tolerance accepts what was not computed.

    On ``problems``, its examples when not given. Returns whether there was anything to see: without problems, or where
    the op fails on all of them, there is not. What was found right is remembered in the user's cache, by the op's
    source.
    """
    chosen = _examples(op) if problems is None else list(problems)
    note = _note(op, chosen)
    if chosen and note is not None and note.exists():
        return True
    outputs = _seen(op, chosen, device)
    if spots := _spots(op, outputs):
        raise InvalidDefinitionError(
            f"op {op.name!r}: {'; '.join(spots)}",
            hint="a tolerance must refuse what was not computed: lower rtol, atol or the scale, or let inputs() and"
            " examples make outputs that differ",
        )
    if note is not None and outputs:
        with contextlib.suppress(OSError):
            note.touch()
    return bool(outputs)


def refuse_unseen(op: Op, problem: Problem, device: torch.device) -> None:
    """Raise InvalidDefinitionError as ``refuse_blind`` does, on ``problem``, for an op whose examples show nothing.

    It has none, or fails on all of them, for instance because it needs ``device``, where it is looked at if it fails on
    the CPU once more.
    """
    if not _is_visible(op):
        for place in dict.fromkeys((_CPU, device)):
            if refuse_blind(op, [problem], place):
                return


def _is_visible(op: Op) -> bool:
    """Whether some example of it could be looked at. Those in the box can, as the tests know."""
    from .contracts import BOX

    if any(op is ours for ours in BOX):
        return True
    examples = _examples(op)
    note = _note(op, examples)
    if examples and note is not None and note.exists():
        return True
    return any(_seen(op, [problem], _CPU) for problem in examples)


def blind_spots(op: Op, problems: Sequence[Problem]) -> list[str]:
    """What the op's tolerance accepts on all these problems and every kind of inputs, in words; empty when nothing."""
    return _spots(op, _seen(op, problems, _CPU))


@torch.no_grad()
def _seen(op: Op, problems: Sequence[Problem], device: torch.device) -> dict[tuple[str, str], _Seen]:
    """What these problems show of every output (name, dtype); empty where the op fails on all of them."""
    outputs: dict[tuple[str, str], _Seen] = {}
    for problem, kind in _cases(op, problems):
        dtypes = {dtype for _, dtype in outputs}
        if (
            outputs
            and problem.dims.get("dtype", min(dtypes)) in dtypes
            and not any(s.accepted for s in outputs.values())
        ):
            continue
        with contextlib.suppress(Exception):  # an op that fails on its own examples: check_op tells
            _look(op, problem, kind, outputs, device)
    return outputs


def _spots(op: Op, outputs: Mapping[tuple[str, str], _Seen]) -> list[str]:
    """What was accepted everywhere, in words."""
    accepted: dict[tuple[str, str], list[str]] = {}
    for (name, dtype), seen in outputs.items():
        for what in seen.accepted:
            accepted.setdefault((what, name), []).append(dtype)
    kinds = ", ".join(op.kinds)
    return [
        f"its tolerance accepts {what} as {name} ({', '.join(dtypes)}) on every kind of inputs ({kinds})"
        for (what, name), dtypes in accepted.items()
    ]


@dataclass
class _Seen:
    """What has been seen of one output in one dtype: which outputs every case has accepted, and which constants."""

    previous: bool
    zeros: bool = True
    low: float = -math.inf
    high: float = math.inf

    def take_in(self, bounds: Bounds, previous: torch.Tensor | None) -> None:
        """One case; ``previous`` is the right output for other inputs. Only finite numbers count: that NaN must be NaN
        says nothing about a tolerance."""
        finite = bounds.low.isfinite() & bounds.high.isfinite()
        low, high = bounds.low[finite], bounds.high[finite]
        if not low.numel():
            return
        self.zeros = self.zeros and bool(((low <= 0) & (high >= 0)).all())
        self.low, self.high = max(self.low, low.max().item()), min(self.high, high.min().item())
        if previous is not None:
            found = previous[finite]
            self.previous = self.previous and bool(((low <= found) & (found <= high)).all())

    @property
    def accepted(self) -> list[str]:
        """Which outputs were accepted everywhere."""
        found = [_ZEROS] if self.zeros else [_CONSTANT] if self.low <= self.high else []
        return found + ([_PREVIOUS] if self.previous else [])


def _look(op: Op, problem: Problem, kind: str, outputs: dict[tuple[str, str], _Seen], device: torch.device) -> None:
    values, others = (_drawn(op, problem, kind, seed, device) for seed in _SEEDS)
    reference = reference64(op, values)
    right, wrong = (as_tuple(op.reference(*drawn)) for drawn in (_drawn(op, problem, kind, _SEEDS[0], device), others))
    dtypes = [output.dtype for output in right]
    # what the tolerance alone accepts; the comparison with torch's own error comes on top
    bounds = bounds_of(op, problem, values, reference, (math.inf,) * len(reference), dtypes)
    # what is timed is the first kind; others, such as constants, may not differ from draw to draw
    comparable = kind == op.kinds[0] and not op.parsed.mutates
    for name, dtype, within, previous in zip(op.parsed.outputs, dtypes, bounds, wrong, strict=True):
        if previous.numel():
            seen = outputs.setdefault((name, dtype_name(dtype)), _Seen(not op.parsed.mutates))
            seen.take_in(within, previous if comparable else None)


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


def _note(op: Op, problems: Sequence[Problem]) -> Path | None:
    """The file that says that this very op was looked at on these problems; None where there can be none."""
    texts = [f"{_VERSION} {torch.__version__}", op.name, op.schema, str(op.version), repr(op.kinds)]
    texts += [canonical_json({**op.tolerance.rtol}), canonical_json({**op.tolerance.atol})]
    texts += [problem.key for problem in problems]
    try:
        for code in (op.reference, op.inputs, op.tolerance.scale):
            texts.append(Path(inspect.getfile(inspect.unwrap(code))).read_text())
        folder = cache_folder("contracts")
    except (OSError, TypeError, RegistryError):
        return None
    return folder / hashlib.sha256("\0".join(texts).encode()).hexdigest()
