"""Fixtures: what tunes on a GPU has a keeper of its own, as a user's run has."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_keeper() -> None:
    """None is shared."""
