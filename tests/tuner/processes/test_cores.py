"""The cores that compilers leave to whoever measures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from registry.device import Device
from registry.tuner.processes import cores
from registry.tuner.processes.cores import compiling_cores

from ... import fresh

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processes are not bound to cores here")

GPU = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 1 << 37, 50 << 20)
CPU = Device.of("cpu")


def having(monkeypatch: pytest.MonkeyPatch, numbers: range) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(numbers))


def alone(core: int) -> list[int]:
    return [core]


def test_a_gpu_keeps_two_cores_with_their_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    having(monkeypatch, range(16))
    assert compiling_cores(GPU, 1, alone) == tuple(range(4, 16))
    assert compiling_cores(GPU, 1, lambda core: [core % 8, core % 8 + 8]) == (2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15)
    assert compiling_cores(CPU, 1, alone) == tuple(range(16))


@pytest.mark.parametrize(("count", "left"), [(1, 1), (2, 1), (8, 7), (9, 5)])
def test_some_are_always_left(monkeypatch: pytest.MonkeyPatch, count: int, left: int) -> None:
    having(monkeypatch, range(count))
    assert len(compiling_cores(GPU, 1, alone)) == left


@pytest.mark.parametrize(
    ("cores", "workers", "left"), [(16, 2, 10), (32, 2, 26), (32, 8, 16), (8, 2, 6), (2, 8, 1), (1, 2, 1)]
)
def test_each_worker_has_a_core_and_compilers_have_half_of_all(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int, left: int
) -> None:
    having(monkeypatch, range(cores))
    assert len(compiling_cores(GPU, workers, alone)) == left


def test_only_cores_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    having(monkeypatch, range(16, 32))
    assert compiling_cores(GPU, 1, lambda core: [core, (core + 16) % 64]) == tuple(range(20, 32))


def test_a_process_is_bound_to_what_its_argument_names() -> None:
    here = sorted(os.sched_getaffinity(0))
    for given, expected in (((), here), (here[-1:], here[-1:])):
        code = f"from registry.tuner.processes import cores; import os; cores.bind_to({cores.as_argument(given)!r})"
        code += "; print(sorted(os.sched_getaffinity(0)))"
        done = fresh.run("-c", code)
        assert (done.returncode, done.stdout.strip()) == (0, str(expected)), done.stderr


def test_siblings_are_read_as_linux_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "0,16-18\n")
    assert cores._siblings(0) == [0, 16, 17, 18]
    monkeypatch.setattr(Path, "read_text", lambda _: "?")
    assert cores._siblings(3) == [3]
