"""The table of winners at the end of a tuning run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...folding import Place, folded, kind_of
from . import text
from .changes import interval, stays, summary
from .table import Column, print_problems

if TYPE_CHECKING:
    from ...tuner.events import Result

COMPILED = "torch.compile"
_MOST_FAILURES = 10


def speedup_over(result: Result, implementation: str) -> float | None:
    """An implementation's time over the winner's; None where it did not run."""
    if result.implementation == implementation:
        return 1.0
    return result.speedup.get(implementation)


_COLUMNS = (
    Column("winner"),
    Column("config"),
    Column("µs", right=True),
    Column("of floor", right=True),
    Column("× torch", right=True),
    Column("× compile", right=True),
    Column("× incumbent", right=True),
    Column("A/A noise", right=True),
    Column("verdict"),
    Column("incumbent", lifts=True, label="incumbent"),
    Column("hardware", lifts=True, label="on"),
)


def print_results(results: Sequence[Result]) -> None:
    """Prints the problems with winner, config, median µs, fraction of the floor, speedups, verdict and incumbent.

    ``× incumbent`` is the incumbent's time over the winner's, with its interval. Ratios that the finals do not tell,
    because other work disturbed them, are ``noise``. A line follows that counts verdicts.
    Of results on several kinds of hardware each says on which.
    """
    several = len({result.hardware for result in results}) > 1
    rows = [(result.problem, [*_row(result), result.hardware if several else ""]) for result in results]
    print_problems(_COLUMNS, rows)
    decided = [result for result in results if result.incumbent]
    if decided:
        text.say()
        text.say(summary(decided))


def failure_lines(failed: Sequence[tuple[Place, str]]) -> list[str]:
    """A line for each kind of failure of an implementation's trials, with their count, the most frequent first."""
    often = Counter((place.group, kind_of(fault)) for place, fault in failed)
    lines = folded(sorted(failed, key=lambda one: -often[one[0].group, kind_of(one[1])]))
    more = [f"and {len(lines) - _MOST_FAILURES} other failures"] if len(lines) > _MOST_FAILURES else []
    return [*(f"failed {line}" for line in lines[:_MOST_FAILURES]), *more]


def _row(result: Result) -> list[str]:
    if result.verdict == "none":
        return [why_none(result), statuses(result), *["-"] * 4, "", "", "none", _incumbent(result)]
    return [
        result.implementation,
        text.pairs(result.config),
        text.microseconds(result.median_us),
        text.of_floor(result.fraction_of_floor),
        *(_over(result, name) for name in (result.baseline, COMPILED)),
        interval(result) if result.incumbent else "",
        "" if result.noise is None else f"{100 * result.noise:.1f}%",
        with_reason(verdict(result.verdict, result.implementation, result.ties), result.reason),
        _incumbent(result),
    ]


def _over(result: Result, implementation: str) -> str:
    is_noise = result.is_noise or implementation in result.noisy
    return text.ratio_unless(is_noise, speedup_over(result, implementation))


def _incumbent(result: Result) -> str:
    met = result.incumbent
    if met is None:
        return ""
    if stays(result):
        return "is the winner"
    return f"{text.candidate(met.implementation, met.config)}{'' if met.stored else ' (default)'}"


def verdict(name: str, winner: str, ties: Sequence[str]) -> str:
    """The verdict with its ties: ``new``, ``tie: triton.row ≈ torch.native``, ``new ≈ torch.native``."""
    if not ties:
        return name
    others = ", ".join(ties)
    return f"tie: {winner} ≈ {others}" if name == "tie" else f"{name} ≈ {others}"


def why_none(result: Result) -> str:
    """The reason for a missing winner: ``none is right`` if no candidate is, or the fault of the finals."""
    return result.reason or "none is right"


def with_reason(told: str, reason: str) -> str:
    """The text ``told`` followed by a reason: ``new (the stored winner my.fast was out: wrong_result)``."""
    return f"{told} ({reason})" if reason else told


def statuses(result: Result) -> str:
    """The number of trials by status: ``38 ok, 2 wrong_result``."""
    return ", ".join(f"{count} {status}" for status, count in result.statuses.most_common()) or "no candidate"
