"""Products of rows that are grouped by expert with weights of 4 bits, for many rows: weights written out, then dense.

A kernel that expands a weight where it is used does so again for each tile of rows. From some hundred rows an expert on
it is faster to write the weights of all experts that have rows into scratch once, and to multiply as with dense ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, Space
from registry.artifact import Built, Signature
from registry.backends.estimate import fits_registers
from registry.backends.triton import TritonImplementation
from registry.implementation import Run, Tensors
from registry.problem import TensorSpec

from ..kernels import grouped_gemm as products
from ..support import KEPT, options
from .kernels import expert_weights
from .tiles import most_tiles, precision, product_default, product_space, reasons, search_constants

WEIGHTS = "weights"
_CHANNEL = 2**30
_SHARE_OF_MEMORY = 32
"""Scratch is at most this part of the device's memory: who packs weights has not much to spare."""
_MANY_ROWS = 256
"""Rows an expert from which writing the weights pays off, untuned: it moves ten times the bytes of reading them."""
_MOST_GROUPED = 1023
_ALIGNED_BYTES = 16
_TILE: Mapping[str, int] = {"BLOCK_K": 32, "BLOCK_N": 128}


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
        return [_written_out(problem, {**_TILE, "num_warps": 4}), product]


class GroupedMmExperts(DequantizedExperts):
    """The weights in scratch by one kernel, then ``torch._grouped_mm``: CUTLASS on Hopper and data-centre Blackwell."""

    name = "triton.grouped_mm"
    any_size = True
    returns_outputs = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if not hasattr(torch, "_grouped_mm"):
            yield f"torch {torch.__version__} has no _grouped_mm"
        for name in ("n", "k"):
            if problem.dims[name] * problem.torch_dtype.itemsize % _ALIGNED_BYTES:
                yield f"{name}={problem.dims[name]}: rows of {name} elements are no multiple of {_ALIGNED_BYTES} bytes"
        if not problem.traits["aligned"]:
            yield f"a tensor is not aligned to {_ALIGNED_BYTES} bytes"
        if problem.dtype != "bfloat16":
            yield f"dtype is {problem.dtype}, expected bfloat16"
        if problem.experts > _MOST_GROUPED:
            yield f"{problem.experts} experts (limit {_MOST_GROUPED})"
        if device.capability[0] not in (9, 10):
            yield "torch's grouped kernel is for compute capability 9.0 and 10.x"

    def space(self, problem: Problem, device: Device) -> Space:
        """The tile of a weight that a program writes, and its warps."""
        return _tiles(device)

    def default(self, problem: Problem, device: Device) -> Config:
        """32 by 128."""
        return {**_TILE, "num_warps": 4}

    def preference(self, problem: Problem, device: Device) -> float:
        """As Triton's product of the same weights, and before it."""
        return super().preference(problem, device) + 0.05

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        return [_written_out(problem, config)]

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        return _WrittenThenGrouped(super().bind(problem, config, device, built))

    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        written = like.written if isinstance(like, _WrittenThenGrouped) else None
        found = super().bind_loaded(problem, config, device, signature, written)
        return None if found is None else _WrittenThenGrouped(found)


class _WrittenThenGrouped:
    """Writes the weights by ``written``, then multiplies; rows of no expert become 0."""

    def __init__(self, written: Run) -> None:
        self.written = written

    def __call__(self, outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> torch.Tensor:
        self.written(outputs, arguments, scratch)
        x, offsets = arguments[0], arguments[-1]
        bounds = offsets.clamp(0, x.shape[0]).to(torch.int32)
        # the operator begins with row 0, and leaves the rows after the last group uninitialised
        product: torch.Tensor = torch._grouped_mm(x, scratch[0], offs=bounds[1:])
        row = torch.arange(x.shape[0], dtype=torch.int32, device=x.device)
        beside = (row < bounds[0]) | (row >= bounds[-1])
        return product.masked_fill_(beside.unsqueeze(1), 0.0)


def _bytes(problem: Problem) -> int:
    return int(problem.experts * problem.k * problem.n * problem.torch_dtype.itemsize)


def _is_for_many(problem: Problem) -> bool:
    return bool(problem.m >= _MANY_ROWS * problem.experts)


def _written_out(problem: Problem, config: Config) -> Launch:
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


@lru_cache(maxsize=KEPT)
def _tiles(device: Device) -> Space:
    def registers(config: Config) -> bool:
        return fits_registers(config["BLOCK_K"] * config["BLOCK_N"], config["num_warps"], device, share=0.8)

    space = Space(BLOCK_K=[32, 64, 128], BLOCK_N=[64, 128, 256], num_warps=[4, 8])
    return space.require("a tile fits in registers", registers)
