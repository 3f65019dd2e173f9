"""Faults of one rank, told in all: the others would wait for it at their next communication."""

from __future__ import annotations

from typing import Any

import torch

from ....errors import InvalidArgumentError, RegistryError
from .layers import ShardedLayer
from .styles import is_planned, mesh_around


def mesh_of(model: torch.nn.Module) -> Any:
    """The mesh of the layers of a model that ranks share; None if there are none."""
    for module in model.modules():
        if isinstance(module, ShardedLayer):
            return module.shard_plan.mesh
        if isinstance(module, torch.nn.Linear) and is_planned(module):
            return mesh_around(module)
    return None


def raise_together(fault: RegistryError | None, mesh: Any) -> None:
    """Raise a fault of this rank, and InvalidArgumentError in the other ranks of a mesh; ``mesh`` None: in this alone.

    All ranks of the mesh call this.
    """
    if mesh is not None:
        told = torch.tensor([int(fault is not None)], device=mesh.device_type)
        torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX, group=mesh.get_group())
        if fault is None and int(told):
            raise InvalidArgumentError(
                "another rank of the tensor-parallel plan could not pack its part of the model",
                hint="the error of that rank names the layer",
            )
    if fault is not None:
        raise fault
