"""Changes what a candidate meets from sample to sample, and judges the outputs that some of the samples left.

A check that follows timing is a run that a candidate may tell from a timed one: by the call before it, by the time of
day, by a setting of the process. The samples themselves are therefore judged, some of them, chosen at random.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any

from ..measure.rotation import Rotation
from ..measure.secret_elements import FlippedElements
from ..measure.spread_elements import SpreadElements
from .verdicts import Checks, Flags

_WAIT = 12
"""Samples from one that is judged to the next at most: a judged one meets inputs that came before."""
_MOST = 8
"""Judged samples of a candidate at most."""
_MOST_STEPS = 61
"""Places by which inputs are moved at most."""
_WRONG = (
    "a sample left a wrong output, after one element in each of its inputs and outputs had been changed: it skips work"
    " where it finds what it remembers, or where it is timed, or it returns before its work is done"
)

LATE = "it was not ready when it was read: work on another stream or thread has to be waited for"

_LATE = f"a sample's output changed after its time: {LATE}"
_LATE_OR_OVERWRITTEN = f"{_LATE}; or calls return the same memory: the second overwrites the first's result"

Judge = Callable[[Sequence[int]], Flags]
"""Whether the outputs that belong to these copies are right for the inputs that are shown."""

Keep = Callable[[int], Callable[[], Flags]]
"""Copies the inputs and outputs of that rotating copy; returns what judges them, by a reference of their own."""


class BetweenSamples:
    """Called before each sample, outside of what is timed, with the copies that are launched on next.

    One element of each floating input, and one of each output, are others than before, in every copy and at random
    places. A sample that is going to be judged finds the inputs whose reference is known: there the elements that were
    changed before are put back. A candidate may know those inputs again, and work on them alone; so one more sample, on
    changed inputs, is drawn after it has run, and judged when the candidate may win (``check_kept``).

    ``judge`` and ``keep``: None where no reference is known.
    """

    def __init__(
        self,
        rotation: Rotation,
        inputs: Collection[int],
        outputs: Sequence[FlippedElements],
        looked_at: Sequence[SpreadElements],
        judge: Judge | None,
        keep: Keep | None = None,
        *,
        returned: bool = False,
    ) -> None:
        self._rotation = rotation
        self._inputs = inputs
        self._outputs = outputs
        self._looked_at = looked_at
        self._returned = returned
        self._judge = judge
        self._left = _MOST
        self._drawn = Random(secrets.randbits(64)).randrange
        self._wait = self._drawn(_WAIT)
        self._next: Sequence[int] = ()
        self._rolled: Sequence[int] = ()
        """Those of the next copies that hold other inputs: they are not judged."""
        self._seen: list[Sequence[Any]] = []
        self._checks = Checks()
        self._keep = keep
        self._met = 0
        """Samples on changed inputs so far."""
        self._unjudged: tuple[Sequence[int], int] = (), 0
        """The copies of the latest sample on changed inputs, and the rotation's writes by then."""
        self._kept: Callable[[], Flags] | None = None

    def __call__(self, copies: Sequence[int], *, last: bool = True) -> None:
        """``last``: the sample is followed by nothing that may not be kept waiting, so that it may be judged."""
        self._judge_now()
        self._wait -= 1
        if last and self._judge and self._left and self._wait <= 0:
            self._left -= 1
            self._wait = self._drawn(_WAIT)
            self._look_again()
            self._next = copies
            self._rotation.restore()
            if self._returned and self._inputs:
                self._roll(copies)
        else:
            self._rotation.change(self._inputs)
            self._unjudged = copies if last else (), self._rotation.writes
        self.change_outputs()

    def ready(self) -> None:
        """Change elements all over the outputs of a sample that is going to be judged.

        After the warm-up: a launch on a copy that comes again in the sample has made its output right.
        """
        if self._next:
            for elements in self._looked_at:
                elements.change(self._rolled if self._returned else self._next)

    def look(self) -> None:
        """Read those elements: what a candidate has left to another thread, or stream, is not there yet."""
        if self._next:
            self._seen = [elements.read() for elements in self._looked_at]

    def _roll(self, copies: Sequence[int]) -> None:
        """Let the last copy and another hold other inputs: memory that is returned too early holds no right result."""
        different = list(dict.fromkeys(copies))
        if len(different) > 1:
            self._rolled = list(dict.fromkeys([copies[-1], secrets.choice(different)]))[: len(different) - 1]
        else:
            self._rolled = different[: self._drawn(2)]
        self._rotation.roll(self._rolled, self._inputs, 1 + self._drawn(_MOST_STEPS))

    def change_outputs(self) -> None:
        for elements in self._outputs:
            elements.change()

    def settle(self) -> None:
        """Put the inputs back, and read the verdicts; raises WrongError."""
        self._judge_now()
        self._look_again()
        self._rotation.restore()
        self._checks.settle()

    def check_kept(self) -> None:
        """Judge the sample that was kept, of whose inputs a reference is made now; raises WrongError."""
        if self._kept is not None:
            self._checks.add(self._kept(), "wrong_result", _WRONG)
            self._checks.settle()

    def _judge_now(self) -> None:
        self._keep_now()
        if self._next and self._judge:
            # the last one first: a result that is late is not there yet
            copies, self._next = self._next, ()
            known = [copy for copy in copies if copy not in self._rolled]
            if known:
                chosen = {known[-1]: None, secrets.choice(known): None}
                self._checks.add(self._judge(list(chosen)), "wrong_result", _WRONG)
            self._rolled = ()
            if not self._returned:
                # judging gave other threads the time for what they had left
                self._look_again()

    def _look_again(self) -> None:
        """Check that elements hold what was seen when the clock stopped: of returned outputs, as late as possible."""
        seen, self._seen = self._seen, []
        reason = _LATE_OR_OVERWRITTEN if self._returned else _LATE
        for was, elements in zip(seen, self._looked_at, strict=False):
            self._checks.add(elements.hold(was), "wrong_result", reason)

    def _keep_now(self) -> None:
        """Keep the latest sample instead of an earlier one, each of all equally likely: none knows it while it runs."""
        (copies, writes), self._unjudged = self._unjudged, ((), 0)
        if copies and self._keep is not None and writes == self._rotation.writes:
            self._met += 1
            if secrets.randbelow(self._met) == 0:
                # the last may be left undone
                self._kept = self._keep(secrets.choice([copies[-1], secrets.choice(copies)]))
