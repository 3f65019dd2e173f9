"""softmax and rms_norm over rows of neighbouring elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import torch

from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem, TensorSpec
from registry.space import Config, Space

from .base import ELEMENT_TYPES, DenseImplementation, kernel, thread_counts

SOFTMAX_KEPT = kernel("softmax_kept", "rows.hpp", "softmax.cpp")
SOFTMAX_TWICE = kernel("softmax_twice", "rows.hpp", "softmax.cpp")
SOFTMAX_COLUMNS = kernel("softmax_columns", "rows.hpp", "softmax.cpp")
RMS_NORM = kernel("rms_norm", "rows.hpp", "rms_norm.cpp")

LANES = 16

_KEPT = 1024

# shorter pieces take less time than starting a thread
COLUMNS_PER_PIECE = 2_048
ELEMENTS_PER_THREAD = 8_192


def _threads(problem: Problem, device: Device) -> int:
    wanted = max(1, min(problem.rows, problem.rows * problem.cols // ELEMENTS_PER_THREAD))
    return max(count for count in thread_counts(device) if count <= wanted)


def _exceeds_cache(problem: Problem, device: Device) -> bool:
    return bool(2 * problem.rows * problem.cols * problem.torch_dtype.itemsize > 2 * device.l2_bytes)


def _pieces(config: Config) -> int:
    return int(config["threads"] * config["pieces_per_thread"])


class SoftmaxRows(DenseImplementation):
    """Rows are dealt to the threads; each is read for its maximum, its sum and its result.

    ``recompute`` takes the exponential twice instead of keeping a row of fp32; ``stream`` stores past the caches.
    """

    op = "softmax"
    name = "cpp.rows"

    def space(self, problem: Problem, device: Device) -> Space:
        return _softmax_space(min(max(problem.rows, 1), thread_counts(device)[-1]), device)

    def default(self, problem: Problem, device: Device) -> Config:
        stream = _exceeds_cache(problem, device)
        return {"unroll": 4, "recompute": False, "stream": stream, "threads": _threads(problem, device)}

    def preference(self, problem: Problem, device: Device) -> float:
        return -1.0 if problem.rows >= device.multiprocessors or problem.cols < 2 * COLUMNS_PER_PIECE else -3.0

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        if config["recompute"]:
            return {}
        pitch = -(-problem.cols // LANES) * LANES
        return {"kept": TensorSpec.contiguous((config["threads"], pitch), torch.float32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        tensors = ("y", "x") if config["recompute"] else ("y", "x", "kept")
        return Launch(
            SOFTMAX_TWICE if config["recompute"] else SOFTMAX_KEPT,
            grid=(1,),
            args=(*tensors, problem.rows, problem.cols, config["stream"], config["threads"]),
            constants={"ELEMENT": ELEMENT_TYPES[problem.dtype], "UNROLL": config["unroll"]},
        )


class SoftmaxColumns(DenseImplementation):
    """The columns of a row are dealt to the threads in pieces: for fewer rows than cores."""

    op = "softmax"
    name = "cpp.columns"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.cols < 2 * COLUMNS_PER_PIECE:
            yield f"a row of {problem.cols} is too short to share (at least {2 * COLUMNS_PER_PIECE})"
        if problem.rows > 16 * device.multiprocessors:
            yield f"{problem.rows} rows keep {device.multiprocessors} cores busy without sharing rows"

    def space(self, problem: Problem, device: Device) -> Space:
        return _columns_space(min(problem.cols // COLUMNS_PER_PIECE, 4 * thread_counts(device)[-1]), device)

    def default(self, problem: Problem, device: Device) -> Config:
        wanted = max(1, problem.cols // COLUMNS_PER_PIECE)
        threads = max(count for count in thread_counts(device) if count <= wanted)
        return {"unroll": 4, "pieces_per_thread": 1, "threads": threads}

    def preference(self, problem: Problem, device: Device) -> float:
        return -2.0

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return Launch(
            SOFTMAX_COLUMNS,
            grid=(1,),
            args=("y", "x", problem.rows, problem.cols, _pieces(config), config["threads"]),
            constants={"ELEMENT": ELEMENT_TYPES[problem.dtype], "UNROLL": config["unroll"]},
        )


class CppRmsNorm(DenseImplementation):
    """Rows are dealt to the threads; ``stream`` stores past the caches."""

    op = "rms_norm"
    name = "cpp.rows"
    mixed = True

    def space(self, problem: Problem, device: Device) -> Space:
        return _norm_space(min(problem.rows, thread_counts(device)[-1]), device)

    def default(self, problem: Problem, device: Device) -> Config:
        return {"unroll": 4, "stream": _exceeds_cache(problem, device), "threads": _threads(problem, device)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        element = ELEMENT_TYPES[problem.dtype]
        return Launch(
            RMS_NORM,
            grid=(1,),
            args=("y", "x", "weight", "eps", problem.rows, problem.cols, config["stream"], config["threads"]),
            constants={
                "ELEMENT": element,
                "WEIGHT": "float" if problem.traits["mixed"] else element,
                "UNROLL": config["unroll"],
            },
        )


@lru_cache(maxsize=_KEPT)
def _softmax_space(most_threads: int, device: Device) -> Space:
    return Space(unroll=[2, 4], recompute=[False, True], stream=[False, True], threads=thread_counts(device)).require(
        "no more threads than rows", lambda config: config["threads"] <= most_threads
    )


@lru_cache(maxsize=_KEPT)
def _columns_space(most_pieces: int, device: Device) -> Space:
    return Space(unroll=[2, 4], pieces_per_thread=[1, 4], threads=thread_counts(device)).require(
        f"at least {COLUMNS_PER_PIECE} columns a piece", lambda config: _pieces(config) <= most_pieces
    )


@lru_cache(maxsize=_KEPT)
def _norm_space(most_threads: int, device: Device) -> Space:
    return Space(unroll=[1, 4], stream=[False, True], threads=thread_counts(device)).require(
        "no more threads than rows", lambda config: config["threads"] <= most_threads
    )
