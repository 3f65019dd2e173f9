"""Fixtures: a fresh catalog, a fresh store, and no trace in the user's own folders."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.discovery import Catalog
from tuning_db import Store

# a shell that runs the tests in the background has them ignore Ctrl-C, and their children too
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is each test's own; compiled kernels are shared by the tests of one run."""
    monkeypatch.setenv("KERNEL_REGISTRY_DB", str(tmp_path / "tuning.db"))
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path_factory.getbasetemp().parent / "kernel-registry-cache"))
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", "0")
    monkeypatch.delenv("KERNEL_REGISTRY_RECORD", raising=False)
    monkeypatch.delenv("KERNEL_REGISTRY_STRICT", raising=False)


@pytest.fixture
def catalog() -> Catalog:
    """A catalog of its own, with the plugins in the box."""
    return Catalog()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty SQLite store."""
    with Store.open(tmp_path / "tuning.db") as opened:
        yield opened
