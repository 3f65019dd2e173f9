"""A plugin file of squares that are wrong in ways that only a GPU offers: on other streams, and in captured graphs."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

KERNEL_REGISTRY_API = 1


@cache
def side_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


class Square(Implementation):
    """Writes x * x; a subclass says how it does not."""

    op = "square"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        cheat = type(self)()

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            cheat.write(arguments[0], outputs[0])

        return run

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        torch.mul(x, x, out=y)


class SkipsByAChecksum(Square):
    """Leaves the output alone, also in a graph, where these very inputs came last and it does not look poisoned."""

    name = "stream.checksum"

    def __init__(self) -> None:
        self._places: dict[tuple[int, int, int], int] = {}
        # filled before a launch is captured: a graph would fill it again at each replay
        self._sums = torch.full((4096,), torch.nan, dtype=torch.float64, device="cuda")

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        place = self._places.setdefault((x.data_ptr(), y.data_ptr(), len(x)), len(self._places))
        last, total = self._sums[place], x.sum(dtype=torch.float64)
        y.copy_(torch.where((last == total) & ~y[0].isnan(), y, x * x))
        last.copy_(total)


class OnAnotherStream(Square):
    """Waits for nobody, and nobody waits for it."""

    name = "stream.other"

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.cuda.stream(side_stream()):
            torch.mul(x, x, out=y)


class NotWaitedFor(Square):
    """Reads its inputs when they are there, and returns before its output is."""

    name = "stream.not_waited_for"

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        side_stream().wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream()):
            torch.cuda._sleep(200_000)
            torch.mul(x, x, out=y)


class OnTheDefaultStream(Square):
    """As a launch without a stream does."""

    name = "stream.default"

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.cuda.stream(torch.cuda.default_stream()):
            torch.mul(x, x, out=y)


class LeavesItsOwnCurrent(Square):
    """Whatever comes next comes on its stream."""

    name = "stream.left"

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        side_stream().wait_stream(torch.cuda.current_stream())
        torch.cuda.set_stream(side_stream())
        torch.mul(x, x, out=y)


class WaitsAtFirst(Square):
    """Waits for its stream on the host in its first calls; later it returns at once, and starts nothing while its
    stream is busy."""

    name = "stream.waits_at_first"
    # a capture forbids to ask how far a stream is
    capturable = False
    # verification's; the next call is the first that is timed
    calls = 6

    def __init__(self) -> None:
        self._calls = 0

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self._calls += 1
        waits = self._calls <= self.calls
        if not waits and not side_stream().query():
            return
        side_stream().wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream()):
            if not waits:
                # half a second: measuring ends before
                torch.cuda._sleep(1_000_000_000)
            torch.mul(x, x, out=y)
        if waits:
            side_stream().synchronize()


class ForkedAndJoined(Square):
    """Honest: its stream waits, and is waited for."""

    name = "stream.joined"

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        current = torch.cuda.current_stream()
        side_stream().wait_stream(current)
        with torch.cuda.stream(side_stream()):
            torch.mul(x, x, out=y)
        current.wait_stream(side_stream())


class EmptyGraph(Square):
    """Writes nothing while a graph is captured: a replay finds the outputs of earlier launches."""

    name = "stream.empty_graph"

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        if not torch.cuda.is_current_stream_capturing():
            torch.mul(x, x, out=y)


class CountsOnTheDevice(Square):
    """Right for its first launches, those that a graph replays included; then zeros."""

    name = "stream.counts"
    # more than verification and the first look take, fewer than one sample more
    launches = 40

    def __init__(self) -> None:
        self._launched: torch.Tensor | None = None

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        if self._launched is None:
            self._launched = torch.zeros((), dtype=torch.int32, device=x.device)
        self._launched += 1
        torch.mul(x, x, out=y)
        y.mul_(self._launched <= self.launches)


class ReturnsFreedMemory(Square):
    """Right when it returns, but the allocator may give its memory to anybody."""

    name = "stream.freed_memory"
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> torch.Tensor:
            x = arguments[0]
            y = x * x
            address = y.data_ptr()
            del y
            return _tensor_at(address, x)

        return run


class SetsCacheAside(Square):
    """Right, but its inputs may stay in the cache from one launch to the next."""

    name = "stream.cache"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
        ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(6, ctypes.c_size_t(16 << 20))
        return super().bind(problem, config, device, built)


class _Memory:
    """Somebody's device memory, as NumPy's protocol for GPUs describes it."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "<f4",
            "data": (address, False),
            "version": 2,
        }


def _tensor_at(address: int, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(_Memory(address, like.numel()), device=like.device)


@registry.implements("square")
def square_implementations() -> list[Implementation]:
    """All of them."""
    apart = (OnAnotherStream, NotWaitedFor, OnTheDefaultStream, LeavesItsOwnCurrent, WaitsAtFirst, ForkedAndJoined)
    return [
        kind() for kind in (*apart, EmptyGraph, CountsOnTheDevice, SkipsByAChecksum, ReturnsFreedMemory, SetsCacheAside)
    ]
