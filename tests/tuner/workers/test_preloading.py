"""What is done once for all children of a run, and that it leaves a process that can be forked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Problem
from registry.tuner.planning.problems import plan
from registry.tuner.workers.preloading import preloads_of

from ... import fresh

PROBLEM = Problem("square", {"n": 4000, "dtype": "float32"})


@pytest.mark.parametrize(("implementation", "wanted"), [("torch.compile", True), ("torch.native", False)])
def test_only_what_a_candidate_needs_is_wanted(implementation: str, wanted: bool) -> None:
    plans = plan([PROBLEM], Catalog(), Device.of("cpu"), [implementation])
    assert plans[0].supported
    entries = [entry for entries in preloads_of(plans) for entry in entries]
    assert ("registry.backends.inductor.warm:warm" in entries) is wanted
    assert ("registry.backends.inductor.warm:import_without_a_look" in entries[:1]) is wanted
    assert not any("build_utilities" in entry for entry in entries)  # which runs no candidate on a CPU


WARMED = """
import importlib, os, sys, torch
from registry.backends.cuda import CudaImplementation
from registry.backends.inductor import InductorImplementation
from registry.backends.triton import TritonImplementation
from registry.tuner.processes.process import Parent

def main(arguments):
    parent = Parent(int(arguments[0]), int(arguments[1]))
    backends = (InductorImplementation, TritonImplementation, CudaImplementation)
    wanted = [entry for backend in backends for entry in backend.preloads]
    for entry in (*wanted, "registry_liger.preloading:import_kernels"):
        name, _, function = entry.partition(":")
        module = importlib.import_module(name)
        if function:
            getattr(module, function)()
    told = {"threads": len(os.listdir("/proc/self/task")), "device": torch.cuda.is_initialized()}
    parent.send({**told, "peft": "peft" in sys.modules})
"""


STARTING = """
import json, select
from registry.tuner.processes.process import Child

child = Child("warmed")
try:
    messages, more = child.receive()
    while more and not messages:
        assert select.select([child], [], [], 200)[0], child.end(30)
        messages, more = child.receive()
    print(json.dumps([child.how, messages]))
finally:
    child.stop()
"""


def test_it_starts_no_thread_and_opens_no_device(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "warmed.py").write_text(WARMED)
    # in a process of its own: where a variable that Triton or torch read has changed since, children are not forked
    done = fresh.run("-c", STARTING, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    how, messages = json.loads(done.stdout)
    assert how == "forked", "as in a run, from a process with one thread"
    assert messages == [{"threads": 1, "device": False, "peft": False}]


WITHOUT_PEFT = """
import importlib, importlib.util, sys
from registry_liger.preloading import import_kernels

import_kernels()
print("liger_kernel.ops.rms_norm" in sys.modules, "peft" in sys.modules)
if sys.argv[1:]:
    importlib.import_module("peft")
else:  # a name that is still kept from being imported is not found
    assert importlib.util.find_spec("peft").origin.endswith("__init__.py")
"""


@pytest.mark.parametrize("words", [[], pytest.param(["import"], marks=pytest.mark.thorough)])
def test_ligers_kernels_are_imported_without_peft_which_others_can_import_afterwards(words: list[str]) -> None:
    pytest.importorskip("liger_kernel")
    pytest.importorskip("peft")
    done = fresh.run("-c", WITHOUT_PEFT, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "False"]
