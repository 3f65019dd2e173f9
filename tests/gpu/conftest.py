"""Fixtures: what tunes on a GPU has a keeper of its own, as a user's run has, and a test keeps no memory of the GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_keeper() -> None:
    """None is shared."""


@pytest.fixture(autouse=True)
def _memory_goes_back() -> Iterator[None]:
    """What torch keeps of freed tensors goes back to the GPU, which the processes of several workers share."""
    yield
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
