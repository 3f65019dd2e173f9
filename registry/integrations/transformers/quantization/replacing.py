"""Linear layers of a model replaced by packed ones and back."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ....errors import InvalidArgumentError
from ....nn import PackedA8Linear, PackedLinear, ScaledLinear
from ....packed import GROUP_SIZES
from ..adapters import has_adapters
from ..parallel.layers import ShardedLayer, give_style, own_bias, whole_bias
from ..swapping import carry_hooks
from .checkpoints import PackedForm
from .dense import DenseLayer, dense_layer, shape_of

PackedLayer = PackedLinear | ScaledLinear
_CONV1D = "was_conv1d"
"""The attribute of packed layers that stand for a Conv1D, which ``unpack_layers`` makes of them again."""


def packed_layers(model: torch.nn.Module) -> Iterator[tuple[str, PackedLayer]]:
    """Names and layers of all packed layers."""
    for name, module in model.named_modules():
        if isinstance(module, PackedLayer):
            yield name, module


def form_of(layer: PackedLinear) -> PackedForm:
    """The form of a packed layer, which its state does not hold; the group size of one group for all of K is -1."""
    size = layer.shard_plan.group_size if isinstance(layer, ShardedLayer) else layer.group_size
    size = size if size in GROUP_SIZES else -1
    activations = layer.activations if isinstance(layer, PackedA8Linear) else None
    return PackedForm(layer.bits, size, layer.codebook, activations, layer.zeros is None)


def put_packed(model: torch.nn.Module, name: str, packed: PackedLayer) -> None:
    """Replace the linear layer ``name`` by a packed one, which gets the linear layer's own bias.

    Raises InvalidArgumentError for a weight of another shape, and for a layer that is split over several devices.
    """
    linear = model.get_submodule(name)
    assert isinstance(linear, DenseLayer)
    plan = packed.shard_plan if isinstance(packed, ShardedLayer) else None
    if plan is None and type(linear.weight.data) is not torch.Tensor:
        raise InvalidArgumentError(
            f"its weight is a {type(linear.weight.data).__name__}",
            hint="layers are packed before they are spread over devices, but for those of a tensor-parallel plan",
        )
    given, expected = (packed.out_features, packed.in_features) if plan is None else plan.shape, shape_of(linear)
    if given != expected:
        raise InvalidArgumentError(
            f"its packed weight has shape {given}, the model's layer {expected}",
            hint="is the checkpoint another model's?",
        )
    # the bias may be loaded earlier or later than the weight
    packed.train(linear.training).bias = linear.bias if plan is None else own_bias(linear.bias, plan)
    if plan is not None and "config" in vars(linear):
        # one of transformers' styles reads it
        packed.__dict__["config"] = vars(linear)["config"]
    # transformers initialises modules that it does not find marked so
    packed._is_hf_initialized = True  # type: ignore[assignment]
    if not isinstance(linear, torch.nn.Linear):
        packed.__dict__[_CONV1D] = True
    model.set_submodule(name, packed)


def unpack_layers(model: torch.nn.Module, dtype: torch.dtype | None = None) -> None:
    """Replace all packed layers by dense layers with the dequantised weights, in ``dtype`` or the scales' dtype.

    The weights learn, but beside adapters.
    """
    learns = not has_adapters(model)
    for name, packed in list(packed_layers(model)):
        if isinstance(packed, ScaledLinear):
            weight = packed.dequantize(dtype or packed.scales.dtype)
        else:
            weight = packed.weight.dequantize()
        bias = packed.bias
        if isinstance(packed, ShardedLayer):
            weight, bias = packed.shard_plan.whole({"weight": weight})["weight"], whole_bias(bias, packed.shard_plan)
        dense = dense_layer(weight, bias, conv1d=_CONV1D in vars(packed))
        dense.weight.requires_grad_(learns)
        model.set_submodule(name, dense.to(dtype).train(packed.training))
        carry_hooks(packed, dense)
        give_style(dense, packed)
