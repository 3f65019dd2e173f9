"""Experts that a model keeps in two tensors of three dimensions, replaced by packed or scaled ones and back."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ....errors import InvalidArgumentError
from ....nn import PackedExpertsMlp, ScaledExperts, ScaledExpertsMlp
from ....nn.scaled_experts import ExpertWeights
from ....packed import GROUP_SIZES, PackedExperts, groups, quantize, words, zero_kind
from ..parallel.layers import ShardedLayer, give_style
from ..swapping import carry_hooks
from .config import EXPERT_BITS, RegistryConfig

GATE_UP, DOWN = "gate_up_proj", "down_proj"
PackedMlp = PackedExpertsMlp | ScaledExpertsMlp


def expert_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Names and modules of experts that compute what PackedExpertsMlp does, as a small example of each class proves."""
    proved: dict[type, bool] = {}
    for name, module in model.named_modules():
        if looks_like_experts(module):
            if type(module) not in proved:
                proved[type(module)] = _computes_so(module)
            if proved[type(module)]:
                yield name, module


def other_experts(model: torch.nn.Module, known: Iterable[str]) -> Iterator[str]:
    """Names of modules that hold a projection of all experts in one tensor, other than those ``known`` by name."""
    for name, module in model.named_modules():
        held = (module._parameters.get(part) for part in (GATE_UP, DOWN))
        if name not in known and any(weight is not None and weight.dim() == 3 for weight in held):
            yield name


def packed_experts(model: torch.nn.Module) -> Iterator[tuple[str, PackedMlp]]:
    """Names and modules of all experts in few bits."""
    for name, module in model.named_modules():
        if isinstance(module, PackedMlp):
            yield name, module


def rounded(weights: torch.Tensor, config: RegistryConfig) -> ExpertWeights:
    """The weights ``[experts, N, K]``, each as ``registry.quantize`` or quantize_per_token rounds it."""
    if config.rounded_to is not None:
        return ScaledExperts.rounded(weights, config.rounded_to)
    size = config.group_size
    return PackedExperts.stack([quantize(weight, EXPERT_BITS, size, config.symmetric) for weight in weights])


def put_experts(model: torch.nn.Module, name: str, gate_up: ExpertWeights, down: ExpertWeights) -> PackedMlp:
    """Replace the experts ``name`` by those of packed or scaled weights, both of one kind, and return these."""
    plain = model.get_submodule(name)
    act: Any = plain.act_fn
    packed: PackedMlp
    if isinstance(gate_up, ScaledExperts):
        assert isinstance(down, ScaledExperts)
        packed = ScaledExpertsMlp(gate_up, down, act)
    else:
        assert isinstance(down, PackedExperts)
        packed = PackedExpertsMlp(gate_up, down, act)
    packed.train(plain.training)
    # hidden from torch: what is needed to make the plain module again
    packed.__dict__["plain"] = plain.to("meta")
    packed._is_hf_initialized = True  # type: ignore[assignment]
    model.set_submodule(name, packed)
    return packed


def form_of_experts(experts: PackedMlp) -> dict[str, Any]:
    """What makes ``put_empty_experts`` build such experts, as JSON holds it; a group of all of K is -1."""
    if isinstance(experts, ScaledExpertsMlp):
        return {"activations": experts.down.dtype}
    size = experts.shard_plan.group_size if isinstance(experts, ShardedLayer) else experts.down.group_size
    kinds = [zero_kind(part.zeros) for part in (experts.gate_up, experts.down)]
    return {"group_size": size if size in GROUP_SIZES else -1, "zeros": kinds}


def put_empty_experts(model: torch.nn.Module, name: str, form: Mapping[str, Any]) -> None:
    """Replace the experts ``name`` by those of a form without values, on meta, for a checkpoint that holds them.

    form  as ``form_of_experts`` tells it
    Raises InvalidArgumentError if the model has no such experts.
    """
    module = dict(model.named_modules()).get(name)
    if module is None or not looks_like_experts(module):
        raise InvalidArgumentError(
            f"RegistryConfig: the checkpoint has packed experts {name}, which {type(model).__name__} has not",
            hint="is the config.json another model's?",
        )
    like = (getattr(module, part) for part in (GATE_UP, DOWN))
    kinds = form.get("zeros", (None, None))
    gate_up, down = (_empty(part, form, kind) for part, kind in zip(like, kinds, strict=True))
    put_experts(model, name, gate_up, down)


