"""Attention modules that expand cached latents for all heads, and of one new token attend over the latents."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from .....dispatch.torch_side.states import differentiating_otherwise
from .....tracing import constants_of
from ...proofs import disagreement
from ...report import ApplyReport
from ...swapping import Swapped, swap
from ..linears import LinearForward, is_bare
from ..rotary import RotaryForward
from .steps import LATENTS, LatentProbe, LatentSizes, LatentStep, Pair

_PART = "one token over cached latents by mla_decode"
_CACHES = ("cache", "past_key_values")
"""Names of attention's parameter for the cache, which differ from version to version."""
_WIDTHS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""Names of the attributes with ``LatentSizes``."""
_TOKENS = 2


class LatentAttention(Swapped):
    """Attention whose ``expand_kv`` leaves latents to the attention function while the model is evaluated.

    Its constants are the name of the attention function that knows of them, and ``LatentSizes``.
    """

    config: Any

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        attention, sizes = constants_of(self.registry_constants)
        transformed = not is_dynamo_compiling() and differentiating_otherwise()
        if self.training or transformed or self.config._attn_implementation != attention:
            return super().forward(*args, **kwargs)
        before = LATENTS.step
        LATENTS.step = LatentStep(self, LatentSizes(*sizes))
        try:
            return super().forward(*args, **kwargs)
        finally:
            LATENTS.step = before

    def expand_kv(self, latent: torch.Tensor, rotated: torch.Tensor) -> Pair:
        """The latents themselves for a step of this module, else keys and values of all heads."""
        step = LATENTS.step
        if isinstance(step, LatentStep) and step.module is self:
            return step.hold(latent, rotated)
        expanded: Pair = super().expand_kv(latent, rotated)
        return expanded


class _ProbedAttention(Swapped):
    """Attention in a proof."""

    def expand_kv(self, latent: torch.Tensor, rotated: torch.Tensor) -> Pair:
        assert isinstance(LATENTS.step, LatentProbe)
        return LATENTS.step.hold(latent, rotated)


class _NoCache:
    """In the place of a cache: new tokens are all there are."""

    def update(self, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> Pair:
        return key, value

    def get_seq_length(self, *_: Any) -> int:
        return 0


def replace_latents(model: torch.nn.Module, attention: str, report: ApplyReport) -> None:
    """Replace attention modules that cache latents and expand them as ``LatentSizes.expanded`` does.

    ``attention`` is the name of the attention function that takes latents of a step.
    """
    rotary = next((one for one in model.modules() if isinstance(one, RotaryForward)), None)
    for name, module in list(model.named_modules()):
        if isinstance(module, Swapped) or not callable(getattr(module, "expand_kv", None)):
            continue
        sizes = LatentSizes(*(getattr(module, width, 0) for width in _WIDTHS))
        told = _unfit(module, sizes) or _disproof(module, sizes, rotary)
        if told:
            report.leave(f"{_PART}: {told}", name)
            continue
        swap(module, LatentAttention, (attention, tuple(sizes)))
        report.add(f"{_PART} ({_held(module, sizes)})", name)


def _held(module: Any, sizes: LatentSizes) -> str:
    """What a cache holds of a token, and what keys and values of all heads would be."""
    heads = module.kv_b_proj.weight.shape[0] // (sizes.nope + sizes.value)
    expanded = heads * (sizes.nope + sizes.rope + sizes.value)
    return f"caches hold {sizes.kv_lora_rank + sizes.rope} numbers a token, which expanded are {expanded}"


def _unfit(module: Any, sizes: LatentSizes) -> str:
    """Why latents cannot be proved or multiplied; "" if they can."""
    layer = getattr(module, "kv_b_proj", None)
    if not isinstance(layer, LinearForward) or not is_bare(layer):
        return f"its kv_b_proj is {'missing' if layer is None else f'a {_own_name(layer)}'}, not a plain dense layer"
    if layer.bias is not None:
        return "its kv_b_proj has a bias"
    rows, cols = layer.weight.shape
    if not all(isinstance(size, int) and size > 0 for size in sizes) or cols != sizes.kv_lora_rank:
        return "it does not tell the widths of its latents"
    return "" if rows % (sizes.nope + sizes.value) == 0 else "its kv_b_proj has parts of heads"


def _own_name(layer: torch.nn.Module) -> str:
    own: Any = type(layer)
    while issubclass(own, Swapped):
        own = own.registry_class
    return str(own.__name__)


def _disproof(module: Any, sizes: LatentSizes, rotary: Any) -> str:
    """Why attention over latents would not be the module's own; "" if it would."""
    weight = module.kv_b_proj.weight

    def joined(pair: Pair) -> torch.Tensor:
        return torch.cat(pair, -1).transpose(1, 2).flatten(2)

    def split(x: torch.Tensor) -> Pair:
        latent, rotated = x.unsqueeze(1).split((sizes.kv_lora_rank, sizes.rope), -1)
        return latent, rotated

    told = disagreement(
        lambda x: joined(module.expand_kv(*split(x))),
        lambda x: joined(sizes.expanded(weight, *split(x))),
        sizes.kv_lora_rank + sizes.rope,
        weight,
    )
    if told:
        return told
    return "" if _hands_on(module, sizes, rotary) else "it does not hand what it expands to its attention as it is"


def _hands_on(module: Any, sizes: LatentSizes, rotary: Any) -> bool:
    """Whether the module's own forward hands what ``expand_kv`` returns to its attention function as it is."""
    parameters, weight = inspect.signature(type(module).forward).parameters, module.kv_b_proj.weight
    positions = torch.arange(_TOKENS, device=weight.device)[None]
    x = torch.zeros(1, _TOKENS, module.config.hidden_size, dtype=weight.dtype, device=weight.device)
    given: dict[str, Any] = {"hidden_states": x, "attention_mask": None}
    given |= {name: _NoCache() for name in _CACHES if name in parameters}
    probe, before = LatentProbe(sizes), LATENTS.step
    own = type(module)
    swap(module, _ProbedAttention)
    LATENTS.step = probe
    try:
        with torch.no_grad():
            if "position_embeddings" in parameters:
                given["position_embeddings"] = rotary(x, positions)
            if "position_ids" in parameters:
                given["position_ids"] = positions
            own.forward(module, **given)
    except Exception:  # a model's code may raise anything for arguments that it does not expect
        return False
    finally:
        LATENTS.step = before
        module.__class__ = own
    return probe.proves
