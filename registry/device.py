"""The device that a problem runs on, and what identifies the machine: hardware and software."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path

import torch

from .artifact import Target
from .errors import DeviceError

_MULTIPROCESSORS = {"sm_80": 108, "sm_86": 84, "sm_89": 142, "sm_90": 132, "sm_100": 148, "sm_120": 170, "gfx942": 304}
"""Multiprocessors of the largest GPU of an architecture: A100, A40, L40S, H200, B200, RTX 5090, MI300X."""
_NVIDIA = frozenset(
    f"sm_{capability}" for capability in (70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)
)
"""The architectures that LLVM has. For another one it does not raise, but ends the process that compiles."""


@dataclass(frozen=True)
class Device:
    """A device's properties, by which an implementation may decide. On a CPU ``multiprocessors`` are usable cores."""

    type: str
    index: int
    name: str
    architecture: str
    multiprocessors: int
    memory_bytes: int
    l2_bytes: int
    shared_bytes: int = 0
    registers: int = 0
    warp_size: int = 32
    mig: bool = False

    @classmethod
    def of(cls, device: torch.device | str) -> Device:
        """The device for a torch device or its name. Raises DeviceError if it does not exist."""
        return _device(*_resolve(device))

    @classmethod
    def visible(cls) -> tuple[Device, ...]:
        """Every GPU that torch can use here, in its order; ``CUDA_VISIBLE_DEVICES`` limits them."""
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return tuple(cls.of(f"cuda:{index}") for index in range(count))

    @classmethod
    def best(cls) -> Device:
        """The current GPU if there is one, else the CPU."""
        return cls.of("cuda" if torch.cuda.is_available() else "cpu")

    @classmethod
    def without_hardware(cls, architecture: str) -> Device:
        """A device for a GPU architecture (``"sm_90"``, ``"gfx942"``) without that GPU: to plan and to compile for it.

        It has as many multiprocessors as the largest GPU of the architecture, and unlimited memory. Raises DeviceError
        for an unknown architecture.
        """
        name = re.sub(r"\A(sm_\d+)[af]\Z", r"\1", architecture)
        if name not in _NVIDIA and not re.fullmatch(r"gfx[0-9a-f]{3,4}", name):
            hint = f"expected a GPU architecture, e.g. {', '.join(_MULTIPROCESSORS)}"
            raise DeviceError(f"{architecture!r} is no GPU architecture", hint=hint)
        warp_size = 64 if name.startswith("gfx9") else 32
        count = _MULTIPROCESSORS.get(name, 128)
        title = f"a GPU of {name}"
        return cls("cuda", 0, title, name, count, 2**60, 2**25, registers=65536, warp_size=warp_size)

    def __hash__(self) -> int:
        # only fields in which devices of one process differ: plans are looked up by device, and 11 fields hash slowly
        return self.memory_bytes + 4096 * self.multiprocessors + self.index

    @cached_property
    def torch(self) -> torch.device:
        """The device as a ``torch.device``."""
        return torch.device(self.type, self.index) if self.type == "cuda" else torch.device(self.type)

    @property
    def label(self) -> str:
        """The device's name in this process: ``cpu``, ``cuda:1``."""
        return f"{self.type}:{self.index}" if self.type == "cuda" or self.index else self.type

    @cached_property
    def target(self) -> Target:
        """The target that compilers need."""
        backend = "hip" if self.architecture.startswith("gfx") else self.type
        return Target(backend, self.architecture, self.warp_size)

    @cached_property
    def capability(self) -> tuple[int, int]:
        """CUDA compute capability, (0, 0) elsewhere: ``sm_90`` -> (9, 0)."""
        digits = self.architecture.removeprefix("sm_")
        return (int(digits[:-1]), int(digits[-1])) if self.architecture.startswith("sm_") else (0, 0)

    def hardware(self) -> Mapping[str, str | int | bool]:
        """The hardware identity by which results are stored; the device's index is not part of it."""
        identity = asdict(self)
        for name in ("index", "registers", "warp_size", "shared_bytes", "l2_bytes"):
            del identity[name]
        # the exact size differs by a few pages between drivers and hosts: round to a GiB
        identity["memory_bytes"] = round(self.memory_bytes / 2**30) * 2**30
        if self.type == "cpu":
            del identity["memory_bytes"]
        return identity

    def software(self) -> Mapping[str, str]:
        """Versions of driver, CUDA, torch, Triton and Python (major and minor); for a CPU also of the compiler."""
        python = ".".join(platform.python_version_tuple()[:2])
        # as a text: torch's own type parses both sides of each comparison
        versions = {"torch": str(torch.__version__), "triton": installed_version("triton"), "python": python}
        if self.type == "cuda":
            versions |= {"cuda": torch.version.cuda or torch.version.hip or "", "driver": _driver()}
        else:
            versions |= {"compiler": _compiler()}
        return versions

    def __str__(self) -> str:
        return f"{self.label} ({self.name})"


def devices_of(wanted: DeviceNames) -> tuple[Device, ...]:
    """The devices that a run uses, each once: ``cuda`` is every visible GPU, ``cuda:0,cuda:2`` these two.

    Raises DeviceError for a missing device, for an empty list, and for a CPU together with GPUs.
    """
    if isinstance(wanted, str):
        wanted = [part.strip() for part in wanted.split(",")]
    elif not isinstance(wanted, Iterable):
        wanted = [wanted]
    found = tuple(dict.fromkeys(device for one in wanted for device in _named(one)))
    if len({device.type for device in found}) != 1:
        named = ", ".join(device.label for device in found) or "none"
        raise DeviceError(f"devices of one run: {named}", hint="expected GPUs, or cpu alone")
    return found


