"""Two implementations of softmax, a database in which one or the other wins, and a cache of the test's own."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import registry
from registry import Device, Implementation
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.tuner.stored_winners import problem_key
from tuning_db import CandidateKey, Decision, Environment, Protocol, Store

from ..tuning_db.conftest import postgresql_server, postgresql_url

__all__ = ["postgresql_server", "postgresql_url"]

DIMS = {"rows": 4, "cols": 64, "dtype": "float32"}
FIRST, SECOND = "a.first", "a.second"

Win = Callable[..., None]


def by_torch(x: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.softmax(x, dim)


def implementation(name: str) -> Implementation:
    return registry.implementation_of("softmax", name, by_torch, device_types=("cpu",))


def new_dispatcher(database: str) -> Dispatcher:
    made = Dispatcher(Catalog(entry_points=()), database)
    for name in (FIRST, SECOND):
        made.register(implementation(name))
    return made


def winner(database: str) -> str:
    """The implementation that a process runs."""
    return new_dispatcher(database).explain("softmax", torch.randn(4, 64)).implementation


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "tuning.db")


@pytest.fixture(scope="module")
def win() -> Win:
    """Publish an implementation as the winner of one softmax on this CPU."""

    def win(database: str, name: str) -> None:
        here, op = Device.of("cpu"), Catalog(entry_points=()).op("softmax")
        environment, key = Environment(here.hardware(), here.software()), problem_key(op, op.problem_of(DIMS))
        candidate = CandidateKey(name, implementation(name).fingerprint(), {})
        with Store.open(database) as store:
            was = store.winner(key, here.hardware(), here.software())
            decision = Decision(key, environment, Protocol("cold"), candidate, 1.0, previous=was and was.uid)
            assert store.publish(store.start_run(environment), decision)

    return win


@pytest.fixture(scope="module")
def _released(win: Win, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A database as ``released`` has it, of which each test gets a copy."""
    folder = tmp_path_factory.mktemp("released")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNEL_REGISTRY_CACHE", str(folder / "cache"))
        return folder / "tuning.db", release(str(folder / "tuning.db"), win)


@pytest.fixture
def released(database: str, _released: tuple[Path, str]) -> str:
    """The id of a release ``one`` with the first winner, which the second has replaced since."""
    file, made = _released
    with contextlib.closing(sqlite3.connect(file)) as one, contextlib.closing(sqlite3.connect(database)) as copy:
        one.backup(copy)
    return made


def release(database: str, win: Win) -> str:
    """The id of a release ``one`` with the first winner, which the second has replaced since."""
    win(database, FIRST)
    with Store.open(database) as store:
        made = store.create_release("one")
    win(database, SECOND)
    return made.id
