"""Experts that a checkpoint of another library holds one by one, read into the two packed weights of their layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers.core_model_loading import WeightConverter

from ....errors import InvalidArgumentError
from ....nn import ScaledExperts
from ....nn.scaled_experts import ExpertWeights
from ....packed import SCALE_DTYPES, PackedExperts, PackedWeight, symmetric_zero
from .checkpoints import LayerFormat
from .config import EXPERT_BITS
from .experts import DOWN, GATE_UP
from .operations import LayerOperation, made_weight
from .record import LoadingRecord

_OF_ONE = re.compile(r"\.experts\.\d+\.\w+\.weight_scale$")
"""The scale of an expert whose levels a checkpoint names "weight", as it does a weight in full precision."""
_PROJECTIONS = {GATE_UP: (("gate_proj", "w1"), ("up_proj", "w3")), DOWN: (("down_proj", "w2"),)}
"""Names of an expert's projections in checkpoints, whose weights follow each other along N: Qwen's and Mixtral's."""
LayerTensors = tuple[str, dict[str, torch.Tensor]]
"""The name of a layer, and its tensors by their last names."""


class ReadExperts(LayerOperation):
    """Makes one packed weight of a layer's experts from the tensors that a checkpoint has of each."""

    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, Any]:
        """The weight of experts that are not packed, by its full name; of packed ones nothing until all are read."""
        self.record.note_missing(kwargs.get("missing_keys"))
        name = str(kwargs["full_layer_name"])
        layer, _, parameter = name.rpartition(".")
        model, is_read = kwargs["model"], name in self.record.expert_parameters
        plain = getattr(model.get_submodule(layer), parameter, None)
        if plain is not None and not is_read and (whole := _whole(input_dict, parameter)) is not None:
            return {name: whole.to(plain.dtype)}

        def read() -> None:
            if not is_read:
                raise InvalidArgumentError(
                    f"the checkpoint has packed experts, but {type(model.get_submodule(layer)).__name__} computes"
                    " otherwise than PackedExpertsMlp",
                    hint="take the checkpoint in full precision",
                )
            shape = tuple(getattr(model.get_submodule(layer), parameter).shape)
            self.hold(model, name, self._packed(layer, parameter, input_dict, shape))

        self.put(layer, read, kwargs.get("missing_keys"), parameter)
        return {}

    def _packed(self, layer: str, parameter: str, given: dict[str, Any], shape: tuple[int, ...]) -> ExpertWeights:
        experts, n, k = shape
        projections = _PROJECTIONS[parameter]
        tensors = [_by_expert(given, names) for names in projections]
        if any(len(each) != experts for each in tensors):
            raise InvalidArgumentError(
                f"{', '.join(map(str, map(len, tensors)))} packed experts of {parameter}, the model has {experts}",
                hint="is a file of the checkpoint missing?",
            )
        of_experts = [
            [(f"{layer}.{expert}.{names[0]}", each[expert]) for names, each in zip(projections, tensors, strict=True)]
            for expert in range(experts)
        ]
        each_shape = n // len(tensors), k
        packed = _scaled(self.record.format, of_experts, each_shape) or self._in_words(of_experts, each_shape)
        if packed.shape != (n, k):
            raise InvalidArgumentError(f"its packed experts have shape {packed.shape}, the model's {(n, k)}")
        return packed

    def _in_words(self, experts: Sequence[Sequence[LayerTensors]], shape: tuple[int, int]) -> PackedExperts:
        """The experts from their projections, each a weight of that shape."""
        made = [[made_weight(self.record.format, *one, shape) for one in parts] for parts in experts]
        packed = PackedExperts.stack(_alike([_joined(parts) for parts in made]))
        if packed.bits != EXPERT_BITS:
            raise InvalidArgumentError(
                f"packed experts of {packed.bits} bits",
                hint=f"expected {EXPERT_BITS}, or 8 beside activations alike; take the checkpoint in full precision",
            )
        return packed.to(dtype=self.record.dtype)


