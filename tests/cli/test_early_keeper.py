"""A command that tunes starts the process of its children before it imports torch, and uses that one."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kernel_registry

from .. import fresh

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere children are executed")

ADOPTED = """
import sys, kernel_registry
launched = kernel_registry._early_keeper(["tune", "--op", "square"])
assert "torch" not in sys.modules and "registry" not in sys.modules
BARE
from registry.tuner.processes import spawning
spawning.adopt(launched)
with spawning.kept():
    assert spawning._keeper().pid == launched[0].pid and spawning._keeper().alive
assert launched[0].poll() is not None, "it ends with the last that uses it"
""".replace("BARE", fresh.BARE)


def test_the_keeper_is_started_before_torch_is_imported_and_used() -> None:
    subprocess.run([sys.executable, "-c", ADOPTED], check=True, timeout=120)


@pytest.mark.parametrize("words", [["registry", "results"], ["tune", "--help"], ["registry", "tune", "--dry-run"]])
def test_a_command_that_tunes_nothing_starts_none(words: list[str]) -> None:
    assert kernel_registry._early_keeper(words) is None


REPLACED = """
import kernel_registry
launched = kernel_registry._early_keeper(["tune"])
launched[0].kill()
launched[0].wait()
BARE
from registry.tuner.processes import spawning
spawning.adopt(launched)
with spawning.kept():
    assert spawning._keeper().alive and spawning._keeper().pid != launched[0].pid
""".replace("BARE", fresh.BARE)


def test_a_keeper_that_died_meanwhile_is_replaced() -> None:
    subprocess.run([sys.executable, "-c", REPLACED], check=True, timeout=120)
