"""A run for tensors that are not aligned, made at its first call: most programs have no such tensor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from ..artifact import Built, Signature
from ..device import Device
from ..errors import NotReadyError
from ..implementation import Implementation, Run, Tensors
from ..problem import Problem
from ..space import Config


class MisalignedRun:
    """A run that ``make()`` makes at its first call. Raises NotReadyError if that is during a capture."""

    def __init__(self, name: str, make: Callable[[], Run]) -> None:
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._name = name
        self._make = make

    def __call__(self, outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
        if self._run is None:
            with self._lock:
                self._run = self._run or self._made()
        self._run(outputs, arguments, scratch)

    def _made(self) -> Run:
        if torch.cuda.is_current_stream_capturing():
            raise NotReadyError(
                f"{self._name}: tensors are not 16-byte aligned, and nothing can be loaded during a capture",
                hint="call it once with these tensors before capturing",
            )
        return self._make()


def compiled_run(
    implementation: Implementation, problem: Problem, config: Config, device: Device, signature: Signature
) -> Run:
    variants = implementation.variants(problem, config, device, signature)
    artifacts = tuple(implementation.compile(variant, device.target) for variant in variants)
    return implementation.bind(problem, config, device, Built(signature, artifacts))
