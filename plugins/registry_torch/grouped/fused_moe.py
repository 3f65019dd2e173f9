"""fused_moe by torch: the MLP of one expert after the other, or of all by grouped products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native
from .dense import grouped_mm_reasons

_ACTIVATIONS: Mapping[str, Any] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
}


def _gated(both: torch.Tensor, activation: str) -> torch.Tensor:
    gate, up = both.chunk(2, -1)
    inner: torch.Tensor = _ACTIVATIONS[activation](gate) * up
    return inner


class ExpertByExpert(Native):
    """The MLP of each expert that has tokens. It waits for the ids, which it reads on the host."""

    op = "fused_moe"
    capturable = False

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run for any layout and size, which sums in float32."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            x, w13, w2, weights, ids, activation = arguments
            top_k, flat = ids.shape[1], ids.reshape(-1)
            parts = x.new_zeros(flat.shape[0], x.shape[1])
            for expert in torch.unique(flat).tolist():
                if 0 <= expert < w13.shape[0]:
                    pair = (flat == expert).nonzero()[:, 0]
                    inner = _gated(torch.mm(x[pair // top_k], w13[expert].t()), activation)
                    parts.index_copy_(0, pair, torch.mm(inner, w2[expert].t()))
            outputs[0].copy_(_summed(parts, weights, (ids >= 0) & (ids < w13.shape[0])))

        return run


def _summed(parts: torch.Tensor, weights: torch.Tensor, somebody: torch.Tensor) -> torch.Tensor:
    """Each token's weighted sum of ``parts [tokens * top_k, hidden]``, in at least float32; 0 where there is nobody."""
    wide = torch.promote_types(parts.dtype, torch.float32)
    product = parts.view(*weights.shape, -1).to(wide) * weights.to(wide).unsqueeze(-1)
    return product.masked_fill(~somebody.unsqueeze(-1), 0.0).sum(1)


def _grouped(values: tuple[Any, ...]) -> torch.Tensor:
    """Rows sorted by expert, two ``torch._grouped_mm``, and each token's weighted sum in float32."""
    x, w13, w2, weights, ids, activation = values
    top_k, experts = ids.shape[1], w13.shape[0]
    somebody = (ids >= 0) & (ids < experts)
    # rows of no expert come last, behind the end of the last group, which the operator leaves uninitialised
    expert, order = torch.sort(torch.where(somebody, ids, experts).view(-1), stable=True)
    ends = torch.searchsorted(expert, torch.arange(1, experts + 1, device=ids.device, dtype=ids.dtype), out_int32=True)
    both = torch._grouped_mm(x.index_select(0, order // top_k), w13.mT, offs=ends)
    y = torch._grouped_mm(_gated(both, activation), w2.mT, offs=ends)
    # back in the tokens' order: a sum over neighbours is deterministic, as adding by index is not
    return _summed(y.index_select(0, torch.argsort(order)), weights, somebody).to(x.dtype)


def _reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why torch's grouped products cannot run: both have rows of ``hidden`` and of ``intermediate`` elements."""
    names = {"n": "hidden", "k": "intermediate"}
    sizes = {short: problem.dims[name] for short, name in names.items()}
    product = Problem(problem.op, {**sizes, "experts": problem.experts, "dtype": problem.dtype}, problem.traits)
    for reason in grouped_mm_reasons(product, device):
        short, _, rest = reason.partition("=")
        name = names.get(short)
        yield reason if name is None else f"{name}={rest.replace(f'rows of {short} ', f'rows of {name} ')}"


class GroupedMmMoe(Implementation):
    """Tokens sorted by expert, and ``torch._grouped_mm`` with the offsets on the device."""

    op = "fused_moe"
    name = "torch.grouped_mm"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    any_size = True
    returns_outputs = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from _reasons(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Before an MLP for each expert, on GPUs where that one would wait for the ids."""
        return 0.5 if device.type == "cuda" else -0.5

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            return _grouped(arguments)

        return run


class CompiledMoe(InductorImplementation):
    """``torch._grouped_mm`` with what is between compiled; a CPU gains nothing by it."""

    op = "fused_moe"
    name = "torch.compile"
    device_types: ClassVar[frozenset[str]] = frozenset({"cuda"})

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        yield from _reasons(problem, device)

    def function(self, *values: Any) -> torch.Tensor:
        """Takes tokens, both weights, the experts' weights and ids, and the activation's name."""
        return _grouped(values).contiguous()
