"""Standings of a race in sandboxes: ratios of times that were taken in one phase, whatever the machine did since."""

from __future__ import annotations

from registry.importers.race import RaceStanding, ranked
from registry.importers.sandboxed_race import _Entered, _over_reference
from registry.sandbox.entrant import SandboxedEntrant
from registry.sandbox.trial import SandboxedTrial
from registry.tuner.jobs import Outcome


def entered(name: str, *phases: float) -> _Entered:
    """An entrant that took so many µs in its trial, and then in each block."""
    trials = [SandboxedTrial(Outcome("ok", "", samples=(us,) * 9, median_us=us)) for us in phases]
    return _Entered(name, SandboxedEntrant("square", name), name.startswith("mine"), trials)


def standing(one: _Entered) -> RaceStanding:
    return RaceStanding(None, one.entrant.name, one.label, one.is_submission, "ok", median_us=one.times[0])


def test_who_was_timed_before_the_machine_was_busy_is_not_ahead_for_that() -> None:
    entries = [
        entered("torch.native", 10.0, 40.0, 40.0),
        entered("mine.fast", 9.0, 30.0, 30.0),
        entered("mine.slow", 20.0),
    ]
    over = _over_reference(entries, "torch.native")
    assert over == {"torch.native": 1.0, "mine.fast": 0.75, "mine.slow": 2.0}
    found = ranked([*map(standing, entries)], "torch.native", None, over)
    assert [(one.rank, one.name) for one in found] == [(1, "mine.fast"), (2, "torch.native"), (3, "mine.slow")]
    assert [one.times_reference for one in found] == [1 / 0.75, 1.0, 0.5]


def test_without_a_right_reference_medians_rank() -> None:
    entries = [entered("mine.slow", 20.0), entered("mine.fast", 9.0, 12.0)]
    assert _over_reference(entries, "torch.native") == {}
    found = ranked([*map(standing, entries)], "torch.native", None, {})
    assert [one.name for one in found] == ["mine.fast", "mine.slow"]
