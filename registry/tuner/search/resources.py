"""Whether compiled code fits the device; code that does not is never sent there."""

from __future__ import annotations

from collections.abc import Iterable

from ...artifact import Artifact
from ...device import Device


def misfit(artifacts: Iterable[Artifact], device: Device) -> str:
    """Why an artifact does not fit, "" when all fit: shared memory beyond a block's limit, or registers that spill.

    Code that spills runs, but waits for memory: of 78 winners of Triton and CUDA kernels on an H200 none spilled.
    """
    for artifact in artifacts:
        shared, spilled = artifact.resources.get("shared_bytes", 0), artifact.resources.get("spill_bytes", 0)
        if 0 < device.shared_bytes < shared:
            return f"needs {shared} bytes of shared memory a block, {device.name} has {device.shared_bytes}"
        if spilled > 0:
            registers = artifact.resources.get("registers", 0)
            return f"its {registers} registers a thread do not suffice: {spilled} bytes spill to memory"
    return ""
