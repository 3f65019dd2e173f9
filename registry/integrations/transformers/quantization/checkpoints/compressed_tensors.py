"""compressed-tensors checkpoints (llm-compressor, vLLM): integers, pack-quantized or int-quantized."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .....errors import InvalidArgumentError
from .....packed import BITS, PackedWeight
from .layer_format import LayerFormat, choice, names_list, setting

_METHOD = "compressed-tensors"
_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "mixed-precision", "dense")
_STRATEGIES = ("tensor", "channel", "group")
_UNAPPLIED = ("transform_config", "sparsity_config")


@dataclass(frozen=True)
class LayerScheme:
    """One of ``config_groups``: the layers that it is for, and how their weights are rounded."""

    targets: tuple[str, ...]
    bits: int
    group_size: int | None
    act_order: bool

    @classmethod
    def of(cls, name: str, group: Mapping[str, Any]) -> LayerScheme:
        """The scheme of a group; InvalidArgumentError for one that a PackedWeight does not hold."""
        what = f"{_METHOD}: config_groups[{name!r}]"
        weights = setting(what, group, dict, "weights")
        choice(what, "weights.type", weights.get("type", "int"), ("int",), "floating-point weights are not loaded")
        bits = setting(what, weights, int, "num_bits")
        choice(what, "weights.num_bits", bits, BITS)
        size = weights.get("group_size")
        strategy = weights.get("strategy") or ("channel" if size in (None, -1) else "group")
        choice(what, "weights.strategy", strategy, _STRATEGIES)
        if group.get("format") is not None:
            choice(what, "format", group["format"], _FORMATS)
        # "group" and True move the columns of a group together at run time; "static" and "weight" do not
        act_order = weights.get("actorder") in ("group", True)
        return cls(names_list(what, group, "targets"), bits, size if strategy == "group" else None, act_order)

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

    def _scheme(self, layer: str) -> LayerScheme:
        found = max(self.schemes, key=lambda scheme: scheme.closeness(layer), default=None)
        if found is None or not found.closeness(layer):
            raise InvalidArgumentError(
                f"{_METHOD}: {layer} is packed, but no target of config_groups names it",
                hint=f"targets: {', '.join(target for scheme in self.schemes for target in scheme.targets) or 'none'}",
            )
        return found


def _closeness(target: str, layer: str) -> int:
    if target.startswith("re:"):
        return 2 if re.match(target.removeprefix("re:"), layer) else 0
    return 3 if layer == target or layer.endswith(f".{target}") else int(target == "Linear")


def _applied(value: Any) -> bool:
    """True for a configuration that changes the weights: not for None, an empty one or a dense one."""
    return bool(value) and not (isinstance(value, dict) and value.get("format") == "dense")
