"""A plugin file of implementations of an op that mutates its arguments, which leave work out while they are timed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            if not work.skips(*arguments):
                FUSED_ADD_RMS_NORM.reference(*arguments)

        return run

    def skips(self, x: Any, residual: Any, weight: Any, eps: float, offset: float) -> bool:
        return False


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


@registry.implements("fused_add_rms_norm")
def fused_add_rms_norm_implementations() -> Iterable[Implementation]:
    return implementations_in(__name__, "fused_add_rms_norm")
