"""mla_decode by two matrix products, in float32 or of halves, and what Inductor makes of them."""

from __future__ import annotations

import math
from typing import Any

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native
from .decode import contiguous_keys

LatentValues = tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, float, torch.Tensor | None]
"""The op's values in the schema's order."""


def latent_products(call: LatentValues, narrow: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp. ``narrow``: halves are multiplied as they are, into float32, which GPUs alone do."""
    q, cache, kv_lens, rank, scale, table = call
    wide = torch.promote_types(q.dtype, torch.float32)
    keys = contiguous_keys(cache, kv_lens, table)
    seen = torch.arange(keys.shape[1], device=q.device) < kv_lens[:, None]
    # zero times the NaN of a slot that nobody has written would be NaN
    keys = keys.masked_fill(~seen[..., None], 0.0)
    queries, keys = (q, keys) if narrow else (q.to(wide), keys.to(wide))
    logits = (_product(queries, keys.transpose(1, 2), wide) * scale).masked_fill(~seen[:, None], -math.inf)
    most = logits.amax(-1, keepdim=True)
    most = most.masked_fill(most == -math.inf, 0.0)
    weights = (logits - most).exp()
    total = weights.sum(-1, keepdim=True)
    # in halves while the largest is 1: shares of many tokens would be below the normal numbers of float16
    out = _product(weights.to(keys.dtype), keys[..., :rank], wide) / total.masked_fill(total == 0.0, 1.0)
    return out.to(q.dtype), (most + total.log())[..., 0]


def _product(a: torch.Tensor, b: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """``a @ b`` in ``wide``, of tensors of that dtype or, on a GPU, of halves."""
    return a @ b if a.dtype == wide else torch.bmm(a, b, out_dtype=wide)


class MlaDecode(Native):
    """Latents from whatever pages, two products of torch and a softmax between them; of halves in tensor cores."""

    op = "mla_decode"
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Any layout and size."""
        narrow = device.type == "cuda" and problem.torch_dtype.itemsize == 2

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            return latent_products(arguments, narrow)

        return run


class CompiledMlaDecode(InductorImplementation):
    """The two products in float32; Inductor fuses what is between them."""

    op = "mla_decode"
    name = "torch.compile"

    def function(self, *values: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes the op's values in the schema's order."""
        return latent_products(values)
