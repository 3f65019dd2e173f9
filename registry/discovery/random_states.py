"""States of the process's generators of random numbers, which a plugin's import may seed or draw from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Context after which Python's, NumPy's and torch's generators go on as if nothing in it had used them.

    A program's numbers are then the same with a plugin and without, whether that seeds or draws when it is imported.
    """
    python, numpy, of_cpu, seeds = random.getstate(), np.random.get_state(), torch.get_rng_state(), _seeds_to_come()
    gpus = _of_gpus()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(of_cpu)
        _set_seeds_to_come(seeds)
        if gpus:
            with suppress(RuntimeError):
                torch.cuda.set_rng_state_all(gpus)


def _of_gpus() -> list[torch.Tensor]:
    """The states of the GPUs' generators; none before CUDA is initialised, or while a graph is captured."""
    if not torch.cuda.is_initialized():
        return []
    with suppress(RuntimeError):
        return torch.cuda.get_rng_state_all()
    return []


def _seeds_to_come() -> dict[str, Any]:
    """What torch.manual_seed has left for when CUDA is initialised."""
    found = vars(_lazy_seeds) if _lazy_seeds is not None else {}
    return {name: list(value) if isinstance(value, list) else value for name, value in found.items()}


def _set_seeds_to_come(value: dict[str, Any]) -> None:
    if _lazy_seeds is not None and not torch.cuda.is_initialized():
        vars(_lazy_seeds).update(value)


_lazy_seeds: Any = getattr(torch.cuda, "_lazy_seed_tracker", None)
