"""Checks of a whole plugin: one outcome for each check, and a crash is one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.checking.outcomes import CheckOutcome, PluginCheck
from registry.checking.running import CheckRequest, check_plugin
from registry.checking.sanitizer import finding
from registry.checking.target import distribution_in
from registry.errors import DeviceError, RegistryError

STRANGE = Path(__file__).with_name("strange_plugin.py")


def of(done: PluginCheck, name: str, subject: str) -> CheckOutcome:
    (found,) = [each for each in done.outcomes if each.name == name and each.subject.startswith(subject)]
    return found


@pytest.mark.thorough
def test_each_check_has_an_outcome_and_a_crash_ends_its_own_alone() -> None:
    told: list[CheckOutcome] = []
    done = check_plugin(CheckRequest(str(STRANGE)), told.append)
    assert done.outcomes == told
    op = "strange_plugin::double"
    assert of(done, "load", str(STRANGE)).verdict == "passed"
    assert of(done, "contract", op).verdict == "passed"
    assert of(done, "numerics", f"{op}/strange_plugin.right").verdict == "passed"
    wrong = of(done, "numerics", f"{op}/strange_plugin.wrong")
    assert wrong.verdict == "failed"
    assert "times what is allowed" in wrong.reason
    crash = of(done, "numerics", f"{op}/strange_plugin.aborting")
    assert crash.verdict == "failed"
    assert "SIGABRT: the kernel has come to its end" in crash.reason
    assert of(done, "compile", f"{op}/strange_plugin.right").verdict == "skipped"
    assert not done.ok
    assert all(each.seconds > 0 for each in done.outcomes if each.name in {"load", "contract", "numerics"})


@pytest.mark.thorough
def test_a_kernel_is_compiled_for_each_architecture_and_interpreted(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    page = (Path(__file__).parents[2] / "docs" / "writing-a-plugin.md").read_text()
    source = page.partition("<!-- run: acme_softmax.py -->\n```python\n")[2].partition("```")[0]
    file = tmp_path / "acme.py"
    file.write_text(source)
    done = check_plugin(CheckRequest(str(file), ["sm_80", "sm_90"]))
    assert done.ok, done.as_data()
    for architecture in ("sm_80", "sm_90"):
        found = of(done, "compile", f"softmax/acme.row for {architecture}")
        assert all(
            variant["registers"] > 0 and 0 < variant["occupancy"] <= 1 and variant["spill_bytes"] >= 0
            for variant in found.details["variants"]
        )


@pytest.mark.thorough
def test_a_file_that_does_not_load_and_one_that_hangs_are_findings(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_package_here\n")
    (outcome,) = check_plugin(CheckRequest(str(broken))).outcomes
    assert (outcome.name, outcome.verdict) == ("load", "failed")
    assert "no_such_package_here" in outcome.reason
    hanging = tmp_path / "hanging.py"
    hanging.write_text("import time\ntime.sleep(1000)\n")
    (outcome,) = check_plugin(CheckRequest(str(hanging), limit_s=6)).outcomes
    assert (outcome.verdict, outcome.reason) == ("failed", "it was ended after 6 s")


def test_what_cannot_be_checked_is_told_before_anything_runs(tmp_path: Path) -> None:
    for target, message in (
        (str(tmp_path / "no.py"), "no such file"),
        (str(tmp_path), "no pyproject.toml in it"),
    ):
        with pytest.raises(RegistryError, match=message):
            check_plugin(CheckRequest(target))
    with pytest.raises(DeviceError, match="is no GPU architecture"):
        check_plugin(CheckRequest(str(STRANGE), ["sm_x"]))
    (tmp_path / "pyproject.toml").write_text("[tool]\n")
    with pytest.raises(RegistryError, match="it names no project"):
        distribution_in(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "registry-acme"\n')
    assert distribution_in(tmp_path) == "registry-acme"


def test_the_sanitizers_output_is_read() -> None:
    output = (
        "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n=========     at kernel\n"
    )
    found = finding("memcheck", 86, output)
    assert (found.verdict, found.reason) == ("failed", "Invalid __global__ write of size 4 bytes\nat kernel")
    assert finding("memcheck", 0, "========= ERROR SUMMARY: 0 errors\n").verdict == "passed"
    assert finding("racecheck", 0, "refused: too wide\n") == ("skipped", "too wide", {}, "")
    assert finding("racecheck", 1, "cannot attach\n").reason == "racecheck could not run: exit code 1, cannot attach"
