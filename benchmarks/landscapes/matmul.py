"""A plain bfloat16 matrix product in Triton, as a plugin file: a space of many hundreds with a narrow optimum.

Landscapes of it show how a search does on a kernel that was not made for it. ``tune --plugin`` takes this file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import triton
import triton.language as tl

import registry
from registry import Arguments, Config, Device, Floor, Launch, Op, Problem, Space, Tolerance, Value
from registry.backends.triton import TritonImplementation
from registry.errors import InvalidArgumentError

KERNEL_REGISTRY_API = 1
NAME = "landscape::matmul"


def _reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``[m, k] @ [k, n]``, accumulated in float32 by the library, rounded once."""
    return a @ b


def _problem(arguments: Arguments) -> dict[str, Value]:
    a, b = arguments.tensor("a"), arguments.tensor("b")
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise InvalidArgumentError(f"{NAME}: a is {a.shape}, b is {b.shape}", hint="expected [m, k] and [k, n]")
    dims: dict[str, Value] = {
        "m": a.shape[0],
        "n": b.shape[1],
        "k": a.shape[1],
        "dtype": str(a.dtype).removeprefix("torch."),
    }
    return dims


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    device, dtype = generator.device, problem.torch_dtype
    a = torch.randn(problem.m, problem.k, generator=generator, device=device, dtype=dtype)
    b = torch.randn(problem.k, problem.n, generator=generator, device=device, dtype=dtype)
    if kind == "spike_last":
        a[:, -1:] = 2.0 * math.sqrt(problem.k)
    return a, b


def _floor(problem: Problem) -> Floor:
    elements = problem.m * problem.k + problem.k * problem.n + problem.m * problem.n
    return Floor(elements * problem.torch_dtype.itemsize, 2 * problem.m * problem.n * problem.k)


def _scale(problem: Problem, expected: torch.Tensor) -> torch.Tensor:
    return expected.abs() + math.sqrt(problem.k)


MATMUL = Op(
    name=NAME,
    schema=f"{NAME}(Tensor a, Tensor b) -> Tensor y",
    version=1,
    reference=_reference,
    problem=_problem,
    inputs=_inputs,
    kinds=("normal", "spike_last"),
    examples=({"m": 100, "n": 72, "k": 96, "dtype": "bfloat16"},),
    floor=_floor,
    tolerance=Tolerance(rtol={"bfloat16": 2.0**-8}, atol={"bfloat16": 0.0}, scale=_scale),
    static=frozenset({"n", "k", "dtype"}),
    dynamic=frozenset({"m"}),
)


@triton.jit
def matmul_kernel(  # noqa: PLR0913, PLR0917 - a kernel's tensors, extents and constants
    y: Any, a: Any, b: Any, m: Any, n: Any, k: Any,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
) -> None:  # fmt: skip
    program = tl.program_id(0)
    rows, columns = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    first = program // (GROUP_M * columns) * GROUP_M
    height = min(rows - first, GROUP_M)
    row = first + program % (GROUP_M * columns) % height
    column = program % (GROUP_M * columns) // height
    i = row * BLOCK_M + tl.arange(0, BLOCK_M)
    j = column * BLOCK_N + tl.arange(0, BLOCK_N)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        p = start + tl.arange(0, BLOCK_K)
        left = tl.load(a + i[:, None] * k + p[None, :], mask=(i[:, None] < m) & (p[None, :] < k), other=0.0)
        right = tl.load(b + p[:, None] * n + j[None, :], mask=(p[:, None] < k) & (j[None, :] < n), other=0.0)
        accumulator = tl.dot(left, right, accumulator)
    inside = (i[:, None] < m) & (j[None, :] < n)
    tl.store(y + i[:, None] * n + j[None, :], accumulator.to(y.dtype.element_ty), mask=inside)


class TiledMatmul(TritonImplementation):
    """One output tile a program, programs in groups of GROUP_M tile rows so that they share columns in L2."""

    name = "landscape.tiled"
    op = NAME

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if device.type != "cuda":
            yield "needs a GPU"
        if not problem.traits["contiguous"]:
            yield "a or b is not contiguous"

    def space(self, problem: Problem, device: Device) -> Space:
        def fits(config: Config) -> bool:
            tiles = (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] * 2
            return bool(tiles * config["num_stages"] <= 220 * 1024)

        def registers(config: Config) -> bool:
            share = config["BLOCK_M"] * config["BLOCK_N"] // (32 * config["num_warps"])
            return bool(8 <= share <= 128)

        return (
            Space(
                BLOCK_M=[32, 64, 128, 256], BLOCK_N=[32, 64, 128, 256], BLOCK_K=[32, 64, 128], GROUP_M=[1, 4, 8],
                num_warps=[2, 4, 8], num_stages=[2, 3, 4],
            )
            .require("tiles fit in shared memory", fits)
            .require("8 to 128 accumulators a thread", registers)
        )  # fmt: skip

    def default(self, problem: Problem, device: Device) -> Config:
        return {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 4, "num_stages": 3}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        tiles = -(-problem.m // config["BLOCK_M"]) * -(-problem.n // config["BLOCK_N"])
        constants = {name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")}
        return Launch(
            matmul_kernel,
            grid=(tiles,),
            args=("y", "a", "b", problem.m, problem.n, problem.k),
            constants=constants,
            options={"num_warps": config["num_warps"], "num_stages": config["num_stages"]},
        )


@registry.defines
def ops() -> list[Op]:
    return [MATMUL]


@registry.implements(NAME)
def implementations() -> list[TritonImplementation]:
    return [TiledMatmul()]
