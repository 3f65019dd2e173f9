"""The arm that polishes: an untried neighbour of the fastest candidates."""

from __future__ import annotations

from .arm import Arm


class Neighbour(Arm):
    """A random untried candidate at L1 distance 1, or else 2, from one of the three fastest."""

    def propose(self) -> int | None:
        for distance in (1, 2):
            if near := self.tried.near_best(distance):
                return self.random.choice(near)
        return None
