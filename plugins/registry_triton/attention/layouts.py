"""Strides, constants and reasons that attention's kernels, forward and backward, share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from registry import Device, Problem
from registry.backends.estimate import fits_shared, next_power_of_2
from registry.backends.head_strides import outer_strides

from ..decoder.heads import type_reasons

MOST_WIDTH = 256
"""The largest head_dim: a tile of queries and its sums are held in registers."""
MOST_PROGRAMS = 2**31 - 1
_LEAST_BLOCK, _LEAST_STEP = 32, 16
"""Rows and step of the smallest tiles of long sequences, of which a gradient holds two each."""
_LEAST_SCORES = 8192
"""Bytes of the scores and the mask of such tiles, at most."""
_MASKS = {"none": 0, "bool": 1, "additive": 2}


def strides_of(problem: Problem, name: str) -> tuple[int, ...] | None:
    """Elements from a batch, a token and a head of a tensor to the next; None if a head's elements are apart."""
    of_keys = name in {"k", "v"}
    length, heads = (problem.kv_len, problem.kv_heads) if of_keys else (problem.q_len, problem.heads)
    return outer_strides(problem, name, (length, heads, problem.head_dim))


def heads_strides(problem: Problem, *names: str) -> tuple[int, ...]:
    """The strides of several tensors whose heads are known to be readable."""
    found: tuple[int, ...] = ()
    for name in names:
        strides = strides_of(problem, name)
        assert strides is not None
        found += strides
    return found


def mask_strides(problem: Problem) -> tuple[int, ...] | None:
    """Elements from a batch, a head and a row of the mask to the next, 0 where one serves all.

    None if the elements of a row are apart.
    """
    if problem.mask == "none":
        return 0, 0, 0
    arguments = problem.traits.arguments
    if arguments is None:
        return problem.q_len * problem.kv_len, 0, problem.kv_len
    spec = arguments.tensor("mask")
    if spec.strides[-1] != 1 and spec.shape[-1] != 1:
        return None
    return tuple([0 if size == 1 else stride for size, stride in zip(spec.shape[:3], spec.strides[:3], strict=True)])


def mask_bytes(problem: Problem) -> int:
    """Bytes of the mask for a pair of a query and a key."""
    return {"none": 0, "bool": 1}.get(problem.mask, problem.torch_dtype.itemsize)


def reasons(problem: Problem, device: Device, *names: str) -> Iterator[str]:
    """Why the tensors ``names`` of a problem, or its mask, cannot be read by the kernels."""
    yield from type_reasons(problem, device)
    for name in names:
        if strides_of(problem, name) is None:
            yield f"the elements of a head of {name} are not neighbours"
    if mask_strides(problem) is None:
        yield "the elements of a row of the mask are not neighbours"
    if problem.head_dim > MOST_WIDTH:
        yield f"head_dim={problem.head_dim} (limit {MOST_WIDTH})"
    programs = problem.batch * problem.heads * -(-max(problem.q_len, problem.kv_len) // 16)
    if programs > MOST_PROGRAMS:
        yield f"up to {programs} programs (limit {MOST_PROGRAMS})"


def span_of(problem: Problem) -> int:
    """Elements of a head that a program reads: a power of two, which tensor cores need to be 16 at least."""
    return max(16, next_power_of_2(problem.head_dim))


def scale_of(problem: Problem) -> str | float:
    """The kernels' scale: the call's argument, or the number that stands for none, to the same compiled kernel."""
    arguments = problem.traits.arguments
    given = arguments is not None and arguments["scale"] is not None
    return "scale" if given else problem.head_dim**-0.5


def constants_of(problem: Problem, device: Device) -> dict[str, Any]:
    """The constants of every kernel of a problem without a mask."""
    return {
        "HEADS": problem.heads,
        "GROUP": problem.heads // problem.kv_heads,
        "WIDTH": problem.head_dim,
        "SPAN": span_of(problem),
        "CAUSAL": problem.causal,
        "WINDOW": -1 if problem.span is False else problem.span - 1,
        "CAPPED": problem.softcap,
        "PRECISION": precision_of(problem, device),
    }


def masked_constants_of(problem: Problem, device: Device) -> dict[str, Any]:
    """The constants of every kernel of a problem whose scores may have a mask."""
    return {**constants_of(problem, device), "MASK": _MASKS[problem.mask]}


def precision_of(problem: Problem, device: Device) -> str:
    """How products of float32 are formed: on NVIDIA's tensor cores of three products of tf32, which keep 21 of 23 bits.

    Without tensor cores a thread holds the operands of its products in registers: some 2500 of them for heads of 128,
    of which the GPU has 255 a thread. Other types are multiplied exactly, whatever this says.
    """
    if problem.dtype != "float32":
        return "tf32"
    return "tf32x3" if _splits_floats(problem, device) else "ieee"


def bytes_held(problem: Problem, device: Device) -> int:
    """Bytes of an element in shared memory, where a float32 stands as two parts for its products of tf32."""
    itemsize = problem.torch_dtype.itemsize
    return 2 * itemsize if problem.dtype == "float32" and _splits_floats(problem, device) else itemsize


def _splits_floats(problem: Problem, device: Device) -> bool:
    """Whether the GPU has products of tf32, and room for the parts of the smallest tiles of both passes."""
    if device.type != "cuda" or device.architecture.startswith("gfx") or device.capability < (8, 0):
        return False
    parts = 2 * (_LEAST_BLOCK + _LEAST_STEP) * span_of(problem) * 2 * problem.torch_dtype.itemsize
    return fits_shared(parts + _LEAST_SCORES, device)
