"""What is done once for all children of a run, and that it leaves a process that can be forked."""

from __future__ import annotations

import json
from importlib.util import find_spec

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
import importlib, importlib.util, json, os, sys, torch
before = len(os.listdir("/proc/self/task"))
from registry.backends.cuda import CudaImplementation
from registry.backends.inductor import InductorImplementation
from registry.backends.triton import TritonImplementation
from registry.tuner.processes import template
from registry.tuner.workers import preloading

preloading.preload()
backends = (InductorImplementation, TritonImplementation, CudaImplementation)
wanted = [entry for backend in backends for entry in backend.preloads]
for entry in (*wanted, "registry_liger.preloading:import_kernels"):
    name, _, function = entry.partition(":")
    module = importlib.import_module(name)
    if function:
        getattr(module, function)()
told = {"threads": [before, len(os.listdir("/proc/self/task"))], "device": torch.cuda.is_initialized()}
told |= {"unsound": template.unsound(), "peft": "peft" in sys.modules}
told |= {"liger": "liger_kernel.ops.rms_norm" in sys.modules}
found = importlib.util.find_spec("peft")
print(json.dumps(told | {"finds peft": found is not None and str(found.origin).endswith("__init__.py")}))
"""


def test_it_starts_no_thread_and_opens_no_device() -> None:
    """Nor does it import PEFT, which Liger asks for: a name that was kept from being imported is found again."""
    pytest.importorskip("triton")
    done = fresh.run("-c", WARMED)  # from a process with one thread, as a template is
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    liger, peft = (find_spec(name) is not None for name in ("liger_kernel", "peft"))
    assert told == {
        "threads": [1, 1], "device": False, "unsound": "", "peft": False, "liger": liger, "finds peft": peft,
    }  # fmt: skip


WITHOUT_PEFT = """
import importlib, sys
from registry_liger.preloading import import_kernels

import_kernels()
print("liger_kernel.ops.rms_norm" in sys.modules, "peft" in sys.modules)
importlib.import_module("peft")
"""


@pytest.mark.thorough
def test_peft_can_be_imported_after_ligers_kernels_were_without_it() -> None:
    pytest.importorskip("liger_kernel")
    pytest.importorskip("peft")
    done = fresh.run("-c", WITHOUT_PEFT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "False"]
