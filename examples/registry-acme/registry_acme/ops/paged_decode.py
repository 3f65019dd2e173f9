"""``acme::paged_decode``: one query a sequence, keys and values in pages that a table lists."""

from __future__ import annotations

import math
from typing import Any

import torch

from registry import Arguments, Floor, InvalidArgumentError, Op, Problem, Value
from registry.problem import dtype_name

from .rounding import of_a_sum

LENGTHS = ("full", "uniform", "one_long")
"""Every sequence fills its pages; any length alike; one sequence fills its pages and all others have a few tokens."""


def reference(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor
) -> torch.Tensor:
    """``softmax(q @ k^T / sqrt(head_dim)) @ v`` over the first ``kv_lens[b]`` tokens of each sequence.

    q ``[batch, heads, head_dim]``, caches ``[pages, page, kv_heads, head_dim]``, block_table ``[batch, blocks]``.
    """
    batch, heads, head_dim = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    k, v = (
        cache[block_table].flatten(1, 2).to(wide).repeat_interleave(heads // cache.shape[2], 2).transpose(1, 2)
        for cache in (k_cache, v_cache)
    )
    scores = (k @ q.to(wide).unsqueeze(-1)).squeeze(-1) / math.sqrt(head_dim)
    beyond = torch.arange(k.shape[2], device=q.device) >= kv_lens.view(batch, 1, 1)
    weights = scores.masked_fill(beyond, -torch.inf).softmax(-1)
    # a page's tail may hold anything, NaN too
    v = v.masked_fill(beyond.unsqueeze(-1), 0.0)
    return (weights.unsqueeze(2) @ v).squeeze(2).to(q.dtype)


def dims_of(arguments: Arguments) -> dict[str, Value]:
    """kv_len is the room that a sequence's pages have; how long sequences really are is a distribution."""
    q, k, v = (arguments.tensor(name) for name in ("q", "k_cache", "v_cache"))
    table, lens = arguments.tensor("block_table"), arguments.tensor("kv_lens")
    if (
        len(q.shape) != 3
        or len(k.shape) != 4
        or k.shape != v.shape
        or q.shape[2] != k.shape[3]
        or q.shape[1] % k.shape[2]
    ):
        raise InvalidArgumentError(f"{arguments.op}: q is {q.shape}, k_cache is {k.shape}, v_cache is {v.shape}")
    if len(table.shape) != 2 or table.shape[0] != q.shape[0] or lens.shape != q.shape[:1]:
        raise InvalidArgumentError(
            f"{arguments.op}: block_table is {table.shape}, kv_lens is {lens.shape}, q is {q.shape}"
        )
    if {table.dtype, lens.dtype} != {torch.int32}:
        raise InvalidArgumentError(f"{arguments.op}: block_table and kv_lens must be int32")
    return {
        "batch": q.shape[0],
        "heads": q.shape[1],
        "kv_heads": k.shape[2],
        "kv_len": table.shape[1] * k.shape[1],
        "head_dim": q.shape[2],
        "page": k.shape[1],
        "dtype": dtype_name(q.dtype),
    }


def check(problem: Problem) -> None:
    """Whole pages, and whole groups of heads."""
    if problem.kv_len % problem.page or problem.heads % problem.kv_heads:
        raise InvalidArgumentError(f"{problem}: kv_len must be a multiple of page, heads one of kv_heads")


def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """Pages in random order. ``last_token`` decides all heads; ``nan_beyond``: NaN after each sequence's end."""
    batch, device, dtype = problem.batch, generator.device, problem.torch_dtype
    q = torch.randn(batch, problem.heads, problem.head_dim, dtype=dtype, device=device, generator=generator)
    shape = (batch, problem.kv_len, problem.kv_heads, problem.head_dim)
    k, v = (torch.randn(shape, dtype=dtype, device=device, generator=generator) for _ in range(2))
    lens = _lengths(problem, generator)
    if kind == "last_token":
        q.abs_().add_(1.0)
        k[torch.arange(batch, device=device), lens.long() - 1] = 4.0
    if kind == "nan_beyond":
        beyond = torch.arange(problem.kv_len, device=device) >= lens.view(batch, 1)
        k[beyond], v[beyond] = torch.nan, torch.nan
    table = torch.randperm(batch * problem.kv_len // problem.page, device=device, generator=generator).view(batch, -1)
    return q, _paged(k, table, problem.page), _paged(v, table, problem.page), table.to(torch.int32), lens


def _lengths(problem: Problem, generator: torch.Generator) -> torch.Tensor:
    """``[batch]``, int32, at least 1."""
    batch, most = problem.batch, problem.kv_len
    if problem.lengths == "full":
        lens = torch.full((batch,), most, device=generator.device)
    else:
        limit = most if problem.lengths == "uniform" else most // 8 + 1
        lens = torch.randint(1, limit + 1, (batch,), device=generator.device, generator=generator)
    if problem.lengths == "one_long":
        lens[-1:] = most
    return lens.to(torch.int32)


def _paged(tokens: torch.Tensor, table: torch.Tensor, page: int) -> torch.Tensor:
    """``[batch, kv_len, ...]`` as ``[pages, page, ...]``, each page where the table says."""
    pages = tokens.view(table.numel(), page, *tokens.shape[2:])
    return torch.empty_like(pages).index_copy_(0, table.flatten(), pages)


def floor(problem: Problem) -> Floor:
    """Keys and values of all tokens, by the longest the distribution has on average."""
    share = {"full": 1.0, "uniform": 0.5, "one_long": 1 / 16 + 1 / problem.batch}[problem.lengths]
    tokens = max(1, int(min(share, 1.0) * problem.batch * problem.kv_len))
    row, itemsize = problem.kv_heads * problem.head_dim, problem.torch_dtype.itemsize
    queries = 2 * problem.batch * problem.heads * problem.head_dim
    return Floor(bytes=(2 * tokens * row + queries) * itemsize, flop=4 * tokens * problem.heads * problem.head_dim)


PAGED_DECODE = Op(
    name="acme::paged_decode",
    schema=(
        "acme::paged_decode(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor kv_lens) -> Tensor out"
    ),
    version=1,
    reference=reference,
    problem=dims_of,
    check=check,
    inputs=inputs,
    floor=floor,
    tolerance=of_a_sum(6.0, lambda problem: problem.kv_len + problem.head_dim),
    static=frozenset({"heads", "kv_heads", "head_dim", "page", "dtype"}),
    dynamic=frozenset({"batch", "kv_len"}),
    distributions={"lengths": LENGTHS},
    kinds=("normal", "last_token", "nan_beyond"),
    examples=tuple(
        {
            "batch": 3,
            "heads": 4,
            "kv_heads": 2,
            "kv_len": 24,
            "head_dim": 16,
            "page": 4,
            "dtype": dtype,
            "lengths": lengths,
        }
        for dtype, lengths in zip(("float32", "bfloat16", "float32"), LENGTHS, strict=True)
    ),
)
