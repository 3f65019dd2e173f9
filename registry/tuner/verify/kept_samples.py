"""Samples that are kept with their inputs, to be judged after they were chosen, and results that have to stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...correctness.bits import having_same_bits
from ...correctness.bounds import bounds_of, holding
from ...correctness.numerics import full_precision, results_of
from ...implementation import Tensors
from .session import Session, clone
from .verdicts import Checks, Flags

_HELD = 4
"""Results that are held: the first ones, and the latest others."""
_HELD_BYTES = 64 << 20
_OVERWRITTEN = "calls return the same memory: the second overwrites the first's result, which a caller may still use"


class KeptSample:
    """The inputs and results of one launch, in memory of their own; a call returns flags whether the results are right.

    The call computes the reference in float64.
    """

    def __init__(self, session: Session, values: tuple[Any, ...], results: Tensors) -> None:
        self._session = session
        self._values = clone(values)
        self._results = tuple(result.clone() for result in results)

    def __call__(self) -> Flags:
        session = self._session
        right = not session.judge(session.case_of(self._values), self._results)
        return [torch.tensor(right, device=session.device.torch)]

    def quickly(self) -> Flags:
        """Flags as of a call, from the op's reference in the problem's own dtype, which takes a few launches' time.

        A launch that was left out is far from that. Results that are not within its tolerance are judged as usual.
        """
        op, problem = self._session.op, self._session.problem
        with full_precision(), torch.no_grad():
            found = results_of(op, self._values)
        own = tuple(result.double() if result.is_floating_point() else result for result in found)
        bounds = bounds_of(op, problem, self._values, own, (math.inf,) * len(own))
        flags = holding(bounds, self._results)
        return flags if all(flags) else self()


class HeldResults:
    """Tensors that functional code has returned, some of which are held: no later call may write to their memory.

    A function that returns the buffers of a ring in turn is found, however many it has, once it begins again.
    """

    def __init__(self) -> None:
        self._held: list[tuple[int, Tensors, Tensors]] = []
        """The copy that was launched on, what was returned, and a copy of it."""

    def hold(self, copy: int, returned: Tensors) -> None:
        """Hold what a launch on that copy has returned, and let go of an earlier one."""
        most = max(1, min(_HELD, _HELD_BYTES // max(1, 2 * sum(each.nbytes for each in returned))))
        while len(self._held) >= most:
            del self._held[1 if len(self._held) > 1 else 0]
        self._held.append((copy, returned, tuple(each.clone() for each in returned)))

    def check(self, latest: Sequence[Tensors], checks: Checks) -> None:
        """Check that all that is held is as it was, and let go of it. ``latest``: what each copy's launch returned.

        A graph that has captured the launches writes to the same tensors again: what nobody has replaced is left out.
        """
        held, self._held = self._held, []
        for copy, returned, was in held:
            if copy < len(latest) and latest[copy] is not returned:
                checks.add(list(map(having_same_bits, returned, was)), "wrong_result", _OVERWRITTEN)
