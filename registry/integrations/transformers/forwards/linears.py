"""Linear layers by the op linear, alone and several of one input as one product."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Any, Self
from weakref import WeakValueDictionary

import torch
from torch.compiler import is_dynamo_compiling

from ....api import call
from ....dispatch.torch_side.states import differentiating_otherwise
from ....errors import RegistryError
from ....nn import PackedLinear
from ....nn.packed_linear import product_op
from ....packed import PackedWeight
from ....tracing import constant_while_tracing, version_of
from ..swapping import Swapped, has_hooks

AnyLinear = torch.nn.Linear | PackedLinear


class LinearForward(Swapped):
    """``linear(x, weight, bias)``; the layer's own forward under autocast, and if ``x`` has another dtype."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if x.dtype is not weight.dtype or torch.is_autocast_enabled(x.device.type):
            plain: torch.Tensor = super().forward(x)
            return plain
        y: torch.Tensor = call("linear", x, weight, self.bias)
        return y


def is_bare(layer: torch.nn.Module) -> bool:
    """Whether a layer's call is its class's forward of a plain weight, without hooks.

    An adapter or FSDP may have taken its place; FSDP also frees a layer's weight after its forward, by a hook.
    """
    return not has_hooks(layer) and type(layer.weight) in {torch.nn.Parameter, torch.Tensor}


