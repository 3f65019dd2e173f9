"""``registry check``: its exit codes, its lines and its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..conftest import Command

STRANGE = Path(__file__).parents[2] / "checking" / "strange_plugin.py"


def test_it_tells_each_check_in_lines_and_as_json(command: Command, tmp_path: Path) -> None:
    told = command("registry", "check", STRANGE, "--json", tmp_path / "found.json")
    assert told.code == 1, told.err
    assert "ok      contract: strange_plugin::double (" in told.out
    assert "FAILED  numerics: strange_plugin::double/strange_plugin.wrong on cpu (" in told.out
    assert "SIGABRT: the kernel has come to its end" in told.out
    assert told.out.splitlines()[-1] == "3 passed, 2 failed, 3 skipped"
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["ok"], len(found["checks"])) == (False, 8)
    assert {each["verdict"] for each in found["checks"]} == {"passed", "failed", "skipped"}


@pytest.mark.thorough
def test_a_plugin_that_is_not_installed_is_a_mistake(command: Command, tmp_path: Path) -> None:
    told = command("registry", "check", "no_such_plugin")
    assert (told.code, told.out) == (2, "")
    assert "unknown plugin 'no_such_plugin'" in told.err
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "registry-nowhere"\n')
    told = command("registry", "check", tmp_path)
    assert told.code == 2
    assert "registry-nowhere is not installed" in told.err


def test_a_plugin_that_does_not_exist_is_a_mistake(command: Command, tmp_path: Path) -> None:
    told = command("registry", "check", tmp_path / "no.py")
    assert told.code == 2
    assert "no.py: no such file" in told.err
    assert command("registry", "check").code == 2


@pytest.mark.parametrize(("place", "told"), [(".", ": a folder"), ("absent/found.json", ": no such folder")])
def test_a_place_where_no_json_can_be_put_is_told_before_the_checks(
    command: Command, place: str, told: str, tmp_path: Path
) -> None:
    done = command("registry", "check", STRANGE, "--json", tmp_path / place)
    assert (done.code, done.out) == (2, "")
    assert f"--json {tmp_path / place}{told}" in done.err
