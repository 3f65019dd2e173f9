"""The packed weights that gemm_int4 and its gradient take, and the dimensions that they tell."""

from __future__ import annotations

import torch

from ...errors import InvalidArgumentError
from ...packed import LAYOUT, check_parts
from ...problem import Arguments, Problem, TensorSpec, Value, dtype_name
from ..checks import HALVES, float_dtype, float_tensor, positive, shape_text

BITS = 4
PER_WORD = 8
GROUP_SIZES = (32, 64, 128)


def takes(dtype: torch.dtype, k: int, group_size: int) -> bool:
    """Whether gemm_int4 takes a weight of ``k`` columns with scales in a dtype, and integer zero points or none."""
    whole = k % PER_WORD == 0 and k % group_size == 0 and (group_size == k or group_size in GROUP_SIZES)
    return whole and dtype in HALVES


def filling_group_size(group_size: int, k: int) -> int:
    """The group size for a weight of ``k`` columns: ``k`` at most, and below it the largest whose groups fill them.

    The given one where there is none, or where it is not one of gemm_int4's.
    """
    if group_size not in GROUP_SIZES or k % PER_WORD:
        return group_size
    if k <= group_size:
        return k
    return max((smaller for smaller in GROUP_SIZES if smaller <= group_size and k % smaller == 0), default=group_size)


def dims_beside(arguments: Arguments, name: str) -> tuple[TensorSpec, dict[str, Value]]:
    """The argument ``name``, and the dimensions by the weight, whose scales must have the argument's dtype."""
    like = float_tensor(arguments, name, HALVES)
    qweight, scales = arguments.tensor("qweight"), arguments.tensor("scales")
    zeros = arguments.optional_tensor("zeros")
    k, group_size, bits = arguments.integer("k"), arguments.integer("group_size"), arguments.integer("bits")
    check_format(arguments.op, bits, group_size, k, arguments.text("layout"))
    if len(qweight.shape) != 2:
        raise InvalidArgumentError(f"{arguments.op}: qweight has shape {shape_text(qweight.shape)}, expected [K/8, N]")
    n = qweight.shape[1]
    check_parts(arguments.op, qweight, scales, zeros, group_size, (n, k))
    if zeros is not None and zeros.dtype != scales.dtype:
        raise InvalidArgumentError(
            f"{arguments.op}: zeros is {dtype_name(zeros.dtype)}, so any numbers, but only integers are supported",
            hint=f"expected {dtype_name(scales.dtype)}, the scales' dtype; gemm_w4a16 takes any numbers",
        )
    if scales.dtype != like.dtype:
        raise InvalidArgumentError(
            f"{arguments.op}: {name} is {dtype_name(like.dtype)} but the scales of w are {dtype_name(scales.dtype)}",
            hint=f"use w.to(dtype=torch.{dtype_name(like.dtype)})",
        )
    dims: dict[str, Value] = {"n": n, "k": k, "group_size": group_size, "bits": bits}
    return like, dims | {"dtype": dtype_name(like.dtype), "symmetric": zeros is None}


def check(problem: Problem) -> None:
    """Raise InvalidArgumentError for a problem that the ops do not have."""
    positive(problem, "m", "n", "k", "group_size", "bits")
    float_dtype(problem, HALVES)
    check_format(problem.op, problem.bits, problem.group_size, problem.k, LAYOUT)


def check_format(what: str, bits: int, group_size: int, k: int, layout: str) -> None:
    """Raise InvalidArgumentError for a format of PackedWeight that this op does not accept."""
    if bits != BITS:
        raise InvalidArgumentError(
            f"{what}: bits={bits}, only {BITS} is supported", hint=f"registry.quantize(weight, bits={BITS})"
        )
    if layout != LAYOUT:
        raise InvalidArgumentError(
            f"{what}: layout {layout!r}, only {LAYOUT!r} is supported",
            hint="w has act-order (g_idx), which gemm_w4a16 takes, or a codebook, which gemm_nf4 takes",
        )
    if k < PER_WORD or k % PER_WORD:
        raise InvalidArgumentError(
            f"{what}: K={k} is no multiple of {PER_WORD}, the elements of a word",
            hint="pad the weight and the activations with zeros along K",
        )
    if group_size != k and group_size not in GROUP_SIZES:
        raise InvalidArgumentError(
            f"{what}: group_size={group_size}", hint=f"expected {', '.join(map(str, GROUP_SIZES))} or K={k}"
        )
    if k % group_size:
        raise InvalidArgumentError(
            f"{what}: K={k} is no multiple of group_size={group_size}",
            hint=f"use a group size that divides K, or K={k} itself: one scale a column",
        )
