"""A plugin file with one implementation that misbehaves as its config says. Loaded by worker processes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config, Space

KERNEL_REGISTRY_API = 1


def spin() -> None:
    while True:
        pass


def say_nonsense(text: bytes) -> None:
    """Writes to every socket there is, as code that mistakes a descriptor does."""
    for path in list(Path("/proc/self/fd").iterdir()):
        try:
            if stat.S_ISSOCK(os.fstat(int(path.name)).st_mode):
                os.write(int(path.name), text)
        except OSError:
            continue


def say_half() -> None:
    say_nonsense(b'{"id": 1, "outc')
    os._exit(1)


def interrupt_everything() -> None:
    """Ignores what can be ignored, then never returns."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    spin()


def leave_children() -> None:
    """A child in the group and one in a session of its own, both holding every descriptor; then dies."""
    for start in (os.getpid, os.setsid):
        if os.fork() == 0:
            start()
            time.sleep(3600)
    os.abort()


daemons = 0


def daemonise() -> None:
    """Leaves a process behind that nobody knows, twice removed, and goes on; at each of its first calls."""
    global daemons  # noqa: PLW0603
    daemons += 1
    if daemons > 3:
        return
    source = "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(3600)"
    subprocess.run([sys.executable, "-S", "-c", source], check=True)


def print_megabytes() -> None:
    for _ in range(40):
        os.write(1, b"x" * 65536)
        os.write(2, b"y" * 65536)


def fill_memory() -> None:
    held = []
    while True:
        held.append(bytearray(64 << 20))


def hoard() -> None:
    """Wants all of the GPU's memory."""
    held = []
    while True:
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))


def poison() -> None:
    """Breaks the CUDA context: an index that is out of bounds."""
    torch.zeros(4, device="cuda")[torch.full((1,), 1 << 20, device="cuda")]
    torch.cuda.synchronize()


def hang_device() -> None:
    """A kernel that never ends, as far as anybody waits."""
    torch.cuda._sleep(1 << 50)
    torch.cuda.synchronize()


def raises(fault: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise fault

    return act


FAULTS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "abort": os.abort,
    "exit": lambda: os._exit(0),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stops": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "spins": spin,
    "deaf": interrupt_everything,
    "sleeps": lambda: time.sleep(3600),
    "system_exit": raises(SystemExit(0)),
    "interrupt": raises(KeyboardInterrupt()),
    "generator_exit": raises(GeneratorExit()),
    "raises": raises(ValueError("not today")),
    "closes": lambda: os.closerange(0, 4096),
    "nonsense": lambda: say_nonsense(b"no message at all\n"),
    "half": say_half,
    "list": lambda: say_nonsense(b"[]\n"),
    "wrong": lambda: say_nonsense(b'{"id": 1, "outcome": {"status": 3}}\n'),
    "children": leave_children,
    "daemon": daemonise,
    "prints": print_megabytes,
    "fills": fill_memory,
    "asks": lambda: torch.empty(1 << 50, dtype=torch.uint8),
    "moves": lambda: os.chdir("/"),
    "hoards": hoard,
    "poisons": poison,
    "hangs_device": hang_device,
}


class Faulty(Implementation):
    """Writes x * x after doing what its config says."""

    op = "square"
    name = "faulty.any"
    device_types = frozenset({"cpu", "cuda"})

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(fault=list(FAULTS), number=list(range(64)))

    def default(self, problem: Problem, device: Device) -> Config:
        return {"fault": "none", "number": 0}

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            FAULTS[config["fault"]]()
            torch.mul(arguments[0], arguments[0], out=outputs[0])

        return run


@registry.implements("square")
def square_implementations() -> list[Implementation]:
    """The one."""
    return [Faulty()]
