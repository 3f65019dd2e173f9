"""Threads and processes that a candidate leaves running beside all that is measured after it."""

from .processes import LeftProcesses, adopt_orphans, adopts_orphans
from .threads import LeftRunning, LeftThreads

__all__ = ["LeftProcesses", "LeftRunning", "LeftThreads", "adopt_orphans", "adopts_orphans"]
