"""Telling a network file system from a local one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuning_db import Store
from tuning_db.database.files import file_system, network_file_system

TABLE = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:25 / /home rw shared:9 - nfs4 server:/export/home rw,vers=4.2
31 30 0:26 / /home/me/local\\040disk rw - xfs /dev/sdb1 rw
32 22 0:27 / /data rw - ext4 /dev/sdc1 rw
33 32 0:28 / /data rw master:1 - lustre mds:/fs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/tmp/tuning.db", "ext4"),
        ("/home/me/tuning.db", "nfs4"),
        ("/homework/tuning.db", "ext4"),
        ("/home/me/local disk/tuning.db", "xfs"),
        ("/data/tuning.db", "lustre"),
    ],
)
def test_the_innermost_and_latest_mount_counts(path: str, kind: str) -> None:
    assert file_system(Path(path), TABLE) == kind


def test_only_network_file_systems_are_named(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    assert network_file_system(Path("/home/me/tuning.db"), table) == "nfs4"
    assert network_file_system(Path("/tmp/tuning.db"), table) is None
    assert network_file_system(Path("/home/me/tuning.db"), tmp_path / "no table here") is None


def test_on_a_network_file_system_the_journal_is_rolled_back_and_people_are_warned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import sqlite3

    table = tmp_path / "mountinfo"
    table.write_text(f"30 22 0:25 / {tmp_path.resolve()} rw - nfs4 server:/export rw\n")
    monkeypatch.setattr("tuning_db.database.files.MOUNTS", table)
    path = tmp_path / "tuning.db"
    with Store.open(path) as store:
        assert store.trials() == []
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    connection.close()
    assert "nfs4" in caplog.text
    assert "PostgreSQL" in caplog.text
