"""Whether an op can tell a right output from none: its own tolerance must refuse what was not computed.

Three outputs cost nothing: all zeros, one number everywhere, and the result of a previous call. An op whose tolerance
accepts one of them on all its examples and every kind of inputs would let such an implementation win.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .contract import Op
from .errors import InvalidDefinitionError, RegistryError
from .numerics import Bounds, as_tuple, bounds_of, own_error, reference64
from .paths import cache_folder
from .problem import Problem, canonical_json, dtype_name

_VERSION = 1
_SEEDS = (1, 2)
_HANDY_BYTES = 256 << 10
"""Examples up to this size come first, the largest of them at the head: one such case settles most questions."""

_ZEROS = "an output of zeros"
_CONSTANT = "an output that is one number everywhere"
_PREVIOUS = "the output of a previous call with other inputs"


def refuse_blind(op: Op, problems: Sequence[Problem] | None = None) -> None:
    """Raise InvalidDefinitionError if the op's tolerance accepts what was not computed.

    On ``problems``, its examples when not given; without any there is nothing to see. What was found right is
    remembered in the user's cache, by the op's source.
    """
    chosen = _examples(op) if problems is None else list(problems)
    note = _note(op, chosen)
    if not chosen or (note is not None and note.exists()):
        return
    if spots := blind_spots(op, chosen):
        raise InvalidDefinitionError(
            f"op {op.name!r}: {'; '.join(spots)}",
            hint="a tolerance must refuse what was not computed: lower rtol, atol or the scale, or let inputs() and"
            " examples make outputs that differ",
        )
    if note is not None:
        with contextlib.suppress(OSError):
            note.touch()


@torch.no_grad()
def blind_spots(op: Op, problems: Sequence[Problem]) -> list[str]:
    """What the op's tolerance accepts on all these problems and every kind of inputs, in words; empty when nothing."""
    outputs: dict[tuple[str, str], _Seen] = {}
    for problem, kind in _cases(op, problems):
        if outputs and all(seen.settled for seen in outputs.values()) and problem.dims.get("dtype") in {
            dtype for _, dtype in outputs
        }:  # fmt: skip
            continue
        with contextlib.suppress(Exception):  # an op that fails on its own examples: check_op tells
            _look(op, problem, kind, outputs)
    return [
        f"its tolerance accepts {what} as {name} in {dtype}, on every kind of inputs ({', '.join(op.kinds)})"
        for (name, dtype), seen in outputs.items()
        for what in seen.accepted
    ]


@dataclass
class _Seen:
    """What has been seen of one output in one dtype."""

    zeros: bool = True
    previous: bool = True
    low: float = -math.inf
    high: float = math.inf
    never: bool = field(default=False)

    def take_in(self, bounds: Bounds, previous: torch.Tensor | None) -> None:
        """One case; ``previous`` is the right output for other inputs."""
        self.zeros = self.zeros and bounds.hold(torch.zeros_like(bounds.low))
        if previous is not None:
            self.previous = self.previous and bounds.hold(previous)
        ordinary = ~bounds.low.isnan()
        if bounds.has_nan and bool(ordinary.any()):
            self.never = True
        if bool(ordinary.any()):
            self.low = max(self.low, bounds.low[ordinary].max().item())
            self.high = min(self.high, bounds.high[ordinary].min().item())

    @property
    def accepted(self) -> list[str]:
        """Which outputs were accepted everywhere."""
        constant = not self.never and self.low <= self.high
        found = [_ZEROS] if self.zeros else [_CONSTANT] if constant else []
        return found + ([_PREVIOUS] if self.previous else [])

    @property
    def settled(self) -> bool:
        """Whether nothing is left to see."""
        return not self.accepted


def _look(op: Op, problem: Problem, kind: str, outputs: dict[tuple[str, str], _Seen]) -> None:
    values, others = (_drawn(op, problem, kind, seed) for seed in _SEEDS)
    reference = reference64(op, values)
    bounds = bounds_of(op, problem, values, reference, own_error(op, problem, values, reference))
    # what is timed is the first kind; others, such as constants, may not differ from draw to draw
    previous = as_tuple(op.reference(*others)) if kind == op.kinds[0] and not op.parsed.mutates else None
    specs = op.output_specs(op.arguments(values), torch.device("meta")).items()
    for place, (name, spec) in enumerate(specs):
        if spec.numel:
            seen = outputs.setdefault((name, dtype_name(spec.dtype)), _Seen(previous=not op.parsed.mutates))
            seen.take_in(bounds[place], previous[place] if previous else None)


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


def _drawn(op: Op, problem: Problem, kind: str, seed: int) -> tuple[Any, ...]:
    return op.parsed.bind(op.inputs(problem, kind, torch.Generator().manual_seed(seed)), {})


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
