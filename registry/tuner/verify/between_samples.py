"""Changes a candidate's inputs and outputs between samples, and judges the outputs of some samples.

A candidate may tell a check after timing from a timed run: by the call before it, by the time of day, by a setting of
the process. So timed samples themselves are judged, some of them, chosen at random.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from random import Random
from time import perf_counter, perf_counter_ns
from typing import Any

from ..measure.rotation import Rotation
from ..measure.samplers import Sampler
from ..measure.secret_elements import FlippedElements
from ..measure.spread_elements import SpreadElements
from .kept_samples import KeptSample
from .renewed import Inputs, RenewedPairs
from .verdicts import Checks, Flags

_WAIT = 12
"""The most samples from one judged sample to the next. A judged sample uses inputs that came before."""
_MOST = 8
"""The most judged samples of a candidate."""
_MOST_S = 0.15
"""Seconds after which no further kept output is judged quickly."""
_WEIGHT = 8
"""The weight of a sample on new inputs in the choice of the kept one: it is not timed, which a candidate may know."""
_WRONG = (
    "a sample left a wrong output, after one element in each of its inputs and outputs had been changed: it skips work"
    " where it finds what it remembers, or where it is timed, or it returns before its work is done"
)

LATE = "it was not ready when it was read: work on another stream or thread has to be waited for"

_LATE = f"a sample's output changed after its time: {LATE}"
_LATE_OR_OVERWRITTEN = f"{_LATE}; or calls return the same memory: the second overwrites the first's result"

Judge = Callable[[Sequence[int]], Flags]
"""Returns flags: whether the outputs of these copies are right for the inputs that are shown."""

KeepFlags = Callable[[int], Callable[[], Flags]]
"""Copies the inputs and outputs of a rotating copy; returns a function that judges them by a reference of their own."""


class BetweenSamples:
    """Changes inputs and outputs before each sample, outside of the timed part, on the copies launched on next.

    Each copy holds the elements of the inputs at places of its own, so that it is of no use to remember another copy.
    Before each sample one element of each floating input and of each output is changed, in every copy and at random
    places. In a sample that is going to be judged, two copies hold the inputs whose reference is known. A candidate may
    recognise those inputs, and work on them alone; so some more outputs, of samples on changed inputs, are chosen after
    these have run, and judged if the candidate may win (``check_kept``).

    ``moved``: place -> value of the inputs whose elements are moved. ``judge`` and ``keep``: None where no reference is
    known.
    """

    def __init__(
        self,
        rotation: Rotation,
        inputs: Collection[int],
        moved: Mapping[int, Any],
        outputs: Sequence[FlippedElements],
        looked_at: Sequence[SpreadElements],
        judge: Judge | None,
        keep: KeepFlags | None = None,
        *,
        returned: bool = False,
    ) -> None:
        self._rotation = rotation
        self._inputs = inputs
        self._moved = moved
        self.copies: Sequence[int] = range(len(rotation.copies))
        """Indices of the copies that are launched on, and of those for warming up."""
        self.alone = False
        self.warmed: Sequence[int] = ()
        """Indices of the copies on which no launch is timed: others warm up there."""
        self._outputs = outputs
        self._looked_at = looked_at
        self._returned = returned
        self._judge = judge
        self._left = _MOST
        self._drawn = Random(secrets.randbits(64)).randrange
        self._wait = self._drawn(_WAIT)
        self._next: Sequence[int] = ()
        self._rolled: Sequence[int] = ()
        """Indices of the next copies that hold inputs which no copy has held before."""
        self._known: Sequence[int] = ()
        """Indices of the next copies whose outputs are going to be judged."""
        self._seen: list[Sequence[Any]] = []
        self._checks = Checks()
        self._keep = keep
        self._met = 0
        """Samples on changed inputs so far."""
        self._unjudged: tuple[Sequence[int], int, int] = (), 0, 0
        """The copies of the latest sample on changed inputs, the rotation's writes by then, and its weight."""
        self._comparison = RenewedPairs(self, renews=bool(moved) and keep is not None)
        self._compares = bool(moved) and keep is not None
        self._fixed: Mapping[int, Any] = {}
        """Place -> value of the inputs that are exchanged as a whole."""
        self._others: Iterator[Mapping[int, Any]] = iter(())
        self._other: Mapping[int, Any] | None = None
        """Values for ``_fixed`` that no sample has met."""
        self._met_last: Mapping[int, Any] = {}
        """Values for ``_fixed`` that were written last of those that no sample had met before."""
        self._is_exchanged = False
        self._writing_ns = 0
        """The least time that it took to write the inputs again and to change them."""
        self._prepare = self._change
        self._kept: list[Callable[[], Flags] | None] = [None]
        self._referenced = 1
        """How many of the kept outputs are judged by references in float64."""

    def __call__(self, copies: Sequence[int], *, last: bool = True) -> None:
        """Prepare the next sample. ``last``: nothing urgent follows the sample, so that it may be judged."""
        self._judge_now()
        self._wait -= 1
        usual = self._prepare == self._change
        if usual and last and self._judge and self._left and self._wait <= 0:
            self._left -= 1
            self._wait = self._drawn(_WAIT)
            self._look_again()
            self._next = copies
            self._draw(copies)
        else:
            self._unjudged = copies if last else (), *self._prepare(copies)
        self.change_outputs()

    def keep_up_to(self, count: int, more: int = 0) -> None:
        """Judge as many outputs that are chosen after they were made; one by default. To be called before samples.

        ``more``: further ones that are judged ``quickly``, as long as that takes little time.
        """
        self._kept, self._referenced = [None] * (count + more), count

    def exchange(self, fixed: Mapping[int, Any], others: Iterator[Mapping[int, Any]]) -> None:
        """Let samples that are compared find inputs of other draws. To be called before samples.

        ``fixed``: place -> value of the inputs of which no single elements change; ``others``: other values of them.
        """
        self._fixed, self._others = fixed, others
        self._compares = self._compares or bool(fixed)

    def ready(self) -> None:
        """Change elements all over the outputs of a sample that is going to be judged.

        To be called before the warm-up, which uses other copies: the pause between it and the first timed launch would
        tell whether the sample is going to be judged.
        """
        if self._next:
            for elements in self._looked_at:
                elements.change(self._rolled if self._returned else self._next)

    def look(self) -> None:
        """Read the changed elements; work that a candidate has left to another thread or stream is not done yet."""
        if self._next:
            self._seen = [elements.read() for elements in self._looked_at]

    def _change(self, copies: Sequence[int]) -> tuple[int, int]:
        """Change the inputs; returns the rotation's writes, and the weight of the sample."""
        if self._moved:
            self._rotation.move(self.copies, self._moved, again=False)
        self._rotation.change(self._inputs)
        return self._rotation.writes, 1

    def _write_again(self, copies: Sequence[int]) -> tuple[int, int]:
        began = perf_counter_ns()
        self._rotation.exchange(self._fixed)
        self._rotation.rewrite(copies, self._moved)
        done = self._change(copies)
        took_ns = perf_counter_ns() - began
        # another program may have had the core meanwhile
        self._writing_ns = min(took_ns, self._writing_ns or took_ns)
        return done

    def _wait_and_change(self, copies: Sequence[int]) -> tuple[int, int]:
        began = perf_counter_ns()
        done = self._change(copies)
        # not asleep: the processor would run slower after that
        while perf_counter_ns() - began < self._writing_ns:
            pass
        return done

    def _change_only(self, copies: Sequence[int]) -> tuple[int, int]:
        """``_change`` for a sample that counts as unusual, so that it is never judged."""
        return self._change(copies)

    def _exchange(self, copies: Sequence[int]) -> tuple[int, int]:
        return self._write_others(copies, self._fixed)

    def _exchange_all(self, copies: Sequence[int]) -> tuple[int, int]:
        # a sample that is taken again finds others again, while there are any
        if self.has_other():
            self._met_last, self._other = self._other or {}, None
        self._is_exchanged = True
        return self._write_others(copies, self._met_last)

    def _write_others(self, copies: Sequence[int], fixed: Mapping[int, Any]) -> tuple[int, int]:
        """Write new inputs, and as much memory as ``_write_again`` does."""
        self._rotation.exchange(fixed)
        self._rotation.move(copies, self._moved)
        return self._rotation.writes, _WEIGHT

    def _draw(self, copies: Sequence[int]) -> None:
        """Draw the copies whose outputs are judged, and let them hold the known inputs.

        If the candidate returns its outputs, the last copy and another one hold new inputs instead: the memory of an
        earlier result is never right there.
        """
        different = list(dict.fromkeys(copies))
        self._rolled = ()
        if self._returned and self._moved:
            chosen = dict.fromkeys([copies[-1], secrets.choice(different)])
            self._rolled = list(chosen)[: len(different) - 1] if len(different) > 1 else different[: self._drawn(2)]
        known = [copy for copy in copies if copy not in self._rolled]
        # the last one first: a result that is late is not there yet
        self._known = list(dict.fromkeys([known[-1], secrets.choice(known)])) if known else ()
        self._rotation.put_back(self._known, self._moved)
        self._rotation.move(self._rolled, self._moved)

    def change_outputs(self) -> None:
        for elements in self._outputs:
            elements.change()

    def compare(self, sampler: Sampler) -> bool:
        """Compare a sample on known inputs with one on new inputs, see ``renewed``; True if enough were compared."""
        return not self._compares or self._comparison.go_on(sampler)

    def meet(self, inputs: Inputs) -> None:
        """Let the following samples find such inputs, see ``renewed.Inputs``."""
        if self._is_exchanged:
            # at once: the next sample may be of another candidate, on the same copies
            self._take_in()
            self._rotation.exchange(self._fixed)
            self._is_exchanged = False
        self._prepare = {
            "usual": self._change,
            "known": self._write_again,
            "new": self._exchange,
            "other": self._exchange_all,
            "waited": self._wait_and_change,
            "quick": self._change_only,
        }[inputs]

    def has_other(self) -> bool:
        """Whether there are values for inputs that are exchanged as a whole, which no sample has met."""
        if self._other is None:
            self._other = next(self._others, None)
        return self._other is not None

    def _take_in(self) -> None:
        """Keep what the latest sample left, if it is chosen, before anything is written."""
        self._keep_now()

    def settle(self) -> None:
        """Put the inputs back, and read the verdicts; raises WrongError."""
        self._judge_now()
        self._look_again()
        self._rotation.restore()
        self._checks.settle()

    def check_kept(self) -> None:
        """Judge the kept outputs by references that are computed now; raises WrongError."""
        # one output may be kept in several places; each was drawn by itself, so that any of them may come first
        kept = list(dict.fromkeys(filter(None, self._kept)))
        self._kept = [None] * len(self._kept)
        for one in kept[: self._referenced]:
            self._checks.add(one(), "wrong_result", _WRONG)
            self._checks.settle()
        began = perf_counter()
        for one in kept[self._referenced :]:
            self._checks.add(one.quickly() if isinstance(one, KeptSample) else one(), "wrong_result", _WRONG)
            self._checks.settle()
            if perf_counter() - began > _MOST_S:
                break

    def _judge_now(self) -> None:
        self._keep_now()
        if self._next and self._judge:
            self._next = ()
            if self._known:
                self._checks.add(self._judge(self._known), "wrong_result", _WRONG)
            if not self._returned:
                # judging gave other threads the time for what they had left
                self._look_again()

    def _look_again(self) -> None:
        """Check that the elements still hold the values read when the clock stopped; of returned outputs very late."""
        seen, self._seen = self._seen, []
        reason = _LATE_OR_OVERWRITTEN if self._returned else _LATE
        for was, elements in zip(seen, self._looked_at, strict=False):
            self._checks.add(elements.hold(was), "wrong_result", reason)

    def _keep_now(self) -> None:
        """Keep outputs of the latest sample or of earlier ones, with equal chances: no candidate knows which.

        Each is drawn by itself: one that skips a call in ten is found although nine of its outputs in ten are right.
        """
        (copies, writes, weight), self._unjudged = self._unjudged, ((), 0, 0)
        if copies and self._keep is not None and writes == self._rotation.writes:
            self._met += weight
            made: dict[int, Callable[[], Flags]] = {}
            for place in range(len(self._kept)):
                if secrets.randbelow(self._met) < weight:
                    # often the last copy: its work is most likely left undone
                    copy = secrets.choice([copies[-1], secrets.choice(copies)])
                    self._kept[place] = made[copy] = made.get(copy) or self._keep(copy)
