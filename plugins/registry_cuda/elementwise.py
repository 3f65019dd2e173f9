"""square and gelu: vectors of 4 to 16 bytes, several a thread, one pass or a persistent grid."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space
from registry.backends.cuda import CudaImplementation, CudaKernel, read_source

from .number import C_TYPES, number_reasons, vector_width

_SOURCE = read_source(f"{__package__}.kernels", "number.cuh", "elementwise.cu")
_GRID_LIMIT = 2**31 - 1
_BLOCKS = (128, 256, 512, 1024)


class VectorElementwise(CudaImplementation):
    """``y[i] = f(x[i])``; every thread has ``items`` vectors of ``vector_bytes`` in flight.

    ``blocks_per_multiprocessor`` 0 is a grid that covers the tensor once; otherwise the grid stays and strides.
    """

    name = "cuda.vector"
    source = _SOURCE

    def __init__(self, op: str) -> None:
        self.op = op

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from number_reasons(problem)

    def space(self, problem: Problem, device: Device) -> Space:
        few = problem.n <= _BLOCKS[0] * _GRID_LIMIT
        return _space(0 if few else problem.n, problem.torch_dtype.itemsize, problem.traits["aligned"])

    def default(self, problem: Problem, device: Device) -> Config:
        """Wide vectors, two a thread, as soon as there is work for every multiprocessor twice over."""
        config = {"block": 256, "vector_bytes": 16, "items": 2, "blocks_per_multiprocessor": 0}
        if _blocks(problem.n, _vector(problem, config), config) < 2 * device.multiprocessors:
            config["items"] = 1
        return config

    def preference(self, problem: Problem, device: Device) -> float:
        """Torch's own run at the speed of a copy, but for gelu: on an H200 its tanh takes 1.04 to 1.16 of this one."""
        return 0.5 if self.op == "gelu" and problem.n >= 2**20 else -0.5

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        vector = _vector(problem, config)
        blocks = _blocks(problem.n, vector, config)
        if config["blocks_per_multiprocessor"]:
            blocks = min(blocks, config["blocks_per_multiprocessor"] * device.multiprocessors)
        return Launch(
            CudaKernel(_SOURCE, "elementwise"),
            grid=(blocks,),
            args=("y", "x", problem.n),
            constants={
                "ELEMENT": C_TYPES[problem.dtype],
                "VEC": vector,
                "ITEMS": config["items"],
                "BLOCK": config["block"],
                "FUNCTION": self._function(problem),
            },
            options={"block": config["block"]},
        )

    def _function(self, problem: Problem) -> str:
        return "square" if self.op == "square" else f"gelu_{problem.approximate}"


@lru_cache(maxsize=64)
def _space(n: int, itemsize: int, aligned: bool) -> Space:
    """``n`` is 0 where no grid can be too large for it."""
    space = Space(block=_BLOCKS, vector_bytes=[4, 8, 16], items=[1, 2, 4], blocks_per_multiprocessor=[0, 8])
    space = space.require(
        "a persistent grid wants wide loads and at most 512 threads a block",
        lambda config: (
            not config["blocks_per_multiprocessor"] or (config["vector_bytes"] == 16 and config["block"] <= 512)
        ),
    )
    return space.require(
        "a grid of at most 2**31 - 1 blocks",
        lambda config: _blocks(n, vector_width(itemsize, aligned, config["vector_bytes"]), config) <= _GRID_LIMIT,
    )


def _blocks(n: int, vector: int, config: Config) -> int:
    return -int(-n // (vector * config["items"] * config["block"]))


def _vector(problem: Problem, config: Config) -> int:
    return vector_width(problem.torch_dtype.itemsize, problem.traits["aligned"], config["vector_bytes"])
