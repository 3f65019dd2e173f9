"""FIFOs where files are expected: each is refused at once, since to open one waits for whoever writes to it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from registry.discovery.catalog import Catalog
from registry.errors import PluginError
from registry.paths import write_whole
from registry.untrusted.file_kinds import opened, refuse_pipe, why_no_file
from tuning_db import Store, UnreachableDatabaseError

from .conftest import Command


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe.py"
    os.mkfifo(path)
    return path


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "tuning.db"
    Store.open(path).close()
    return path


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "told",
    [
        "tune --dry-run --shapes PIPE",
        "tune --dry-run --model CONFIG",
        "tune --dry-run --from-misses",
        "registry import PIPE",
        "registry compare PIPE PIPE",
        "registry check PIPE",
        "registry ops --plugin PIPE",
        "registry release import PIPE",
        "registry fleet plan --shapes PIPE",
        "registry results --db PIPE",
        "registry profile -- python PIPE",
        "registry profile -- PIPE --its-own",
    ],
)
def test_commands_say_that_it_is_a_fifo(
    command: Command, pipe: Path, db: Path, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_MISSES", str(pipe))
    monkeypatch.setenv("KERNEL_REGISTRY_DB", str(db))
    config = pipe.with_name("config.json")
    os.mkfifo(config)
    given = {"PIPE": str(pipe), "CONFIG": str(config)}
    done = command(*(given.get(part, part) for part in told.split()))
    assert done.code == 2
    assert "a FIFO" in done.err
    assert given["CONFIG" if "CONFIG" in told else "PIPE"] in done.err


@pytest.mark.timeout(60)
@pytest.mark.parametrize("told", ["profile --trace PIPE -- python -c 1", "check PIPE --json PIPE", "report --out PIPE"])
def test_no_result_takes_the_place_of_a_fifo(command: Command, pipe: Path, told: str) -> None:
    done = command("registry", *(str(pipe) if part == "PIPE" else part for part in told.split()))
    assert (done.code, done.out) == (2, "")
    assert f"{pipe}: not a regular file" in done.err
    with pytest.raises(OSError, match="a FIFO, not a file"):
        write_whole(pipe, b"result")
    assert pipe.is_fifo()
    assert [path.name for path in pipe.parent.iterdir()] == [pipe.name]


@pytest.mark.parametrize("end", ["-journal", "-wal", "-shm"])
@pytest.mark.timeout(30)
def test_a_fifo_in_the_place_of_a_journal_is_told(db: Path, end: str) -> None:
    os.mkfifo(f"{db}{end}")
    with pytest.raises(UnreachableDatabaseError, match=f"tuning.db{end} is a FIFO"):
        Store.open(db)


@pytest.mark.timeout(30)
def test_a_plugin_file_that_is_a_fifo_is_told(catalog: Catalog, pipe: Path) -> None:
    with pytest.raises(PluginError, match="a FIFO, not a file"):
        catalog.load_file(pipe)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", ["<(cat EXPORTED)", "/dev/stdin < PIPE", "/dev/fd/3 3< PIPE"])
@pytest.mark.few(1)
def test_what_a_shell_pipes_in_is_read(command: Command, db: Path, tmp_path: Path, pipe: Path, way: str) -> None:
    exported = tmp_path / "results.jsonl"
    other = shutil.copy(db, tmp_path / "other.db")
    assert command("registry", "export", str(exported), "--db", str(db)).code == 0
    given = way.replace("EXPORTED", str(exported)).replace("PIPE", str(pipe))
    writer = f"cat {exported} > {pipe} &" if "PIPE" in way else ""
    script = f"{writer} {sys.executable} -m registry.cli.main import --db {other} {given}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 new records" in done.stdout


@pytest.mark.timeout(30)
@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
def test_a_fifo_that_is_open_is_read_after_its_writer_has_left(pipe: Path, folder: str) -> None:
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    pipe.write_bytes(b"content")
    with opened(Path(folder, str(reader))) as file:
        assert file.read() == b"content"
    os.close(reader)
    with pytest.raises(OSError, match="a FIFO, not a file"):
        opened(pipe)


def test_kinds_of_paths_are_told(tmp_path: Path, pipe: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    refuse_pipe(tmp_path / "file")
    with pytest.raises(OSError, match="a FIFO, not a file"):
        refuse_pipe(pipe)
    assert why_no_file(tmp_path / "file") == ""
    assert why_no_file(tmp_path) == "a folder"
    assert why_no_file(tmp_path / "none") == why_no_file(Path("a\0b")) == "no such file"
    assert why_no_file(pipe) == "a FIFO, not a file"
    assert why_no_file(Path(os.devnull)) == "a device, not a file"
    assert "symbolic links" in why_no_file(tmp_path / "circle")
