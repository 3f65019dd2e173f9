"""Disks that run full under a store: it is told as what it is, and what was not stored is stored once there is room."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry.tuner.patience import Patience
from tuning_db import FullDatabaseError, Store

from .conftest import ROOT, Make


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """The folder of a file system of 20 MB, which the server's user can write to."""
    folder = Path(tempfile.mkdtemp(prefix="small", dir="/tmp"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m,mode=777", "tmpfs", str(folder)]
    if not ROOT or subprocess.run(mount, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def fill(folder: Path) -> Path:
    """A file that takes all the room that is left in a folder."""
    path = folder / "fill"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return path


@pytest.fixture
def server_url(postgresql_server: str, small_disk: Path) -> Iterator[str]:
    """A database of a server whose data lie on the small disk."""
    import psycopg

    place = small_disk / "tablespace"
    place.mkdir()
    if ROOT:
        os.chown(place, 65534, 65534)
    with psycopg.connect(host=postgresql_server, user="tuner", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
        connection.execute("CREATE DATABASE small TABLESPACE small")
        yield f"postgresql://tuner@/small?host={postgresql_server}"
        connection.execute("DROP DATABASE small WITH (FORCE)")
        connection.execute("DROP TABLESPACE small")


def written_until_full(store: Store, run: str, make: Make) -> int:
    """The number of trials that went in before the disk was full."""
    for count in range(2000):
        store.add_trials(run, [make.trial(num_warps=count, message="no room " * 500)])
    return -1


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, small_disk: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("server_url"))
    return f"sqlite:///{small_disk / 'tuning.db'}"


@pytest.mark.timeout(120)
def test_a_full_disk_is_told_and_waited_for(place: str, small_disk: Path, make: Any) -> None:
    told: list[str] = []
    with Store.open(place) as store:
        run = store.start_run(make.environment)
        filling = fill(small_disk)
        with pytest.raises(FullDatabaseError, match=r"cannot grow: the (server's )?disk is full") as full:
            written_until_full(store, run, make)
        assert "free some space" in full.value.hint
        before = len(store.trials())

        def tell(text: str) -> None:
            told.append(text)
            filling.unlink()

        more = [make.trial(num_warps=count, message="no room " * 500) for count in range(5000, 5100)]
        Patience(tell)(lambda: store.add_trials(run, more))
        assert len(store.trials()) == before + len(more)
    assert ["; trying again for 60 s" in text for text in told] == [True]
