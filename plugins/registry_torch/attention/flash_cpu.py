"""torch's FlashAttention for CPUs where a logit is NaN or infinite: the formula answers then."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

from . import aten, reasons
from .native import attend
from .sdpa import cpu_reasons


class CpuFlashAttention(Implementation):
    """torch's FlashAttention for CPUs, with masks and grouped heads, in all floating dtypes.

    Calls with NaN or infinite logits are answered by the formula:
    torch's kernel drops a NaN from a row's maximum where fewer keys than a vector register holds are left: a row all of
    whose logits are NaN, as of a NaN query and 8 keys, then looks like one that sees no key, and is 0 with
    a log-sum-exp of 0. It adds a mask to the logits, so that NaN keys are seen through a bool mask. The log-sum-exp of
    a row tells all of these, and is the only tensor that is looked at.
    """

    op = "attention"
    name = "torch.flash_cpu"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})
    returns_outputs = True
    any_size = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Caps, windows, causal rows of another number than keys, and a mask beside causal rows."""
        yield from cpu_reasons(problem)

    def preference(self, problem: Problem, device: Device) -> float:
        """Ahead of torch's formula, which keeps all logits in memory."""
        return 0.5

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind FlashAttention for CPUs, for any size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            q, k, v, mask, causal, scale, *_ = arguments
            out, lse = aten.cpu(q, k, v, reasons.bias_of(mask, q, k.shape[1]), causal, scale)
            blind = blind_rows(mask)
            if needs_formula(lse, blind):
                return attend(arguments)
            return out.contiguous(), (lse if blind is None else lse.masked_fill(blind, -math.inf)).contiguous()

        return run


def blind_rows(mask: torch.Tensor | None) -> torch.Tensor | None:
    """True [batch or 1, heads or 1, q_len] where a mask hides all keys; None without a mask."""
    if mask is None:
        return None
    return ~mask.any(-1) if mask.dtype == torch.bool else (mask == -math.inf).all(-1)


def needs_formula(lse: torch.Tensor, blind: torch.Tensor | None) -> bool:
    """Whether a row's log-sum-exp is no finite number, or is the 0 of a row that sees no key although it sees one."""
    wrong = ~lse.isfinite() | ((lse == 0.0) if blind is None else (lse == 0.0) & ~blind)
    return bool(wrong.any())
