"""What tests of verification share."""

from __future__ import annotations

import pytest

from registry.tuner.verify.probes import Probes


@pytest.fixture
def no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes have no sizes that nobody can foresee: a test can count them."""
    monkeypatch.setattr(Probes, "secret_sizes", 0)
