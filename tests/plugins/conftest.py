"""What tests of several plugins share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from registry.discovery.catalog import Catalog


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """The plugins in the box, which no test here changes: to load them takes each time 20 ms."""
    return Catalog()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Many small calls: a team of threads on a busy machine waits for its last one at each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
