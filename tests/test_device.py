"""Which device a name stands for, and what a wrong one is told."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Device, DeviceError
from registry.device import _device, devices_of, driver_left_alone, may_use_nvidia, named
from registry.tuner.workers import worker_process

from . import fresh


def test_the_cpu_is_one_device_by_any_of_its_names() -> None:
    assert Device.of("cpu") == Device.of("cpu:0") == Device.of(torch.device("cpu"))


def test_versions_of_software_are_plain_texts() -> None:
    # torch's own type of a version is parsed at each comparison, and winners of thousands of problems are compared
    assert {type(version) for version in Device.of("cpu").software().values()} == {str}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cpu:3", r"^cpu:3: all of this machine's cores are one device\n  use cpu$"),
        (torch.device("cpu", 1), "^cpu:1: all of this machine's cores"),
        ("gpu", r"^'gpu' is not a device\n  expected cpu, cuda or cuda:INDEX"),
        ("cuda:-1", "^'cuda:-1' is not a device"),
        ("meta", r"^device type 'meta' is not supported\n  expected cpu, cuda"),
        (None, r"^None is not a device\n  expected cpu"),
        ("cuda:99", "^cuda:99: "),
    ],
)
def test_what_is_no_device_here_is_refused_with_a_hint(name: Any, message: str) -> None:
    with pytest.raises(DeviceError, match=message) as caught:
        Device.of(name)
    assert caught.value.hint


def test_a_device_of_another_process_is_found_among_those_of_this_one() -> None:
    code = (
        "import pickle, registry; made = registry.Device.without_hardware('sm_90'); hash(made);"
        "print(hash('seeded'), pickle.dumps(made).hex())"
    )
    done = fresh.run("-c", code)
    assert done.returncode == 0, done.stderr
    seeded, made = done.stdout.split()
    assert int(seeded) != hash("seeded"), "PYTHONHASHSEED is set: texts have the same hashes in all processes"
    assert {Device.without_hardware("sm_90"): "kept"}[pickle.loads(bytes.fromhex(made))] == "kept"


# --- several

GPUS = tuple(Device("cuda", index, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20) for index in range(3))


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(GPUS))
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    monkeypatch.setattr("registry.device._cuda", GPUS.__getitem__)
    _device.cache_clear()


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    _device.cache_clear()


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        ("cuda", [0, 1, 2]),
        (torch.device("cuda"), [0, 1, 2]),
        ("cuda:1", [1]),
        (torch.device("cuda", 2), [2]),
        ("cuda:2, cuda:0", [2, 0]),
        (["cuda:0", GPUS[2], torch.device("cuda", 0)], [0, 2]),
        ("cuda:1,cuda", [1, 0, 2]),
        (GPUS[1], [1]),
    ],
)
def test_cuda_is_every_visible_gpu_and_a_list_those(three_gpus: None, wanted: Any, indices: list[int]) -> None:
    assert devices_of(wanted) == tuple(GPUS[index] for index in indices)
    assert named(GPUS[:2]) == "cuda:0, cuda:1 (NVIDIA H200)"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("cuda:0,cpu", r"^devices of one run: cuda:0, cpu\n  expected GPUs, or cpu alone"),
        ([], "^devices of one run: none"),
        ("cuda:0,", "^'' is not a device"),
        ("cuda:3", r"^cuda:3: only 3 GPU\(s\) here\n  use cuda:0 to cuda:2"),
        (3, "^cuda:3: only 3 GPU"),
    ],
)
def test_devices_that_no_run_can_use_are_refused(three_gpus: None, wanted: Any, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        devices_of(wanted)


def test_without_a_gpu_cuda_is_an_error_and_the_cpu_a_device() -> None:
    assert devices_of("cpu") == (Device.of("cpu"),)
    if not torch.cuda.is_available():
        assert Device.visible() == ()
        with pytest.raises(DeviceError, match="no GPU is usable here"):
            devices_of("cuda")


def test_a_worker_finds_its_device_where_it_is_and_not_by_its_place_elsewhere(
    three_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "identity_of", lambda device: "abc"[device.index])
    assert worker_process._found("cuda:1", "b") == GPUS[1]
    assert worker_process._found("cuda:0", "c") == GPUS[2], "the run saw other GPUs than its worker"
    with pytest.raises(DeviceError, match=r"^cuda:0 \(d\) is not visible here"):
        worker_process._found("cuda:0", "d")


@pytest.mark.parametrize(
    ("cuda", "visible", "nodes", "told"),
    [
        ("13.0", None, (), False),
        ("13.0", None, ("/dev/nvidiactl",), True),
        ("13.0", "1", ("/dev/dxg",), True),
        ("13.0", None, ("/dev/kfd",), False),
        ("13.0", "", ("/dev/nvidiactl",), False),
        ("13.0", "-1", ("/dev/nvidiactl",), False),
        (None, None, ("/dev/nvidiactl",), False),
    ],
)
def test_whether_there_may_be_a_gpu_is_known_without_its_driver(
    cuda: str | None, visible: str | None, nodes: tuple[str, ...], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(Path, "exists", lambda path: str(path) in nodes)
    assert may_use_nvidia() is told


def test_modules_that_ask_for_gpus_are_imported_without_asking_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = torch.cuda.is_available
    with contextlib.suppress(ImportError), driver_left_alone():
        assert torch.cuda.is_available is may_use_nvidia
        raise ImportError
    assert torch.cuda.is_available is asks
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with driver_left_alone():
        assert torch.cuda.is_available is asks, "AMD's GPUs have other nodes"
