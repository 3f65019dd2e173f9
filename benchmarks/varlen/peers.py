"""What else a user could call for packed sequences, on the op's values. All are told the lengths before they are timed.

What does not import, or refuses the sizes, raises when it is made or at its first call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from benchmarks.racing.device_timing import Call
from registry import Problem

from .lengths import offsets_of

VarlenPeer = Callable[[Problem, tuple[Any, ...], list[int]], Call]
"""Makes a call of the op's values for a problem whose sequences have these lengths."""

_WORKSPACE = 2**28
"""Bytes that FlashInfer is given."""


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """torch's attention of [batch, length, heads, head_dim]."""
    rows, keys, values = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        rows, keys, values, is_causal=causal, enable_gqa=q.shape[2] != k.shape[2]
    )
    return out.transpose(1, 2)


def sequence_by_sequence(problem: Problem, _: tuple[Any, ...], lengths: list[int]) -> Call:
    """torch's attention of one sequence after the other, into one output."""
    causal, bounds = bool(problem.causal), list(pairwise(offsets_of(lengths)))

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object) -> torch.Tensor:
        out = torch.empty_like(q)
        for begin, end in bounds:
            rows, keys, values = (x[None, begin:end] for x in (q, k, v))
            out[begin:end] = _sdpa(rows, keys, values, causal)[0]
        return out

    return call


def padded(problem: Problem, values: tuple[Any, ...], lengths: list[int]) -> Call:
    """torch's attention of all sequences in one batch, padded to the longest, with the copies there and back.

    Keys behind a sequence's end are hidden by causality alone.
    """
    if not problem.causal:
        raise ValueError("padded keys need a mask where rows are not causal")
    longest, device = max(lengths), values[0].device
    each = torch.tensor(lengths, device=device)
    place = torch.arange(longest, device=device)
    inside = (place < each[:, None]).flatten().nonzero().flatten()

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object) -> torch.Tensor:
        spread = []
        for x in (q, k, v):
            room = x.new_zeros(len(lengths) * longest, *x.shape[1:])
            spread.append(room.index_copy_(0, inside, x).unflatten(0, (len(lengths), longest)))
        rows, keys, their = spread
        return _sdpa(rows, keys, their, True).flatten(0, 1).index_select(0, inside)

    return call


def varlen_attn(problem: Problem, _: tuple[Any, ...], lengths: list[int]) -> Call:
    """torch's ``varlen_attn`` with the log-sum-exp, by whichever of its kernels it chooses."""
    module = importlib.import_module("torch.nn.attention.varlen")
    longest, window = max(lengths), (-1, 0) if problem.causal else (-1, -1)
    function, wanted = module.varlen_attn, module.AuxRequest(lse=True)
    # torch 2.11 shares heads unasked, later ones want to be told
    shared = {"enable_gqa": True} if "enable_gqa" in function.__annotations__ else {}

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor, *_: object) -> Any:
        # one tensor of offsets for both: cuDNN's causal rows ask for it
        return function(
            q, k, v, offsets, offsets, longest, longest, return_aux=wanted, window_size=window, **shared
        )[0]  # fmt: skip

    return call


def flash_attn(module: str, **more: Any) -> VarlenPeer:
    """``flash_attn_varlen_func`` of a module of one of FlashAttention's generations."""

    def made(problem: Problem, _: tuple[Any, ...], lengths: list[int]) -> Call:
        function, longest = importlib.import_module(module).flash_attn_varlen_func, max(lengths)

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor, *_: object) -> Any:
            found = function(
                q, k, v, cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=longest, max_seqlen_k=longest,
                causal=bool(problem.causal), **more,
            )  # fmt: skip
            return found[0] if isinstance(found, tuple) else found

        return call

    return made


def flashinfer(problem: Problem, values: tuple[Any, ...], _lengths: list[int]) -> Call:
    """FlashInfer's prefill of ragged keys and values, planned for these lengths."""
    q, offsets = values[0], values[3]
    workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=q.device)
    wrapper = importlib.import_module("flashinfer").BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        offsets, offsets, problem.heads, problem.kv_heads, problem.head_dim, causal=bool(problem.causal),
        q_data_type=q.dtype, kv_data_type=q.dtype,
    )  # fmt: skip
    return lambda q, k, v, *_: wrapper.run(q, k, v, return_lse=True)[0]


PEERS: Mapping[str, VarlenPeer] = {
    "SDPA, sequence by sequence": sequence_by_sequence,
    "SDPA, padded": padded,
    "torch varlen_attn": varlen_attn,
    "flash-attn": flash_attn("flash_attn"),
    "flash-attn-3": flash_attn("flash_attn_interface"),
    "flash-attn-4": flash_attn("flash_attn.cute"),
    "FlashInfer": flashinfer,
}


def calls(
    problem: Problem, values: tuple[Any, ...], lengths: list[int], without: Sequence[str] = ()
) -> tuple[dict[str, Call], dict[str, str]]:
    """The peers that can be made, and why the others cannot."""
    made: dict[str, Call] = {}
    faults: dict[str, str] = {}
    for name, maker in PEERS.items():
        if name in without:
            continue
        try:
            made[name] = maker(problem, values, lengths)
        except Exception as fault:  # a peer that is not installed or refuses the sizes is a row that says so
            faults[name] = f"{type(fault).__name__}: {fault}".splitlines()[0][:160]
    return made, faults
