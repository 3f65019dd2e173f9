"""What it costs this process that other programs use the processor's cores, too."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns

_THREADS = Path("/proc/self/task")
_LONG_SHARE = 0.05
"""A part of the time that is long to wait for a core: on two idle cores 4 of 276 pairs of samples were beyond it, in
three runs of the tuner at a time on them 94 of 100."""


def preemptions() -> int:
    """How often threads of this process have lost their core to another one."""
    from resource import RUSAGE_SELF, getrusage  # not on Windows, which imports this module too

    return getrusage(RUSAGE_SELF).ru_nivcsw


class CoreWaits:
    """How long threads of this process are ready to run and have no core, from now on.

    Nothing is known of it where the system does not tell: other than Linux, or a kernel without ``CONFIG_SCHED_INFO``.
    """

    def __init__(self) -> None:
        self._began_ns = perf_counter_ns()
        self._before_ns = _waited_ns()

    def are_long(self) -> bool:
        """Whether threads have waited for more than a twentieth of the time, all together."""
        waited_ns = _waited_ns() - self._before_ns
        return waited_ns > _LONG_SHARE * (perf_counter_ns() - self._began_ns)


def _waited_ns() -> int:
    """How long the present threads have waited for a core since they began, in ns."""
    try:
        return sum(map(_waited_by, _THREADS.iterdir()))
    except OSError:
        return 0


def _waited_by(thread: Path) -> int:
    try:
        # ns on a core, ns ready and without one, and how often it was given one
        return int((thread / "schedstat").read_text("ascii").split()[1])
    except (OSError, IndexError):
        return 0
