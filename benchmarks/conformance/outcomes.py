"""Outcomes of cases of other projects' tests, their counts, and the tables of them."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from registry.folding import kind_of

_MOST_REASONS = 25


class Outcome(enum.Enum):
    """What became of one case.

    both refuse: torch, or the model without the registry, fails, too. explained: the test asks for something that is
    meant to be otherwise. not run: it is skipped here, or calls no op.
    """

    PASSED = "passed"
    BOTH_REFUSE = "both refuse"
    CLEAR_ERROR = "clear error"
    EXPLAINED = "explained"
    NOT_RUN = "not run"
    UNCLEAR = "unclear error"
    WRONG = "wrong"


@dataclass
class Counts:
    """The counts of a group of cases, and of the reasons of their outcomes, folded by their kind."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    reasons: Counter[tuple[Outcome, str]] = field(default_factory=Counter)
    examples: dict[tuple[Outcome, str], str] = field(default_factory=dict)

    def add(self, outcome: Outcome, reason: str = "") -> None:
        """Count one case; ``reason`` is empty for one that passed."""
        self.outcomes[outcome] += 1
        if reason:
            self._because(outcome, reason, 1)

    def _because(self, outcome: Outcome, reason: str, count: int) -> None:
        kind = outcome, kind_of(reason)
        self.reasons[kind] += count
        self.examples.setdefault(kind, reason)

    def include(self, other: Counts) -> None:
        """Count the cases of another group, too."""
        self.outcomes += other.outcomes
        for kind, count in other.reasons.items():
            self._because(kind[0], other.examples[kind], count)

    @property
    def total(self) -> int:
        return self.outcomes.total()

    @property
    def faults(self) -> int:
        """The number of cases whose result was wrong, or whose error was unclear."""
        return self.outcomes[Outcome.WRONG] + self.outcomes[Outcome.UNCLEAR]

    def record(self) -> dict[str, Any]:
        """The counts as JSON holds them."""
        reasons = [
            {"outcome": kind[0].value, "count": count, "reason": self.examples[kind]}
            for kind, count in self.reasons.most_common()
        ]
        counts = {outcome.value: self.outcomes[outcome] for outcome in Outcome if self.outcomes[outcome]}
        return {"counts": counts, "reasons": reasons}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Counts:
        """The counts that ``record`` holds."""
        counts = cls(Counter({Outcome(name): count for name, count in record["counts"].items()}))
        for one in record["reasons"]:
            counts._because(Outcome(one["outcome"]), one["reason"], one["count"])
        return counts


def together(groups: Iterable[Counts]) -> Counts:
    """The counts of all groups."""
    counts = Counts()
    for group in groups:
        counts.include(group)
    return counts


def counts_table(first: str, groups: Mapping[str, Counts]) -> list[str]:
    """Lines of a Markdown table with a row for each group and one of all; columns of outcomes that no case had go."""
    every = together(groups.values())
    shown = [each for each in Outcome if each in {Outcome.PASSED, Outcome.WRONG} or every.outcomes[each]]
    head = [
        f"| {first} | cases | {' | '.join(each.value for each in shown)} |",
        f"| --- |{' ---: |' * (len(shown) + 1)}",
    ]
    rows = [(f"`{name}`", counts) for name, counts in groups.items()] + [("all", every)]
    lines = [
        f"| {name} | {counts.total} | {' | '.join(str(counts.outcomes[each]) for each in shown)} |"
        for name, counts in rows
    ]
    return [*head, *lines]


def reasons_list(counts: Counts, outcome: Outcome) -> list[str]:
    """Lines of a Markdown list of the reasons of one outcome, the most frequent first."""
    found = [(kind, count) for kind, count in counts.reasons.most_common() if kind[0] is outcome]
    lines = [f"- {count} x {counts.examples[kind]}" for kind, count in found[:_MOST_REASONS]]
    left = sum(count for _, count in found[_MOST_REASONS:])
    return [*lines, *([f"- {left} x others of {len(found) - _MOST_REASONS} kinds: in the JSON file"] if left else [])]
