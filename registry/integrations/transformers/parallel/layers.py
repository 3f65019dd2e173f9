"""Packed layers of which each rank of a mesh has a part, with the communication of their tensor-parallel plan."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch

from ....errors import InvalidArgumentError
from ....nn import PackedA8Linear, PackedExpertsMlp, PackedLinear, ScaledExpertsMlp, ScaledLinear
from ..proofs import is_spread
from .cuts import COLUMNS, ROWS, Cut
from .styles import HOOKED, hands_parts_on


@dataclass(frozen=True, eq=False)
class ShardPlan:
    """How ranks share a packed layer.

    mesh   the ranks, a DeviceMesh of one dimension
    style  transformers' style, whose functions run before and after the layer; None: torch's hooks do
    dim    the dimension of the weight [N, K] that is shared, None if every rank has all of it
    shape  ``(N, K)`` of the whole weight
    group_size  of the whole weight, which of one group for all of K is not that of a part
    weights  the cuts of the dense weights that the layer stands for, by their names
    tensors  the cuts of the layer's buffers, and of its bias, by their names
    """

    mesh: Any
    style: Any
    dim: int | None
    shape: tuple[int, int]
    group_size: int
    weights: Mapping[str, Cut]
    tensors: Mapping[str, Cut]

    def whole(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Dense weights by their names, as DTensors of which this rank has the given parts."""
        cuts = self.weights
        return {name: cuts[name].whole(one, self.mesh) if name in cuts else one for name, one in weights.items()}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # a mesh holds its processes' connections
        return self


class ShardedLayer(torch.nn.Module):
    """A part of a packed layer: its tensors are this rank's, plain ones; its ``state_dict`` has DTensors of the whole.

    Numbers such as ``out_features`` are those of the part.
    """

    shard_plan: ShardPlan
    # what transformers' styles ask for: the layer computes with plain tensors
    _hf_quantized_needs_local_tp = True

    @property
    def hands_parts_on(self) -> bool:
        """Whether layers of one input may be one product: none of them communicates where no gradient is needed."""
        return self.shard_plan.dim == ROWS and hands_parts_on(self.shard_plan.style)

    def forward(self, x: torch.Tensor, *others: Any) -> Any:
        plan = self.shard_plan
        if plan.style is None:
            return self._between_hooks(x)
        given, named = plan.style.transform_inputs_pre_forward(self, (x, *others), {}, plan.mesh)
        if plan.dim != COLUMNS:
            y = super().forward(*given, **named)
            if plan.dim == ROWS and type(plan.style).__name__ == "ColwiseParallel" and not self.hands_parts_on:
                # of a plain tensor the style would take the width from ``out_features``
                y = Cut(y.dim() - 1, plan.shape[0]).whole(y, plan.mesh)
            return plan.style.transform_output_post_forward(self, y, plan.mesh)
        # the bias is added once, to the sum
        biased = self._parameters.get("bias") is not None
        with plan.style.context_around_forward(self, plan.mesh) if biased else nullcontext():
            y = super().forward(*given, **named)
        return self._summed(y)

    def _summed(self, y: torch.Tensor) -> Any:
        """The sum of the ranks' products, as the plan's style hands it on."""
        plan, bias = self.shard_plan, self._parameters.get("bias")
        if y.requires_grad or not plan.style.output_layouts.is_replicate() or not plan.style.use_local_output:
            return plan.style.transform_output_post_forward(self, y, plan.mesh)
        # in place, as the style has it for nn.Linear: half the launches of a DTensor's
        torch.distributed.all_reduce(y, group=plan.mesh.get_group())
        return y if bias is None else y + (bias.to_local() if is_spread(bias) else bias)  # type: ignore[attr-defined]

    def _between_hooks(self, x: Any) -> Any:
        """The DTensor that a linear layer of DTensors returns for one."""
        from torch.distributed.tensor import DTensor, Partial, Replicate

        plan, bias = self.shard_plan, self._parameters.get("bias")
        if not isinstance(x, DTensor):
            raise InvalidArgumentError(
                "a packed layer of a tensor-parallel plan got a plain tensor",
                hint="its hooks make a DTensor of it: were they taken away, or its forward called past them?",
            )
        if plan.dim == ROWS:
            y = super().forward(x.to_local(grad_placements=[Partial()]))
            return Cut(y.dim() - 1, plan.shape[0]).whole(y, plan.mesh)
        self._parameters["bias"] = None
        try:
            y = super().forward(x.to_local())
        finally:
            self._parameters["bias"] = bias
        total = DTensor.from_local(y, plan.mesh, [Partial()], run_check=False)
        return total if bias is None else total.redistribute(placements=[Replicate()]) + bias

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        plan = self.shard_plan
        for name, cut in plan.tensors.items():
            part = destination.get(prefix + name)
            if part is not None and not is_spread(part):
                destination[prefix + name] = cut.whole(part.detach(), plan.mesh)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name, cut in self.shard_plan.tensors.items():
            given = state_dict.get(prefix + name)
            if given is not None and is_spread(given) and given.placements == (cut.placement(),):
                state_dict[prefix + name] = given.to_local()
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        plan = self.shard_plan
        shared = {ROWS: "rows", COLUMNS: "columns"}.get(plan.dim if plan.dim is not None else -1)
        told = f", its {shared} shared by {plan.mesh.size()} ranks" if shared else ""
        return f"{super().extra_repr()}{told}"


