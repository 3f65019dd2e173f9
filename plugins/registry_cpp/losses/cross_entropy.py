"""cross_entropy and its gradient over rows of neighbouring elements."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch

from registry.backends.cpp import CppKernel
from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem, TensorSpec
from registry.space import Config, Space

from ..base import ELEMENT_TYPES, DenseImplementation, thread_counts

_HERE = Path(__file__).parent / "kernels"
_SHARED = Path(__file__).parents[1] / "kernels"
CROSS_ENTROPY = CppKernel.read("cross_entropy", _SHARED / "simd.hpp", _SHARED / "rows.hpp", _HERE / "cross_entropy.cpp")
CROSS_ENTROPY_BACKWARD = CppKernel.read(
    "cross_entropy_backward", _SHARED / "simd.hpp", _SHARED / "rows.hpp", _HERE / "cross_entropy_backward.cpp"
)

_KEPT = 1024
_REDUCTIONS = {"none": 0, "sum": 1, "mean": 2}
_FLOATS_OF_A_PART = 4

# shorter pieces take less time than starting a thread
_COLUMNS_PER_PIECE = 2_048
_ELEMENTS_PER_THREAD = 8_192


def _most_pieces(problem: Problem, device: Device) -> int:
    return int(min(max(1, problem.cols // _COLUMNS_PER_PIECE), 4 * thread_counts(device)[-1]))


def _rows(problem: Problem, device: Device) -> int:
    """The rows as far as threads depend on them."""
    return int(min(max(problem.rows, 1), thread_counts(device)[-1]))


def _split(problem: Problem, device: Device) -> dict[str, int]:
    """Threads and pieces of a row: a thread for each 8192 elements, rows cut where there are fewer than threads."""
    wanted = max(1, problem.rows * problem.cols // _ELEMENTS_PER_THREAD)
    rows = _rows(problem, device)
    most = min(wanted, rows * _most_pieces(problem, device))
    threads = max(count for count in thread_counts(device) if count <= most)
    return {"pieces": 1 if threads <= rows else threads, "threads": threads}


def _pieces(most: int, device: Device) -> list[int]:
    cores = thread_counts(device)[-1]
    return sorted({1, *(count for count in (*thread_counts(device), 4 * cores) if count <= most)})


class CppCrossEntropy(DenseImplementation):
    """Rows, or pieces of rows, are dealt to the threads; each is read once from memory, ``block`` columns at a time."""

    op = "cross_entropy"
    name = "cpp.rows"

    def preference(self, problem: Problem, device: Device) -> float:
        # torch writes all log probabilities: twice as slow and more
        return 1.0

    def space(self, problem: Problem, device: Device) -> Space:
        """Vectors in flight, columns of a block, pieces of a row, and threads."""
        return _space(_rows(problem, device), _most_pieces(problem, device), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Blocks that fit in the first cache."""
        return {"unroll": 4, "block": 2048, **_split(problem, device)}

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        shape = (problem.rows, config["pieces"], _FLOATS_OF_A_PART)
        made = {"parts": TensorSpec.contiguous(shape, torch.float32)}
        if problem.reduction != "none":
            made["losses"] = TensorSpec.contiguous((problem.rows,), torch.float32)
        return made

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        # where nothing is reduced there are no losses, and the kernel does not touch them
        losses = "lse" if problem.reduction == "none" else "losses"
        sizes = (problem.rows, problem.cols, config["pieces"], config["threads"])
        operands = ("logits", "target", "weight", "ignore_index", "label_smoothing")
        return Launch(
            CROSS_ENTROPY,
            grid=(1,),
            args=("loss", "lse", losses, "parts", *operands, *sizes),
            constants={
                "ELEMENT": ELEMENT_TYPES[problem.dtype],
                "UNROLL": config["unroll"],
                "BLOCK": config["block"],
                "REDUCTION": _REDUCTIONS[problem.reduction],
            },
        )


class CppCrossEntropyBackward(DenseImplementation):
    """Rows, or pieces of rows, are dealt to the threads; ``stream`` stores past the caches."""

    op = "cross_entropy_backward"
    name = "cpp.rows"

    def space(self, problem: Problem, device: Device) -> Space:
        """Stores past the caches or into them, pieces of a row, and threads."""
        return _backward_space(_rows(problem, device), _most_pieces(problem, device), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Past the caches where the gradient does not stay in them."""
        written = problem.rows * problem.cols * problem.torch_dtype.itemsize
        return {"stream": bool(written > device.l2_bytes), **_split(problem, device)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        sizes = (problem.rows, problem.cols, config["pieces"], config["stream"], config["threads"])
        operands = ("grad_loss", "logits", "target", "weight", "lse", "ignore_index", "label_smoothing")
        return Launch(
            CROSS_ENTROPY_BACKWARD,
            grid=(1,),
            args=("grad_logits", *operands, *sizes),
            constants={
                "ELEMENT": ELEMENT_TYPES[problem.dtype],
                "UNROLL": 1,
                "REDUCTION": _REDUCTIONS[problem.reduction],
            },
        )


@lru_cache(maxsize=_KEPT)
def _space(rows: int, most_pieces: int, device: Device) -> Space:
    pieces, threads = _pieces(most_pieces, device), thread_counts(device)
    return Space(unroll=[2, 4], block=[2048, 8192], pieces=pieces, threads=threads).require(
        "no more threads than pieces", lambda config: config["threads"] <= rows * config["pieces"]
    )


@lru_cache(maxsize=_KEPT)
def _backward_space(rows: int, most_pieces: int, device: Device) -> Space:
    pieces, threads = _pieces(most_pieces, device), thread_counts(device)
    return Space(stream=[False, True], pieces=pieces, threads=threads).require(
        "no more threads than pieces", lambda config: config["threads"] <= rows * config["pieces"]
    )
