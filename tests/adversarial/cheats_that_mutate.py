"""A plugin file of implementations of an op that mutates its arguments, which leave work out while they are timed."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.contracts import FUSED_ADD_RMS_NORM
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

sys.path.append(str(Path(__file__).parent))
from kinds import implementations_in

KERNEL_REGISTRY_API = 1


class Norm(Implementation):
    """The op's own reference, unless ``skips`` says that it is not needed."""

    op = "fused_add_rms_norm"
    device_types = frozenset({"cpu", "cuda"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            if not work.skips(*arguments):
                FUSED_ADD_RMS_NORM.reference(*arguments)
            work.end()

        return run

    def skips(self, x: Any, residual: Any, weight: Any, eps: float, offset: float) -> bool:
        return False

    def end(self) -> None:
        """Called when a call ends."""


class Honest(Norm):
    name = "mutate.honest"


class WithoutCollection(Norm):
    """While something is timed, Python collects no garbage."""

    name = "mutate.collection"

    def skips(self, x: Any, residual: Any, weight: Any, eps: float, offset: float) -> bool:
        return not gc.isenabled()


class LooksAtItsCallers(Norm):
    """Who times is among the callers."""

    name = "mutate.callers"
    # on a GPU samples replay what was captured before, and call nobody
    device_types = frozenset({"cpu"})

    def skips(self, x: Any, residual: Any, weight: Any, eps: float, offset: float) -> bool:
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_code.co_name == "take":
                return True
        return False


class LeavesOutTheResidual(LooksAtItsCallers):
    """While it is timed it writes the norm alone."""

    name = "mutate.residual"

    def skips(self, x: Any, residual: Any, weight: Any, eps: float, offset: float) -> bool:
        if super().skips(x, residual, weight, eps, offset):
            FUSED_ADD_RMS_NORM.reference(x, residual.clone(), weight, eps, offset)
            return True
        return False


class SkipsEveryOtherCall(WithoutCollection):
    """On each of the arguments, while something is timed."""

    name = "mutate.every_other"

    def __init__(self) -> None:
        self._calls: Counter[int] = Counter()

    def skips(self, x: Any, residual: Any, weight: Any, eps: float, offset: float) -> bool:
        self._calls[x.data_ptr()] += 1
        return self._calls[x.data_ptr()] % 2 == 0 and super().skips(x, residual, weight, eps, offset)


class SkipsWhatLooksAsLastTime(WithoutCollection):
    """While something is timed it leaves alone what it knows, but no argument comes again."""

    name = "mutate.as_last_time"
    device_types = frozenset({"cpu"})

    def __init__(self) -> None:
        self._known: dict[int, torch.Tensor] = {}

    def skips(self, x: Any, residual: Any, weight: Any, eps: float, offset: float) -> bool:
        seen = torch.cat((x, residual)).sort().values
        known, self._known[x.data_ptr()] = self._known.get(x.data_ptr()), seen
        knows = known is not None and torch.equal(known, seen)
        return knows and super().skips(x, residual, weight, eps, offset)


class WorksAfterAPause(Norm):
    """Calls right after another are those of a sample."""

    name = "mutate.after_a_pause"
    device_types = frozenset({"cpu"})

    def __init__(self) -> None:
        self._ended = 0.0

    def skips(self, x: Any, residual: Any, weight: Any, eps: float, offset: float) -> bool:
        return time.perf_counter() - self._ended < 20e-6 and not gc.isenabled()

    def end(self) -> None:
        self._ended = time.perf_counter()


@registry.implements("fused_add_rms_norm")
def fused_add_rms_norm_implementations() -> Iterable[Implementation]:
    return implementations_in(__name__, "fused_add_rms_norm")
