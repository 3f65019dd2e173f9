"""Running a command as a person does, and seeing what they see."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from registry.cli import app
from registry.cli.main import new_registry_app
from registry.cli.tune import new_tune_app
from registry.report import page


@dataclass(frozen=True)
class Told:
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Told]


@functools.cache
def _program(name: str) -> typer.Typer:
    return {"tune": new_tune_app, "registry": new_registry_app}[name]()


_parser_of = functools.cache(typer.main.get_command)
_templates = functools.cache(page.environment)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """``command("tune", "--op", "softmax", ...)``.

    Options of all commands are read from signatures once, not by each call, for which that is 0.1 s of a core, and
    templates of pages are compiled once, for 0.2 s.
    """
    monkeypatch.setattr(typer.main, "get_command", _parser_of)
    monkeypatch.setattr(page, "environment", _templates)

    def ran(program: str, *arguments: str | Path) -> Told:
        code = app.run(_program(program), program, [str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Told(code, captured.out, captured.err)

    return ran


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    """One tiny problem."""
    path = tmp_path / "shapes.yaml"
    path.write_text("square:\n  - {n: 4096, dtype: float32}\n")
    return path
