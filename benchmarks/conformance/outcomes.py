"""Outcomes of cases of other projects' tests, their counts, and the tables of them."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from registry.folding import kind_of


class Outcome(enum.Enum):
    """What became of one case. Every outcome but the last two is right."""

    PASSED = "passed"
    BOTH_REFUSE = "both refuse"
    CLEAR_ERROR = "clear error"
    UNCLEAR = "unclear error"
    WRONG = "wrong"


@dataclass
class Counts:
    """The counts of a group of cases; ``reasons`` of errors, and of wrong results, folded by their kind."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    reasons: Counter[tuple[Outcome, str]] = field(default_factory=Counter)
    examples: dict[tuple[Outcome, str], str] = field(default_factory=dict)

    def add(self, outcome: Outcome, reason: str = "") -> None:
        """Count one case; ``reason`` is empty for one that passed."""
        self.outcomes[outcome] += 1
        if reason:
            kind = outcome, kind_of(reason)
            self.reasons[kind] += 1
            self.examples.setdefault(kind, reason)

    @property
    def total(self) -> int:
        return self.outcomes.total()

    @property
    def faults(self) -> int:
        """The number of cases whose result was wrong, or whose error was unclear."""
        return self.outcomes[Outcome.WRONG] + self.outcomes[Outcome.UNCLEAR]

    def record(self) -> dict[str, object]:
        """The counts as JSON holds them."""
        reasons = [
            {"outcome": kind[0].value, "count": count, "reason": self.examples[kind]}
            for kind, count in self.reasons.most_common()
        ]
        return {**{outcome.value: self.outcomes[outcome] for outcome in Outcome}, "reasons": reasons}


def table(first: str, groups: Mapping[str, Counts]) -> list[str]:
    """Lines of a Markdown table with a row for each group, and a last row of all."""
    names = [outcome.value for outcome in Outcome]
    rows = [(name, [counts.outcomes[outcome] for outcome in Outcome]) for name, counts in groups.items()]
    rows.append(("**all**", [sum(column) for column in zip(*(row for _, row in rows), strict=True)]))
    head = [f"| {first} | cases | {' | '.join(names)} |", "| --- |" + " ---: |" * (len(names) + 1)]
    return [*head, *(f"| {name} | {sum(row)} | {' | '.join(map(str, row))} |" for name, row in rows)]


def reasons(groups: Iterable[Counts], outcome: Outcome) -> list[str]:
    """Lines of a Markdown list of the reasons of one outcome over all groups, the most frequent first."""
    counted: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for counts in groups:
        for kind, count in counts.reasons.items():
            if kind[0] is outcome:
                counted[kind[1]] += count
                examples.setdefault(kind[1], counts.examples[kind])
    return [f"- {count} × {examples[kind]}" for kind, count in counted.most_common()]
