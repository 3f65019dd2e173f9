"""A process that makes one check and ends. ``python -m registry.checking.child DESCRIPTOR PARENT``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import torch

from ..tuner.processes.process import Parent
from . import gpu_steps, steps

STEPS: Mapping[str, Callable[..., steps.Found]] = {
    "load": steps.inventory,
    "contract": steps.contract,
    "numerics": steps.numerics,
    "compile": steps.compiled,
    "tuned shapes": gpu_steps.tuned_shapes,
    "capture": gpu_steps.captured,
    "two streams": gpu_steps.two_streams,
}
"""The function of each check, by its name."""


def main(arguments: Sequence[str]) -> None:
    """Answer one message: the name of a check, and its arguments."""
    parent = Parent(int(arguments[0]), int(arguments[1]))
    torch.set_num_threads(2)
    message = next(iter(parent))
    parent.send(steps.guarded(STEPS[message["name"]], message["arguments"])._asdict())


if __name__ == "__main__":
    main(sys.argv[1:])
