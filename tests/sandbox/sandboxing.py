"""Submissions of ``square`` behind bubblewrap: tried as in a race, called once, or called without any protection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.errors import SandboxError
from registry.importers.plugin_file import entrants, plugin_text
from registry.sandbox.bubblewrap import bubblewrap
from registry.sandbox.entrant import SandboxedEntrant
from registry.sandbox.limits import SandboxLimits
from registry.sandbox.subject import SandboxedSubject
from registry.sandbox.trial import SandboxedSession, SandboxedTrial, sandboxed_protocol, trial

CPU = Device.of("cpu")
GOOD = "def square(x):\n    return x * x\n"
LIMITS = SandboxLimits(memory_bytes=3 << 30, temporary_bytes=64 << 20, load_s=120.0, run_s=20.0)


def why_not() -> str:
    """Why there is no sandbox on this machine, "" if there is one."""
    try:
        bubblewrap()
    except SandboxError as fault:
        return f"{fault.message} ({fault.hint})"
    return ""


_WHY_NOT = why_not()
needs_bubblewrap = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "there is one")


def session_of(device: Device = CPU, n: int = 4096, limit_us: float = 300_000.0) -> SandboxedSession:
    """A session of ``square`` on n elements."""
    op = Catalog().op("square")
    problem = op.problem_of({"n": n, "dtype": "float32"})
    return SandboxedSession(op, problem, device, sandboxed_protocol(device, limit_us), 7)


def entrant(text: str, folder: Path, suffix: str = ".py") -> SandboxedEntrant:
    """The entrant that a race makes of a submission with this text."""
    file = folder / f"entry{suffix}"
    file.write_text(text)
    (kernel,), refused = entrants([str(file)], "square", None)
    assert refused == {}
    plugin = folder / "plugin.py"
    plugin.write_text(plugin_text("square", None, [kernel]))
    return SandboxedEntrant("square", kernel.name, plugin, files=[file])


def tried(text: str, folder: Path, session: SandboxedSession, limits: SandboxLimits = LIMITS) -> SandboxedTrial:
    """The trial of a submission with this text, as in a race."""
    return trial(entrant(text, folder), session, limits)


def reason(text: str, folder: Path, session: SandboxedSession, limits: SandboxLimits = LIMITS) -> tuple[str, str]:
    """The status of that trial, and its message."""
    outcome = tried(text, folder, session, limits).outcome
    return outcome.status, outcome.message


@contextmanager
def loaded(
    text: str, folder: Path, session: SandboxedSession, limits: SandboxLimits = LIMITS
) -> Iterator[Callable[..., Any]]:
    """A function that calls a submission once in its sandbox and returns what it wrote."""
    subject = SandboxedSubject(entrant(text, folder), session.op, session.problem, session.device, limits)

    def call(x: torch.Tensor | None = None) -> torch.Tensor:
        y = torch.zeros_like(values[0])
        subject.run((y,), values if x is None else (x,), ())
        return y

    values = session.values(session.timed_kind)
    try:
        outputs = session.op.output_specs(session.arguments, session.device.torch)
        subject.load(values, [*outputs.values()], 2)
        yield call
    finally:
        subject.close()


def unprotected(text: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The submission's function in this process."""
    names: dict[str, Any] = {}
    exec(compile(text, "entry.py", "exec"), names)
    found: Callable[[torch.Tensor], torch.Tensor] = names["square"]
    return found
