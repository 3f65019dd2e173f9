"""Layers that a quantised checkpoint should have and does not: transformers would give them random weights."""

from __future__ import annotations

from typing import Any

from ....errors import InvalidArgumentError
from .experts import packed_experts
from .record import LoadingRecord
from .replacing import packed_layers


def check_complete(model: Any, record: LoadingRecord) -> None:
    """Raise InvalidArgumentError if a layer to pack, or a part of the model beside packed tensors, was not loaded."""
    packed = {name for name, _ in packed_layers(model)}
    experts = {name for name, _ in packed_experts(model)}
    absent = sorted(record.missing - set(model.all_tied_weights_keys))
    for name in absent:
        layer, _, part = name.rpartition(".")
        if name in record.to_pack or layer in experts or (layer in packed and part == "bias"):
            raise InvalidArgumentError(
                f"RegistryConfig: no file of the checkpoint has {name}, nor a packed form of it",
                hint="is a file missing, or the checkpoint another model's?",
            )
    unread = [] if record.files is None else sorted(_unread(record.files.layers(record.format), packed))
    for name in absent:
        inside = [layer for layer in unread if f"{name.rpartition('.')[0]}." in f"{layer}."]
        if inside:
            raise InvalidArgumentError(
                f"RegistryConfig: {name} is one tensor in {type(model).__name__}, but packed apart in the checkpoint"
                f" ({inside[0]} and others)",
                hint="such experts are not loaded; take the checkpoint in full precision",
            )


def _unread(layers: dict[str, Any], packed: set[str]) -> set[str]:
    """The checkpoint's packed layers that the model has none of; the names may differ in their first parts."""
    left = set(layers) - packed
    return {name for name in left if not any(each.endswith(f".{name}") or name.endswith(f".{each}") for each in packed)}
