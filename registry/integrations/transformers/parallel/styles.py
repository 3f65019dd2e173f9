"""Styles of transformers' tensor-parallel plans, and torch's hooks: how the inputs and outputs of a module are shared.

A style replaces a module's ``forward`` by a function around it, which names the style and the mesh.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from ....errors import InvalidArgumentError
from ..proofs import is_spread

try:
    from transformers.distributed.expert_parallel import ExpertParallelLayer
    from transformers.distributed.tensor_parallel import TensorParallelLayer
except ImportError:  # of a release that shares layers in another way: such layers are left, or refused
    _STYLES: tuple[type, ...] = ()
else:
    _STYLES = (TensorParallelLayer, ExpertParallelLayer)

_RELEASE = "5.22"
"""The first release of transformers whose plans are known."""

_LINEAR = ("ColwiseParallel", "RowwiseParallel", "PackedColwiseParallel", "MlaKvAProjParallel")
EXPERT_STYLES = ("MoeExpertsParallel",)
"""The styles, by the names of their classes, that a packed module works in."""
HOOKED = "_distribute_module_applied"
"""What torch's ``parallelize_module`` sets on modules that it gives hooks."""


def check_release(model: torch.nn.Module) -> None:
    """Raises InvalidArgumentError if ranks share a model by a plan of a release of transformers that is not known."""
    if not _STYLES and (getattr(model, "_tp_size", None) or 1) > 1:
        raise InvalidArgumentError(
            f"transformers {transformers.__version__} shares the model's layers among ranks in a way that is not known",
            hint=f"packing in a tensor-parallel plan takes transformers {_RELEASE} or newer; or leave out the plan",
        )


def style_around(module: torch.nn.Module) -> tuple[Any, Any] | None:
    """The style of transformers that runs around a module's forward, and its mesh; None if there is none."""
    forward = vars(module).get("forward")
    code, cells = getattr(forward, "__code__", None), getattr(forward, "__closure__", None)
    if code is None or cells is None:
        return None
    held = dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True))
    style = held.get("self")
    if held.get("module", module) is not module or not isinstance(style, _STYLES):
        return None
    return style, held.get("mesh")


def is_planned(module: torch.nn.Module) -> bool:
    """True for a module that a tensor-parallel plan shares among ranks, or whose inputs or outputs it communicates."""
    return style_around(module) is not None or (HOOKED in vars(module) and _is_spread(module))


def check_style(module: torch.nn.Module, *, experts: bool = False) -> tuple[Any, Any]:
    """The style around a module and its mesh; the style is None where torch's hooks do what it would.

    Raises InvalidArgumentError for a style that no packed module works in, and for a mesh of several dimensions.
    """
    style, mesh = style_around(module) or (None, mesh_around(module))
    name = type(style).__name__
    if style is not None and name not in (EXPERT_STYLES if experts else _LINEAR):
        raise InvalidArgumentError(
            f"its plan has a {name} around it",
            hint="packed are layers in plans of colwise and rowwise styles, and experts of which every rank has a part:"
            " leave out quantize, or the layer's plan",
        )
    if mesh is None or mesh.ndim != 1:
        raise InvalidArgumentError(
            "its weights are placed on a mesh of several dimensions",
            hint="packed layers are shared by the ranks of one dimension, those of a tensor-parallel plan alone",
        )
    return style, mesh


def shards_under(style: Any, name: str, shape: tuple[int, ...], mesh: Any) -> Any:
    """The placements that a style gives a parameter ``name`` of that shape; None if each rank has all of it."""
    probe = torch.nn.Module()
    probe.register_parameter(name, torch.nn.Parameter(torch.empty(shape, device="meta")))
    style.shard_param(probe, name, mesh)
    made: Any = probe._parameters[name]
    return made.placements if is_spread(made) else None


def hands_parts_on(style: Any) -> bool:
    """Whether a style takes one tensor that all ranks have, and leaves each rank its part of the outputs."""
    from torch.distributed.tensor import Replicate, Shard

    if type(style).__name__ != "ColwiseParallel":
        return False
    given = style.input_layouts == Replicate() and style.output_layouts == Shard(-1)
    return given and bool(style.use_local_output)


def _is_spread(module: torch.nn.Module) -> bool:
    return any(is_spread(one) for one in module.parameters(recurse=False))


def mesh_around(module: torch.nn.Module) -> Any:
    """The mesh of the ranks that share a module by a plan; None if there is none."""
    around = style_around(module)
    if around is not None:
        return around[1]
    return next((one.data.device_mesh for one in module.parameters(recurse=False) if is_spread(one)), None)  # type: ignore[attr-defined]
