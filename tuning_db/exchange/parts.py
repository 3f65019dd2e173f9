"""Parts of an exchange file: lines that are added together, while a thread reads the lines of the next part."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from ..records import PlainTrial
from .format import DecisionLine, ExchangeLine, HeaderLine, RunLine, TrialLine, WinnerLine

TOGETHER = 4096
"""Lines that are added together: an import holds twice as many in memory, however long the file."""
_LINES_OF_A_DECISION = 64
"""Lines that a decision counts as, for its finals."""

_Item = TypeVar("_Item")


@dataclass
class Part:
    """Lines that are added together, by kind.

    Runs by uid; trials, with the numbers of their lines in ``trial_lines``; decisions beside the numbers of their
    lines; the numbers of the lines that name winners, by the decision's uid.
    """

    runs: dict[str, RunLine] = field(default_factory=dict)
    trials: list[PlainTrial] = field(default_factory=list)
    trial_lines: list[int] = field(default_factory=list)
    decisions: list[tuple[int, DecisionLine]] = field(default_factory=list)
    winners: dict[str, int] = field(default_factory=dict)

    def add(self, number: int, content: ExchangeLine) -> None:
        """Takes in a line."""
        match content:
            case TrialLine():
                self.add_trial(number, PlainTrial.of(content.run, content.trial))
            case RunLine():
                self.runs[content.run.uid] = content
            case DecisionLine():
                self.decisions.append((number, content))
            case WinnerLine():
                self.winners[content.decision] = number
            case HeaderLine():
                pass
            case trial:
                self.add_trial(number, trial)

    def add_trial(self, number: int, trial: PlainTrial) -> None:
        """Takes in a trial."""
        self.trials.append(trial)
        self.trial_lines.append(number)

    @property
    def is_full(self) -> bool:
        """True if it is time to add these lines."""
        lines = len(self.trials) + len(self.runs) + len(self.winners) + _LINES_OF_A_DECISION * len(self.decisions)
        return lines >= TOGETHER


def parts(lines: Iterable[tuple[int, ExchangeLine]]) -> Iterator[Part]:
    """All lines, each beside its number, in parts."""
    part = Part()
    for number, content in lines:
        part.add(number, content)
        if part.is_full:
            yield part
            part = Part()
    yield part


def ahead(items: Iterable[_Item]) -> Generator[_Item, None, None]:
    """The items, of which a thread makes the next one while the caller works with the last.

    An exception of making an item is raised when the item is asked for.
    """
    source = iter(items)
    with ThreadPoolExecutor(1, "kernel-registry: reads ahead") as reader:
        coming = reader.submit(_next, source)
        while found := coming.result():
            coming = reader.submit(_next, source)
            yield from found


def _next(source: Iterator[_Item]) -> list[_Item]:
    return list(islice(source, 1))
