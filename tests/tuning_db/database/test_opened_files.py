"""Files of an open store are deleted or replaced: it is told, nothing is lost, and what is there now stays whole."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.tuning_db.conftest import Make
from tuning_db import MovedDatabaseError, Store


def delete(file: Path, other: Path) -> None:
    file.unlink()


def delete_all(file: Path, other: Path) -> None:
    for each in [*file.parent.iterdir()]:
        each.unlink()


def remove_folder(file: Path, other: Path) -> None:
    shutil.rmtree(file.parent)


def move_folder(file: Path, other: Path) -> None:
    file.parent.rename(file.parent.with_name("elsewhere"))


def replace(file: Path, other: Path) -> None:
    other.replace(file)


def delete_log(file: Path, other: Path) -> None:
    file.with_name(file.name + "-wal").unlink()


def delete_index(file: Path, other: Path) -> None:
    file.with_name(file.name + "-shm").unlink()


@pytest.fixture
def other(file: Path, tmp_path: Path) -> Path:
    """Another store, closed."""
    return Path(shutil.copy(file, tmp_path / "other.db"))


@pytest.fixture
def placed(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a store in a folder of its own; copies that find no folder there go to the user's."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "placed").mkdir()
    return Path(shutil.copy(file, tmp_path / "placed" / "tuning.db"))


def copy_told(fault: MovedDatabaseError) -> Path:
    found = re.search(r"what it held is saved in (.*)$", fault.message)
    assert found, fault.message
    assert f"--db {found[1]}`" in fault.hint
    return Path(found[1])


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (delete, "was deleted or moved while it was open"),
        (delete_all, "was deleted or moved while it was open"),
        (remove_folder, "was deleted or moved while it was open"),
        (move_folder, "was deleted or moved while it was open"),
        (replace, "was replaced by another file while it was open"),
        (delete_log, "lost its file tuning.db-wal, which was deleted or replaced"),
        (delete_index, "lost its file tuning.db-shm, which was deleted or replaced"),
    ],
)
def test_what_was_written_is_saved_in_a_copy(
    placed: Path, other: Path, make: Make, harm: Callable[[Path, Path], None], told: str
) -> None:
    with Store.open(placed) as store:
        run = store.start_run(make.environment)
        store.add_trials(run, [make.trial(num_warps=1)])
        harm(placed, other)
        with pytest.raises(MovedDatabaseError, match=told) as first:
            store.add_trials(run, [make.trial(num_warps=2)])
        with pytest.raises(MovedDatabaseError) as second:
            store.publish(run, make.decision(num_warps=2))
    copy = copy_told(first.value)
    assert copy_told(second.value) == copy
    with Store.open(copy) as saved:
        assert sorted(one.candidate.config["num_warps"] for one in saved.trials()) == [1, 2, 4]
        assert len(saved.history(make.problem(), make.environment.hardware)) == 2


def test_what_replaced_it_stays_whole_and_can_be_opened(placed: Path, other: Path, make: Make) -> None:
    with Store.open(placed) as store:
        run = store.start_run(make.environment)
        store.add_trials(run, [make.trial(num_warps=count) for count in range(1, 30)])
        replace(placed, other)
        with pytest.raises(MovedDatabaseError):
            store.end_run(run)
        with Store.open(placed) as opened:
            assert len(opened.trials()) == 1
    with closing(sqlite3.connect(placed)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_readers_are_told_and_save_nothing(placed: Path, other: Path) -> None:
    with Store.open(placed, create=False, migrate=False) as store:
        assert len(store.trials()) == 1
        replace(placed, other)
        with pytest.raises(MovedDatabaseError, match=r"was replaced by another file while it was open\n"):
            store.trials()
    assert not [each for each in placed.parent.iterdir() if "saved" in each.name]


def test_a_file_that_was_deleted_is_not_made_anew(placed: Path, make: Make) -> None:
    with Store.open(placed) as store:
        placed.unlink()
        with pytest.raises(MovedDatabaseError, match="was deleted or moved"):
            store.start_run(make.environment)
    assert not placed.exists()


def test_without_room_for_a_copy_that_is_told(
    placed: Path, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file" / "no folder"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file" / "no folder"))
    with Store.open(placed) as store:
        store.start_run(make.environment)
        shutil.rmtree(placed.parent)
        with pytest.raises(MovedDatabaseError, match="no folder takes a copy of what it held"):
            store.start_run(make.environment)


def test_a_forked_child_has_a_log_of_its_own(placed: Path, make: Make) -> None:
    store = Store.open(placed)
    store.start_run(make.environment)
    child = os.fork()
    if not child:
        with Store.open(placed) as opened:  # the last of another process may remove the log
            opened.start_run(make.environment)
        try:
            run = store.start_run(make.environment)
            store.add_trials(run, [make.trial()])
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    store.start_run(make.environment)
    store.close()
