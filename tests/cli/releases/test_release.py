"""``registry release``: made, listed, signed, exported, imported only as it was signed, and compared."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tuning_db import Store

from ...report.records import H200, ROW, SPLIT, decision, softmax
from ..conftest import Command

minisign: Any = pytest.importorskip("minisign", reason="the signing extra is not installed")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database with a winner, and a release ``old`` of it; then another winner, which is slower."""
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNEL_REGISTRY_DB", str(tmp_path / "tuning.db"))
    first = decision(softmax(4096), ROW, 10.0, created=datetime(2026, 1, 1, 12, tzinfo=UTC))
    with Store.open() as store:
        run = store.start_run(H200)
        assert store.publish(run, first)
        store.create_release("old")
        assert store.publish(run, decision(softmax(4096), SPLIT, 15.0, previous=first.uid))
    return tmp_path


@pytest.fixture
def keys(path: Path) -> Any:
    """A key of the user's, ``minisign.key`` with the password ``secret`` and ``minisign.pub``."""
    pair = minisign.KeyPair.generate()
    (path / "minisign.pub").write_bytes(bytes(pair.public_key))
    pair.secret_key.encrypt("secret", opslimit=32768, memlimit=2**20)
    (path / "minisign.key").write_bytes(bytes(pair.secret_key))
    return pair


def test_a_release_is_made_once_and_listed(command: Command, path: Path) -> None:
    told = command("registry", "release", "create", "new", "--json")
    made = json.loads(told.out)
    assert (told.code, made["name"], made["winners"]) == (0, "new", 1)
    assert command("registry", "release", "create", "new").out == f"new ({made['id'][:12]}): 1 winner\n"
    listed = command("registry", "release", "list").out
    assert listed.index("new") < listed.index("old")
    refused = command("registry", "release", "create", "old")
    assert refused.code == 2
    assert "the release old is there, with other winners" in refused.err
    assert command("registry", "release", "create", "h200", "--hardware", "nvidia h200").code == 0
    assert "unknown hardware" in command("registry", "release", "create", "l4", "--hardware", "NVIDIA L4").err
    empty = command("registry", "release", "list", "--db", path / "none.db")
    assert (empty.code, empty.out) == (2, "")


def test_a_signed_release_is_imported_only_as_it_was_signed(
    command: Command, path: Path, keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = path / "old.jsonl", path / "other.db"
    monkeypatch.setenv("KERNEL_REGISTRY_SIGNING_PASSWORD", "wrong")
    exported = ("registry", "release", "export", "old", file, "--sign", path / "minisign.key")
    assert command(*exported).code == 2
    assert not file.exists()
    monkeypatch.setenv("KERNEL_REGISTRY_SIGNING_PASSWORD", "secret")
    assert command(*exported).code == 0
    assert "File exists" in command(*exported).err
    arguments = ("registry", "release", "import", file, "--db", other)
    told = command(*arguments, "--key", path / "minisign.pub", "--json")
    assert told.code == 0, told.err
    found = json.loads(told.out)
    assert (found["name"], found["id"]) == ("old", hashlib.sha256(file.read_bytes()).hexdigest())
    assert command(*arguments, "--key", keys.public_key.to_base64().decode()).code == 0, "twice is harmless"
    with Store.open(other) as store:
        assert [one.name for one in store.releases()] == ["old"]
        assert store.winners() == [], "its own winners stay as they are"
    stranger = minisign.KeyPair.generate().public_key.to_base64().decode()
    for options, message in (
        (["--key", stranger], "the file is not as any of the 1 keys has signed it"),
        (["--key", "RWnonsense"], "is no public key"),
        ([], "whose signature is to be trusted?"),
        (["--key", stranger, "--name", "mine"], "--name mine without --unsigned"),
    ):
        refused = command(*arguments, *options)
        assert refused.code == 2
        assert message in refused.err
    file.write_text(file.read_text().replace('"median_us":10.0', '"median_us":1.0'))
    changed = command(*arguments, "--key", path / "minisign.pub")
    assert changed.code == 2
    assert "nothing was imported" in changed.err


def test_a_signature_of_a_release_that_was_told_by_its_id_is_of_its_name(
    command: Command, path: Path, keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_SIGNING_PASSWORD", "secret")
    file, signed = path / "signed.jsonl", ("--sign", path / "minisign.key")
    old = json.loads(command("registry", "release", "list", "--json").out)[0]["id"]
    assert command("registry", "release", "export", old, file, *signed).code == 0
    told = command("registry", "release", "import", file, "--db", path / "other.db", "--key", path / "minisign.pub")
    assert told.out.startswith("old (")
    with Store.open() as store:
        store.add_release("older", file.read_bytes())
    refused = command("registry", "release", "export", old, path / "again.jsonl", *signed)
    assert refused.code == 2
    assert "has the names old, older" in refused.err
    assert command("registry", "release", "export", "older", path / "again.jsonl", *signed).code == 0


def test_a_file_without_a_signature_is_imported_when_that_is_asked_for(command: Command, path: Path) -> None:
    file = path / "old.jsonl"
    assert command("registry", "release", "export", "old", file).code == 0
    arguments = ("registry", "release", "import", file, "--db", path / "other.db")
    assert "--unsigned needs none" in command(*arguments, "--key", "RW").err
    assert command(*arguments, "--unsigned", "--name", "copy").code == 0
    assert "copy" in command("registry", "release", "list", "--db", path / "other.db").out
    file.write_text("{}\n")
    refused = command(*arguments, "--unsigned")
    assert refused.code == 2
    assert "line 1" in refused.err


def test_releases_are_compared(command: Command, path: Path) -> None:
    assert command("registry", "release", "create", "new").code == 0
    told = command("registry", "compare", "release:old", "release:new", "--json")
    assert told.code == 1, told.err
    (change,) = json.loads(told.out)["changes"]
    assert (change["kind"], change["ratio"]) == ("slower", 1.5)
    assert command("registry", "compare", "release:new", path / "tuning.db").code == 0
    missing = command("registry", "compare", "release:older", "release:new")
    assert missing.code == 2
    assert "there is no release older" in missing.err


def test_copies_that_nobody_has_read_are_removed(command: Command, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from registry.releases.pinning import release_named

    copy = release_named("old", None).path
    for old in copy.parent.iterdir():
        os.utime(old, (0, 0))
    told = command("registry", "release", "prune", "--dry-run")
    assert (told.code, str(copy) in told.out, "2 files would be removed" in told.out) == (0, True, True)
    assert json.loads(command("registry", "release", "prune", "--days", 36500, "--json").out) == []
    assert str(copy) in json.loads(command("registry", "release", "prune", "--json").out)
    assert not copy.exists()
    assert "0 files removed" in command("registry", "release", "prune").out
    assert command("registry", "release", "prune", "--days", "-1").code == 2
