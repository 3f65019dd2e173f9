"""The doctor: it tries the real things, and says what to do about what does not work."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from registry.cli import checks
from tuning_db import Store

from .conftest import Command


def test_doctor_reports_on_everything(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    told = command("registry", "doctor", "--json")
    found = {check["name"]: check for check in json.loads(told.out)}
    assert {"python", "torch", "gpu", "triton", "nvrtc", "compiler", "cache", "database", "plugins", "import"} <= set(
        found
    )
    assert found["database"]["state"] == "absent"
    assert not (tmp_path / "tuning.db").exists()
    assert told.code == (1 if any(check["state"] == "fault" for check in found.values()) else 0)


def test_a_module_that_hides_the_package_is_found(tmp_path: Path) -> None:
    assert checks.shadow_check(tmp_path).state == checks.OK
    (tmp_path / "registry.py").write_text("")
    check = checks.shadow_check(tmp_path)
    assert check.state == checks.FAULT
    assert "registry.py hides this package" in check.found
    assert check.advice == "rename it"


def test_the_package_itself_hides_nothing() -> None:
    assert checks.shadow_check(Path(checks.__file__).parents[2]).state == checks.OK


def test_a_database_is_opened_and_counted_or_told_broken(tmp_path: Path) -> None:
    Store.open(tmp_path / "tuning.db").close()
    check = checks.database_check(str(tmp_path / "tuning.db"))
    assert check.state == checks.OK
    assert "0 winners, 0 trials" in check.found
    (tmp_path / "broken.db").write_bytes(b"no database at all" * 64)
    assert checks.database_check(str(tmp_path / "broken.db")).state == checks.FAULT


def test_a_pinned_release_is_found_or_told_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(checks.release_check(str(tmp_path / "tuning.db"))) == []
    monkeypatch.setenv("KERNEL_REGISTRY_RELEASE", "none")
    (check,) = checks.release_check(str(tmp_path / "tuning.db"))
    assert check.state == checks.FAULT
    assert "there is no release none" in check.found


def test_no_compiler_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    check = checks.compiler_check()
    assert check.state == checks.ABSENT
    assert "no-such-compiler" in check.found
    assert "install g++" in check.found


def test_a_cache_that_is_no_folder_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path / "file"))
    assert checks.cache_check().state == checks.FAULT


def test_a_tune_script_of_another_package_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "tune"
    script.write_text("#!/bin/sh\necho torchtune\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = checks.script_check()
    assert "another package's" in check.found
    assert "registry tune" in check.advice


def test_the_tune_script_of_this_installation_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(sys.executable).parent
    assert (folder / "tune").is_file()
    monkeypatch.setenv("PATH", str(folder))
    check = checks.script_check()
    assert (check.state, check.found) == (checks.OK, str(folder / "tune"))


def test_a_tune_script_of_torchtune_ahead_of_ours_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "tune"
    # what pip writes for torchtune, in an environment that is called as our package is
    script.write_text(
        "#!/home/someone/kernel_registry/bin/python\nimport sys\nfrom torchtune._cli.tune import main\n"
        "if __name__ == '__main__':\n    sys.exit(main())\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{Path(sys.executable).parent}")
    check = checks.script_check()
    assert check.state == checks.ABSENT
    assert check.found == f"{script} is another package's"


def test_a_blocked_plugin_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_BLOCK", "cpp")
    states = {check.found.partition(":")[0]: check.state for check in checks.plugin_checks()}
    assert states["cpp"] == checks.ABSENT


def test_the_budget_of_prepared_weights_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "a quarter of cpu" in checks.prepared_check().found or "memory)" in checks.prepared_check().found
    monkeypatch.setenv("KERNEL_REGISTRY_PREPARED_BYTES", str(3 * 2**30))
    assert "at most 3.0 GiB (KERNEL_REGISTRY_PREPARED_BYTES)" in checks.prepared_check().found
    monkeypatch.setenv("KERNEL_REGISTRY_PREPARED_BYTES", "plenty")
    assert checks.prepared_check().state == checks.FAULT
