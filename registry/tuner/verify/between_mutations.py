"""Gives launches that mutate their arguments fresh ones before each sample, and judges what some samples left of them.

Without this an argument would hold what many launches have made of it, of which nobody knows whether it is right: a
candidate that does nothing while it is timed would be refused by nothing.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from .between_samples import BetweenSamples
from .session import clone
from .verdicts import Flags

KeepMutation = Callable[[int, tuple[Any, ...]], Callable[[], Flags]]
"""Copies what a launch has left of a rotating copy that held these values; returns a function that judges it."""


class BetweenMutations(BetweenSamples):
    """Writes mutated arguments anew, moved as other inputs are, in all copies of a sample.

    One copy is drawn whose contents are remembered, among those on which the sample launches once: it may be judged.
    That happens before every sample, so that the pause before a sample does not tell whether it is judged. On a GPU
    all of it is queued behind the sample before, and nobody waits: the copies that are made are judged at the end.

    Arguments that were just written are in the cache, waiting to be written to memory: a launch that needs its place
    would do that in its own time, and find the last ones hot. So a GPU's cache is read full of other data at last,
    before the clock starts.
    """

    _fresh: Mapping[int, Any] = {}
    _rigid: Mapping[int, Any] = {}
    """Place -> value of mutated arguments whose elements may not move."""
    _keep_mutation: KeepMutation | None = None
    _flush: Callable[[], object] | None = None
    _drawn_copy: tuple[int, tuple[Any, ...], int] | None = None
    """The copy, what it held, and the rotation's writes by then."""

    def refresh(
        self,
        values: Mapping[int, Any],
        keep: KeepMutation,
        flush: Callable[[], object] | None,
        rigid: Collection[int] = (),
    ) -> None:
        """Write these values of mutated arguments, by place, before each sample; then ``flush`` the cache.

        ``rigid``: places of those whose elements may not move, such as counters.
        """
        self._fresh = {place: value for place, value in values.items() if place not in rigid}
        self._rigid = {place: value for place, value in values.items() if place in rigid}
        self._keep_mutation, self._flush = keep, flush
        self.alone = True

    def __call__(self, copies: Sequence[int], *, last: bool = True) -> None:
        self._keep_what_was_left()
        # first: to write elements anew undoes every change
        self._rotation.exchange(self._rigid)
        self._rotation.move(dict.fromkeys([*copies, *self.warmed]), self._fresh)
        super().__call__(copies, last=last)
        self._drawn_copy = None
        once = [copy for copy, count in Counter(copies).items() if count == 1]
        if once:
            copy = secrets.choice([once[-1], secrets.choice(once)])
            self._drawn_copy = copy, clone(self._rotation.copies[copy]), self._rotation.writes
        if self._flush is not None:
            self._flush()

    def _take_in(self) -> None:
        self._keep_what_was_left()
        super()._take_in()

    def settle(self) -> None:
        self._keep_what_was_left()
        super().settle()

    def _keep_what_was_left(self) -> None:
        drawn, self._drawn_copy = self._drawn_copy, None
        if drawn is None or self._keep_mutation is None or drawn[2] != self._rotation.writes:
            return
        self._met += 1
        for place in range(len(self._kept)):
            if secrets.randbelow(self._met) == 0:
                self._kept[place] = self._keep_mutation(drawn[0], drawn[1])
