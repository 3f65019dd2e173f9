"""Jobs that the workers of several devices share, each a stretch of them."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Generic, TypeVar

_Job = TypeVar("_Job")


class Stretches(Generic[_Job]):
    """Jobs for ``places`` workers, each of which has a part of them, and takes these one after another.

    A worker that has none left takes over the last job of the longest part.
    """

    def __init__(self, places: int) -> None:
        self._parts: list[collections.deque[_Job]] = [collections.deque() for _ in range(places)]

    def put(self, jobs: Sequence[_Job]) -> None:
        """Add jobs whose neighbours have inputs, references and probes in common: each worker gets a stretch."""
        count = len(self._parts)
        for place, part in enumerate(self._parts):
            part.extend(jobs[place * len(jobs) // count : (place + 1) * len(jobs) // count])

    def deal(self, jobs: Sequence[_Job]) -> None:
        """Add jobs that have nothing in common, the longest first: they are dealt out one by one."""
        for place, part in enumerate(self._parts):
            part.extend(jobs[place :: len(self._parts)])

    def put_back(self, job: _Job) -> None:
        """Add a job that a worker has left undone."""
        min(self._parts, key=len).append(job)

    def take(self, place: int) -> _Job | None:
        """The next job of a worker; None if no job is left for any."""
        if self._parts[place]:
            return self._parts[place].popleft()
        longest = max(self._parts, key=len)
        return longest.pop() if longest else None
