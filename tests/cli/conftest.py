"""Running a command as a person does, and seeing what they see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from registry.cli import app
from registry.cli.main import new_registry_app
from registry.cli.tune import new_tune_app


@dataclass(frozen=True)
class Told:
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Told]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """``command("tune", "--op", "softmax", ...)``."""

    def ran(program: str, *arguments: str | Path) -> Told:
        programs = {"tune": new_tune_app, "registry": new_registry_app}
        code = app.run(programs[program](), program, [str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Told(code, captured.out, captured.err)

    return ran


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    """One tiny problem."""
    path = tmp_path / "shapes.yaml"
    path.write_text("square:\n  - {n: 4096, dtype: float32}\n")
    return path
