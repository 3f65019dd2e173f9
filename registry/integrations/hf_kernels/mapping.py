"""The mapping from marks of layers to the registry's layers, which ``kernels.kernelize`` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kernels import LocalLayerRepository

from ...errors import InvalidArgumentError

LAYERS = Path(__file__).parent / "local"
"""The folder of the layers in the form that kernels loads: ``f"{LAYERS}:RmsNormLayer"`` in a ``KernelConfig``."""

DEVICES = ("cpu", "cuda")

_MARKS: Mapping[str, str] = {
    "RMSNorm": "RmsNormLayer",
    "RMSNormZeroCentered": "RmsNormLayer",
    "RMSNormGated": "RmsNormGatedLayer",
    "GeLU": "GeluLayer",
    "GeluTanh": "GeluLayer",
    "NewGELU": "GeluLayer",
    "FastGELU": "GeluLayer",
    "rotary_pos_emb": "RotaryLayer",
}
"""The name by which classes and functions are marked -> the layer that computes them."""


def kernel_mapping(devices: Sequence[str] = DEVICES) -> dict[str, dict[str, LocalLayerRepository]]:
    """A mapping for ``kernels.use_kernel_mapping``: the registry's layers for norms, gelu and rotary positions.

    devices  types of devices for which the layers are taken

    The layers serve all modes, training and torch.compile included. A layer computes what its module's class does, by
    an op where that is proved to be one, and by the class's own forward elsewhere. Raises InvalidArgumentError for no
    device, and for one on which no op runs.
    """
    given = [devices] if isinstance(devices, str) else list(devices)
    unknown = [device for device in given if device not in DEVICES]
    if unknown or not given:
        told = ", ".join(map(repr, unknown)) or "none"
        raise InvalidArgumentError(f"kernel_mapping: devices are {told}, expected some of {', '.join(DEVICES)}")
    return {
        mark: {device: LocalLayerRepository(LAYERS, layer_name=layer) for device in given}
        for mark, layer in _MARKS.items()
    }
