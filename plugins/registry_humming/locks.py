"""The counters by which blocks of one launch hand on a tile: zero before it, and zero again after it.

Launches that may overlap must not share them. Those on one stream do not overlap, and neither do those of one graph on
one stream; a graph's counters are its own, since it may be replayed beside anything.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import torch

from registry.backends.cuda_stream import current_device, current_stream

COUNT = 2048
"""Counters of a launch, as the library's layers have."""
_GRAPHS = 256
"""Graphs whose counters are made at a time: memory that is zero without a launch in the graph."""


class Locks:
    """The counters of one device."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._mutex = threading.Lock()
        self._of: dict[Hashable, torch.Tensor] = {}
        self._spare: list[torch.Tensor] = []

    def fill(self) -> None:
        """Make counters for graphs to come; not to be called during capture."""
        with self._mutex:
            if len(self._spare) < _GRAPHS // 2:
                made = self._zeros(_GRAPHS)
                # a graph may be replayed on any stream
                torch.cuda.current_stream(self._index).synchronize()
                self._spare += made.unbind()

    def current(self) -> torch.Tensor:
        """The counters of a launch on the current stream, or in the graph that it captures."""
        if current_device() != self._index:
            with torch.cuda.device(self._index):
                return self.current()
        stream = current_stream(self._index)
        if torch.cuda.is_current_stream_capturing():
            return self._captured(stream)
        found = self._of.get(stream)
        if found is None:
            with self._mutex:
                found = self._of.setdefault(stream, self._zeros(1)[0])
        return found

    def _captured(self, stream: int) -> torch.Tensor:
        key = stream, _capture(stream)
        with self._mutex:
            if key not in self._of and self._spare:
                self._of[key] = self._spare.pop()
            found = self._of.get(key)
        # the graph itself sets them to zero, before each launch, where none are left
        return self._zeros(1)[0] if found is None else found

    def _zeros(self, count: int) -> torch.Tensor:
        # a tensor of inference mode could not be written to outside of it
        with torch.inference_mode(False):
            return torch.zeros((count, COUNT), dtype=torch.int32, device=torch.device("cuda", self._index))


@lru_cache(maxsize=64)
def locks_of(index: int) -> Locks:
    """The counters of device ``index``."""
    return Locks(index)


def _capture(stream: int) -> int:
    """The number of the graph that a stream captures."""
    driver: Any = importlib.import_module("cuda.bindings.driver")
    status, _, number, *_ = driver.cuStreamGetCaptureInfo(driver.CUstream(stream))
    if int(status):
        raise RuntimeError(f"cuStreamGetCaptureInfo: {status}")
    return int(number)
