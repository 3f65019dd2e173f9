"""Files of an open store are deleted or replaced: it is told, nothing is lost, and what is there now stays whole."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.tuning_db.conftest import Make
from tuning_db import MovedDatabaseError, Store
from tuning_db.database.opened_files import OpenedFiles


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


def warps(path: Path) -> list[int]:
    """What tells the trials of a store apart."""
    with Store.open(path) as opened:
        return sorted(one.candidate.config["num_warps"] for one in opened.trials())


def saved_by(action: Callable[[], object]) -> Path:
    """The copy of which the error of a moved database tells."""
    with pytest.raises(MovedDatabaseError) as told:
        action()
    return copy_told(told.value)


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
    assert first.value.stored
    assert second.value.stored
    assert warps(copy_told(first.value)) == [1, 2, 4]
    copy = copy_told(second.value)
    assert warps(copy) == [1, 2, 4]
    with Store.open(copy) as saved:
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


def test_a_copy_that_was_told_is_left_to_whoever_uses_it(placed: Path, make: Make) -> None:
    with Store.open(placed) as store:
        run = store.start_run(make.environment)
        delete(placed, placed)
        first = saved_by(lambda: store.add_trials(run, [make.trial(num_warps=2)]))
        with Store.open(first) as used:
            used.add_trials(used.start_run(make.environment), [make.trial(num_warps=77)])
        assert saved_by(store.trials) == first, "nothing was written since"
        with closing(sqlite3.connect(first, isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            second = saved_by(lambda: store.add_trials(run, [make.trial(num_warps=3)]))
    assert warps(first) == [2, 4, 77]
    assert warps(second) == [2, 3, 4]


def test_a_copy_that_fails_leaves_the_one_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    path = tmp_path / "lost.db"
    files = OpenedFiles(path, "lost.db", logged=False)
    with closing(sqlite3.connect(path)) as source:
        source.execute("CREATE TABLE one (number)")
        with files.connecting():
            pass
        path.unlink()
        first = saved_by(lambda: files.check(source, wrote=True))
        with no_file_longer_than(1024), pytest.raises(MovedDatabaseError, match="no folder takes a copy") as told:
            files.check(source, wrote=True)
        assert f"what it held before that is saved in {first}" in told.value.message
        assert not told.value.stored
        assert list(tmp_path.rglob("*.saved-*")) == [first]
        with closing(sqlite3.connect(first)) as opened:
            assert opened.execute("SELECT * FROM one").fetchall() == []
        assert saved_by(lambda: files.check(source, wrote=False)) != first, "tried again"


@contextmanager
def no_file_longer_than(count: int) -> Iterator[None]:
    """Context in which this process writes no file of more bytes."""
    before, allowed = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, allowed[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
        signal.signal(signal.SIGXFSZ, before)


def test_a_copy_is_given_up_while_another_process_holds_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuning_db.database.opened_files.COPY_WAIT_S", 0.2)
    path = tmp_path / "held.db"
    files = OpenedFiles(path, "held.db", logged=False)
    with closing(sqlite3.connect(path, timeout=0.05)) as source, closing(sqlite3.connect(path)) as holder:
        source.execute("CREATE TABLE held (number)")
        with files.connecting():
            pass
        holder.execute("BEGIN EXCLUSIVE")
        path.rename(tmp_path / "moved.db")
        began = time.monotonic()
        with pytest.raises(MovedDatabaseError, match="no folder takes a copy"):
            files.check(source, wrote=True)
        assert time.monotonic() - began < 5.0
        holder.rollback()
        assert saved_by(lambda: files.check(source, wrote=False)).exists()


def test_a_transaction_that_could_not_begin_is_in_no_copy(placed: Path, make: Make) -> None:
    with Store.open(placed) as store:
        run = store.start_run(make.environment)
        with ExitStack() as reading:
            reading.enter_context(store._opened.reading())  # by which the connection that is open is in use
            delete(placed, placed)
            with pytest.raises(MovedDatabaseError) as told:
                store.add_trials(run, [make.trial(num_warps=2)])
            assert not told.value.stored
            with pytest.raises(MovedDatabaseError) as read:
                reading.close()
        assert not read.value.stored
        assert warps(copy_told(read.value)) == [4]
        assert saved_by(lambda: store.add_trials(run, [make.trial(num_warps=3)])) != copy_told(read.value)


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
