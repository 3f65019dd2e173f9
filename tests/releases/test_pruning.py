"""Copies that nobody reads are removed; those that are read stay, and what is removed is made again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from registry.paths import cache_folder
from registry.releases.copies import FOLDER, release_copy
from registry.releases.pinning import RELEASE_VARIABLE, pinned
from registry.releases.pruning import prune
from registry.releases.site_copies import PRESENT, SITES

DAY_S = 86_400


def dated(path: Path, days: float) -> Path:
    """A file that was last read so many days ago."""
    at = time.time() - days * DAY_S
    os.utime(path, (at, at))
    return path


def test_a_release_that_is_read_stays(database: str, released: str) -> None:
    copy = release_copy(released)
    told = {RELEASE_VARIABLE: released}
    assert pinned(database, told) is not None
    dated(copy, 100)
    assert prune(90, dry=True) == [copy]
    assert pinned(database, told) is not None, "a process has read it"
    assert prune(90) == []
    dated(copy, 100)
    assert prune(90) == [copy]
    assert not copy.exists()
    assert pinned(database, told) is not None
    assert copy.exists()


def test_what_a_process_of_a_release_remembers_goes_with_it(database: str, released: str) -> None:
    assert pinned(database, {RELEASE_VARIABLE: "one"}) is not None
    memory = next(cache_folder(FOLDER).glob("*.name"))
    for path in (memory, release_copy(released)):
        dated(path, 2)
    assert prune(1) == sorted([memory, release_copy(released)])
    assert pinned(database, {RELEASE_VARIABLE: "one"}) is not None


def test_a_site_is_forgotten_when_nobody_asks_for_it(tmp_path: Path) -> None:
    folder = cache_folder(SITES)
    for name, asked in (("away", 1), ("unread", 100)):
        (folder / f"{name}.db").touch()
        (folder / f"{name}{PRESENT}").write_text(f"{name}.db")
        (folder / f"{name}.asked").touch()
        dated(folder / f"{name}{PRESENT}", 100)
        dated(folder / f"{name}.asked", asked)
        dated(folder / f"{name}.db", 100)
    (folder / ".making-1").mkdir()
    dated(folder / ".making-1", 3)
    expected = [folder / ".making-1", folder / "unread.db", folder / f"unread{PRESENT}"]
    assert prune(90, dry=True) == expected
    assert prune(90) == expected
    assert (folder / "away.db").exists()


@pytest.mark.parametrize("days", [0, 1])
def test_an_empty_cache_has_nothing_to_remove(days: int) -> None:
    assert prune(days) == []
