"""A device as its own node describes it to the actors that compile for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from ...backends.inductor.conditions import GpuProperties, conditions, gpu_properties
from ...device import Device
from ...problem import canonical_json


@dataclass(frozen=True)
class DescribedDevice:
    """A device with all that compilers elsewhere ask for.

    gpu         torch's properties of a GPU, by name; empty for a CPU
    conditions  what must be equal where torch.compile's variants are compiled and where they are loaded
    """

    device: Device
    gpu: GpuProperties
    conditions: Mapping[str, str]

    @classmethod
    def here(cls, name: str) -> DescribedDevice:
        """The device of that name on this machine, in the place that it has for a worker that sees it alone."""
        device = Device.of(name)
        gpu = gpu_properties(device.index) if device.type == "cuda" else {}
        return cls(replace(device, index=0), gpu, conditions(gpu))

    @classmethod
    def from_json(cls, text: str) -> DescribedDevice:
        """The inverse of ``as_json``."""
        fields = json.loads(text)
        return cls(Device(**fields["device"]), fields["gpu"], fields["conditions"])

    def as_json(self) -> str:
        """The description as one line of text."""
        return json.dumps(asdict(self))

    @property
    def model(self) -> str:
        """Key of all devices that the variants of torch.compile for this one serve: equal conditions."""
        text = canonical_json([self.device.architecture, dict(self.conditions)])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def groups(self) -> tuple[str, str]:
        """The names of the groups of artifacts that serve this device: of its architecture, and of its model."""
        return self.device.architecture, self.model
