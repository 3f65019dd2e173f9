"""Checkpoints that ``save_pretrained`` writes of packed layers: the tensors of PackedLinear as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .....errors import InvalidArgumentError
from .....packed import PackedWeight
from .layer_format import LayerFormat, names_list, setting


@dataclass(frozen=True)
class PackedForm:
    """What the tensors of a packed layer do not tell; the rest follows from their shapes and dtypes.

    symmetric  whether it has no zero points, so that a layer without them is not taken for one that lost them; None if
               the checkpoint does not tell
    """

    bits: int
    group_size: int
    codebook: str | None = None
    activations: str | None = None
    symmetric: bool | None = None

    @staticmethod
    def most_common(forms: Iterable[PackedForm]) -> PackedForm:
        """The form of most layers; of equally many the first one's."""
        return Counter(forms).most_common(1)[0][0]

    def settings(self) -> dict[str, Any]:
        """The form as JSON holds it."""
        return {name: value for name, value in asdict(self).items() if value is not None or name == "codebook"}


@dataclass(frozen=True)
class OwnFormat(LayerFormat):
    """The buffers of PackedLinear, ScaledLinear, ActOrderLinear (``order``) or PackedA8Linear (``activation_scale``).

    forms  of layers that differ
    """

    method = "registry"
    form: PackedForm
    forms: Mapping[str, PackedForm]
    unpacked: tuple[str, ...]
    has_experts: bool

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> OwnFormat:
        """The format that a RegistryConfig's values describe."""
        layers = setting("registry", settings, dict, "modules", default={})
        for layer, form in layers.items():
            if not isinstance(form, dict):
                raise InvalidArgumentError(
                    f"registry: modules[{layer!r}] is {form!r}", hint="expected bits, group_size"
                )
        forms = {layer: _form(form) for layer, form in layers.items()}
        unpacked = names_list("registry", settings, "modules_to_not_convert")
        return cls(_form(settings), forms, unpacked, bool(settings.get("experts")))

    @property
    def has_layers(self) -> bool:
        return not self.has_experts

    @property
    def names(self) -> tuple[str, ...]:
        return ("qweight", "scales", "zeros", "g_idx", "order", "levels", "activation_scale")

    @property
    def skipped(self) -> tuple[str, ...]:
        return self.unpacked

    @property
    def bits(self) -> int:
        return self.form.bits

    def required(self, layer: str) -> tuple[str, ...]:
        return ("scales",)

    def activations(self, layer: str) -> str | None:
        return self.forms.get(layer, self.form).activations

    def scaled(self, layer: str, tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
        return (tensors["levels"], tensors["scales"]) if "levels" in tensors else None

    def weight(self, layer: str, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> PackedWeight:
        if "qweight" not in tensors:
            raise InvalidArgumentError(f"{layer}.qweight is not in the checkpoint", hint=f"it has {', '.join(tensors)}")
        form = self.forms.get(layer, self.form)
        if form.symmetric is False and form.codebook is None and "zeros" not in tensors:
            raise InvalidArgumentError(
                f"{layer}.zeros is not in the checkpoint, whose config.json says that the layer has zero points",
                hint="is a file missing? A layer without them has symmetric: true among modules in quantization_config",
            )
        size = shape[1] if form.group_size == -1 else form.group_size
        return PackedWeight(
            tensors["qweight"],
            tensors["scales"],
            tensors.get("zeros"),
            form.bits,
            size,
            shape,
            g_idx=tensors.get("g_idx"),
            codebook=form.codebook,
        )


def _form(settings: Mapping[str, Any]) -> PackedForm:
    bits, size = (setting("registry", settings, int, name) for name in ("bits", "group_size"))
    return PackedForm(bits, size, *(settings.get(name) for name in ("codebook", "activations", "symmetric")))
