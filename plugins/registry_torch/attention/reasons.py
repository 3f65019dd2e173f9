"""Why torch's attention kernels cannot run a problem, and the biases that they take for a mask."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from registry.backends.head_strides import outer_strides
from registry.device import Device
from registry.problem import Problem

HALVES = ("float16", "bfloat16")
_VECTOR_BYTES = 16


def tensors_of(problem: Problem) -> tuple[str, ...]:
    """The tensors of a problem that hold heads."""
    return ("q", "k", "v") if problem.op == "attention" else ("q", "k", "v", "grad_out", "out")


def dtype_reasons(problem: Problem, dtypes: tuple[str, ...]) -> Iterator[str]:
    """The reason if the kernel has no code for the problem's dtype."""
    if problem.dtype not in dtypes:
        yield f"dtype is {problem.dtype}, expected {' or '.join(dtypes)}"


def capability_reasons(device: Device, needed: tuple[int, int]) -> Iterator[str]:
    """The reason if the GPU is older than the kernel."""
    if device.capability < needed:
        yield f"it needs compute capability {needed[0]}.{needed[1]}, this is {device.architecture}"


def layout_reasons(problem: Problem) -> Iterator[str]:
    """Reasons where a head cannot be read 16 bytes at a time."""
    vector = _VECTOR_BYTES // problem.torch_dtype.itemsize
    if problem.head_dim % vector:
        yield f"head_dim={problem.head_dim} is no multiple of {vector}"
    yield from neighbour_reasons(problem)
    for name in tensors_of(problem):
        strides = _strides(problem, name)
        if strides and not (problem.traits.aligned(name) and all(stride % vector == 0 for stride in strides)):
            yield f"the heads of {name} do not start at multiples of {_VECTOR_BYTES} bytes"


def neighbour_reasons(problem: Problem) -> Iterator[str]:
    """Reasons where the elements of a head are apart."""
    for name in tensors_of(problem):
        if _strides(problem, name) is None:
            yield f"the elements of a head of {name} are not neighbours"


def _strides(problem: Problem, name: str) -> tuple[int, ...] | None:
    """Strides of batch, length and heads; None if the elements of a head are not neighbours."""
    of_keys = name in {"k", "v"}
    length, heads = (problem.kv_len, problem.kv_heads) if of_keys else (problem.q_len, problem.heads)
    return outer_strides(problem, name, (length, heads, problem.head_dim))


def form_reasons(problem: Problem, *, mask: bool = False, window: bool = False, grouped: bool = True) -> Iterator[str]:
    """Reasons where the problem has a mask, a window or grouped heads that the kernel does not take, or a soft cap."""
    if problem.softcap:
        yield "it has no soft cap"
    if problem.mask != "none" and not mask:
        yield "it takes no mask"
    if problem.span is not False and not window:
        yield "it has no window"
    if not grouped and problem.kv_heads not in {1, problem.heads}:
        yield f"{problem.heads} heads share {problem.kv_heads} of keys and values: it takes one, or as many"


def from_first_reasons(problem: Problem) -> Iterator[str]:
    """The reason if the kernel, which aligns causal rows to the first key, would be wrong."""
    if problem.causal and problem.q_len != problem.kv_len:
        yield f"its causal rows begin at the first key: q_len={problem.q_len} is not kv_len={problem.kv_len}"


def blind_reasons(problem: Problem) -> Iterator[str]:
    """The reason if rows see no key, by causality, since the kernel gives them another log-sum-exp."""
    if problem.causal and problem.q_len > problem.kv_len:
        yield f"q_len={problem.q_len} is more than kv_len={problem.kv_len}: the first rows see no key"


def bias_of(mask: torch.Tensor | None, q: torch.Tensor, keys: int) -> torch.Tensor | None:
    """What is added to the logits for a mask: [batch, heads, q_len, kv_len], a view where it is the mask itself."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, -math.inf)
    return mask.expand(q.shape[0], q.shape[2], q.shape[1], keys)


def without_blind_rows(
    out: torch.Tensor, lse: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp, row-major, with 0 and -inf for rows all of whose keys a mask hides."""
    if mask is not None:
        hidden = ~mask.any(-1) if mask.dtype == torch.bool else (mask == -math.inf).all(-1)
        lse = lse.masked_fill(hidden, -math.inf)
        out = out.masked_fill(hidden.transpose(1, 2)[..., None], 0.0)
    return out.contiguous(), lse.contiguous()
