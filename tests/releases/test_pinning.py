"""A process that is pinned to a release runs its winners, whatever the database holds, and without the database."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from registry.errors import ReleaseError
from registry.releases import copies
from registry.releases.pinning import RELEASE_VARIABLE, pinned, release_named
from tuning_db.releases import find_content

from .conftest import FIRST, SECOND, Win, new_dispatcher, release, winner


def test_a_pinned_process_runs_the_releases_winner(
    database: str, released: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert winner(database) == SECOND
    monkeypatch.setenv(RELEASE_VARIABLE, "one")
    told = new_dispatcher(database).explain("softmax", torch.randn(4, 64))
    assert (told.implementation, told.step) == (FIRST, "exact")
    assert f"release one ({released[:12]})" in str(told)
    monkeypatch.setenv(RELEASE_VARIABLE, released)
    assert winner(database) == FIRST


def test_the_database_may_be_away(database: str, released: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RELEASE_VARIABLE, "one")
    assert winner(database) == FIRST
    Path(database).rename(Path(database).with_suffix(".away"))
    monkeypatch.setenv(RELEASE_VARIABLE, released)
    assert winner(database) == FIRST


@pytest.mark.thorough
def test_a_servers_release_is_read_once_on_a_machine(postgresql_url: str, win: Win) -> None:
    release_id = release(postgresql_url, win)
    found = release_named("one", postgresql_url)
    assert found.id == release_id
    _empty(postgresql_url)
    assert release_named("one", postgresql_url) == found
    with pytest.raises(ReleaseError, match="there is no release two in the database"):
        release_named("two", postgresql_url)


def test_a_password_is_not_told() -> None:
    with pytest.raises(ReleaseError) as caught:
        release_named("one", "postgresql://tuner:secret@127.0.0.1:1/site")
    assert "secret" not in str(caught.value)


def test_a_file_is_a_release(database: str, released: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _written(tmp_path / "one.jsonl", _content(database, released))
    found = pinned("nowhere.db", {RELEASE_VARIABLE: file})
    assert found is not None
    assert found.id == released
    monkeypatch.setenv(RELEASE_VARIABLE, file)
    assert winner(str(tmp_path / "nowhere.db")) == FIRST


def test_a_release_that_is_not_there_is_an_error_and_no_other_winner_runs(
    database: str, released: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher, x = new_dispatcher(database), torch.randn(4, 64)
    monkeypatch.setenv(RELEASE_VARIABLE, "two")
    for _ in range(2):
        with pytest.raises(ReleaseError, match="there is no release two in"):
            dispatcher.call("softmax", x)
    monkeypatch.setenv(RELEASE_VARIABLE, "one")
    torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    for told, message in (
        (str(tmp_path / "absent.jsonl"), "No such file"),
        ("0" * 64, "there is no release 0000"),
        (_written(tmp_path / "bad.jsonl", b"{}\n"), "line 1"),
        (_written(tmp_path / "binary.jsonl", b"\xff"), "decode"),
    ):
        with pytest.raises(ReleaseError, match=message):
            pinned(database, {RELEASE_VARIABLE: told})
    assert list((tmp_path / "cache" / "releases").glob("*.db")) == [copies.release_copy(released)]


def test_a_copy_that_cannot_be_read_is_an_error_and_no_other_winner_runs(
    database: str, released: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RELEASE_VARIABLE, "one")
    assert winner(database) == FIRST
    copies.release_copy(released).write_bytes(b"no database")
    with pytest.raises(ReleaseError, match=f"release one .{released[:12]}.: .* is not a SQLite database"):
        new_dispatcher(database).call("softmax", torch.randn(4, 64))


def test_a_copy_that_is_gone_and_a_cache_that_fails_are_errors_and_no_other_winner_runs(
    database: str, released: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RELEASE_VARIABLE, "one")
    dispatcher = new_dispatcher(database)
    assert dispatcher.explain("softmax", torch.randn(4, 64)).implementation == FIRST
    copies.release_copy(released).unlink()
    with pytest.raises(ReleaseError, match=f"release one .{released[:12]}.: "):
        dispatcher.call("rms_norm", torch.randn(4, 64), torch.randn(64))
    monkeypatch.setattr("registry.releases.pinning.make_database", _full)
    with pytest.raises(ReleaseError, match=r"release one: .*No space left"):
        new_dispatcher(database).call("softmax", torch.randn(4, 64))


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_without_the_variable_nothing_is_pinned(database: str) -> None:
    assert pinned(database, {}) is None
    assert pinned(database, {RELEASE_VARIABLE: " "}) is None


def _content(database: str, release_id: str) -> bytes:
    content = find_content(database, release_id, 30.0)
    assert content is not None
    return content


def _written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def _empty(url: str) -> None:
    """Leave a server without any table."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")


def test_a_pipe_or_a_device_is_no_release_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(ReleaseError, match="not a regular file"):
            pinned(None, {RELEASE_VARIABLE: str(tmp_path / f"{name}.jsonl")})
