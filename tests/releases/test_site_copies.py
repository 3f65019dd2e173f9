"""A server's winners are read from a copy on this machine, which is renewed when it is old."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch

from registry.errors import RegistryError, StoreError
from registry.releases.places import host_of
from registry.releases.site_copies import AGE_VARIABLE, site_copy
from tuning_db import TuningDBError

from .conftest import FIRST, SECOND, Win, new_dispatcher, winner

AWAY = "postgresql://tuner:secret@127.0.0.1:1/site"


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
    path = site_copy(postgresql_url)
    win(postgresql_url, SECOND)
    os.utime(path, (0, 0))
    assert winner(postgresql_url) == FIRST
    _wait_for_threads()
    assert winner(postgresql_url) == SECOND
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
    away = _place_of_copy(AWAY, copy)
    os.utime(away, (0, 0))
    dispatcher, x = new_dispatcher(AWAY), torch.randn(4, 64)
    told = dispatcher.explain("softmax", x)
    assert told.implementation == FIRST
    assert "secret" not in str(told)
    assert "copy of 1970-01-01 00:00 UTC" in str(told)
    _wait_for_threads()
    with pytest.raises(StoreError, match="winners were not reloaded"):
        dispatcher.reload()
    assert dispatcher.explain("softmax", x).implementation == FIRST


def _place_of_copy(url: str, copy: Path) -> Path:
    """The copy of another database, as if it had been made of this one."""
    import hashlib

    place = copy.with_name(f"{hashlib.sha256(url.encode()).hexdigest()}{''.join(copy.suffixes)}")
    place.write_bytes(copy.read_bytes())
    return place


def _wait_for_threads() -> None:
    until = time.monotonic() + 60
    for thread in threading.enumerate():
        if thread.name == "kernel-registry: site copy":
            thread.join(until - time.monotonic())
            assert not thread.is_alive()


def test_a_server_is_told_without_user_and_password() -> None:
    for url in (
        "postgresql://user:a%40b@host:5432/db?sslmode=require",
        "postgresql://host:5432/db?user=u&password=a@b",
    ):
        assert host_of(url) == "postgresql://host:5432/db"