class ShardedPackedLinear(ShardedLayer, PackedLinear):
    """A part of a PackedLinear."""


class ShardedPackedA8Linear(ShardedLayer, PackedA8Linear):
    """A part of a PackedA8Linear; a row's scale is that of the columns that this rank has."""


class ShardedScaledLinear(ShardedLayer, ScaledLinear):
    """A part of a ScaledLinear; a row's scale is that of the columns that this rank has."""


class ShardedPackedExpertsMlp(ShardedLayer, PackedExpertsMlp):
    """Parts of all experts of a PackedExpertsMlp."""


class ShardedScaledExpertsMlp(ShardedLayer, ScaledExpertsMlp):
    """Parts of all experts of a ScaledExpertsMlp."""


_CLASSES: Mapping[type[torch.nn.Module], type[ShardedLayer]] = {
    PackedLinear: ShardedPackedLinear,
    PackedA8Linear: ShardedPackedA8Linear,
    ScaledLinear: ShardedScaledLinear,
    PackedExpertsMlp: ShardedPackedExpertsMlp,
    ScaledExpertsMlp: ShardedScaledExpertsMlp,
}


def shard(layer: torch.nn.Module, plan: ShardPlan) -> None:
    """Let a packed layer of this rank's tensors be the part of one that ``plan`` describes.

    Raises InvalidArgumentError for a class of layers that has no such form.
    """
    if type(layer) not in _CLASSES:
        raise InvalidArgumentError(
            f"a {type(layer).__name__} is not shared by ranks", hint="load it without a tensor-parallel plan"
        )
    layer.__class__ = _CLASSES[type(layer)]
    layer.__dict__["shard_plan"] = plan


def give_style(dense: torch.nn.Module, packed: torch.nn.Module) -> None:
    """Let a dense layer that takes the place of a packed one be shared by the style, or the hooks, of its plan."""
    if not isinstance(packed, ShardedLayer):
        return
    plan = packed.shard_plan
    dense.__dict__.pop("forward", None)
    if "config" in vars(packed):
        dense.__dict__["config"] = vars(packed)["config"]
    if plan.style is None:
        dense.__dict__[HOOKED] = True
    else:
        plan.style.install_forward(dense, plan.mesh)


def own_bias(bias: Any, plan: ShardPlan) -> torch.nn.Parameter | None:
    """The bias of a packed layer for that of the dense one: of shared rows this rank's part, as a plain parameter."""
    cut = plan.tensors.get("bias")
    if bias is None or cut is None:
        return bias  # type: ignore[no-any-return]
    if is_spread(bias) and cut.split == 1:
        part = bias.data.to_local()
    else:
        # of several weights in one, each has its part; a plan may have spread their biases as one
        part = cut.part(bias.data.full_tensor() if is_spread(bias) else bias.data, plan.mesh)
    return torch.nn.Parameter(part, requires_grad=bias.requires_grad)


def whole_bias(bias: torch.nn.Parameter | None, plan: ShardPlan) -> torch.nn.Parameter | None:
    """The bias of the dense layer for that of a packed one."""
    cut = plan.tensors.get("bias")
    if bias is None or cut is None:
        return bias
    return torch.nn.Parameter(cut.whole(bias.detach(), plan.mesh), requires_grad=bias.requires_grad)


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as it is, but float8 DTensors as wholes: gloo sends none, and bytes in their place."""
    if not is_spread(tensor) or tensor.dtype != torch.float8_e4m3fn:
        return tensor
    whole: torch.Tensor = tensor.view(torch.uint8).full_tensor()  # type: ignore[attr-defined]
    return whole.view(tensor.dtype)
