"""Settings of the process that a plugin changes when it is loaded: put back, and held against that plugin alone."""

from __future__ import annotations

import os
import random
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from registry.device import Device
from registry.discovery import process_settings
from registry.discovery.catalog import Catalog
from registry.discovery.plugin import PluginWarning
from registry.discovery.process_settings import PROCESS_SETTINGS
from registry.discovery.random_states import random_states_kept
from registry.errors import PluginError
from registry.tuner.jobs import Entrant, TrialJob
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.workers.integrity import Integrity
from registry.tuner.workers.worker import Worker

from .. import fresh

CPU = Device.of("cpu")

CHANGES = {
    "torch's default dtype": "torch.set_default_dtype(torch.float64)",
    "torch's default device": "torch.set_default_device('meta')",
    "torch's number of threads": "torch.set_num_threads(torch.get_num_threads() + 1)",
    "torch's grad mode": "torch.set_grad_enabled(False)",
    "torch's autocast": "torch.set_autocast_enabled('cpu', True)",
    "float32 matmul precision": "torch.set_float32_matmul_precision('medium')",
    "deterministic algorithms": "torch.use_deterministic_algorithms(True)",
    "torch's use of oneDNN": "torch._C._set_mkldnn_enabled(False)",
    "torch's use of cuDNN": "torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark",
    "subnormal numbers": "torch.set_flush_denormal(True)",
    "garbage collection": "gc.disable()",
    "thresholds of garbage collection": "gc.set_threshold(123)",
    "Python's switch interval": "sys.setswitchinterval(0.5)",
    "depth of Python's calls": "sys.setrecursionlimit(500)",
    "NumPy's errors": "np.seterr(all='raise')",
    "warnings that are errors": "warnings.filterwarnings('error', message='mine')",
    "handlers of Ctrl-C and SIGTERM": "signal.signal(signal.SIGTERM, lambda *_: None)",
    "environment variables": "os.environ['CUDA_LAUNCH_BLOCKING'] = os.environ.get('CUDA_LAUNCH_BLOCKING', '0') + '1'",
    "locale": "locale.setlocale(locale.LC_ALL, 'C.UTF-8' if locale.setlocale(locale.LC_ALL) == 'C' else 'C')",
}

PLUGIN = """
import gc, locale, os, random, signal, sys, warnings
import numpy as np
import torch
import registry
from registry.implementation import Implementation

{at_import}

class Squares(Implementation):
    op, name = "square", "{name}.square"
    device_types = frozenset({{"cpu"}})

    def bind(self, problem, config, device, built):
        return lambda outputs, arguments, scratch: torch.mul(arguments[0], arguments[0], out=outputs[0])

@registry.implements("square")
def kernels():
    {in_hook}
    return [Squares()]
"""


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that earlier tests of the process have left do not count."""
    count = process_settings.other_threads
    left = count()
    monkeypatch.setattr(process_settings, "other_threads", lambda: count() - left)


def write(folder: Path, name: str, *, at_import: str = "", in_hook: str = "pass") -> Path:
    path = folder / f"{name}.py"
    path.write_text(PLUGIN.format(name=name, at_import=at_import, in_hook=in_hook))
    return path


def read() -> dict[str, Any]:
    return {name: setting.read() for name, setting in PROCESS_SETTINGS.items()}


def test_every_setting_is_tried() -> None:
    assert CHANGES.keys() == PROCESS_SETTINGS.keys()


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("place", ["at_import", "in_hook"])
def test_a_setting_is_put_back_and_the_plugin_is_told(catalog: Catalog, tmp_path: Path, name: str, place: str) -> None:
    path, before = write(tmp_path, "mine", **{place: CHANGES[name]}), read()
    with pytest.warns(PluginWarning, match=f"mine.py.*it sets {name} to .* for the whole process") as told:
        catalog.load_file(path)
    assert read() == before
    assert len(told) == 1
    assert name in catalog.file_plugin(path).fault
    assert "mine.square" in [one.name for one in catalog.implementations("square")]


def test_a_setting_is_put_back_where_the_plugin_is_broken(catalog: Catalog, tmp_path: Path) -> None:
    path, before = write(tmp_path, "mine", at_import="sys.setrecursionlimit(500)\nraise ValueError"), read()
    with pytest.raises(PluginError, match="ValueError"):
        catalog.load_file(path)
    assert read() == before


OF_A_PROGRAM = {
    "deterministic algorithms": (
        "torch.use_deterministic_algorithms(True, warn_only=True)",
        "torch.use_deterministic_algorithms(False)",
    ),
    "float32 matmul precision": (
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
        "torch.backends.cuda.matmul.fp32_precision = 'ieee'",
    ),
    "depth of Python's calls": ("sys.setrecursionlimit(3000)", "sys.setrecursionlimit(900)"),
    "warnings that are errors": ("warnings.filterwarnings('error', message='mine')", "warnings.resetwarnings()"),
}
"""What a program has set, and what the plugin sets."""


@pytest.mark.parametrize("name", OF_A_PROGRAM)
def test_what_a_program_had_set_comes_back(tmp_path: Path, name: str) -> None:
    own, others = OF_A_PROGRAM[name]
    path = write(tmp_path, "mine", at_import=others)
    script = f"""
import sys, warnings
import torch
from registry.discovery.catalog import Catalog
from registry.discovery.process_settings import PROCESS_SETTINGS

