"""All winners of an op in order of precedence: plain data, by which two states of winners are compared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from ....contract import Op
from .placed_winners import PlacedWinners, Winner

Ranking = Mapping[Hashable, tuple[Hashable, ...]]
"""What is told of winners in order of precedence, by version of the op and dimensions."""


def ranked_candidates(placed: PlacedWinners, op: Op) -> Ranking:
    """The candidates in order of precedence, by version of the op and dimensions."""
    return _in_order(placed, op, lambda winner: winner.candidate.key)


def ranked_evidence(placed: PlacedWinners, op: Op) -> Ranking:
    """Like ``ranked_candidates``, with the times of other implementations over each candidate's, and its transfers."""

    def told(winner: Winner) -> Hashable:
        transfers = frozenset((name, one.low, one.high, one.codes) for name, one in winner.transfers.items())
        return winner.candidate.key, frozenset(winner.baselines.items()), transfers

    return _in_order(placed, op, told)


def _in_order(placed: PlacedWinners, op: Op, told: Callable[[Winner], Hashable]) -> Ranking:
    found: dict[Hashable, tuple[Hashable, ...]] = {}
    for place in placed.in_rank(op, range(placed.count)):
        if (one := placed.at(place)) is not None:
            problem = one.winner.problem.op_version, one.key
            found[problem] = (*found.get(problem, ()), told(one.winner))
    return found
