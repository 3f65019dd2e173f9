"""What is imported for all children of a run on a GPU, where NVML and CUDA libraries are asked by what is imported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Problem
from registry.tuner.planning.problems import plan
from registry.tuner.workers.preloading import preloads_of

from .. import fresh

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

PROBLEM = Problem("softmax", {"rows": 64, "cols": 512, "dtype": "float32"})
NAMES = ["torch.compile", "triton.row", "cuda.row"]

CHILD = """
import sys
from registry.tuner.processes.process import Parent

def main(arguments):
    parent = Parent(int(arguments[0]), int(arguments[1]))
    parent.send({"found": [name in sys.modules for name in arguments[2:]]})
"""

STARTING = """
import json, select, sys, time
from registry.tuner.processes import spawning
from registry.tuner.processes.process import Child
from registry.tuner.workers import preloading

def told():
    child = Child("told", sys.argv[2:])
    try:
        messages, more = child.receive()
        while more and not messages:
            assert select.select([child], [], [], 200)[0], child.end(30)
            messages, more = child.receive()
        return child.how, messages[0]["found"]
    finally:
        child.stop()

with spawning.kept(preloading.ENTRY):
    for entries in json.loads(sys.argv[1]):
        spawning.warm(*entries)
    until = time.monotonic() + 90
    how, found = told()
    while how == "forked" and not all(found) and time.monotonic() < until:
        time.sleep(0.5)
        how, found = told()
    print(json.dumps([how, found]))
"""


def test_processes_are_forked_from_one_that_has_imported_what_backends_want(tmp_path: Path) -> None:
    entries = preloads_of(plan([PROBLEM], Catalog(), Device.of("cuda"), NAMES))
    (tmp_path / "told.py").write_text(CHILD)
    modules = ["torch._inductor.compile_fx", "cuda.core", "triton.compiler"]
    done = fresh.run("-c", STARTING, json.dumps(entries), *modules, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["forked", [True] * len(modules)]
