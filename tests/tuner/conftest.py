"""Fixtures: one keeper for all runs of the session, so that torch is imported once for all their children."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from registry.tuner import spawning


@pytest.fixture(scope="session", autouse=True)
def _one_keeper() -> Iterator[None]:
    with spawning.kept(now=False):
        yield
