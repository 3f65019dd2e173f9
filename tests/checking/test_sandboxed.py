"""Checks behind bubblewrap: they find what others find, a plugin does no harm, and what it sends is looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from registry.checking.outcomes import CheckOutcome
from registry.checking.running import CheckRequest, check_plugin
from registry.checking.sandboxed import _finding
from registry.errors import RegistryError, SandboxError
from tests.sandbox.sandboxing import needs_bubblewrap

HERE = Path(__file__).parent
STRANGE = HERE / "strange_plugin.py"


@needs_bubblewrap
@pytest.mark.thorough
def test_a_plugin_is_checked_as_outside_and_writes_nothing(tmp_path: Path) -> None:
    told: list[CheckOutcome] = []
    mark = tmp_path / "mark"
    file = tmp_path / "strange_plugin.py"
    harm = f"\ntry:\n    open({str(mark)!r}, 'w').close()\nexcept OSError:\n    pass\n"
    file.write_text(STRANGE.read_text() + harm)
    check_plugin(CheckRequest(str(file), sandbox=True), told.append)
    assert not mark.exists()
    found = {(one.name, one.subject.partition(" ")[0]): one for one in told}
    op = "strange_plugin::double"
    assert found["load", str(file)].verdict == "passed"
    assert found["numerics", f"{op}/strange_plugin.right"].verdict == "passed"
    assert "times what is allowed" in found["numerics", f"{op}/strange_plugin.wrong"].reason
    assert "SIGABRT" in found["numerics", f"{op}/strange_plugin.aborting"].reason


def test_without_bubblewrap_a_check_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="bubblewrap"):
        check_plugin(CheckRequest(str(STRANGE), sandbox=True))


@needs_bubblewrap
def test_an_installed_plugin_is_not_checked_there() -> None:
    with pytest.raises(RegistryError, match=r"torch is no \.py file"):
        check_plugin(CheckRequest("torch", sandbox=True))


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("load", "[1]"),
        ("load", {"verdict": "passed", "details": {"implementations": [{"op": "x"}]}}),
        ("load", {"verdict": "passed", "details": {"ops": [7]}}),
        ("load", {"verdict": "passed", "details": {"unknown": ["message", "hint"]}}),
        ("compile", {"verdict": "passed", "details": {"variants": [{"kernel": "k", "registers": "many"}]}}),
        ("numerics", {"verdict": "passed", "details": {"variants": 3}}),
        ("numerics", {"verdict": "great"}),
        ("numerics", {"verdict": "passed", "surprise": 1}),
    ],
)
def test_what_is_no_finding_is_a_failure(name: str, sent: object) -> None:
    found = _finding(name, sent if isinstance(sent, str) else json.dumps(sent))
    assert (found.verdict, found.reason) == ("failed", "what it sent is no finding of that check")


def test_a_finding_cannot_write_to_the_terminal() -> None:
    assert _finding("numerics", json.dumps({"verdict": "failed", "reason": "\x1b[2J"})).reason == "\\x1b[2J"
