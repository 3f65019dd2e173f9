"""The process that owns the device and runs the jobs of a tuning run.

Run as ``python -m registry.tuner.workers.worker_process``.

Everything that can hang, crash or poison a CUDA context happens here; the tuning run kills and replaces the process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ...backends import kernel_limit
from ...device import Device
from ...discovery.catalog import Catalog
from ...errors import DeviceError
from ..jobs import BlockJob, CompileJob, DeviceJob, Outcome, TrialJob, VerificationJob, job_from_json
from ..measure.nvml import identity_of
from ..processes.process import Parent
from .device_lock import DeviceLock
from .integrity import Integrity
from .left_running import adopt_orphans
from .steps import Announce
from .worker import Worker

_MEMORY_SHARE = 0.95
"""The device's memory that a worker may take: a larger candidate fails by itself, before other processes do."""

_POISONED = 3
"""Exit code of a worker whose CUDA context has died."""

_UNTRUSTED = 4
"""Exit code of a worker in which a candidate has replaced code that measures it."""


def main(arguments: Sequence[str]) -> None:
    """``worker_process DESCRIPTOR PARENT DEVICE IDENTITY [PLUGIN_FILE ...]``."""
    parent = Parent(int(arguments[0]), int(arguments[1]))
    catalog = Catalog()
    for path in arguments[4:]:
        catalog.load_file(path)
    serve(parent, arguments[2], arguments[3], lambda device: Worker(catalog, device, INTEGRITY))


def serve(parent: Parent, label: str, identity: str, make: Callable[[Device], Worker]) -> None:
    """Answer jobs by the worker that ``make`` makes on the device, until the run ends."""
    # modules that are loaded by now stay: the garbage collector need not go through them while something is timed
    gc.freeze()
    adopt_orphans()
    parent.send({"ready": True})
    worker: Worker | None = None
    for message in parent:
        job = job_from_json(message)
        announce = partial(_announce, parent, int(message["id"]))
        if worker is None:
            # not before the first job: another worker may still be measuring on this device
            announce("start")
            device = _claimed(label, identity)
            worker = make(device)
            lock, folder = DeviceLock(device), Path.cwd()
        with lock.held(partial(announce, "wait")):
            _answer(parent, worker, job, announce, device)
        with contextlib.suppress(OSError):
            os.chdir(folder)  # the next candidate must not start in a folder that this one has changed to


def _answer(parent: Parent, worker: Worker, job: DeviceJob | CompileJob, announce: Announce, device: Device) -> None:
    """Run a job and send its answer; ends the process where nothing more can be measured in it."""
    if isinstance(job, TrialJob | VerificationJob):
        outcome = worker.trial(job, announce) if isinstance(job, TrialJob) else worker.verification(job, announce)
        if outcome.status not in {"ok", "unsupported"} and _is_poisoned(device):
            died = Outcome("crash", f"the CUDA context died: {outcome.message}")
            parent.send({"id": job.id, "outcome": vars(died)})
            sys.exit(_POISONED)
        parent.send({"id": job.id, "outcome": vars(outcome)})
    elif isinstance(job, BlockJob):
        parent.send({"id": job.id, "timed": vars(worker.block(job, announce))})
        if _is_poisoned(device):
            sys.exit(_POISONED)
    if worker.trust.lost:
        sys.exit(_UNTRUSTED)


def _claimed(label: str, identity: str) -> Device:
    """The device, with a context of this process."""
    device = _found(label, identity)
    # a process that tries kernels ends with its run; a limit on loaded kernels would be held against the candidate
    kernel_limit.MOST_KERNELS = sys.maxsize
    if device.type == "cuda":
        torch.cuda.set_device(device.index)
        torch.cuda.set_per_process_memory_fraction(_MEMORY_SHARE, device.index)
        torch.zeros(1, device=device.torch)
    return device


def _found(label: str, identity: str) -> Device:
    """The device of that identity. The label tells its place among the devices of the run's own process.

    They may have other places here: ``CUDA_VISIBLE_DEVICES`` may have changed since that process began to use CUDA. A
    CPU has one place, except in tests, where several places stand for several devices.
    """
    kind, _, index = label.partition(":")
    if kind == "cpu":
        return replace(Device.of(kind), index=int(index or 0))
    for device in sorted(Device.visible(), key=lambda one: one.label != label):
        if identity_of(device) == identity:
            return device
    raise DeviceError(f"{label} ({identity}) is not visible here", hint="CUDA_VISIBLE_DEVICES may have changed")


def _announce(parent: Parent, job: int, step: str) -> None:
    parent.send({"id": job, "step": step})


def _is_poisoned(device: Device) -> bool:
    """Whether a kernel's fault has made the CUDA context unusable: every later call then fails."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device=device.torch).item()
    except RuntimeError:
        return True
    return False


INTEGRITY = Integrity()
"""Taken when this module has been imported: before any plugin, also in the template that workers are forked from."""


if __name__ == "__main__":
    main(sys.argv[1:])
