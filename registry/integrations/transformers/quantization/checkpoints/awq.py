"""AWQ checkpoints: AutoAWQ's version "gemm", 4 bits packed along N."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .....packed import PackedWeight
from .layer_format import LayerFormat, choice, names_list, setting


@dataclass(frozen=True)
class AwqFormat(LayerFormat):
    """int32 words of eight columns in the order 0 2 4 6 1 3 5 7, zero points alike."""

    method = "awq"
    group_size: int
    zero_point: bool
    unpacked: tuple[str, ...]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> AwqFormat:
        """The format that a checkpoint's quantization_config describes."""
        choice("awq", "bits", setting("awq", settings, int, "bits", "w_bit"), (4,))
        version = setting("awq", settings, str, "version", "format", "checkpoint_format", default="gemm")
        choice("awq", "version", version.lower(), ("gemm",), "other versions are packed in other orders")
        size = setting("awq", settings, int, "group_size", "q_group_size")
        zero_point = setting("awq", settings, bool, "zero_point", default=True)
        return cls(size, zero_point, names_list("awq", settings, "modules_to_not_convert"))

    @property
    def names(self) -> tuple[str, ...]:
        return ("qweight", "qzeros", "scales")

    @property
    def skipped(self) -> tuple[str, ...]:
        # AutoAWQ leaves out a layer if one of the names is anywhere in its own
        return tuple(f".*{re.escape(name)}.*" for name in self.unpacked)

    def required(self, layer: str) -> tuple[str, ...]:
        return self.names if self.zero_point else ("qweight", "scales")

    def weight(self, layer: str, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> PackedWeight:
        return PackedWeight.from_awq(
            tensors["qweight"], tensors.get("qzeros"), tensors["scales"], bits=4, group_size=self.group_size
        )
