"""What is made of the driver's answers, by a driver that answers as it is told. tests/gpu asks a real one."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from registry.device import Device
from registry.tuner.measure import nvml
from registry.tuner.measure.clocks import Clocks
from registry.tuner.measure.nvml import Gpu, identity_of
from registry.tuner.workers.device_lock import DeviceLock, _path

OURS, THEIRS = os.getpid(), 4711


class Driver:
    """NVML as far as processes go: at each question the next list of process ids, or none of it (None)."""

    class NVMLError(Exception):
        pass

    def __init__(self, *answers: Iterable[int] | None) -> None:
        self._answers = itertools.chain(answers, itertools.repeat(answers[-1]))
        self.asked = 0

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802  (NVML's name)
        assert handle == "device"
        self.asked += 1
        answer = next(self._answers)
        if answer is None:
            raise self.NVMLError("not supported")
        return [SimpleNamespace(pid=pid) for pid in answer]


def told(*answers: Iterable[int] | None) -> tuple[Gpu, Driver]:
    driver = Driver(*answers)
    return Gpu(driver, "device"), driver


def test_a_process_is_waited_for_as_long_as_the_driver_lists_it() -> None:
    gpu, driver = told([OURS, THEIRS], [OURS, THEIRS], [THEIRS], [OURS])
    assert gpu.wait_until_gone(THEIRS, seconds=60)
    assert driver.asked == 4


def test_who_is_not_listed_is_not_waited_for() -> None:
    gpu, driver = told([OURS])
    assert gpu.wait_until_gone(THEIRS, seconds=60)
    assert driver.asked == 1


def test_who_stays_is_waited_for_no_longer_than_was_said() -> None:
    gpu, driver = told([THEIRS])
    began = time.monotonic()
    assert not gpu.wait_until_gone(THEIRS, seconds=0.1)
    assert time.monotonic() - began >= 0.1
    assert driver.asked > 1


def test_nobody_is_waited_for_where_nobody_can_say() -> None:
    gpu, driver = told(None)
    assert gpu.wait_until_gone(THEIRS, seconds=60)
    assert driver.asked == 1


@pytest.mark.parametrize(
    ("listed", "others"),
    [
        ([OURS], frozenset()),
        ([OURS, THEIRS], frozenset({THEIRS})),
        ([], frozenset()),
        # we are on the device and not among them: they are numbered as another container sees them
        ([THEIRS], None),
        (None, None),
    ],
)
def test_who_else_is_on_the_device_is_known_only_where_the_driver_numbers_processes_as_we_do(
    listed: list[int] | None, others: frozenset[int] | None
) -> None:
    gpu, _ = told(listed)
    assert gpu.others({OURS}) == others
    assert Clocks(Device.of("cpu"), gpu).contended() is bool(others)


# --- which device is which

WHOLE = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
SLICE = Device("cuda", 0, "NVIDIA H200 MIG 1g.18gb", "sm_90", 16, 16 << 30, 7 << 20, mig=True)
FIRST, SECOND, OWN = (f"{digit * 8}-0000-0000-0000-000000000000" for digit in "12a")


class Known:
    """NVML as far as it knows devices by UUID."""

    class NVMLError(Exception):
        pass

    def __init__(self, *names: str) -> None:
        self.names = names

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802  (NVML's name)
        if name not in self.names:
            raise self.NVMLError(name)
        return name


def shown(monkeypatch: pytest.MonkeyPatch, *uuids: str | None, visible: str = "", knows: Any = None) -> None:
    """torch shows GPUs of these UUIDs, in this order."""
    found = [SimpleNamespace(name="NVIDIA H200", pci_bus_id=7, **({"uuid": uuid} if uuid else {})) for uuid in uuids]
    monkeypatch.setattr("torch.cuda.get_device_properties", found.__getitem__)
    monkeypatch.setattr(nvml, "_library", lambda process: knows)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def at(device: Device, index: int) -> Device:
    return replace(device, index=index)


def test_a_device_is_the_same_whatever_its_place_among_the_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    shown(monkeypatch, FIRST, SECOND)
    of_all = [identity_of(at(WHOLE, index)) for index in range(2)]
    locks = [_path(at(WHOLE, index), "device") for index in range(2)]
    assert of_all == [FIRST, SECOND]
    assert len(set(locks)) == 2
    for visible in ("1", f"GPU-{SECOND}", f"GPU-{SECOND[:8]}"):
        shown(monkeypatch, SECOND, visible=visible)
        assert identity_of(WHOLE) == of_all[1]
        assert _path(WHOLE, "device") == locks[1]


def test_two_runs_on_one_device_have_one_lock_and_on_two_have_two(
    monkeypatch: pytest.MonkeyPatch, own_lock: None
) -> None:
    shown(monkeypatch, FIRST, SECOND)
    here, there = DeviceLock(at(WHOLE, 1)), DeviceLock(at(WHOLE, 0))
    shown(monkeypatch, SECOND, visible="1")
    elsewhere = DeviceLock(WHOLE)
    waited: list[str] = []

    class Waits(Exception):  # noqa: N818  (it ends the wait, and is no error)
        pass

    def waiting() -> None:
        waited.append("waited")
        raise Waits

    with (
        here.held(lambda: pytest.fail("nobody holds it")),
        there.held(lambda: pytest.fail("another device")),
        pytest.raises(Waits),
        elsewhere.held(waiting),
    ):
        pytest.fail("two hold one device")
    assert waited == ["waited"]
    for lock in (here, there, elsewhere):
        lock.close()


@pytest.mark.parametrize(
    ("uuid", "visible", "knows", "identity"),
    [
        # the driver gives the instance's own UUID
        (OWN, f"MIG-{OWN}", Known(f"MIG-{OWN}", f"GPU-{FIRST}"), OWN),
        (OWN, "", Known(f"MIG-{OWN}", f"GPU-{FIRST}"), OWN),
        # it gives that of the whole GPU
        (FIRST, f"MIG-{OWN}", Known(f"MIG-{OWN}", f"GPU-{FIRST}"), f"{FIRST} MIG-{OWN}"),
        (FIRST, f" MIG-GPU-{FIRST}/1/0 ,1", Known(f"GPU-{FIRST}"), f"{FIRST} MIG-GPU-{FIRST}/1/0"),
        (FIRST, "0", Known(f"GPU-{FIRST}"), FIRST),
        (FIRST, "", Known(f"GPU-{FIRST}"), FIRST),
        # nobody can say whose it is
        (OWN, f"MIG-{OWN}", None, OWN),
    ],
)
def test_an_instance_of_a_gpu_is_a_device_of_its_own(
    monkeypatch: pytest.MonkeyPatch, uuid: str, visible: str, knows: Any, identity: str
) -> None:
    shown(monkeypatch, uuid, visible=visible, knows=knows)
    assert identity_of(SLICE) == identity


def test_instances_of_one_kind_are_one_hardware_and_others_are_not() -> None:
    larger = replace(SLICE, name="NVIDIA H200 MIG 2g.35gb", multiprocessors=32, memory_bytes=33 << 30)
    assert at(SLICE, 1).hardware() == SLICE.hardware()
    assert len({str(one.hardware()) for one in (WHOLE, SLICE, larger)}) == 3


def test_without_a_uuid_a_device_is_known_by_its_place_on_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    shown(monkeypatch, None)
    assert identity_of(WHOLE) == "NVIDIA H200 7"
