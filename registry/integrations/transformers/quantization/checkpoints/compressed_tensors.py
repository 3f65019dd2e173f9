"""compressed-tensors checkpoints (llm-compressor, vLLM): integers, packed or in int8, and float8 with float8."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .....errors import InvalidArgumentError
from .....packed import BITS, PackedWeight
from .....problem import dtype_name
from .layer_format import LayerFormat, choice, names_list, setting

_METHOD = "compressed-tensors"
_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "mixed-precision", "float-quantized", "dense")
_STRATEGIES = ("tensor", "channel", "group")
_UNAPPLIED = ("transform_config", "sparsity_config")


@dataclass(frozen=True)
class LayerScheme:
    """One of ``config_groups``: the layers that it is for, and how their weights are rounded.

    scaled    the dtype of weights and activations, if both are of 8 bits
    left_out  activations are rounded otherwise, which is not done
    """

    targets: tuple[str, ...]
    bits: int
    group_size: int | None
    act_order: bool
    scaled: torch.dtype | None
    left_out: bool

    @classmethod
    def of(cls, name: str, group: Mapping[str, Any]) -> LayerScheme:
        """The scheme of a group; InvalidArgumentError for one that no layer of ours has."""
        what = f"{_METHOD}: config_groups[{name!r}]"
        if not isinstance(group, Mapping):
            raise InvalidArgumentError(f"{what} is {group!r}", hint="expected targets and weights")
        weights = setting(what, group, dict, "weights")
        bits = setting(what, weights, int, "num_bits")
        choice(what, "weights.num_bits", bits, BITS)
        size = weights.get("group_size")
        strategy = weights.get("strategy") or ("channel" if size in (None, -1) else "group")
        choice(what, "weights.strategy", strategy, _STRATEGIES)
        if group.get("format") is not None:
            choice(what, "format", group["format"], _FORMATS)
        kind, activations = weights.get("type", "int"), group.get("input_activations")
        scaled = _levels(kind, bits, weights, activations) if strategy != "group" else None
        if kind != "int" and scaled is None:
            raise InvalidArgumentError(
                f"{what}: weights.type={kind!r} of {bits} bits, {strategy}, beside input_activations {activations}",
                hint="weights in float8 are loaded beside activations in float8, with a scale for a channel or tensor",
            )
        # "group" and True move the columns of a group together at run time; "static" and "weight" do not
        act_order = weights.get("actorder") in ("group", True)
        size = size if strategy == "group" else None
        left_out = activations is not None and scaled is None
        return cls(names_list(what, group, "targets"), bits, size, act_order, scaled, left_out)

    def closeness(self, layer: str) -> int:
        """How closely the targets name a layer: 3 by its name, 2 by a pattern, 1 by the class Linear, 0 not at all."""
        return max((_closeness(target, layer) for target in self.targets), default=0)


@dataclass(frozen=True)
class CompressedTensorsFormat(LayerFormat):
    """``weight_packed`` in int32 words, or ``weight`` in int8, with scales and zero points around 0."""

    method = _METHOD
    schemes: tuple[LayerScheme, ...]
    has_int8: bool
    ignored: tuple[str, ...]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> CompressedTensorsFormat:
        """The format that a checkpoint's quantization_config describes."""
        choice(_METHOD, "format", settings.get("format", "pack-quantized"), _FORMATS)
        for name in _UNAPPLIED:
            if _applied(settings.get(name)):
                raise InvalidArgumentError(
                    f"{_METHOD}: the checkpoint's quantization_config has a {name}, which would not be applied",
                    hint="load it by the library compressed-tensors, or quantise the model without it",
                )
        groups = setting(_METHOD, settings, dict, "config_groups")
        schemes = tuple(LayerScheme.of(name, group) for name, group in groups.items())
        formats = {settings.get("format"), *(group.get("format") for group in groups.values())} - {None}
        return cls(schemes, formats != {"pack-quantized"}, names_list(_METHOD, settings, "ignore"))

    @property
    def names(self) -> tuple[str, ...]:
        packed = ("weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx")
        return (*packed, "weight") if self.has_int8 else packed

    @property
    def notes(self) -> tuple[str, ...]:
        left_out = any(scheme.left_out for scheme in self.schemes)
        return ("activations are not quantised, as the checkpoint's input_activations say",) if left_out else ()

    @property
    def skipped(self) -> tuple[str, ...]:
        return tuple(name.removeprefix("re:") if name.startswith("re:") else re.escape(name) for name in self.ignored)

    @property
    def bits(self) -> int:
        return max((scheme.bits for scheme in self.schemes), default=4)

    def required(self, layer: str) -> tuple[str, ...]:
        if self.has_int8:
            return ("weight_scale",)
        order = ("weight_g_idx",) if self._scheme(layer).act_order else ()
        return ("weight_packed", "weight_shape", "weight_scale", *order)

    def weight(self, layer: str, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> PackedWeight:
        scheme = self._scheme(layer)
        return PackedWeight.from_compressed_tensors(tensors, bits=scheme.bits, group_size=scheme.group_size)

    def scaled(self, layer: str, tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
        dtype = self._scheme(layer).scaled
        if dtype is None or "weight_packed" in tensors:
            return None
        if "weight" not in tensors or "weight_scale" not in tensors:
            raise InvalidArgumentError(
                f"{layer} has no weight or weight_scale in the checkpoint", hint=f"it has {', '.join(tensors)}"
            )
        weight, scale = tensors["weight"], tensors["weight_scale"].float()
        if (weight.dtype == torch.int8) != (dtype == torch.int8):
            raise InvalidArgumentError(
                f"{layer}.weight is {dtype_name(weight.dtype)}", hint=f"its scheme says {dtype_name(dtype)}"
            )
        if scale.numel() not in (1, weight.shape[0]):
            raise InvalidArgumentError(
                f"{layer}.weight_scale has shape {tuple(scale.shape)}", hint=f"expected {(weight.shape[0], 1)}"
            )
        # transformers' loader may have converted float8 to the model's dtype, which holds all of its numbers
        return weight.to(dtype), scale.reshape(-1, 1).expand(weight.shape[0], 1)

    def _scheme(self, layer: str) -> LayerScheme:
        found = max(self.schemes, key=lambda scheme: scheme.closeness(layer), default=None)
        if found is None or not found.closeness(layer):
            raise InvalidArgumentError(
                f"{_METHOD}: {layer} is packed, but no target of config_groups names it",
                hint=f"targets: {', '.join(target for scheme in self.schemes for target in scheme.targets) or 'none'}",
            )
        return found


def _levels(kind: str, bits: int, weights: Mapping[str, Any], activations: Any) -> torch.dtype | None:
    """The dtype of ScaledLinear that has such weights and activations, which are symmetric and of one type."""
    if not isinstance(activations, dict) or bits != 8 or activations.get("num_bits") != 8:
        return None
    symmetric = all(each.get("symmetric", True) is True for each in (weights, activations))
    if not symmetric or activations.get("type", "int") != kind:
        return None
    return {"float": torch.float8_e4m3fn, "int": torch.int8}.get(kind)


def _closeness(target: str, layer: str) -> int:
    if target.startswith("re:"):
        return 2 if re.match(target.removeprefix("re:"), layer) else 0
    return 3 if layer == target or layer.endswith(f".{target}") else int(target == "Linear")


def _applied(value: Any) -> bool:
    """True for a configuration that changes the weights: not for None, an empty one or a dense one."""
    return bool(value) and not (isinstance(value, dict) and value.get("format") == "dense")
