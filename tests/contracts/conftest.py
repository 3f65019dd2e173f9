"""What tests of contracts share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread for many small tensors: more would only wait for each other. What a ``case`` has cached goes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    forget = getattr(getattr(request.module, "case", None), "cache_clear", None)
    if forget is not None:
        forget()
