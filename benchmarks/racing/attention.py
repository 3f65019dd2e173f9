"""Other projects' attention, each called on the values of the registry's ops."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from registry import Problem

from .device_timing import Call, Maker


def sdpa(backend: str) -> Maker:
    """torch's attention by one of its backends, of heads before rows; it returns no log-sum-exp."""

    def maker(problem: Problem, _: tuple[Any, ...]) -> Call:
        dims = problem.dims
        if dims["softcap"] or dims["span"] is not False or (dims["causal"] and dims["q_len"] != dims["kv_len"]):
            raise ValueError("torch's attention has no cap, no window, and causal rows of as many queries as keys")
        chosen = [getattr(torch.nn.attention.SDPBackend, backend)]

        def call(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, causal: bool, scale: Any, *_: Any
        ) -> Any:
            rows, keys, values = (x.transpose(1, 2) for x in (q, k, v))
            with torch.nn.attention.sdpa_kernel(chosen):
                return torch.nn.functional.scaled_dot_product_attention(
                    rows, keys, values, mask, is_causal=causal, scale=scale, enable_gqa=q.shape[2] != k.shape[2]
                )

        return call

    return maker


def sdpa_decode(backend: str) -> Maker:
    """torch's attention by one of its backends, which knows neither pages nor lengths."""

    def made(problem: Problem, _: tuple[Any, ...]) -> Call:
        usual = {"page": False, "lengths": "full", "softcap": False, "span": False, "kv_dtype": "auto", "q_len": 1}
        if other := [name for name, value in usual.items() if problem.dims[name] != value]:
            raise ValueError(f"torch's attention takes one token and whole caches, not {', '.join(other)}")
        chosen = [getattr(torch.nn.attention.SDPBackend, backend)]

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object) -> torch.Tensor:
            with torch.nn.attention.sdpa_kernel(chosen):
                q, k, v = (one.transpose(1, 2) for one in (q, k, v))
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        return call

    return made


def flashinfer_decode(problem: Problem, values: tuple[Any, ...]) -> Call:
    """FlashInfer's decoding from pages, planned for these lengths before anything is timed."""
    if not problem.dims["page"] or problem.dims["q_len"] != 1:
        raise ValueError("FlashInfer's decoding takes one token, and pages")
    q, k, _, lengths, table, *_, window = values
    pages = torch.div(lengths + problem.page - 1, problem.page, rounding_mode="floor")
    ends = torch.nn.functional.pad(pages.cumsum(0), (1, 0)).to(torch.int32)
    begun = torch.arange(table.shape[1], device=table.device) < pages[:, None]
    workspace = torch.empty(2**28, dtype=torch.uint8, device=q.device)
    wrapper_of = importlib.import_module("flashinfer").BatchDecodeWithPagedKVCacheWrapper
    wrapper = wrapper_of(workspace, "NHD", use_tensor_cores=True)
    sizes = (problem.heads, problem.kv_heads, problem.head_dim, problem.page)
    last = lengths - (pages - 1) * problem.page
    wrapper.plan(
        ends, table[begun], last, *sizes, window_left=window, logits_soft_cap=values[8] or None, q_data_type=q.dtype,
        kv_data_type=k.dtype,
    )  # fmt: skip
    return lambda q, k, v, *_: wrapper.run(q[:, 0], (k, v))
