"""``acme::attention``: grouped heads, an optional mask, and two layouts of the same tensors."""

from __future__ import annotations

import math
from typing import Any

import torch

from registry import Arguments, Backward, Floor, InvalidArgumentError, Op, Problem, Value
from registry.problem import dtype_name

from .rounding import of_a_sum

LAYOUTS = ("bhsd", "bshd")
"""``[batch, heads, length, head_dim]``, and ``[batch, length, heads, head_dim]``."""


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    layout: str = "bhsd",
) -> torch.Tensor:
    """``softmax(q @ k^T / sqrt(head_dim) + mask) @ v``; several heads of q share one of k and v. In ``q``'s layout.

    ``mask`` is added, ``[q_len, kv_len]``. With ``causal``, the last query sees all keys.
    """
    dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
    q, k, v = (each.to(wide) if layout == "bhsd" else each.to(wide).transpose(1, 2) for each in (q, k, v))
    group, (q_len, kv_len) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores + mask
    if causal:
        hidden = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device).triu(kv_len - q_len + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    out = (scores.softmax(-1) @ v).to(dtype)
    return (out if layout == "bhsd" else out.transpose(1, 2)).contiguous()


def dims_of(arguments: Arguments) -> dict[str, Value]:
    """Sizes by name, whatever the layout: it is a dimension of its own, as are the mask and causal."""
    q, k, v = (arguments.tensor(name) for name in ("q", "k", "v"))
    layout = arguments.text("layout")
    if layout not in LAYOUTS or len(q.shape) != 4 or len(k.shape) != 4 or k.shape != v.shape:
        raise InvalidArgumentError(
            f"{arguments.op}: q is {q.shape}, k is {k.shape}, v is {v.shape}, layout={layout!r}",
            hint=f"expected four dimensions, k and v alike, and a layout of {LAYOUTS}",
        )
    heads, length = (1, 2) if layout == "bhsd" else (2, 1)
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[heads] % k.shape[heads]:
        raise InvalidArgumentError(f"{arguments.op}: q is {q.shape} and k is {k.shape}, which do not go together")
    mask, expected = arguments.optional_tensor("mask"), (q.shape[length], k.shape[length])
    if mask is not None and mask.shape != expected:
        raise InvalidArgumentError(f"{arguments.op}: mask is {mask.shape}", hint=f"expected {expected}")
    return {
        "batch": q.shape[0],
        "heads": q.shape[heads],
        "kv_heads": k.shape[heads],
        "q_len": q.shape[length],
        "kv_len": k.shape[length],
        "head_dim": q.shape[3],
        "dtype": dtype_name(q.dtype),
        "causal": arguments.flag("causal"),
        "mask": mask is not None,
        "layout": layout,
    }


def check(problem: Problem) -> None:
    """A causal query must see a key, and heads come in groups."""
    if problem.causal and problem.q_len > problem.kv_len:
        raise InvalidArgumentError(f"acme::attention: causal, but q_len={problem.q_len} > kv_len={problem.kv_len}")
    if problem.heads % problem.kv_heads:
        raise InvalidArgumentError(f"acme::attention: {problem.heads} heads are no multiple of {problem.kv_heads}")


def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """``one_key``: each head's last key draws all the weight, which shows a key that was missed."""

    def drawn(heads: int, length: int) -> torch.Tensor:
        sizes = (heads, length) if problem.layout == "bhsd" else (length, heads)
        shape = (problem.batch, *sizes, problem.head_dim)
        return torch.randn(shape, dtype=problem.torch_dtype, device=generator.device, generator=generator)

    q, k, v = (drawn(problem.heads, problem.q_len), *(drawn(problem.kv_heads, problem.kv_len) for _ in range(2)))
    if kind == "one_key":
        q.abs_().add_(1.0)
        k.select(2 if problem.layout == "bhsd" else 1, -1).fill_(4.0)
    mask = torch.randn(problem.q_len, problem.kv_len, dtype=q.dtype, device=q.device, generator=generator)
    return q, k, v, mask if problem.mask else None, problem.causal, problem.layout


def floor(problem: Problem) -> Floor:
    """q and out, k and v once; two products."""
    rows = problem.batch * problem.heads * problem.q_len
    keys = problem.batch * problem.kv_heads * problem.kv_len
    flop = 4 * rows * problem.kv_len * problem.head_dim // (2 if problem.causal else 1)
    return Floor(bytes=2 * (rows + keys) * problem.head_dim * problem.torch_dtype.itemsize, flop=flop)


def _example(place: int, q_len: int, kv_len: int, dtype: str) -> dict[str, Value]:
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": q_len, "kv_len": kv_len, "head_dim": 16}
    return {**sizes, "dtype": dtype, "causal": place % 2 > 0, "mask": place % 3 > 0, "layout": LAYOUTS[place // 2 % 2]}


ATTENTION = Op(
    name="acme::attention",
    schema=(
        "acme::attention(Tensor q, Tensor k, Tensor v, Tensor? mask=None, bool causal=False, str layout='bhsd')"
        " -> Tensor out"
    ),
    version=1,
    reference=reference,
    problem=dims_of,
    check=check,
    inputs=inputs,
    floor=floor,
    tolerance=of_a_sum(6.0, lambda problem: problem.kv_len + problem.head_dim),
    static=frozenset({"heads", "kv_heads", "head_dim", "dtype"}),
    dynamic=frozenset({"batch", "q_len", "kv_len"}),
    choices={"causal": (False, True), "mask": (False, True), "layout": LAYOUTS},
    kinds=("normal", "one_key"),
    examples=tuple(
        _example(place, q_len, kv_len, dtype)
        for place, (q_len, kv_len, dtype) in enumerate(
            [(5, 9, "float32"), (7, 7, "float32"), (1, 33, "bfloat16"), (3, 8, "bfloat16")]
        )
    ),
    backward=Backward.reference(),
)
