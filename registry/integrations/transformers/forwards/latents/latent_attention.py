"""Attention modules that expand cached latents for all heads, and of one new token attend over the latents."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from .....contracts.checks import WIDE
from .....dispatch.torch_side.states import differentiating_otherwise
from .....tracing import constants_of
from ...layer_proofs import shell_of
from ...proofs import SPREAD, disagreement, is_spread
from ...report import ApplyReport
from ...swapping import Swapped, other_forward, own_class, swap
from ..rotary import RotaryForward
from .cache_rows import is_empty, join_rows, rows_of
from .projections import LatentPair, LatentSizes, is_linear
from .steps import LATENTS, LatentProbe, LatentStep

_PART = "one token over cached latents by mla_decode"
_CACHES = ("cache", "past_key_values")
"""Names of attention's parameter for the cache, which differ from version to version."""
_WIDTHS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""Names of the attributes with ``LatentSizes``."""
_READS = "it reads masks, which the registry's function makes only where some are needed"
_TOKENS = 2


class LatentAttention(Swapped):
    """Attention whose ``expand_kv`` leaves latents to the attention function while the model is evaluated.

    Its constants are the name of its parameter for the cache, that of the attention function that knows of latents, and
    ``LatentSizes``.
    """

    config: Any
    layer_idx: int

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        name, attention, sizes = constants_of(self.registry_constants)
        transformed = not is_dynamo_compiling() and differentiating_otherwise()
        if self.training or transformed or self.config._attn_implementation != attention:
            return super().forward(*args, **kwargs)
        cache, before = kwargs.get(name), LATENTS.step
        empty = not is_dynamo_compiling() and is_empty(cache, self.layer_idx)
        LATENTS.step = LatentStep(self, LatentSizes(*sizes), rows_of(cache, self.layer_idx))
        try:
            found = super().forward(*args, **kwargs)
        finally:
            LATENTS.step = before
        if empty:
            join_rows(cache, self.layer_idx)
        return found

    def expand_kv(self, latent: torch.Tensor, rotated: torch.Tensor) -> LatentPair:
        """The latents themselves for a step of this module, else keys and values of all heads."""
        step = LATENTS.step
        if isinstance(step, LatentStep) and step.module is self:
            return step.hold(latent, rotated)
        expanded: LatentPair = super().expand_kv(latent, rotated)  # type: ignore[misc]
        return expanded


class _ProbedAttention(Swapped):
    """Attention in a proof."""

    def expand_kv(self, latent: torch.Tensor, rotated: torch.Tensor) -> LatentPair:
        assert isinstance(LATENTS.step, LatentProbe)
        return LATENTS.step.hold(latent, rotated)


def replace_latents(model: torch.nn.Module, attention: str, report: ApplyReport) -> None:
    """Replace attention modules that cache latents, and expand them as ``LatentSizes.expanded`` does.

    ``attention`` is the name of the attention function that takes latents of a step.
    """
    rotaries = _rotaries(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, Swapped) or not callable(getattr(module, "expand_kv", None)):
            continue
        sizes = _sizes(module)
        cache = next((one for one in _CACHES if one in inspect.signature(type(module).forward).parameters), "")
        told = other_forward(module) or _unfit(module, sizes) or _disproof(module, sizes)
        told = told or _otherwise(module, sizes, cache, rotaries)
        if told:
            report.leave(f"{_PART}: {told}", name)
            continue
        swap(module, LatentAttention, (cache, attention, tuple(sizes)))
        report.add(f"{_PART} ({_held(module, sizes)})", name)


def needing_masks(model: torch.nn.Module) -> tuple[str, str]:
    """An attention module of latents whose forward may read the mask, by name, and why it may; "" and "" without one.

    DeepSeek-V3.2's chooses keys by an indexer, which has a mask for its scores; and it hides the others from the
    functions of transformers alone. A module that cannot be run here may do so, too.
    """
    rotaries = _rotaries(model)
    for name, module in model.named_modules():
        if isinstance(module, Swapped) or not callable(getattr(module, "expand_kv", None)):
            continue
        sizes = _sizes(module)
        own = _weight_of(module)
        some = None if own is None else torch.ones(1, 1, _TOKENS, _TOKENS, dtype=torch.bool, device=own.device)
        _, fault = _run(module, sizes, rotaries, {"attention_mask": None})
        if fault:
            if any(is_spread(one) for one in module.parameters()):
                return str(name), SPREAD
            _, other = _run(module, sizes, rotaries, {"attention_mask": some})
            return str(name), f"its own forward, without a mask: {fault}" if other else _READS
    return "", ""


def _rotaries(model: torch.nn.Module) -> list[Any]:
    """Modules of rotary positions, those that are replaced first; a model of images and text has several."""
    found = [
        one for one in model.modules() if any(name.endswith("inv_freq") for name, _ in one.named_buffers(recurse=False))
    ]
    return sorted(found, key=lambda one: not isinstance(one, RotaryForward))


def _weight_of(module: torch.nn.Module) -> torch.Tensor | None:
    """A tensor of a module with the dtype and the device of its activations."""
    return next((one for one in (*module.parameters(), *module.buffers()) if one.dtype in WIDE), None)


def _sizes(module: Any) -> LatentSizes:
    return LatentSizes(*(getattr(module, width, 0) for width in _WIDTHS))


def _heads(module: Any, sizes: LatentSizes) -> int:
    heads: int = module.kv_b_proj.out_features // (sizes.nope + sizes.value)
    return heads


def _held(module: Any, sizes: LatentSizes) -> str:
    """A text: the numbers that a cache holds of a token, beside those of keys and values of all heads."""
    expanded = _heads(module, sizes) * (sizes.nope + sizes.rope + sizes.value)
    return f"caches hold {sizes.kv_lora_rank + sizes.rope} numbers a token, expanded {expanded}"


def _unfit(module: Any, sizes: LatentSizes) -> str:
    """Why a module has no projection of latents that is known; "" if it has."""
    layer: Any = getattr(module, "kv_b_proj", None)
    if not is_linear(layer):
        return f"its kv_b_proj is a {own_class(layer).__name__}, expected a linear layer without bias"
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return "it does not tell the widths of its latents"
    if layer.in_features != sizes.kv_lora_rank or layer.out_features % (sizes.nope + sizes.value):
        return f"its kv_b_proj is {layer.out_features} by {layer.in_features}, and its latents have other widths"
    return ""


def _disproof(module: Any, sizes: LatentSizes) -> str:
    """How a module expands otherwise, with a dense layer of random numbers in its layer's place; "" if it does not."""
    rank, rows = sizes.kv_lora_rank, _heads(module, sizes) * (sizes.nope + sizes.value)
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(rank, rows, bias=False, device="meta")
    drawn = torch.randn(rows, rank, device="cpu", dtype=torch.float32, generator=generator)
    layer.weight = torch.nn.Parameter(drawn, requires_grad=False)
    shell = shell_of(module, {"kv_b_proj": layer})

    def split(x: torch.Tensor) -> LatentPair:
        latent, rotated = x.unsqueeze(1).split((rank, sizes.rope), -1)
        return latent, rotated

    def joined(pair: LatentPair) -> torch.Tensor:
        return torch.cat(pair, -1).transpose(1, 2).flatten(2)

    return disagreement(
        lambda x: joined(type(module).expand_kv(shell, *split(x))),
        lambda x: joined(sizes.expanded(drawn, *split(x))),
        rank + sizes.rope,
        drawn,
    )