{own}
setting = PROCESS_SETTINGS[{name!r}]
was, catalog = setting.read(), Catalog(entry_points=())
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always", append=True)
    catalog.load_file({str(path)!r})
assert "it is again as it was" in catalog.file_plugin({str(path)!r}).fault
now = setting.read()
assert now == was, (was, now)
"""
    done = fresh.run("-c", script)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "change",
    [
        "os.environ['KERNEL_REGISTRY_DB'] = 'postgresql://me:secret@host/db'",
        "os.environ.pop('KERNEL_REGISTRY_DB')",
        "os.environ['NVCC_APPEND_FLAGS'] = '-O0 secret'",
        "os.environ['TRITON_DEFAULT_FP_FUSION'] = 'secret'",
    ],
)
def test_variables_are_told_by_name_and_put_back(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_DB", "postgresql://me:own secret@host/db")
    before = dict(os.environ)
    with pytest.warns(PluginWarning, match="it sets environment variables to") as told:
        catalog.load_file(write(tmp_path, "mine", at_import=change))
    assert dict(os.environ) == before
    assert change.split("'")[1] in str(told[0].message)
    assert "secret" not in str(told[0].message)


@pytest.mark.parametrize("place", ["at_import", "in_hook"])
def test_a_librarys_own_variables_and_names_of_caches_stay(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    names = ("MINE_WORKSPACE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    for name in names:
        monkeypatch.setenv(name, "")
    change = f"os.environ.update(dict.fromkeys({names}, 'mine'))"
    path = write(tmp_path, "mine", **{place: change})
    catalog.load_file(path)
    assert [one.name for one in catalog.implementations("square")][-1] == "mine.square"
    assert [os.environ[name] for name in names] == ["mine"] * 3
    assert not catalog.file_plugin(path).fault


DRAWS = ("random.seed(0)", "np.random.seed(0)", "torch.manual_seed(0)", "torch.randn(3)", "random.random()")


@pytest.mark.parametrize("place", ["at_import", "in_hook"])
@pytest.mark.parametrize("draw", DRAWS)
def test_random_numbers_are_those_without_the_plugin(catalog: Catalog, tmp_path: Path, place: str, draw: str) -> None:
    path = write(tmp_path, "mine", **{place: draw})
    with torch.random.fork_rng([]), random_states_kept():
        random.seed(7)
        np.random.seed(7)
        torch.manual_seed(7)
        expected = random.random(), np.random.rand(), torch.rand(1).item()
        random.seed(7)
        np.random.seed(7)
        torch.manual_seed(7)
        catalog.load_file(path)
        catalog.implementations("square")
        assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected
    assert not catalog.file_plugin(path).fault


def test_what_a_program_seeded_before_cuda_began_is_not_replaced(catalog: Catalog, tmp_path: Path) -> None:
    seeds = getattr(torch.cuda, "_lazy_seed_tracker", None)
    if seeds is None or torch.cuda.is_initialized():
        pytest.skip("torch keeps no seeds for later")
    with torch.random.fork_rng([]), random_states_kept():
        torch.manual_seed(7)
        before = list(seeds.get_calls())
        catalog.load_file(write(tmp_path, "mine", at_import="torch.manual_seed(0)"))
        assert seeds.get_calls() == before


def test_what_another_thread_sets_meanwhile_is_the_programs(catalog: Catalog, tmp_path: Path) -> None:
    path = write(tmp_path, "mine", at_import="import time; time.sleep(0.2)")
    loading = threading.Thread(target=catalog.load_file, args=(path,))
    loading.start()
    torch.set_default_dtype(torch.float64)
    try:
        loading.join()
        assert torch.get_default_dtype() == torch.float64
        assert not catalog.file_plugin(path).fault
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_default_device_of_the_program_comes_back(catalog: Catalog, tmp_path: Path) -> None:
    torch.set_default_device("cpu")
    try:
        with pytest.warns(PluginWarning, match="it was cpu, and it is again as it was"):
            catalog.load_file(write(tmp_path, "mine", at_import=CHANGES["torch's default device"]))
        assert torch.empty(0).device.type == "cpu"
    finally:
        torch.set_default_device(None)


def test_strictly_a_changed_setting_is_an_error(tmp_path: Path) -> None:
    catalog = Catalog(environ={"KERNEL_REGISTRY_STRICT": "1"})
    with pytest.raises(PluginError, match="sets torch's default dtype"):
        catalog.load_file(write(tmp_path, "mine", at_import=CHANGES["torch's default dtype"]))
    assert torch.get_default_dtype() == torch.float32


def test_a_worker_blames_no_candidate_for_what_another_plugin_sets(catalog: Catalog, tmp_path: Path) -> None:
    integrity = Integrity()
    catalog.load_file(write(tmp_path, "honest"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        catalog.load_file(write(tmp_path, "rude", at_import="torch.set_num_threads(torch.get_num_threads() + 1)"))
    assert len(told) == 1
    worker = Worker(catalog, CPU, integrity)
    protocol = dict(TimingProtocol.of(CPU).details)
    for name in ("honest.square", "rude.square"):
        job = TrialJob(1, "square", {"n": 100, "dtype": "float32"}, Entrant(name, {}), protocol, 0, None)
        outcome = worker.trial(job, lambda step: None)
        assert (outcome.status, outcome.message) == ("ok", "")
