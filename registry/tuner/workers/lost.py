"""The outcome of a job whose process was lost."""

from __future__ import annotations

from ..jobs import Failed
from ..processes.spawning import Ending

NONSENSE = Failed("crash", "the process sent an answer that belongs to no job of its queue")


def failed(ending: Ending) -> Failed:
    """The failure of a job whose process ended in this way: ``out_of_memory`` or ``crash``."""
    return Failed("out_of_memory" if ending.out_of_memory else "crash", f"the process ended: {ending.why}")
