"""FlashAttention for Hopper in Triton: tiles are copied by TMA, by a group of warps that does nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache

from registry import CompileError, Config, Device, Launch, Problem, Space
from registry.artifact import Artifact, Target, Variant
from registry.backends.estimate import fits_shared, next_power_of_2
from registry.backends.triton import TritonImplementation

from ..support import KEPT, options
from .kernels import forward_specialized as kernels
from .layouts import constants_of, heads_strides, reasons, scale_of, span_of, strides_of

_TENSORS = ("q", "k", "v")
_MOST_WIDTH = 128
"""The largest head_dim: for 256 two tiles of 32 keys fill the shared memory, and sums do not fit in registers."""
_VECTOR = 8
"""Halves in 16 bytes, of which TMA's addresses and strides are multiples."""
_LEAST_SCALE = 1e-30
_SPECIALIZED_THREADS = 384
_REGISTERS, _REGISTERS_OF_FEW = 168, 128
"""Sums, scores and weights of a thread, at most: more were spilled. Few: of capped logits in a window."""


class SpecializedAttention(TritonImplementation):
    """Some tiles of queries a program; warps are specialised by Triton's compiler, or loads are ahead within a loop."""

    op = "attention"
    name = "triton.flash_specialized"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if problem.dtype == "float32":
            yield "dtype float32 (supported: float16, bfloat16)"
        if problem.mask != "none":
            yield "it takes no mask"
        yield from _size_reasons(problem)
        yield from reasons(problem, device, *_TENSORS)
        yield from _layout_reasons(problem)
        yield from _device_reasons(device)

    def space(self, problem: Problem, device: Device) -> Space:
        """Queries and keys of a tile, tiles of queries a program, warps, and tiles that are loaded ahead."""
        rows, keys = (max(64, min(256, next_power_of_2(size))) for size in (problem.q_len, problem.kv_len))
        blocks = min(16, next_power_of_2(-(-problem.q_len // 128)))
        most = _REGISTERS if problem.span is False or not problem.softcap else _REGISTERS_OF_FEW
        return _space(rows, keys, blocks, span_of(problem), problem.torch_dtype.itemsize, most, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """128 queries and keys where registers and shared memory allow it, for specialised warps."""
        heads, blocks = problem.batch * problem.heads, -(-problem.q_len // 128)
        return _nearest(self.space(problem, device), _turns(heads, blocks, device))

    def compile(self, variant: Variant, target: Target) -> Artifact:
        """Compile for a target. Raises CompileError also where warps are not specialised though they should be."""
        artifact = super().compile(variant, target)
        threads = artifact.resources["threads"]
        if variant.spec["constants"]["SPECIALIZED"] and threads != _SPECIALIZED_THREADS:
            raise CompileError(
                f"{variant.kernel} has {threads} threads, of {_SPECIALIZED_THREADS} that specialised warps have:"
                f" Triton did not specialise them for {target.architecture}",
                hint="a configuration with SPECIALIZED=False has no such warps",
            )
        return artifact

    def preference(self, problem: Problem, device: Device) -> float:
        """Below ``triton.flash``, whose times are known: this has been compiled, but has not run on a GPU yet."""
        return 0.5

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        heads, blocks = problem.batch * problem.heads, -(-problem.q_len // config["BLOCK_M"])
        programs = -(-blocks // config["blocks_per_program"])
        constants = constants_of(problem, device)
        del constants["PRECISION"]  # products of halves are exact
        return Launch(
            kernels.attention,
            grid=(heads * programs,),
            args=(
                "out", "lse", *_TENSORS, scale_of(problem), "softcap", heads, programs, blocks, problem.q_len,
                problem.kv_len, *heads_strides(problem, *_TENSORS),
            ),
            constants={
                **constants,
                "ROWS": config["BLOCK_M"],
                "KEYS": config["BLOCK_N"],
                "STAGES": config["num_stages"],
                "SPECIALIZED": config["SPECIALIZED"],
                "LONGEST": problem.causal and config["blocks_per_program"] == 1,
            },
            options=options(config),
        )  # fmt: skip


def _size_reasons(problem: Problem) -> Iterator[str]:
    """Reasons for sizes, and for a scale by which the greatest logit is not that of the greatest product."""
    if problem.kv_len == 0:
        yield "there are no keys"
    if problem.head_dim > _MOST_WIDTH:
        yield f"head_dim={problem.head_dim} (limit {_MOST_WIDTH})"
    arguments = problem.traits.arguments
    scale = None if arguments is None else arguments["scale"]
    if isinstance(scale, float) and scale < _LEAST_SCALE:
        yield f"scale={scale} (at least {_LEAST_SCALE})"


def _layout_reasons(problem: Problem) -> Iterator[str]:
    """Reasons where tiles of heads cannot be copied by TMA."""
    for name in _TENSORS:
        strides = strides_of(problem, name)
        if strides is None:
            continue
        if not problem.traits.aligned(name) or any(stride % _VECTOR for stride in strides):
            yield f"the heads of {name} do not start at multiples of 16 bytes"
        if strides[1] < problem.head_dim:
            yield f"the tokens of {name} overlap"


def _device_reasons(device: Device) -> Iterator[str]:
    if device.type == "cuda" and (device.architecture.startswith("gfx") or device.capability < (9, 0)):
        yield f"it copies tiles by TMA, from compute capability 9.0 on; this is {device.architecture}"


@lru_cache(maxsize=KEPT)
def _space(rows: int, keys: int, blocks: int, span: int, itemsize: int, most: int, device: Device) -> Space:
    """Tiles of up to ``rows`` queries and ``keys`` keys of ``span`` elements, up to ``blocks`` of queries a program.

    ``most``: registers of a thread for sums, scores and weights.
    """
    hopper = device.type != "cuda" or device.capability[0] == 9

    def registers(config: Config) -> bool:
        live = int(config["BLOCK_M"]) * (span + 1.5 * int(config["BLOCK_N"]))
        return live <= most * _threads(config)

    def shared(config: Config) -> bool:
        queries, ahead = config["BLOCK_M"], 2 * config["num_stages"] * config["BLOCK_N"]
        if config["SPECIALIZED"]:  # queries are loaded ahead too, and results are stored from beside them
            queries *= config["num_stages"] + 1
        return fits_shared((queries + ahead) * span * itemsize, device)

    return (
        Space(
            BLOCK_M=[block for block in (64, 128, 256) if block <= max(rows, 128)],
            BLOCK_N=[block for block in (64, 128) if block <= keys],
            SPECIALIZED=[True, False] if hopper else [False],
            blocks_per_program=[count for count in (1, 2, 4, 8, 16) if count <= blocks],
            num_warps=[4, 8],
            num_stages=[2, 3, 4],
        )
        .require("sums, scores and weights fit in registers", registers)
        .require("the tiles fit in shared memory", shared)
        .require(
            "specialised warps have 128 queries",
            lambda config: not config["SPECIALIZED"] or int(config["BLOCK_M"]) >= 128,
        )
        .require(
            "4 warps are specialised, or have 64 queries",
            lambda config: config["num_warps"] == (4 if config["SPECIALIZED"] else _threads(config) // 32),
        )
        .require(
            "specialised programs take several blocks",
            lambda config: config["SPECIALIZED"] or config["blocks_per_program"] == 1,
        )
    )


def _threads(config: Config) -> int:
    """Threads that compute: four warps, or two groups of them, whether the compiler makes the groups or not."""
    return 128 if int(config["BLOCK_M"]) == 64 else 256


def _turns(heads: int, blocks: int, device: Device) -> int:
    """Blocks a program, up to 4, of which there are two programs for each SM at least."""
    fits = (count for count in (4, 2) if heads * -(-blocks // count) >= 2 * device.multiprocessors)
    return next(fits, 1)


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, turns: int) -> Config:
    """Specialised tiles of 128 queries and 128 keys, and two loaded ahead, or the next best of ``space``."""

    def distance(config: Config) -> tuple[float, ...]:
        return (
            not config["SPECIALIZED"], abs(math.log2(config["BLOCK_M"] / 128)), -config["BLOCK_N"],
            abs(config["blocks_per_program"] - turns), config["num_stages"],
        )  # fmt: skip

    return min(space.configs, key=distance)
