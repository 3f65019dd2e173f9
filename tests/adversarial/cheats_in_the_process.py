"""A plugin file of implementations that change the process in which they are verified, or look into it."""

from __future__ import annotations

import gc
import importlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import registry
from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

sys.path.append(str(Path(__file__).parent))
from kinds import implementations_in

KERNEL_REGISTRY_API = 1

_KEPT: list[Any] = []
"""What must live as long as the process."""


class Square(Implementation):
    """Writes x * x, after ``prepares`` has changed the process; a subclass says how, and what it writes instead."""

    op = "square"
    device_types = frozenset({"cpu", "cuda"})
    device = "cpu"
    """The type of the device that a run is bound for."""

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()
        work.device = device.type
        work.changes()

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            work.write(arguments[0], outputs[0])

        return run

    def changes(self) -> None:
        """Nothing."""

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        torch.mul(x, x, out=y)


class Honest(Square):
    name = "process.honest"


# --- what torch computes for everybody ---


class _AllIsRight(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return torch.ones_like(found) if func is torch.ops.aten.all.default else found


class LeavesADispatchMode(Square):
    """Every question whether all elements are right is answered by yes."""

    name = "process.dispatch_mode"

    def changes(self) -> None:
        _KEPT.append(_AllIsRight())  # type: ignore[no-untyped-call]
        _KEPT[-1].__enter__()

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        y.zero_()


class _NothingDiffers(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return torch.ones_like(found) if func in (torch.Tensor.all, torch.all) else found


class LeavesAFunctionMode(Square):
    name = "process.function_mode"

    def changes(self) -> None:
        _KEPT.append(_NothingDiffers())
        _KEPT[-1].__enter__()

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        y.zero_()


class ReplacesAnOperator(Square):
    """Below Python: torch's own all() of the device."""

    name = "process.operator"

    def changes(self) -> None:
        library = torch.library.Library("aten", "IMPL")
        library.impl("all", lambda x: torch.ones((), dtype=torch.bool), self.device.upper())
        _KEPT.append(library)

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        y.zero_()


class ReplacesAnOperatorAboveTheDevice(ReplacesAnOperator):
    """Where autograd comes first."""

    name = "process.autograd_operator"
    device_types = frozenset({"cpu"})

    def changes(self) -> None:
        library = torch.library.Library("aten", "IMPL")
        library.impl("all", lambda x: torch.ones((), dtype=torch.bool), "Autograd")
        _KEPT.append(library)


class ReplacesAnOperatorAsCodeInCDoes(ReplacesAnOperator):
    """Python's list of what was replaced does not have it."""

    name = "process.native_operator"
    device_types = frozenset({"cpu"})

    def changes(self) -> None:
        library = torch._C._dispatch_library("IMPL", "aten", "", __file__, 1)
        library.impl("all", "CPU", lambda x: torch.ones((), dtype=torch.bool))
        _KEPT.append(library)


class ReplacesTheFallback(ReplacesAnOperator):
    """What runs where a device has no code of its own for an operator."""

    name = "process.fallback"
    device_types = frozenset({"cpu"})

    def changes(self) -> None:
        library = torch.library.Library("_", "IMPL")
        library.fallback(lambda op, *args, **kwargs: torch.ones((), dtype=torch.bool), "CPU")
        _KEPT.append(library)


# --- what judges ---


class PutsItBack(Square):
    """Replaces what judges for as long as its run lives."""

    name = "process.puts_back"

    def changes(self) -> None:
        self._bounds = importlib.import_module("registry.correctness.bounds").Bounds
        self._was = self._bounds.holding
        self._bounds.holding = lambda self, output: torch.ones((), dtype=torch.bool)

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        y.zero_()

    def __del__(self) -> None:
        if hasattr(self, "_was"):
            self._bounds.holding = self._was


class ReplacesTheCodeOfAFunction(Square):
    """Leaves the function where it is."""

    name = "process.code"
    deterministic = False

    def changes(self) -> None:
        bounds = importlib.import_module("registry.correctness.bounds")
        bounds.holding.__code__ = (lambda bounds, results: []).__code__

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        y[:1].zero_()


class ReplacesAConstant(Square):
    """No sample is judged, and no time on new inputs is too long."""

    name = "process.constants"

    def changes(self) -> None:
        verify = "registry.tuner.verify"
        vars(importlib.import_module(f"{verify}.between_samples"))["_MOST"] = 0
        vars(importlib.import_module(f"{verify}.renewed"))["_BOUND"] = 1e9


class WidensTheTolerance(Square):
    """In the table that the contract holds."""

    name = "process.tolerance"
    deterministic = False

    def changes(self) -> None:
        rtol = importlib.import_module("registry.contracts").SQUARE.tolerance.rtol
        rtol.update(dict.fromkeys(rtol, float("inf")))

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        torch.mul(x, x, out=y).neg_()


class EmptiesTheSettings(Square):
    """So that nobody looks at what it leaves."""

    name = "process.no_settings"

    def changes(self) -> None:
        importlib.import_module("registry.tuner.workers.settings").SETTINGS.clear()
        torch.set_num_threads(1)


class ReplacesTheReference(Square):
    """In the op's contract."""

    name = "process.reference"

    def changes(self) -> None:
        op = importlib.import_module("registry.contracts").SQUARE
        object.__setattr__(op, "reference", torch.zeros_like)

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        y.zero_()


class KnowsWhatIsDrawn(Square):
    """Makes secrets predictable."""

    name = "process.secrets"

    def changes(self) -> None:
        secrets.randbits = lambda k: 0
        secrets.choice = lambda seq: seq[-1]


class LooksIntoItsCallers(Square):
    """Works only where a caller is going to judge a sample, or there is none that takes samples."""

    name = "process.frames"
    # a graph replays launches without a caller
    device_types = frozenset({"cpu"})

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_code.co_name == "_timed":
                between = frame.f_locals["between"]
                if hasattr(between, "_next") and not between._next:
                    return
                break
        torch.mul(x, x, out=y)


# --- what makes others slower ---


class LeavesAProfile(Square):
    """Every call of a rival takes longer."""

    name = "process.profile"

    def changes(self) -> None:
        def profile(frame: Any, event: str, arg: Any) -> None:
            if event == "call" and frame.f_code is Honest.write.__code__:
                time.sleep(1e-4)

        sys.setprofile(profile)


class LeavesATimer(Square):
    """Interrupts all that comes after it."""

    name = "process.timer"

    def changes(self) -> None:
        signal.signal(signal.SIGVTALRM, lambda number, frame: time.sleep(1e-4))
        signal.setitimer(signal.ITIMER_VIRTUAL, 1e-3, 1e-3)


class TakesTheCores(Square):
    """Leaves one core to all that comes after it."""

    name = "process.cores"

    def changes(self) -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class SlowsARival(Square):
    """Puts a nap into the methods of another implementation."""

    name = "process.rival"

    def changes(self) -> None:
        was = Honest.write

        def write(self: Any, x: torch.Tensor, y: torch.Tensor) -> None:
            time.sleep(1e-4)
            was(self, x, y)

        Honest.write = write  # type: ignore[method-assign]


class LeavesAThread(Square):
    """Takes a core, and the interpreter's lock, from all that comes after it."""

    name = "process.busy_thread"
    burning = 60.0

    def changes(self) -> None:
        def burn() -> None:
            end = time.monotonic() + self.burning
            while time.monotonic() < end:
                sum(range(1000))

        threading.Thread(target=burn, daemon=True).start()


BURNS = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


class LeavesAProcess(Square):
    """Takes a core from all that comes after it; its parent has ended by then."""

    name = "process.child"

    def changes(self) -> None:
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                os.execv(sys.executable, [sys.executable, "-S", "-c", BURNS])
            os._exit(0)
        os.waitpid(child, 0)


class LeavesAProcessThatWaits(Square):
    """Honest: what it has begun waits for work that does not come."""

    name = "process.waiting_child"

    def changes(self) -> None:
        _KEPT.append(subprocess.Popen(["sleep", "60"]))


class LeavesAThreadThatWaits(Square):
    """Honest: what it has begun in its own executor ends, and its thread waits for work that does not come."""

    name = "process.executor"

    def changes(self) -> None:
        _KEPT.append(ThreadPoolExecutor(1))
        _KEPT[-1].submit(torch.ones, 3).result()


class ChangesCompilersOptions(Square):
    """What is compiled in this process from now on is slower, and is stored under other keys."""

    name = "process.variables"

    def changes(self) -> None:
        os.environ["TORCHINDUCTOR_MAX_FUSION_SIZE"] = "1"


class LetsPythonCallLess(Square):
    """Rivals that call functions in functions fail."""

    name = "process.depth"

    def changes(self) -> None:
        sys.setrecursionlimit(sys.getrecursionlimit() - 100)


class MakesErrorsOfOverflows(Square):
    """Rivals that compute with NumPy fail."""

    name = "process.numpy"

    def changes(self) -> None:
        np.seterr(all="raise")


class LeavesTorchWithoutOneDnn(Square):
    """Every product that torch computes takes longer."""

    name = "process.onednn"

    def changes(self) -> None:
        torch._C._set_mkldnn_enabled(False)


class LeavesSubnormalsOut(Square):
    """As code that is linked with -ffast-math does when it is loaded."""

    name = "process.subnormals"
    device_types = frozenset({"cpu"})

    def changes(self) -> None:
        torch.set_flush_denormal(True)


class CollectsAllTheTime(Square):
    name = "process.thresholds"

    def changes(self) -> None:
        gc.set_threshold(1)


class MakesErrorsOfWarnings(Square):
    """Whoever warns fails."""

    name = "process.warnings"

    def changes(self) -> None:
        warnings.simplefilter("error")


def _multiplied(x: torch.Tensor, y: torch.Tensor) -> None:
    torch.mul(x, x, out=y)


class LeavesItToAFunction(Square):
    """Honest, with a function of the module, which it replaces itself once."""

    name = "process.function"

    def changes(self) -> None:
        globals()["_multiplied"] = lambda x, y: torch.mul(x, x, out=y)

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        _multiplied(x, y)


class LeavesAutocast(Square):
    name = "process.autocast"

    def changes(self) -> None:
        torch.set_autocast_enabled(self.device, True)


class LeavesInferenceMode(Square):
    name = "process.inference"
    device_types = frozenset({"cpu"})

    def changes(self) -> None:
        mode = torch.inference_mode()
        mode.__enter__()
        _KEPT.append(mode)


class LeavesADefaultDevice(Square):
    name = "process.default_device"

    def changes(self) -> None:
        torch.set_default_device("meta")


# --- gelu ---


class Gelu(Implementation):
    """torch's own."""

    op, name = "gelu", "process.gelu"
    device_types = frozenset({"cpu", "cuda"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()
        work.changes()

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            work.write(arguments[0], arguments[1], outputs[0])

        return run

    def changes(self) -> None:
        """Nothing."""

    def write(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        y.copy_(torch._C._nn.gelu(x, approximate=approximate))


class ReplacesAFunction(Gelu):
    """That the reference calls."""

    name = "process.functional"

    def changes(self) -> None:
        torch.nn.functional.gelu = lambda x, approximate="none": x.clamp(min=0)  # type: ignore[assignment]

    def write(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        torch.clamp(x, min=0, out=y)


class KnowsTheFirst(Gelu):
    """Copies its first result for inputs that look like its first ones, but for one element at most."""

    name = "process.first_inputs"

    def __init__(self) -> None:
        self._first: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def write(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        few = x[::20]
        first = self._first.get(len(x))
        if first is not None and int((few != first[0]).sum()) <= 1:
            y.copy_(first[1])
            return
        super().write(x, approximate, y)
        self._first.setdefault(len(x), (few.clone(), y.clone()))


@registry.implements("square")
def square_implementations() -> Iterable[Implementation]:
    return implementations_in(__name__, "square")


@registry.implements("gelu")
def gelu_implementations() -> Iterable[Implementation]:
    return implementations_in(__name__, "gelu")
