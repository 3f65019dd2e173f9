"""The gradients of rms_norm over rows that a block holds, loaded ahead by the copy engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.cuda import CudaImplementation, CudaKernel, read_source, shared_limit

from .number import C_TYPES, number_reasons

_ROWS = read_source(
    f"{__package__}.kernels", "number.cuh", "cluster.cuh", "row.cuh", "tensor_core.cuh", "warpgroup.cuh",
    "rms_norm_backward.cu",
)  # fmt: skip
_SUMS = read_source(f"{__package__}.kernels", "number.cuh", "sum_partial.cu")
_VECTOR = 16
_SHORTEST, _LONGEST = 2048, 16384
_MOST_OWN = 16
"""Columns of a thread, of which it holds a sum each in float32."""
_REGISTERS_AT_ONCE = 65536
_STATIC = 2048
"""Shared memory of a block beside its rows: sums of its warps, what the driver keeps."""
_BARRIERS = 128
_SUM_WARPS, _SUM_COLUMNS = 16, 32
"""Of a block that adds up the blocks' sums."""
_KEPT = 1024


class StagedRmsNormBackward(CudaImplementation):
    """Blocks stay and take whole rows, read once; each sums up the weight's gradient over its rows.

    threads   of a block
    blocks    of a multiprocessor
    stages    rows of a block that are there or on their way
    """

    op = "rms_norm_backward"
    name = "cuda.staged"
    source = _ROWS + _SUMS

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from number_reasons(problem)
        if problem.dtype not in C_TYPES:
            return
        if device.type == "cuda" and device.capability[0] < 9:
            yield f"the copy engine is of compute capability 9.0, this GPU has {'.'.join(map(str, device.capability))}"
        if not problem.traits["aligned"]:
            yield f"tensors do not begin at multiples of {_VECTOR} bytes"
        if problem.cols * problem.torch_dtype.itemsize % _VECTOR:
            yield f"a row of {problem.cols} {problem.dtype} is no multiple of {_VECTOR} bytes"
        if not _SHORTEST <= problem.cols <= _LONGEST:
            yield f"cols={problem.cols} is not between {_SHORTEST} and {_LONGEST}"
        elif not self.space(problem, device).configs:
            yield f"a row of {problem.cols} {problem.dtype} does not fit in the registers and shared memory of a block"

    def space(self, problem: Problem, device: Device) -> Space:
        """Threads, blocks and rows ahead."""
        return _space(problem.cols, problem.torch_dtype.itemsize, shared_limit(device.target))

    def default(self, problem: Problem, device: Device) -> Config:
        """512 threads, two blocks, three rows ahead, where they fit."""
        return min(self.space(problem, device).configs, key=_distance)

    def preference(self, problem: Problem, device: Device) -> float:
        """Ahead of Triton's rows, which are not loaded ahead where they are long."""
        return 2.5 if problem.rows >= 1024 else 0.5

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        """A row of sums of each block."""
        if not _needs(problem)["NEED_WEIGHT"]:
            return {}
        return {"partial": TensorSpec.contiguous((_blocks(problem, config, device), problem.cols), torch.float32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        cols, itemsize, needs = problem.cols, problem.torch_dtype.itemsize, _needs(problem)
        blocks = _blocks(problem, config, device)
        element = {"ELEMENT": C_TYPES[problem.dtype], "VEC": _VECTOR // itemsize}
        partial = ("partial",) if needs["NEED_WEIGHT"] else ()
        rows = Launch(
            CudaKernel(_ROWS, "rms_norm_backward"),
            grid=(blocks,),
            args=(*partial, "grad_x", "grad_y", "x", "weight", "eps", problem.rows),
            constants={
                **element,
                "COLS": cols,
                "CLUSTER": 1,
                "ROWS": 2,
                "STAGES": config["stages"],
                "RESIDENT": config["blocks"],
                "THREADS": config["threads"],
                "ITEMS": _items(cols, itemsize, config),
                **needs,
            },
            options={"block": config["threads"]},
            shared_bytes=_shared_bytes(cols, itemsize, config),
        )
        sums = Launch(
            CudaKernel(_SUMS, "sum_partial"),
            grid=(-(-cols // _SUM_COLUMNS),),
            args=("grad_weight", "partial", cols, blocks),
            constants={**element, "WARPS": _SUM_WARPS},
            options={"block": 32 * _SUM_WARPS},
        )
        return [rows, sums] if needs["NEED_WEIGHT"] else [rows]


def _needs(problem: Problem) -> dict[str, bool]:
    """Which gradients are needed, as constants of the kernels; both where only dimensions are known."""
    arguments = problem.traits.arguments
    names = {"NEED_X": "need_x", "NEED_WEIGHT": "need_weight"}
    return {constant: arguments is None or arguments.flag(name) for constant, name in names.items()}


def _blocks(problem: Problem, config: Config, device: Device) -> int:
    """The number of blocks: as many as the device holds at once, at most one a row; 1 if there are no rows."""
    return int(max(1, min(problem.rows, config["blocks"] * max(device.multiprocessors, 1))))


def _items(cols: int, itemsize: int, config: Config) -> int:
    """Vectors of a thread."""
    return -(-cols * itemsize // (_VECTOR * int(config["threads"])))


def _shared_bytes(cols: int, itemsize: int, config: Config) -> int:
    return int(_BARRIERS + config["stages"] * 2 * cols * itemsize)


@lru_cache(maxsize=_KEPT)
def _space(cols: int, itemsize: int, limit: int) -> Space:
    def own(config: Config) -> int:
        return _items(cols, itemsize, config) * (_VECTOR // itemsize)

    def registers(config: Config) -> int:
        return _REGISTERS_AT_ONCE // int(config["blocks"] * config["threads"])

    space = Space(threads=[128, 256, 512, 1024], blocks=[1, 2, 3, 4], stages=[2, 3, 4])
    return (
        space.require("a thread has at most 16 columns", lambda config: own(config) <= _MOST_OWN)
        .require("every second thread has columns", lambda config: config["threads"] // 2 * _VECTOR < cols * itemsize)
        # a sum, an element of each input and one of the weight for each column; halves are two in a register
        .require("sums and rows fit in registers", lambda config: registers(config) >= 32 + itemsize * own(config))
        .require(
            "rows fit in shared memory",
            lambda config: config["blocks"] * (_shared_bytes(cols, itemsize, config) + _STATIC) <= limit,
        )
    )


def _distance(config: Config) -> tuple[int, ...]:
    threads = config["threads"] * config["blocks"]
    return abs(threads - 1024), abs(config["threads"] - 512), abs(config["stages"] - 3)
