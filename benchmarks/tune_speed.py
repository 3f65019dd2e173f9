"""How long `tune` takes from nothing, and how busy it keeps the GPU: empty caches, empty database, one process tree.

    python -m benchmarks.tune_speed [--op softmax] [--shapes configs/llm.yaml]

The share of the time in which a kernel ran is the driver's own figure (NVML), read ten times a second from outside;
it counts the waiting kernels behind which launches are queued. What the command says of itself is printed last.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from registry import Device
from registry.tuner.measure import nvml

_EVERY_S = 0.1
_WARMING_UP_S = 10.0


def cold_environment(folder: Path) -> dict[str, str]:
    """This environment with every cache that a compiler keeps in an empty folder."""
    return {
        **os.environ,
        "KERNEL_REGISTRY_CACHE": str(folder / "cache"),
        "KERNEL_REGISTRY_DB": str(folder / "tuning.db"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }


def main() -> int:
    """Run, watch, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", default="softmax")
    parser.add_argument("--shapes", default="configs/llm.yaml")
    options = parser.parse_args()
    device = Device.best()
    gpu = nvml.gpu_of(device)
    shares: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        start = "import kernel_registry; kernel_registry.tune()"  # what the installed script does
        command = [sys.executable, "-c", start, "--op", options.op, "--shapes", options.shapes]
        with (Path(folder) / "log").open("w+") as log:
            began = time.monotonic()
            tuning = subprocess.Popen(command, env=cold_environment(Path(folder)), stdout=log, stderr=log)
            while tuning.poll() is None:
                time.sleep(_EVERY_S)
                if gpu is not None and (share := gpu.utilisation()) is not None:
                    shares.append((time.monotonic() - began, share / 100))
            seconds = time.monotonic() - began
            log.seek(0)
            said = log.read().strip().splitlines()
    print(f"tune {' '.join(command[3:])}: {seconds:.1f} s from start to end, exit code {tuning.returncode}")
    for limit in (0.0, _WARMING_UP_S):
        later = [share for at, share in shares if at >= limit]
        if later:
            print(f"a kernel ran {statistics.mean(later):.0%} of the time after {limit:.0f} s (NVML)")
    print(*said[-5:], f"{device.name}; {dict(device.software())}", sep="\n")
    return tuning.returncode


if __name__ == "__main__":
    sys.exit(main())
