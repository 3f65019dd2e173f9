"""One session for the tests of a file: its inputs and references are private, so that no submission can spoil them."""

from __future__ import annotations

import pytest

from registry.sandbox.trial import SandboxedSession

from .sandboxing import session_of


@pytest.fixture(scope="module")
def session() -> SandboxedSession:
    return session_of()


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch, own_lock: None) -> None:
    """Threads that wait for each other on busy cores take a hundred times as long."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
