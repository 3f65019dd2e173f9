"""How long `tune` takes from nothing, and how busy it keeps the GPUs: empty caches, empty database, one process tree.

    python -m benchmarks.tune_speed [--op softmax,rms_norm] [--shapes configs/llm.yaml] [--budget SECONDS]
        [--device cuda:0 --device cuda:0,cuda:1]

Of several --device each is tried, and the last lines compare their times with the first's, and their winners: those
that are slower or faster beyond noise. The share of the time in which a kernel ran is the driver's own figure (NVML),
read ten times a second from outside, the mean of the GPUs; it counts the waiting kernels behind which launches are
queued. The run's own process proposes and stores for all GPUs in one thread: its share of a core is told, and how many
cores of the machine were busy. What the command says of itself is printed last.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from registry.device import Device, devices_of
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


def timed(words: Sequence[str], devices: Sequence[Device], folder: Path) -> tuple[float, int]:
    """The seconds that ``tune`` took and its exit code; prints what was seen of it meanwhile.

    Caches and the database, ``tuning.db``, are made in the folder.
    """
    gpus = [gpu for gpu in map(nvml.gpu_of, devices) if gpu is not None]
    shares: list[tuple[float, float]] = []
    used_s, before_s = 0.0, _busy_seconds()
    with (folder / "log").open("w+") as log:
        start = "import kernel_registry; kernel_registry.tune()"  # what the installed script does
        environment, began = cold_environment(folder), time.monotonic()
        tuning = subprocess.Popen([sys.executable, "-c", start, *words], env=environment, stdout=log, stderr=log)
        while tuning.poll() is None:
            time.sleep(_EVERY_S)
            used_s = max(used_s, _processor_seconds(tuning.pid))
            read = [share for gpu in gpus if (share := gpu.utilisation()) is not None]
            shares += [(time.monotonic() - began, statistics.mean(read) / 100)] if read else []
        seconds = time.monotonic() - began
        log.seek(0)
        said = log.read().strip().splitlines()
    print(f"tune {' '.join(words)}: {seconds:.1f} s from start to end, exit code {tuning.returncode}")
    for limit in (0.0, _WARMING_UP_S):
        later = [share for at, share in shares if at >= limit]
        if later:
            print(f"a kernel ran {statistics.mean(later):.0%} of the time after {limit:.0f} s (NVML)")
    busy = (_busy_seconds() - before_s) / seconds
    own = f"the run's own process took {used_s / seconds:.0%} of a core"
    print(f"{own}; of the machine's {os.cpu_count()} cores {busy:.1f} were busy, with other programs")
    print(*said[-8:], sep="\n")
    return seconds, tuning.returncode


def _busy_seconds() -> float:
    """Seconds that the cores of the machine have worked, for whichever program; 0 where the system does not tell."""
    try:
        user, nice, system, _, _, interrupts, *_ = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + interrupts) / os.sysconf("SC_CLK_TCK")


def compared(first: Path, other: Path) -> str:
    """What ``registry compare`` says of the winners of two databases."""
    command = [sys.executable, "-m", "registry.cli.main", "compare", str(first), str(other)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip()


def _processor_seconds(pid: int) -> float:
    """Seconds of processor time that a process itself has used; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Run, watch, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", default="softmax")
    parser.add_argument("--shapes", default="configs/llm.yaml")
    parser.add_argument(
        "--device", action="append", metavar="DEVICE,...", help="repeatable, the first is compared with"
    )
    parser.add_argument("--budget", metavar="SECONDS", help="of the search of each problem")
    options = parser.parse_args()
    names: list[str] = options.device or [Device.best().label]
    took: dict[str, float] = {}
    codes = []
    with tempfile.TemporaryDirectory() as folder:
        places = {name: Path(folder, str(number)) for number, name in enumerate(names)}
        for name, place in places.items():
            place.mkdir()
            devices = devices_of(name)
            words = ["--op", options.op, "--shapes", options.shapes, "--device", name]
            words += ["--budget", options.budget] if options.budget else []
            took[name], code = timed(words, devices, place)
            codes.append(code)
            print(f"{devices[0].name}; {dict(devices[0].software())}")
        for name in names[1:]:
            print(f"{name} takes {took[name] / took[names[0]]:.2f} of the time of {names[0]}; its winners:")
            print(compared(places[names[0]] / "tuning.db", places[name] / "tuning.db"))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