def unpack_experts(model: torch.nn.Module, dtype: torch.dtype | None = None) -> None:
    """Replace all packed experts by plain ones with the dequantised weights, in ``dtype`` or the scales' dtype."""
    for name, packed in list(packed_experts(model)):
        plain = copy.copy(packed.__dict__["plain"])
        weights = {GATE_UP: _dense(packed.gate_up, dtype), DOWN: _dense(packed.down, dtype)}
        if isinstance(packed, ShardedLayer):
            weights = packed.shard_plan.whole(weights)
        plain._parameters = {part: torch.nn.Parameter(weight) for part, weight in weights.items()}
        model.set_submodule(name, plain.train(packed.training))
        carry_hooks(packed, plain)
        give_style(plain, packed)


def _dense(experts: ExpertWeights, dtype: torch.dtype | None) -> torch.Tensor:
    if isinstance(experts, ScaledExperts):
        return experts.dequantize(dtype or experts.scales.dtype)
    return experts.dequantize().to(dtype)


def looks_like_experts(module: torch.nn.Module) -> bool:
    """True for a module that holds the weights of gated experts in two tensors of three dimensions."""
    given = dict(module.named_parameters(recurse=False))
    if set(given) != {GATE_UP, DOWN} or any(weight.dim() != 3 for weight in given.values()):
        return False
    experts, hidden, intermediate = given[DOWN].shape
    return tuple(given[GATE_UP].shape) == (experts, 2 * intermediate, hidden) and hasattr(module, "act_fn")


def _computes_so(module: torch.nn.Module) -> bool:
    """True if the class's own ``forward`` has the numbers of a gated MLP of each expert, on a few random tokens."""
    generator = torch.Generator("cpu").manual_seed(0)
    experts, width, inner = 3, 8, 6
    with torch.device("cpu"), torch.no_grad():
        gate_up, down, x, weights = (
            torch.randn(shape, generator=generator, dtype=torch.float32)
            for shape in ((experts, 2 * inner, width), (experts, width, inner), (5, width), (5, 2))
        )
        index = torch.tensor([[0, 1], [2, 0], [1, 2], [2, 1], [0, 2]])
        small: Any = copy.copy(module)
        small._parameters = {GATE_UP: torch.nn.Parameter(gate_up), DOWN: torch.nn.Parameter(down)}
        small.num_experts = experts
        forward: Any = getattr(type(module).forward, "__wrapped__", type(module).forward)
        try:
            found = forward(small, x, index, weights)
        except Exception:  # a forward of other arguments or shapes
            return False
        gate, up = torch.einsum("enh,th->ten", gate_up, x).chunk(2, -1)
        act: Any = module.act_fn
        each = torch.einsum("ehi,tei->teh", down, act(gate) * up)
        chosen = each.gather(1, index.unsqueeze(-1).expand(-1, -1, width))
        expected = (chosen * weights.unsqueeze(-1)).sum(1)
    return isinstance(found, torch.Tensor) and found.shape == x.shape and torch.allclose(found, expected, 1e-4, 1e-4)


def _empty(like: torch.Tensor, form: Mapping[str, Any], zeros: str | None) -> ExpertWeights:
    experts, n, k = like.shape
    if "activations" in form:
        levels = torch.empty(like.shape, dtype=getattr(torch, form["activations"]), device="meta")
        return ScaledExperts(levels, torch.empty((experts, n, 1), dtype=torch.float32, device="meta"))
    size = k if form["group_size"] == -1 else form["group_size"]
    parts = (experts, groups(k, size), n)
    qweight = torch.empty((experts, words(k, EXPERT_BITS), n), dtype=torch.int32, device="meta")
    scales = torch.empty(parts, dtype=like.dtype, device="meta")
    dtype = {"integer": like.dtype, "float": torch.float32}.get(zeros or "none")
    points = None if dtype is None else torch.empty(parts, dtype=dtype, device="meta")
    return PackedExperts(qweight, scales, points, EXPERT_BITS, size, (n, k))
