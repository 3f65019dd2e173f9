"""Captures launches as a CUDA graph; a capture that fails leaves nothing behind."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import torch

from ...errors import in_a_line
from .samplers import Enqueue, no_collection

# bound at import, so that a candidate's later patch is not called
_replay = torch.cuda.CUDAGraph.replay

_MOST_SHOWN = 300

_THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: work of other threads does not spoil the capture."""


class CaptureError(Exception):
    """The launches cannot be captured; they may be right otherwise."""


def try_capture(launch: Enqueue, device: torch.device) -> None:
    """Capture a launch and forget it; raises CaptureError where that is impossible.

    By the driver's own calls: when a capture of torch's fails, its allocator goes on as if it were still capturing.
    """
    driver = cuda_driver()
    if driver is None:
        return
    stream = _stream(device)
    handle, graph = ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p()
    fault = ""
    with no_collection(), torch.cuda.stream(stream):
        if driver.cuStreamBeginCapture_v2(handle, _THREAD_LOCAL):
            _stream.cache_clear()
            raise CaptureError("the driver does not begin a capture")
        try:
            launch()
        except Exception as raised:  # a stranger's launch; it ran outside of a capture
            # the text only: the traceback would keep the launch's tensors alive
            fault = in_a_line(raised)[:_MOST_SHOWN]
        finally:
            code = driver.cuStreamEndCapture(handle, ctypes.byref(graph))
            if graph:
                driver.cuGraphDestroy(graph)
    if fault or code:
        raise CaptureError(fault or f"the driver refuses the capture (CUDA error {code})")


class Graph:
    """A captured graph of torch's: memory that the launches allocate lives as long as the graph."""

    def __init__(self, enqueue: Callable[[], object], device: torch.device) -> None:
        """Capture the launches of ``enqueue``; raises CaptureError, and then leaves torch's state as it was."""
        self._graph = torch.cuda.CUDAGraph()
        stream = _stream(device)
        current = torch.cuda.current_stream(device)
        stream.wait_stream(current)
        pool = torch.cuda.graph_pool_handle()
        fault = ""
        try:
            _capture(self._graph, enqueue, stream, pool)
        except Exception as raised:  # torch's, or a stranger's that ran outside of a capture
            fault = in_a_line(raised.__context__ or raised)[:_MOST_SHOWN]
        if fault:
            _clean_up(self._graph, pool, device)
            raise CaptureError(fault)
        current.wait_stream(stream)
        self.replay: Callable[[], None] = partial(_replay, self._graph)

    def close(self) -> None:
        self._graph.reset()


def _capture(graph: Any, enqueue: Callable[[], object], stream: torch.cuda.Stream, pool: Any) -> None:
    # not torch.cuda.graph: it collects garbage and empties the allocator's cache, 0.1 s each time
    with no_collection(), torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            enqueue()
        finally:
            # a launch may have left another stream current, and a capture ends only on its own
            with torch.cuda.stream(stream):
                graph.capture_end()


def _clean_up(graph: Any, pool: Any, device: torch.device) -> None:
    """Undo the effects that torch leaves when ``capture_end`` fails.

    Its allocator still serves the graph's pool, the pool is never released, and the default generator counts as
    captured until some capture ends well.
    """
    if _has_ended(graph):
        graph.reset()
        return
    index = torch.cuda.current_device() if device.index is None else device.index
    for undo in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
        # torch 2.15 has done the first itself
        with suppress(RuntimeError):
            undo(index, pool)
    graph.reset()
    # the stream may still be capturing
    _stream.cache_clear()
    good, cell = torch.cuda.CUDAGraph(), torch.zeros((), device=device)
    _capture(good, cell.zero_, _stream(device), torch.cuda.graph_pool_handle())
    good.reset()


def _has_ended(graph: Any) -> bool:
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


@lru_cache(maxsize=16)
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One capturing stream a device: cuBLAS keeps a workspace of 32 MiB for every stream it has seen."""
    return torch.cuda.Stream(device)


@lru_cache(maxsize=1)
def cuda_driver() -> Any | None:
    """CUDA's driver, None where there is none."""
    if torch.version.hip:
        return None
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    found.cuStreamBeginCapture_v2.argtypes = [ctypes.c_void_p, ctypes.c_int]
    found.cuStreamEndCapture.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
    found.cuGraphDestroy.argtypes = [ctypes.c_void_p]
    return found
