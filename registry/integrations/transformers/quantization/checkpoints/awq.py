"""AWQ checkpoints: AutoAWQ's versions "gemm" and "gemv", 4 bits packed along N and along K."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch

from .....packed import PackedWeight
from .layer_format import LayerFormat, choice, names_list, setting


@dataclass(frozen=True)
class AwqFormat(LayerFormat):
    """int32 words of eight columns in the order 0 2 4 6 1 3 5 7, of version "gemv" of eight rows; zero points alike."""

    method = "awq"
    group_size: int
    zero_point: bool
    unpacked: tuple[str, ...]
    version: str

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> AwqFormat:
        """The format that a checkpoint's quantization_config describes."""
        choice("awq", "bits", setting("awq", settings, int, "bits", "w_bit"), (4,))
        version = setting("awq", settings, str, "version", "format", "checkpoint_format", default="gemm").lower()
        choice("awq", "version", version, ("gemm", "gemv"), "other versions are packed in other orders")
        size = setting("awq", settings, int, "group_size", "q_group_size")
        zero_point = setting("awq", settings, bool, "zero_point", default=True)
        return cls(size, zero_point, names_list("awq", settings, "modules_to_not_convert"), version)

    @property
    def names(self) -> tuple[str, ...]:
        return ("qweight", "qzeros", "scales")

    def is_packed(self, names: Set[str]) -> bool:
        # scales alone are AutoAWQ's of an activation function, which would be left out
        return bool(names)

    @property
    def skipped(self) -> tuple[str, ...]:
        # AutoAWQ leaves out a layer if one of the names is anywhere in its own
        return tuple(f".*{re.escape(name)}.*" for name in self.unpacked)

    def required(self, layer: str) -> tuple[str, ...]:
        return self.names if self.zero_point else ("qweight", "scales")

    def weight(self, layer: str, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> PackedWeight:
        parts = tensors["qweight"], tensors.get("qzeros"), tensors["scales"]
        return PackedWeight.from_awq(*parts, bits=4, group_size=self.group_size, version=self.version)