def by_hardware(devices: Iterable[Device]) -> list[tuple[Device, ...]]:
    """The devices in groups, each of one hardware identity, for which winners are stored."""
    groups: dict[tuple[object, ...], list[Device]] = {}
    for device in devices:
        groups.setdefault(tuple(device.hardware().items()), []).append(device)
    return [tuple(group) for group in groups.values()]


def named(devices: Sequence[Device]) -> str:
    """Text for devices that share a hardware name: ``cuda:0, cuda:1 (NVIDIA H200)``."""
    return f"{', '.join(device.label for device in devices)} ({devices[0].name})"


def _named(wanted: Device | torch.device | str) -> tuple[Device, ...]:
    if isinstance(wanted, Device):
        return (wanted,)
    return Device.visible() if str(wanted) == "cuda" and torch.cuda.is_available() else (Device.of(wanted),)


def _resolve(device: torch.device | str) -> tuple[str, int]:
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError):
        raise DeviceError(f"{device!r} is not a device", hint="expected cpu, cuda or cuda:INDEX") from None
    if wanted.type == "cpu":
        if wanted.index:
            raise DeviceError(f"{wanted}: all of this machine's cores are one device", hint="use cpu")
        return "cpu", 0
    if wanted.type != "cuda":
        raise DeviceError(f"device type {wanted.type!r} is not supported", hint="expected cpu, cuda or cuda:INDEX")
    count = torch.cuda.device_count()
    if not torch.cuda.is_available() or count == 0:
        raise DeviceError(f"{wanted}: no GPU is usable here", hint="use --device cpu; `registry doctor` says why")
    index = torch.cuda.current_device() if wanted.index is None else wanted.index
    if index >= count:
        raise DeviceError(f"{wanted}: only {count} GPU(s) here", hint=f"use cuda:0 to cuda:{count - 1}")
    return "cuda", index


DeviceNames = Device | torch.device | str | Iterable[Device | torch.device | str]
"""One device or several, as a user names them."""


@lru_cache(maxsize=64)
def _device(kind: str, index: int) -> Device:
    return _cuda(index) if kind == "cuda" else _cpu()


def _cuda(index: int) -> Device:
    found = torch.cuda.get_device_properties(index)
    hip = getattr(found, "gcnArchName", "") if torch.version.hip else ""
    return Device(
        type="cuda",
        index=index,
        name=found.name,
        architecture=hip.split(":")[0] or f"sm_{found.major}{found.minor}",
        multiprocessors=found.multi_processor_count,
        memory_bytes=found.total_memory,
        l2_bytes=getattr(found, "L2_cache_size", 0),
        shared_bytes=getattr(found, "shared_memory_per_block_optin", 0),
        registers=getattr(found, "regs_per_multiprocessor", 0),
        warp_size=getattr(found, "warp_size", 32),
        mig=" MIG " in found.name,
    )


def _cpu() -> Device:
    return Device(
        type="cpu",
        index=0,
        name=_cpu_name(),
        architecture=f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        multiprocessors=_usable_cores(),
        memory_bytes=physical_memory_bytes(),
        l2_bytes=_last_level_cache_bytes(),
        warp_size=1,
    )


def physical_memory_bytes() -> int:
    """The memory of this machine in bytes; 0 if unknown."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    windows = getattr(ctypes, "windll", None)
    kibibytes = ctypes.c_ulonglong()
    told = windows is not None and windows.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kibibytes))
    return kibibytes.value << 10 if told else 0


def _cpu_name() -> str:
    try:
        match = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def _usable_cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def _last_level_cache_bytes() -> int:
    sizes = [_bytes(path.read_text()) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max(sizes, default=32 * 2**20)


def _bytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KMG]?)", text.strip()).groups()  # type: ignore[union-attr]
    return int(number) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[unit]


@lru_cache(maxsize=256)
def installed_version(distribution: str) -> str:
    """The installed version of a distribution; "" where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


@lru_cache(maxsize=1)
def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
        match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
        if match:
            return match.group(1)
    except OSError:
        pass
    return _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


@lru_cache(maxsize=1)
def _compiler() -> str:
    return _first_line(os.environ.get("CXX", "c++"), "--version")


def _first_line(*command: str) -> str:
    """The first line that a command prints; "" if the command is not installed or fails."""
    if not shutil.which(command[0]):
        return ""
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else ""


def may_use_nvidia() -> bool:
    """Whether torch may use a GPU of NVIDIA's: its build, CUDA_VISIBLE_DEVICES and the driver's device node allow it.

    For processes that are to be forked: the driver, and NVML, start a thread to answer.
    """
    if torch.version.cuda is None or os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in {"", "-1"}:
        return False
    return any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg"))


@contextlib.contextmanager
def driver_left_alone() -> Iterator[None]:
    """A context in which ``torch.cuda.is_available`` is ``may_use_nvidia``, which leaves a process that can be forked.

    For the import of modules that ask. Nothing is changed where torch is built for AMD's GPUs.
    """
    if torch.version.hip:
        yield
        return
    asks = torch.cuda.is_available
    torch.cuda.is_available = may_use_nvidia
    try:
        yield
    finally:
        torch.cuda.is_available = asks
