"""Operations of transformers' loader: a weight is packed, or made of a checkpoint's packed tensors, as it is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

import torch
from transformers.core_model_loading import ConversionOps, WeightConverter

from ....errors import InvalidArgumentError, RegistryError
from ....nn import ActOrderLinear, PackedA8Linear, ScaledLinear
from ....nn.scaled_experts import ExpertWeights
from ....packed import SCALE_DTYPES, PackedWeight
from .checkpoints import LayerFormat
from .dense import DenseLayer, shape_of
from .experts import DOWN, GATE_UP
from .fitting import layer_of
from .packing import packed_experts_of, packed_form, part_for, put_packed_experts
from .record import LoadingRecord
from .replacing import PackedLayer, put_packed


class LayerOperation(ConversionOps):  # type: ignore[misc, unused-ignore]
    """An operation that puts packed layers into the model, beside what it returns to the loader.

    Its faults go into the record, and are raised at the end of the loading: of an operation that raises, the loader
    keeps a text in a log alone.
    """

    def __init__(self, record: LoadingRecord) -> None:
        self.record = record

    def __deepcopy__(self, memo: dict[int, Any]) -> LayerOperation:
        # the loader copies the operations for each tensor
        return self

    def put(self, layer: str, replace: Callable[[], None], missing_keys: set[str] | None, parameter: str) -> None:
        """Replace ``layer`` by a packed one, or note why that cannot be made; its parameter is no longer missing."""
        if missing_keys is not None:
            missing_keys.discard(f"{layer}.{parameter}")
        try:
            replace()
        except RegistryError as fault:
            self.record.faults[layer] = InvalidArgumentError(f"{layer}: {fault.message}", hint=fault.hint)

    def hold(self, model: Any, name: str, packed: ExpertWeights) -> None:
        """Keep the packed weight ``name`` of a layer's experts, and replace them when both of the layer are there."""
        layer, held = name.rpartition(".")[0], self.record.experts
        held[name] = packed
        both = [f"{layer}.{part}" for part in (GATE_UP, DOWN)]
        if all(part in held for part in both):
            put_packed_experts(model, layer, *(held.pop(part) for part in both))


class PackWeights(LayerOperation):
    """Rounds the weights of linear layers and experts, one at a time."""

    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, Any]:
        """The tensors of other layers."""
        model, missing_keys = kwargs["model"], kwargs.get("missing_keys")
        left: dict[str, Any] = {}
        self.record.note_missing(missing_keys)
        for name, given in input_dict.items():
            if name in self.record.to_pack:
                layer, _, parameter = name.rpartition(".")
                pack = self._pack_linear if parameter == "weight" else self._pack_experts
                self.put(layer, partial(pack, model, name, _only(given)), missing_keys, parameter)
            else:
                left[name] = given
        return left

    def _pack_linear(self, model: Any, name: str, weight: torch.Tensor) -> None:
        layer = name.removesuffix(".weight")
        put_packed(model, layer, packed_form(model.get_submodule(layer), self.record.config, weight))

    def _pack_experts(self, model: Any, name: str, weights: torch.Tensor) -> None:
        layer, _, part = name.rpartition(".")
        self.hold(model, name, packed_experts_of(model.get_submodule(layer), part, self.record.config, weights))


class ReadPacked(LayerOperation):
    """Makes a layer's PackedWeight from the tensors that a checkpoint has of it."""

    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, Any]:
        """An empty mapping for a packed layer, which is put into the model; else the weight by its full name."""
        model, missing_keys, full_layer_name = kwargs["model"], kwargs.get("missing_keys"), kwargs["full_layer_name"]
        layer = full_layer_name.removesuffix(".weight")
        tensors = {_name(pattern): _only(given) for pattern, given in input_dict.items()}
        self.record.note_missing(missing_keys)
        module = model.get_submodule(layer)
        if set(tensors) == {"weight"} and tensors["weight"].dtype in SCALE_DTYPES:
            return {full_layer_name: tensors["weight"].to(module.weight.dtype)}

        def made() -> PackedLayer:
            if type(module) not in get_args(DenseLayer):
                raise InvalidArgumentError(
                    f"the checkpoint has packed tensors of it, but in the model it is a {type(module).__name__}",
                    hint="layers of the classes nn.Linear and Conv1D are packed; take the checkpoint in full precision",
                )
            if (scaled := self.record.format.scaled(layer, tensors)) is not None:
                return ScaledLinear(*scaled)
            weight = made_weight(self.record.format, layer, tensors, shape_of(module)).to(dtype=module.weight.dtype)
            if (activations := self.record.format.activations(layer)) is not None:
                return PackedA8Linear(weight, None, activations, tensors.get("activation_scale"))
            if "order" in tensors:
                return ActOrderLinear(weight, tensors["order"])
            return layer_of(weight)

        self.put(layer, lambda: put_packed(model, layer, part_for(module, made())), missing_keys, "weight")
        return {}


def read_packed(record: LoadingRecord) -> WeightConverter:
    """The loader's rule that gathers a layer's packed tensors in place of its weight."""
    sources = [rf"\.{name}$" for name in record.format.names]
    return WeightConverter(sources, ".weight", [ReadPacked(record)])


def is_ours(conversion: Any) -> bool:
    """True for ``read_packed``'s rules."""
    return any(isinstance(each, LayerOperation) for each in getattr(conversion, "operations", ()))


def made_weight(
    format_: LayerFormat, layer: str, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]
) -> PackedWeight:
    """A layer's weight. Raises InvalidArgumentError for tensors that are missing or make no such weight."""
    lacking = [name for name in format_.required(layer) if name not in tensors]
    if lacking:
        raise InvalidArgumentError(
            f"{', '.join(lacking)} is not in the checkpoint", hint=f"it has {', '.join(sorted(tensors))}"
        )
    return format_.weight(layer, tensors, shape)


def _only(given: Any) -> torch.Tensor:
    """A tensor that the loader hands over by itself or in a list."""
    tensor = given[0] if isinstance(given, list) else given
    assert isinstance(tensor, torch.Tensor)
    return tensor


def _name(pattern: str) -> str:
    return re.sub(r"^\\\.|\$$", "", pattern)
