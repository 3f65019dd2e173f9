"""LoadingRecord: what is known of a model's layers while it is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ....errors import RegistryError
from ....nn.scaled_experts import ExpertWeights
from .checkpoints import LayerFormat, TensorFiles
from .config import RegistryConfig


@dataclass
class LoadingRecord:
    """Settings that the loader's operations need, and their notes for the end of the loading.

    to_pack  names of the parameters that are expected to be packed
    files    the checkpoint's tensors, if their names are known
    missing  the loader's own set of names that no tensor was found for: complete when all files are read
    dtype    the model's
    expert_parameters  names of the weights of experts that packed ones compute
    experts  packed weights of experts by their names, until both of a module are there
    faults   why layers could not be packed, by their names
    """

    config: RegistryConfig
    format: LayerFormat
    to_pack: frozenset[str] = frozenset()
    files: TensorFiles | None = None
    missing: set[str] = field(default_factory=set)
    dtype: torch.dtype = torch.float32
    expert_parameters: frozenset[str] = frozenset()
    experts: dict[str, ExpertWeights] = field(default_factory=dict)
    faults: dict[str, RegistryError] = field(default_factory=dict)

    def note_missing(self, missing_keys: set[str] | None) -> None:
        """Keep the loader's set, which it goes on changing."""
        if missing_keys is not None:
            self.missing = missing_keys
