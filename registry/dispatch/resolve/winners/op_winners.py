"""The winners of one op on one hardware, in memory, as they were read; and the parts that answer questions about them.

Data flow one way: rows and shipped decisions get places (``PlacedWinners``), places are found by dimensions
(``WinnerIndex``), and the evidence for a winner that was found is read when it is asked for (``WinnerEvidence``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tuning_db import CandidateKey, Decision
from tuning_db.snapshot import Snapshot

from ..learnt import LearntDefault
from .evidence import WinnerEvidence
from .placed_winners import PlacedWinners
from .winner_index import WinnerIndex


@dataclass(frozen=True)
class OpWinners:
    """The user's winners, ``stored``, and those ``shipped`` with the package, which come after them.

    A shipped winner is used if the user has none for a problem, or none that holds. Of several for one problem those of
    this op version come first, then those of this ``software``, then the newest. A winner that cannot be decoded is
    skipped, with its reason passed to ``tell``. ``fault`` says why something could not be read at all.
    """

    stored: Snapshot = field(default_factory=Snapshot)
    fault: str = ""
    shipped: tuple[Decision, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    database: str | None = field(default=None, repr=False, compare=False)
    learnt: LearntDefault | None = field(default=None, repr=False, compare=False)
    shipped_runners: Mapping[str, Mapping[str, CandidateKey]] = field(default_factory=dict, repr=False, compare=False)
    tell: Callable[[str], None] = field(default=lambda _: None, repr=False, compare=False)

    @property
    def is_empty(self) -> bool:
        """True if there is no winner at all, neither a stored nor a shipped one."""
        return not (self.stored.count or self.shipped)

    @cached_property
    def placed(self) -> PlacedWinners:
        """All winners by their places."""
        return PlacedWinners(self.stored, self.shipped, self.software, self.tell)

    @cached_property
    def index(self) -> WinnerIndex:
        """Winners by the dimensions of problems."""
        return WinnerIndex(self.placed)

    @cached_property
    def evidence(self) -> WinnerEvidence:
        """The figures of winners, and the candidates that they were measured against."""
        return WinnerEvidence(self.placed, self.database, self.shipped_runners, self.tell)
