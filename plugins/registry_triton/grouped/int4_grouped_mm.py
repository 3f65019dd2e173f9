"""Products of rows grouped by expert with weights of 4 bits: weights written out, then torch's grouped kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, Space
from registry.artifact import Built, Signature, Variant
from registry.backends.estimate import fits_registers
from registry.backends.triton import TritonImplementation
from registry.implementation import Run, Tensors

from ..support import KEPT
from .int4_dequantized import TILE, DequantizedExperts, written_out
from .kernels import expert_weights

_MOST_EXPERTS = 1023
_ALIGNED_BYTES = 16


class GroupedMmExperts(DequantizedExperts):
    """The weights in scratch by one kernel, then ``torch._grouped_mm``: CUTLASS on Hopper and data-centre Blackwell."""

    name = "triton.grouped_mm"
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
        if problem.experts > _MOST_EXPERTS:
            yield f"{problem.experts} experts (limit {_MOST_EXPERTS})"
        if device.capability[0] not in (9, 10):
            yield "torch's grouped kernel is for compute capability 9.0 and 10.x"

    def space(self, problem: Problem, device: Device) -> Space:
        """The tile of a weight that a program writes, and its warps."""
        return _tiles(device)

    def default(self, problem: Problem, device: Device) -> Config:
        """The tile of 32 by 128 weights."""
        return dict(TILE)

    def preference(self, problem: Problem, device: Device) -> float:
        """The preference is 0.05 above that of DequantizedExperts, whose product is Triton's."""
        return super().preference(problem, device) + 0.05

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        return [written_out(problem, config)]

    def variants(self, problem: Problem, config: Config, device: Device, signature: Signature) -> tuple[Variant, ...]:
        """Variants of the kernel that writes the weights out, and of the kernel that sets rows to 0."""
        cleared = _CLEARED.variants(problem, {}, device, signature)
        return (*super().variants(problem, config, device, signature), *cleared)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        first, second = (Built(built.signature, part) for part in (built.artifacts[:1], built.artifacts[1:]))
        return _GroupedRun(super().bind(problem, config, device, first), _CLEARED.bind(problem, {}, device, second))

    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        before = (like.written, like.cleared) if isinstance(like, _GroupedRun) else (None, None)
        written = super().bind_loaded(problem, config, device, signature, before[0])
        cleared = _CLEARED.bind_loaded(problem, {}, device, signature, before[1])
        return None if written is None or cleared is None else _GroupedRun(written, cleared)


class _GroupedRun:
    """Writes the weights by ``written``, multiplies, and sets rows of no expert to 0 by ``cleared``."""

    def __init__(self, written: Run, cleared: Run) -> None:
        self.written, self.cleared = written, cleared

    def __call__(self, outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> torch.Tensor:
        self.written(outputs, arguments, scratch)
        x, offsets = arguments[0], arguments[-1]
        # the operator begins with row 0, and leaves the rows after the last group uninitialised
        ends = offsets[1:].clamp(0, x.shape[0]).to(torch.int32)
        product: torch.Tensor = torch._grouped_mm(x, scratch[0], offs=ends)
        self.cleared((product,), arguments, scratch)
        return product


class _ClearedRows(TritonImplementation):
    """The part of GroupedMmExperts that follows its product: rows of no expert become 0."""

    op = "grouped_gemm_int4"
    name = "triton.grouped_mm"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        rows, cols = 16, 256
        return Launch(
            expert_weights.clear_beside,
            grid=(-(-problem.m // rows), -(-problem.n // cols)),
            args=("y", "offsets", problem.m, problem.n),
            constants={"EXPERTS": problem.experts, "BLOCK_M": rows, "BLOCK_N": cols},
        )


_CLEARED = _ClearedRows()


@lru_cache(maxsize=KEPT)
def _tiles(device: Device) -> Space:
    def registers(config: Config) -> bool:
        return fits_registers(config["BLOCK_K"] * config["BLOCK_N"], config["num_warps"], device, share=0.8)

    space = Space(BLOCK_K=[32, 64, 128], BLOCK_N=[64, 128, 256], num_warps=[4, 8])
    return space.require("a tile fits in registers", registers)
