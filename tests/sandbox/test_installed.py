"""Installed implementations run in sandboxes as submissions do, those that mutate and those that prepare, too."""

from __future__ import annotations

import pytest

from registry.discovery.catalog import Catalog
from registry.sandbox.entrant import SandboxedEntrant
from registry.sandbox.trial import SandboxedSession, sandboxed_protocol, trial

from .sandboxing import CPU, LIMITS, needs_bubblewrap


@needs_bubblewrap
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("op", "name", "plugin"), [("rotary_embedding", "torch.native", "torch"), ("gemm_int8", "cpp.gemv", "cpp")]
)
def test_an_installed_implementation_is_right_there(op: str, name: str, plugin: str) -> None:
    contract = Catalog().op(op)
    problem = contract.problem_of(contract.examples[0])
    session = SandboxedSession(contract, problem, CPU, sandboxed_protocol(CPU, 200_000.0), 3)
    entrant = SandboxedEntrant(op, name, allowed=[plugin], packages=[f"registry_{plugin}"])
    found = trial(entrant, session, LIMITS)
    assert (found.outcome.status, found.outcome.message) == ("ok", "")
