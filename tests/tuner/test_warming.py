"""What is done once for all children of a run, and that it leaves a process that can be forked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from registry.device import Device
from registry.discovery import Catalog
from registry.problem import Problem
from registry.tuner import warming
from registry.tuner.planning import plan

PROBLEM = Problem("square", {"n": 4000, "dtype": "float32"})


@pytest.mark.parametrize(("implementation", "wanted"), [("torch.compile", True), ("torch.native", False)])
def test_only_what_a_candidate_needs_is_wanted(implementation: str, wanted: bool) -> None:
    plans = plan([PROBLEM], Catalog(), Device.of("cpu"), [implementation])
    assert plans[0].supported
    assert ("registry.backends.inductor_warm:warm" in warming.wanted_by(plans)) is wanted
    assert not any("triton:" in entry for entry in warming.wanted_by(plans))  # which runs no candidate on a CPU


def test_it_starts_no_thread_and_opens_no_device() -> None:
    code = """
import importlib, os, torch
from registry.tuner import warming
threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
for entry in (*warming.FOR_INDUCTOR, *warming.FOR_TRITON):
    name, _, function = entry.partition(":")
    module = importlib.import_module(name)
    if function:
        getattr(module, function)()
assert threads() == before, (threads(), before)
assert not torch.cuda.is_initialized()
"""
    pytest.importorskip("triton")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)