def _otherwise(module: Any, sizes: LatentSizes, cache: str, rotaries: list[Any]) -> str:
    """Why a run of the module's own forward does not hand latents from the cache to its attention; "" if it does."""
    if not cache:
        return "it takes no cache"
    probe, fault = _run(module, sizes, rotaries, {"attention_mask": None}, cache)
    if fault:
        return f"its own forward, without a mask: {fault}"
    return "" if probe.proves(module.layer_idx) else "it does not hand on to attention what it has cached as it is"


def _run(
    module: Any, sizes: LatentSizes, rotaries: list[Any], given: dict[str, Any], cache: str = ""
) -> tuple[LatentProbe, str]:
    """A probe in the place of a module's attention and cache, and why the module's own forward cannot be run with it.

    Positions are those of the first of ``rotaries`` with which it can.
    """
    takes = "position_embeddings" in inspect.signature(type(module).forward).parameters
    probe, fault = LatentProbe(sizes), "the model has no module of rotary positions"
    for rotary in rotaries if takes else (None,):
        probe = LatentProbe(sizes)
        fault = _fault(module, probe, rotary, {**given, cache: probe} if cache else given)
        if not fault:
            break
    return probe, fault


def _fault(module: Any, probe: LatentProbe, rotary: Any, given: dict[str, Any]) -> str:
    """Why a module's own forward cannot be run with a probe and the positions of ``rotary``; "" once it has run."""
    parameters = inspect.signature(type(module).forward).parameters
    own = _weight_of(module)
    if own is None or own.is_meta:
        return "its weights are not loaded"
    positions = torch.arange(_TOKENS, device=own.device)[None]
    x = torch.zeros(1, _TOKENS, module.config.hidden_size, dtype=own.dtype, device=own.device)
    probed, before = shell_of(module, {}), LATENTS.step
    swap(probed, _ProbedAttention)
    LATENTS.step = probe
    try:
        with torch.no_grad():
            more: dict[str, Any] = {"position_ids": positions} if "position_ids" in parameters else {}
            if rotary is not None:
                more["position_embeddings"] = rotary(x, positions)
            type(module).forward(probed, hidden_states=x, **given, **more)
    except Exception as fault:  # a model's code may raise anything for arguments that it does not expect
        return f"{type(fault).__name__}: {fault}"
    finally:
        LATENTS.step = before
    return ""
