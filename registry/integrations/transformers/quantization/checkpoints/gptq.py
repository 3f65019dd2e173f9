"""GPTQ checkpoints: AutoGPTQ's and GPTQModel's, with and without act-order, per-layer overrides by ``dynamic``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .....errors import InvalidArgumentError
from .....packed import PackedWeight
from .layer_format import LayerFormat, choice, setting

_BITS = (2, 4, 8)
_3_BITS = "GPTQ's words of 3 bits hold parts of elements; quantise the model anew, or load it by GPTQModel"


@dataclass(frozen=True)
class GptqFormat(LayerFormat):
    """Bits along K in int32 words; zero points packed along N, which version "gptq" stores less 1."""

    method = "gptq"
    most_bits: int
    group_size: int
    act_order: bool
    version: str
    dynamic: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> GptqFormat:
        """The format that a checkpoint's quantization_config describes."""
        bits = setting("gptq", settings, int, "bits")
        choice("gptq", "bits", bits, _BITS, _3_BITS if bits == 3 else "")
        version = setting("gptq", settings, str, "checkpoint_format", "format", default="gptq")
        choice("gptq", "checkpoint_format", version, ("gptq", "gptq_v2"), "repacked weights are not converted back")
        dynamic = setting("gptq", settings, dict, "dynamic", default={})
        for pattern, overrides in dynamic.items():
            if isinstance(overrides, dict) and "bits" in overrides:
                choice("gptq", f"dynamic[{pattern!r}].bits", overrides["bits"], _BITS)
        size = setting("gptq", settings, int, "group_size")
        act_order = setting("gptq", settings, bool, "desc_act", "act_order", default=False)
        return cls(bits, size, act_order, version, dynamic)

    @property
    def names(self) -> tuple[str, ...]:
        return ("qweight", "qzeros", "scales", "g_idx")

    @property
    def bits(self) -> int:
        return self.most_bits

    def required(self, layer: str) -> tuple[str, ...]:
        order = self._overrides(layer).get("desc_act", self.act_order)
        return ("qweight", "qzeros", "scales", *(("g_idx",) if order else ()))

    def weight(self, layer: str, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> PackedWeight:
        own = self._overrides(layer)
        return PackedWeight.from_gptq(
            tensors["qweight"],
            tensors["qzeros"],
            tensors["scales"],
            tensors.get("g_idx"),
            bits=own.get("bits", self.most_bits),
            group_size=own.get("group_size", self.group_size),
            checkpoint_format=self.version,
        )

    def _overrides(self, layer: str) -> Mapping[str, Any]:
        """What ``dynamic`` says of a layer: GPTQModel takes the first pattern that matches from the name's start."""
        for pattern, overrides in self.dynamic.items():
            if pattern.startswith("-:"):
                continue
            try:
                found = re.match(pattern.removeprefix("+:"), layer)
            except re.error as fault:
                raise InvalidArgumentError(f"gptq: dynamic[{pattern!r}] is no regular expression: {fault}") from fault
            if found:
                return overrides
        return {}
