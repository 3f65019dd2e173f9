"""A server's winners are read from a copy on this machine, which is renewed when it is old."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest
import torch

from registry.dispatch.warning import DispatchWarning
from registry.errors import RegistryError, StoreError
from registry.paths import cache_folder
from registry.releases.places import host_of
from registry.releases.site_copies import AGE_VARIABLE, PRESENT, SITES, site_copy
from tuning_db import TuningDBError
from tuning_db.schema import LATEST

from ..tuning_db.stalling import StallingProxy
from .conftest import FIRST, SECOND, Win, new_dispatcher, winner

AWAY = "postgresql://tuner:secret@127.0.0.1:1/site"


@pytest.mark.timeout(60)
def test_a_call_does_not_wait_for_a_first_copy(postgresql_server: str, postgresql_url: str, win: Win) -> None:
    win(postgresql_url, FIRST)
    proxy = StallingProxy(Path(postgresql_server) / ".s.PGSQL.5432")
    try:
        proxy.stalled.set()
        site = f"postgresql://tuner@127.0.0.1:{proxy.port}/postgres"
        dispatcher, x = new_dispatcher(site), torch.randn(4, 64)
        with pytest.warns(DispatchWarning, match=r"did not answer within 2 s\n.* as soon as it answers"):
            dispatcher.call("softmax", x)
        proxy.stalled.clear()
        _wait_for_threads()
        assert winner(site) == FIRST, "the next process reads the copy"
        dispatcher.reload()
        assert dispatcher.explain("softmax", x).implementation == FIRST
    finally:
        proxy.close()


@pytest.mark.thorough
def test_processes_read_the_copy_until_it_is_renewed(postgresql_url: str, win: Win) -> None:
    win(postgresql_url, FIRST)
    dispatcher, x = new_dispatcher(postgresql_url), torch.randn(4, 64)
    told = dispatcher.explain("softmax", x)
    assert told.implementation == FIRST
    assert "postgresql:///postgres (copy of " in str(told)
    win(postgresql_url, SECOND)
    assert winner(postgresql_url) == FIRST
    assert dispatcher.reload() == 1
    assert dispatcher.explain("softmax", x).implementation == SECOND
    assert winner(postgresql_url) == SECOND


def test_an_old_copy_is_read_and_renewed_for_the_next_process(
    postgresql_url: str, win: Win, monkeypatch: pytest.MonkeyPatch
) -> None:
    win(postgresql_url, FIRST)
    before = site_copy(postgresql_url)
    win(postgresql_url, SECOND)
    os.utime(present(postgresql_url), (0, 0))
    assert winner(postgresql_url) == FIRST
    _wait_for_threads()
    assert winner(postgresql_url) == SECOND
    assert before.path.exists(), "a process may read it still"
    monkeypatch.setenv(AGE_VARIABLE, "soon")
    with pytest.raises(RegistryError, match=f"{AGE_VARIABLE}='soon'"):
        site_copy(postgresql_url)


def test_the_server_may_be_away_once_there_is_a_copy(
    postgresql_url: str, win: Win, monkeypatch: pytest.MonkeyPatch
) -> None:
    win(postgresql_url, FIRST)
    copy = site_copy(postgresql_url)
    with pytest.raises(TuningDBError) as caught:
        site_copy(AWAY)
    assert "secret" not in str(caught.value)
    present(AWAY).write_text(copy.path.name)
    os.utime(present(AWAY), (0, 0))
    dispatcher, x = new_dispatcher(AWAY), torch.randn(4, 64)
    told = dispatcher.explain("softmax", x)
    assert told.implementation == FIRST
    assert "secret" not in str(told)
    assert "copy of 1970-01-01 00:00 UTC" in str(told)
    _wait_for_threads()
    with pytest.raises(StoreError, match="winners were not reloaded"):
        dispatcher.reload()
    assert dispatcher.explain("softmax", x).implementation == FIRST


def test_a_process_reads_one_copy_as_long_as_it_is_there(postgresql_url: str, win: Win) -> None:
    win(postgresql_url, FIRST)
    dispatcher, x = new_dispatcher(postgresql_url), torch.randn(4, 64)
    assert dispatcher.explain("rms_norm", x, torch.ones(64)).step != "exact"
    old = site_copy(postgresql_url)
    win(postgresql_url, SECOND)
    assert site_copy(postgresql_url, anew=True).path != old.path
    assert dispatcher.explain("softmax", x).implementation == FIRST, "the copy with which it began"
    dispatcher.forget()
    assert dispatcher.explain("rms_norm", x, torch.ones(64)).step != "exact"
    newer = site_copy(postgresql_url)
    win(postgresql_url, FIRST)
    assert site_copy(postgresql_url, anew=True).path not in {newer.path, old.path}
    newer.path.unlink()
    assert dispatcher.explain("softmax", x).implementation == FIRST, "the present copy, since its own has gone"


def test_equal_winners_are_one_copy_which_stays_a_while_after_it_was_replaced(postgresql_url: str, win: Win) -> None:
    win(postgresql_url, FIRST)
    first = site_copy(postgresql_url)
    os.utime(first.path, (0, 0))
    assert site_copy(postgresql_url, anew=True).path == first.path
    win(postgresql_url, SECOND)
    second = site_copy(postgresql_url, anew=True)
    assert {first.path, second.path} == set(first.path.parent.glob("*.db"))
    os.utime(first.path, (0, 0))
    os.utime(second.path, (0, 0))
    assert site_copy(postgresql_url, anew=True).path == second.path
    assert [second.path] == list(first.path.parent.glob("*.db"))


def present(url: str) -> Path:
    """The file that names the present copy of a database."""
    return cache_folder(SITES) / f"{hashlib.sha256(url.encode()).hexdigest()}.{LATEST}{PRESENT}"


def _wait_for_threads() -> None:
    until = time.monotonic() + 60
    for thread in threading.enumerate():
        if thread.name in {"kernel-registry: site copy", "kernel-registry: reads winners"}:
            thread.join(until - time.monotonic())
            assert not thread.is_alive()


def test_a_server_is_told_without_user_and_password() -> None:
    for url in (
        "postgresql://user:a%40b@host:5432/db?sslmode=require",
        "postgresql://host:5432/db?user=u&password=a@b",
    ):
        assert host_of(url) == "postgresql://host:5432/db"