class MemberForward(Swapped):
    """One of several linear layers of one input: the first that is called computes the product of all.

    ``own`` is the layer's forward without the others, for inputs and states in which these are not one product.
    """

    registry_group: LinearGroup
    registry_place: int

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group, place = self.registry_group, self.registry_place
        layer: torch.nn.Module = group.layers[place]
        # a replica of torch.nn.DataParallel has other tensors than the group's layer
        product = group.part(x, place) if layer is self else None
        return self.own(x) if product is None else product

    def own(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # a conversion reaches the layers one after another
        if self.registry_place == len(self.registry_group.layers) - 1:
            self.registry_group.join()
        return self


class DenseMember(MemberForward, LinearForward):
    """A dense layer of a group."""

    def own(self, x: torch.Tensor) -> torch.Tensor:
        return LinearForward.forward(self, x)


class PackedMember(MemberForward):
    """A packed layer of a group."""

    def own(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = super(MemberForward, self).forward(x)
        return y


class LinearGroup:
    """Linear layers that are called with one input, e.g. query, key and value: their weights are parts of one.

    Each layer keeps its own parameters or buffers, which are views of the joint tensors. Where they are not, e.g. after
    FSDP has replaced them, each layer computes for itself.
    """

    def __init__(self, layers: Sequence[AnyLinear]) -> None:
        self.layers = tuple(layers)
        self._number = _known(self)
        self.sizes = [layer.out_features for layer in layers]
        self._weight: torch.Tensor | PackedWeight | None = None
        self._bias: torch.Tensor | None = None
        self._waiting: tuple[torch.Tensor, Hashable, Sequence[torch.Tensor]] | None = None
        self.join()

    def __getstate__(self) -> dict[str, Any]:
        return {"layers": self.layers, "sizes": self.sizes, "_op": self._op}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # of a copy or a file, whose layers are still being filled: their tensors are joined when one is called
        self.__dict__.update(state, _weight=None, _bias=None, _waiting=None, _parts=[], _begins=[], _is_joined=False)
        self._number = _known(self)

    @property
    def in_features(self) -> int:
        """Columns of the input."""
        return self.layers[0].in_features

    @property
    def is_one(self) -> bool:
        """Whether the layers are one product."""
        return self._joint() is not None

    def product(self, x: torch.Tensor) -> torch.Tensor | None:
        """The outputs of all layers, one after another in the last dimension; None if they are not one product now."""
        weight = self._joint()
        if weight is None or x.dtype is not weight.dtype:
            return None
        if isinstance(weight, PackedWeight):
            packed: torch.Tensor = call(self._op, x, weight)
            return packed if self._bias is None else packed + self._bias
        if torch.is_autocast_enabled(x.device.type):
            return None
        bias = self._bias
        if torch.is_grad_enabled():
            held = [part for layer in self.layers for part in _held(layer) if part is not None]
            learnt = [part for part in held if part.requires_grad]
            if learnt and (len(learnt) < len(held) or (not is_dynamo_compiling() and differentiating_otherwise())):
                return None
            if learnt:
                weight = _of_parts(weight, [_main(layer) for layer in self.layers])
                bias = None if bias is None else _of_parts(bias, [layer.bias for layer in self.layers])
        dense: torch.Tensor = call("linear", x, weight, bias)
        return dense

    def part(self, x: torch.Tensor, place: int) -> torch.Tensor | None:
        """The output of one layer, from the latest product if that was of ``x`` too; None as in ``product``."""
        state = self._state(x)
        waiting = self._waiting
        if waiting is not None and waiting[0] is x and waiting[1] == state:
            parts = waiting[2]
        else:
            y = self.product(x)
            if y is None:
                return None
            parts = y.split(self.sizes, -1)
        self._waiting = None if place == len(self.sizes) - 1 else (x, state, parts)
        return parts[place]

    def _state(self, x: torch.Tensor) -> Hashable:
        """What a product of ``x`` depends on beside it: versions of all tensors, and whether it is recorded."""
        if is_dynamo_compiling():
            return torch.is_grad_enabled(), version_of(x)
        held = [part for layer in self.layers for part in _held(layer) if part is not None]
        return torch.is_grad_enabled(), *map(version_of, (x, *held))

    def join(self) -> None:
        """Make the layers' tensors views of joint ones, if they are plain tensors of one kind."""
        self._weight = self._bias = self._waiting = None
        self._is_joined, layers = True, self.layers
        self._join_weights()
        self._join_biases()
        self._op = product_op(self._weight) if isinstance(self._weight, PackedWeight) else "linear"
        self._parts = [part for layer in layers for part in _held(layer)]
        self._begins = [0 if part is None else part.data_ptr() for part in self._parts]

    def _join_weights(self) -> None:
        layers = self.layers
        if all(isinstance(layer, torch.nn.Linear) for layer in layers):
            weights = [*map(_main, layers)]
            if _alike(weights):
                self._weight = _joined([weight.data for weight in weights], 0)
                for weight, part in zip(weights, self._weight.split(self.sizes), strict=True):
                    weight.data = part
        elif all(isinstance(layer, PackedLinear) for layer in layers):
            self._weight = _joined_packed(layers)  # type: ignore[arg-type]

    def _join_biases(self) -> None:
        biases = [layer.bias for layer in self.layers]
        if all(bias is None for bias in biases):
            return
        if any(bias is None for bias in biases) or not _alike(biases):  # type: ignore[arg-type]
            self._weight = None
            return
        self._bias = _joined([bias.data for bias in biases if bias is not None], 0)
        for bias, part in zip(biases, self._bias.split(self.sizes), strict=True):
            assert bias is not None
            bias.data = part

    def _joint(self) -> torch.Tensor | PackedWeight | None:
        """The joint weight, if the layers' tensors are still its parts."""
        if not _is_whole(self._number):
            return None
        if is_dynamo_compiling() and not self._has_its_parts():
            return None
        return self._weight

    def _has_its_parts(self) -> bool:
        """Whether the layers have the tensors that were joined; a compiled program is only run while they have."""
        now = [part for layer in self.layers for part in _held(layer)]
        return all(part is was for part, was in zip(now, self._parts, strict=True))

    def check(self) -> bool:
        """Whether the layers' tensors are still parts of the joint ones; those of a copy are joined first."""
        if not self._is_joined:
            self.join()
        if self._weight is None:
            return False
        if not self._has_its_parts():
            return False
        begins = zip(self._parts, self._begins, strict=True)
        return all(part is None or part.data_ptr() == begin for part, begin in begins)


class _Joined(torch.autograd.Function):
    """A joint tensor as a function of the parameters that are views of its rows; their gradients are views, too."""

    @staticmethod
    def forward(ctx: Any, joint: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        ctx.sizes = [len(part) for part in parts]
        # the joint tensor's own version does not count what is written to its parts
        ctx.parts = [] if is_dynamo_compiling() else [(part, part._version) for part in parts]
        return joint.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if any(part._version != version for part, version in ctx.parts):
            raise RegistryError(
                "apply: weights of a joint linear layer were changed between a forward and its backward",
                hint="call backward() before the optimizer's step",
            )
        return None, *gradient.split(ctx.sizes)


def _of_parts(joint: torch.Tensor, parts: Sequence[Any]) -> torch.Tensor:
    """A joint tensor whose gradient is that of its parts."""
    made: torch.Tensor = _Joined.apply(joint, *parts)
    return made


_GROUPS: WeakValueDictionary[int, LinearGroup] = WeakValueDictionary()
_NUMBERS = itertools.count()


def _known(group: LinearGroup) -> int:
    """A number by which a trace of torch.compile finds the group."""
    number = next(_NUMBERS)
    _GROUPS[number] = group
    return number


@constant_while_tracing
def _is_whole(number: int) -> bool:
    """``LinearGroup.check`` of the group of that number."""
    return _GROUPS[number].check()


def _held(layer: AnyLinear) -> tuple[torch.Tensor, torch.Tensor | None]:
    return _main(layer), layer.bias


def _main(layer: AnyLinear) -> torch.Tensor:
    return layer.qweight if isinstance(layer, PackedLinear) else layer.weight


def _alike(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors are plain ones with memory, of one dtype and device."""
    plain = all(type(each.data) is torch.Tensor and not each.is_meta for each in tensors)
    return plain and len({(each.dtype, each.device) for each in tensors}) == 1


def _joined(parts: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat(list(parts), dim)


def _joined_packed(layers: Sequence[PackedLinear]) -> PackedWeight | None:
    """The joint weight, of which the layers' buffers then are views; None for layers that differ in their form."""
    weights = [layer.held for layer in layers]
    first = weights[0]
    forms = {(each.bits, each.group_size, each.codebook, each.dtype, each.zeros is None) for each in weights}
    if len(forms) > 1 or any(each.g_idx is not None or each.qweight.is_meta for each in weights):
        return None
    sizes = [layer.out_features for layer in layers]
    joint: dict[str, torch.Tensor | None] = {"zeros": None}
    for name in ("qweight", "scales", *(() if first.zeros is None else ("zeros",))):
        whole = joint[name] = _joined([getattr(each, name) for each in weights], 1)
        for layer, part in zip(layers, whole.split(sizes, 1), strict=True):
            layer._buffers[name] = part
    assert joint["qweight"] is not None
    assert joint["scales"] is not None
    shape = (sum(sizes), first.shape[1])
    return PackedWeight(
        joint["qweight"], joint["scales"], joint["zeros"], first.bits, first.group_size, shape, codebook=first.codebook
    )
