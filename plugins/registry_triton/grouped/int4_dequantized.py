"""Products of rows that are grouped by expert with weights of 4 bits, for many rows: weights written out, then dense.

A kernel that expands a weight where it is used does so again for each tile of rows. From some hundred rows an expert on
it is faster to write the weights of all experts that have rows into scratch once, and to multiply as with dense ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from registry import Config, Device, Launch, Problem, Space
from registry.backends.triton import TritonImplementation
from registry.problem import TensorSpec

from ..kernels import grouped_gemm as products
from ..support import options
from .kernels import expert_weights
from .tiles import most_tiles, precision, product_default, product_space, reasons, search_constants

WEIGHTS = "weights"
_CHANNEL = 2**30
_SHARE_OF_MEMORY = 32
"""Scratch is at most this part of the device's memory: who packs weights has not much to spare."""
_MANY_ROWS = 256
"""Rows an expert from which writing the weights pays off, untuned: it moves ten times the bytes of reading them."""
TILE: Mapping[str, int] = {"BLOCK_K": 32, "BLOCK_N": 128, "num_warps": 4}
"""The tile of a weight that a program writes, untuned."""


class DequantizedExperts(TritonImplementation):
    """The weights ``[experts, K, N]`` in scratch by one kernel, then a tile of one expert's rows a program.

    Scratch: ``experts * K * N`` activations, of which only experts with rows are written.
    """

    op = "grouped_gemm_int4"
    name = "triton.dequantized"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from reasons(problem, device)
        size, most = _bytes(problem), device.memory_bytes // _SHARE_OF_MEMORY
        if size > most:
            yield f"the weights written out take {size >> 20} MiB (limit {most >> 20}, a part of the device's memory)"

    def space(self, problem: Problem, device: Device) -> Space:
        """The product's tile, height of a band, warps, and how many steps are loaded ahead."""
        return product_space(problem, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """The tile of a product with dense weights."""
        return product_default(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """First for many rows an expert, behind what expands weights in registers for few."""
        return 0.8 if _is_for_many(problem) else -0.25

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return {WEIGHTS: TensorSpec.contiguous((problem.experts, problem.k, problem.n), problem.torch_dtype)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        n, k = problem.n, problem.k
        tiles = most_tiles(problem.m, problem.experts, config["BLOCK_M"])
        product = Launch(
            products.gemm,
            grid=(tiles * -(-n // config["BLOCK_N"]), 1),
            args=("y", "x", WEIGHTS, "offsets", problem.m, n, k, tiles),
            constants={
                **search_constants(problem),
                **precision(problem),
                "TRANSPOSED": True,
                "EVEN_K": k % config["BLOCK_K"] == 0,
                **{name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")},
                "STAGES": config["num_stages"],
            },
            options=options(config),
        )
        return [written_out(problem, TILE), product]


def _bytes(problem: Problem) -> int:
    return int(problem.experts * problem.k * problem.n * problem.torch_dtype.itemsize)


def _is_for_many(problem: Problem) -> bool:
    return bool(problem.m >= _MANY_ROWS * problem.experts)


def written_out(problem: Problem, config: Config) -> Launch:
    """All experts' weights into scratch."""
    n, k, group_size = problem.n, problem.k, problem.group_size
    return Launch(
        expert_weights.dequantize,
        grid=(-(-n // config["BLOCK_N"]), -(-k // config["BLOCK_K"]), problem.experts),
        args=(WEIGHTS, "qweight", "scales", "zeros", "offsets", problem.m, n, k, -(-k // group_size)),
        constants={
            "EXPERTS": problem.experts,
            "GROUP": _CHANNEL if group_size >= k else group_size,
            "BLOCK_N": config["BLOCK_N"],
            "BLOCK_K": config["BLOCK_K"],
        },
        options=options(config),
    )
