"""Other projects' layers in place of a model's linear layers, each by its own advice for decoding.

All weights of 4 bits have a scale and a zero point for each 128 of a row. The rest of the model stays transformers'.

torchao       ``quantize_`` with Int4WeightOnlyConfig in tinygemm's tiles, whose kernel needs no further library
torchao-mslk  ``quantize_`` with Int4WeightOnlyConfig in the order of MSLK's kernels for Hopper
torchao-fp8   ``quantize_`` with Float8DynamicActivationFloat8WeightConfig, a scale for each row of both
gemlite       GemLiteLinear with packed weights, which tunes itself at first calls on a GPU that it has no file for
humming       HummingLayer, which chooses by its heuristics and compiles by NVRTC at first calls
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

import registry
from registry.device import installed_version

from ..racing.gemlite import gemlite_layer
from ..racing.packed import humming_layer

GROUP_SIZE = 128
INSTALL: Mapping[str, tuple[str, ...]] = {
    "torchao": ("torchao",),
    "torchao-mslk": ("torchao", "mslk-cuda"),
    "torchao-fp8": ("torchao",),
    "gemlite": ("gemlite",),
    "humming": ("humming-kernels",),
}
"""What to install for each peer."""
_TORCHAO: Mapping[str, Any] = {
    "coordinate_descent_tuning": True,
    "coordinate_descent_check_all_directions": True,
    "force_fuse_int_mm_with_mul": True,
}
SETTINGS: Mapping[str, Mapping[str, Any]] = dict.fromkeys(("torchao", "torchao-mslk", "torchao-fp8"), _TORCHAO)
"""What a peer sets of Inductor's configuration for a whole process; here while it is compiled alone."""

Product = Callable[[torch.Tensor], torch.Tensor]

_HUMMINGS: list[Product] = []


def replace_linears(name: str, model: Any, *, lm_head: bool) -> None:
    """Put a peer's layers into a model, into its output layer only with ``lm_head``. Raises ImportError without it."""
    _REPLACE[name](model, lm_head)


def versions(ways: Iterable[str]) -> dict[str, str]:
    """The installed versions of the peers among the ways, by distribution."""
    wanted = {name for way in ways for name in INSTALL.get(way.partition("+")[0], ())}
    return {name: installed_version(name) or "none" for name in sorted(wanted)}


def _linears(model: Any, lm_head: bool) -> Iterator[tuple[str, torch.nn.Linear]]:
    for name, module in list(model.named_modules()):
        if type(module) is torch.nn.Linear and (lm_head or module is not model.get_output_embeddings()):
            yield name, module


def _torchao(model: Any, lm_head: bool) -> None:
    _torchao_int4(model, lm_head, "TILE_PACKED_TO_4D")


def _torchao_mslk(model: Any, lm_head: bool) -> None:
    _part("mslk.quantize.shuffle")  # torchao itself says so only at a weight
    _torchao_int4(model, lm_head, "PRESHUFFLED")


def _torchao_int4(model: Any, lm_head: bool, order: str) -> None:
    api, formats = _part("torchao.quantization"), _part("torchao.quantization.quantize_.workflows").Int4PackingFormat
    form = {"group_size": GROUP_SIZE, "int4_packing_format": formats[order], "set_inductor_config": False}
    _quantize(model, lm_head, api.Int4WeightOnlyConfig(**form))


def _torchao_fp8(model: Any, lm_head: bool) -> None:
    api = _part("torchao.quantization")
    config = api.Float8DynamicActivationFloat8WeightConfig(granularity=api.PerRow(), set_inductor_config=False)
    _quantize(model, lm_head, config)


def _quantize(model: Any, lm_head: bool, config: Any) -> None:
    wanted = {id(module) for _, module in _linears(model, lm_head)}
    _part("torchao.quantization").quantize_(model, config, filter_fn=lambda module, _name: id(module) in wanted)


def _gemlite(model: Any, lm_head: bool) -> None:
    for name, linear in _linears(model, lm_head):
        layer = gemlite_layer(registry.quantize(linear.weight, bits=4, group_size=GROUP_SIZE))
        model.set_submodule(name, _Instead(layer, linear))


def _humming(model: Any, lm_head: bool) -> None:
    configs = {"weight_config": {"dtype": "int4", "group_size": GROUP_SIZE, "has_zero_point": True}}
    for name, linear in _linears(model, lm_head):
        layer = humming_layer(linear.weight.detach(), configs)
        model.set_submodule(name, _Instead(_as_op(layer, linear.out_features), linear))


class _Instead(torch.nn.Module):
    """A peer's product of ``[rows, in_features]`` in place of a linear layer, with the layer's bias."""

    def __init__(self, product: Product, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.product, self.bias = product, linear.bias
        self.out_features = linear.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        y = self.product(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias


def _as_op(layer: Product, width: int) -> Product:
    """The layer as one op of compiled graphs.

    Traced itself it has an op with a result on the CPU, its kernels' numbers, which keeps CUDA graphs from being used.
    """
    _HUMMINGS.append(layer)
    place = len(_HUMMINGS) - 1
    return lambda x: torch.ops.benchmarks_models.humming(x, place, width)


def _call(x: torch.Tensor, place: int, _width: int) -> torch.Tensor:
    return _HUMMINGS[place](x)


_LIBRARY = torch.library.Library("benchmarks_models", "FRAGMENT")
_LIBRARY.define("humming(Tensor x, int place, int width) -> Tensor")
_LIBRARY.impl("humming", _call, "CUDA")
torch.library.register_fake(
    "benchmarks_models::humming", lambda x, _place, width: x.new_empty(x.shape[0], width), lib=_LIBRARY
)


def _part(name: str) -> Any:
    return importlib.import_module(name)


_REPLACE: Mapping[str, Callable[[Any, bool], None]] = {
    "torchao": _torchao,
    "torchao-mslk": _torchao_mslk,
    "torchao-fp8": _torchao_fp8,
    "gemlite": _gemlite,
    "humming": _humming,
}
PEERS = tuple(_REPLACE)