def read_experts(record: LoadingRecord) -> list[WeightConverter]:
    """The loader's rules that gather the packed tensors of a layer's experts in place of its two weights."""
    tensors = () if record.files is None else record.files.files
    levels = any(_OF_ONE.search(name) for name in tensors)
    parts = [name for name in record.format.names if name != "weight" or levels]
    return [
        WeightConverter(
            [rf"\.experts\.\d+\.{name}\.{part}$" for names in projections for name in names for part in parts],
            f".experts.{parameter}",
            [ReadExperts(record)],
        )
        for parameter, projections in _PROJECTIONS.items()
    ]


def is_for_experts(conversion: Any) -> bool:
    """True for a model's own rules that gather the weights of a layer's experts."""
    return isinstance(conversion, WeightConverter) and any("experts" in name for name in conversion.source_patterns)


def _by_expert(given: dict[str, Any], names: Sequence[str]) -> list[dict[str, torch.Tensor]]:
    """The tensors of each expert's projection by their last names; the loader gathers them in the experts' order."""
    found: list[dict[str, torch.Tensor]] = []
    for pattern, tensors in given.items():
        projection, part = re.sub(r"\\|\$", "", pattern).split(".")[-2:]
        if projection in names:
            found += [{} for _ in range(len(tensors) - len(found))]
            for each, tensor in zip(found, tensors, strict=False):
                each[part] = tensor
    return found


def _whole(given: dict[str, Any], parameter: str) -> torch.Tensor | None:
    """The weight of experts that a checkpoint has in full precision; None if it has other tensors of them, too."""
    projections = [_by_expert(given, names) for names in _PROJECTIONS[parameter]]
    tensors = [part for each in projections for part in each]
    if any(set(part) != {"weight"} or part["weight"].dtype not in SCALE_DTYPES for part in tensors):
        return None
    # the loader refuses the weight of too few experts
    joined = [torch.cat([part["weight"] for part in parts]) for parts in zip(*projections, strict=False)]
    return torch.stack(joined)


def _scaled(
    format_: LayerFormat, experts: Sequence[Sequence[LayerTensors]], shape: tuple[int, int]
) -> ScaledExperts | None:
    """The experts from the names and tensors of each one's projections, whose weights have that shape.

    None if their activations are not rounded.
    """
    made = [[format_.scaled(name, tensors) for name, tensors in parts] for parts in experts]
    found = [[one for one in parts if one is not None] for parts in made]
    if not any(found):
        return None
    if [len(parts) for parts in found] != [len(parts) for parts in made]:
        raise InvalidArgumentError("activations of some of its experts are in 8 bits, and of others they are not")
    for parts, named in zip(found, experts, strict=True):
        for (weight, _), (name, _) in zip(parts, named, strict=True):
            if weight.shape != shape:
                raise InvalidArgumentError(f"{name}.weight has shape {tuple(weight.shape)}", hint=f"expected {shape}")
    # float8 is not joined
    levels = [torch.cat([levels.view(torch.uint8) for levels, _ in parts]) for parts in found]
    scales = [torch.cat([scales for _, scales in parts]) for parts in found]
    return ScaledExperts(torch.stack(levels).view(found[0][0][0].dtype), torch.stack(scales))


def _joined(weights: Sequence[PackedWeight]) -> PackedWeight:
    """Weights of one K as one, along N."""
    first, *others = weights = _alike(weights)
    if not others:
        return first
    parts: dict[str, Any] = {
        name: torch.cat([getattr(weight, name) for weight in weights], 1)
        for name in ("qweight", "scales", "zeros")
        if getattr(first, name) is not None
    }
    return replace(first, **parts, shape=(sum(weight.shape[0] for weight in weights), first.shape[1]))


def _alike(weights: Sequence[PackedWeight]) -> list[PackedWeight]:
    """The weights, all with zero points if some have them, in float32 if some are float32."""
    given = [weight.zeros for weight in weights if weight.zeros is not None]
    if not given:
        return list(weights)
    dtype = next((zeros.dtype for zeros in given if zeros.dtype == torch.float32), given[0].dtype)
    return [
        replace(
            weight,
            zeros=torch.full_like(weight.scales, symmetric_zero(weight.bits), dtype=dtype)
            if weight.zeros is None
            else weight.zeros.to(dtype),
        )
        for weight in weights
    ]
