"""The interface of a search arm: one way of choosing which candidate is tried next."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable

from ..tried import Tried


class Arm(ABC):
    """One way of choosing the next candidate of one problem. ``proposals.MIX`` lists the arms and their turns.

    ``tried`` is shared by all arms and kept up to date by the searcher; ``random`` is shared too. ``seed`` serves an
    arm that has a random generator of its own.
    """

    expected_gain = math.inf
    """The log gain that the arm expects of its latest proposal; infinite where the arm has no opinion."""

    def __init__(self, tried: Tried, random: random.Random, seed: int) -> None:
        self.tried = tried
        self.random = random
        self.seed = seed

    @abstractmethod
    def propose(self) -> int | None:
        """The number of an untried candidate; None lets the searcher take a random one. Some candidate is untried."""


MakeArm = Callable[[Tried, random.Random, int], Arm]
"""An arm's class."""
