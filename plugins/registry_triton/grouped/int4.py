"""Products of rows that are grouped by expert with weights of 4 bits: a tile of one expert's rows a program."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import fits_registers, threads
from registry.backends.triton import TritonImplementation

from ..kernels import grouped_int4 as kernels
from ..packed.problems import fits
from ..support import KEPT, options
from .tiles import most_tiles, precision, reasons, search_constants, share

_CHANNEL = 2**30
_PER_WORD = 8
_BLOCKS_K = (32, 64, 128)


class TiledGroupedInt4(TritonImplementation):
    """Tiles on the tensor cores; weights are dequantised to the activations' dtype in registers."""

    op = "grouped_gemm_int4"
    name = "triton.gemm"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from reasons(problem, device)

    def space(self, problem: Problem, device: Device) -> Space:
        """Tile, warps, and how many steps are loaded ahead."""
        itemsize = problem.torch_dtype.itemsize
        return _space(min(share(problem, 2), 256 // itemsize), _blocks_k(problem), itemsize, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """A tile as high as an expert's share of the rows."""
        half = problem.dtype != "float32"
        return _nearest(self.space(problem, device), share(problem), 128 if half and share(problem) > 16 else 64)

    def preference(self, problem: Problem, device: Device) -> float:
        """Before unpacking whole experts, which waits for the offsets and cannot be captured."""
        return 0.75

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        n, k = problem.n, problem.k
        tiles = most_tiles(problem.m, problem.experts, config["BLOCK_M"])
        per_channel = problem.group_size >= k
        return Launch(
            kernels.gemm,
            grid=(tiles * -(-n // config["BLOCK_N"]), 1),
            args=(
                *("y", "x", "qweight", "scales", "zeros", "offsets"),
                *(problem.m, n, k, tiles, -(-k // problem.group_size)),
            ),
            constants={
                **search_constants(problem),
                **precision(problem),
                "GROUP": _CHANNEL if per_channel else problem.group_size,
                "EVEN_K": k % config["BLOCK_K"] == 0,
                **{name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")},
                "GROUP_M": 8,
                "STAGES": config["num_stages"],
            },
            options=options(config),
        )


def _blocks_k(problem: Problem) -> tuple[int, ...]:
    """Steps along K that lie within a group or hold whole groups."""
    size, least = problem.group_size, _BLOCKS_K[:1]
    # longer ones spill in float32
    blocks = least if problem.dtype == "float32" else _BLOCKS_K
    return tuple([block for block in blocks if size >= problem.k or size % block == 0 or block % size == 0])


@lru_cache(maxsize=KEPT)
def _space(highest: int, blocks_k: tuple[int, ...], itemsize: int, device: Device) -> Space:
    def registers(config: Config) -> bool:
        live = config["BLOCK_M"] * config["BLOCK_N"] + config["BLOCK_K"] * config["BLOCK_N"] // 2
        return fits_registers(live, config["num_warps"], device, share=0.8)

    def filled(config: Config) -> bool:
        return bool(config["BLOCK_M"] * config["BLOCK_N"] >= 16 * threads(config["num_warps"], device))

    def shared(config: Config) -> bool:
        return fits(itemsize, config, config["BLOCK_M"], _PER_WORD, device)

    return (
        Space(
            BLOCK_M=[block for block in (16, 32, 64, 128) if highest // 4 <= block <= highest],
            BLOCK_N=[64, 128, 256] if itemsize == 2 else [64],
            BLOCK_K=blocks_k,
            num_warps=[4, 8],
            num_stages=[2, 3, 4],
        )
        .require("accumulators and weights fit in registers", registers)
        .require("at least 16 accumulators a thread", lambda config: filled(config) or config["num_warps"] == 4)
        .require("the tiles fit in shared memory", shared)
    )


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, high: int, wide: int) -> Config:
    """The configuration nearest to a tile of ``high`` by ``wide``, 64 deep."""

    def distance(config: Config) -> tuple[int, ...]:
        return (
            abs(config["BLOCK_M"] - high), abs(config["BLOCK_N"] - wide), abs(config["BLOCK_K"] - 64),
            abs(config["num_stages"] - 3), config["num_warps"] != (8 if config["BLOCK_M"] >= 128 else 4),
        )  # fmt: skip

    return min(space.configs, key=distance)
