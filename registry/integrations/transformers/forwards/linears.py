"""Linear layers by the op linear, alone and several of one input as one product."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Self
from weakref import WeakValueDictionary

import torch
from torch.compiler import is_dynamo_compiling

from ....api import call
from ....dispatch.torch_side.states import differentiating_otherwise
from ....errors import RegistryError
from ....nn import PackedLinear
from ....nn.packed_linear import product_op
from ....packed import PackedWeight
from ....tracing import constant_while_tracing, trace_number, version_of, versions_of
from ..parallel.layers import ShardedLayer, ShardedPackedLinear
from ..swapping import Swapped, has_hooks, other_forward

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


def is_joinable(layer: object) -> bool:
    """Whether a layer may be one product with others of its input: linear or packed, and computed by its class."""
    if isinstance(layer, ShardedLayer):
        return type(layer) is ShardedPackedLinear and layer.hands_parts_on
    known = isinstance(layer, torch.nn.Module) and type(layer) in {torch.nn.Linear, PackedLinear}
    return known and not other_forward(layer)  # type: ignore[arg-type]


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

    # here, since torch.compile guards each class in which it has looked in vain
    forward = MemberForward.forward

    def own(self, x: torch.Tensor) -> torch.Tensor:
        return LinearForward.forward(self, x)


class PackedMember(MemberForward):
    """A packed layer of a group."""

    forward = MemberForward.forward

    def own(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = super(MemberForward, self).forward(x)
        return y


class JointFacts(NamedTuple):
    """Facts of joint tensors that no call changes: rows of each layer, op, whether there is a bias, packed form, ranks.

    The form is ``(bits, group_size, shape, codebook, has zero points)``; None for a dense weight, and without one.
    ``shared``: ranks share a layer.
    """

    sizes: tuple[int, ...]
    op: str
    biased: bool
    form: tuple[int, int, tuple[int, int], str | None, bool] | None
    shared: bool

    @classmethod
    def of(
        cls, layers: Sequence[AnyLinear], weight: torch.Tensor | PackedWeight | None, bias: torch.Tensor | None
    ) -> JointFacts:
        """The facts of layers with these joint tensors."""
        sizes, biased = tuple(_sizes(layers)), bias is not None
        shared = any(isinstance(layer, ShardedLayer) for layer in layers)
        if not isinstance(weight, PackedWeight):
            return cls(sizes, "linear", biased, None, shared)
        form = (weight.bits, weight.group_size, weight.shape, weight.codebook, weight.zeros is not None)
        return cls(sizes, product_op(weight), biased, form, shared)


class JointTensors(torch.nn.Module):
    """The tensors of a group's joint weight and bias, for programs of torch.compile.

    A module, since torch.compile guards a tensor of any other object in 2 to 4 us, and one of a module in half of one.
    """

    weight: torch.Tensor | None
    qweight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor | PackedWeight | None, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.bias = bias
        if isinstance(weight, PackedWeight):
            self.qweight, self.scales, self.zeros = weight.qweight, weight.scales, weight.zeros
        else:
            self.weight = weight


class PendingProduct(NamedTuple):
    """A product of ``x`` whose ``parts`` wait for the other layers, the next of them at ``place``."""

    place: int
    x: torch.Tensor
    state: Hashable
    parts: Sequence[torch.Tensor]


class LinearGroup:
    """Linear layers that are called with one input, e.g. query, key and value: their weights are parts of one.

    Each layer keeps its own parameters or buffers, which are views of the joint tensors. Where they are not, e.g. after
    FSDP has replaced them, each layer computes for itself.
    """

    def __init__(self, layers: Sequence[AnyLinear]) -> None:
        self.layers = tuple(layers)
        self._forget()
        self.join()

    def __getstate__(self) -> dict[str, Any]:
        return {"layers": self.layers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # of a copy or a file, whose layers are still being filled: their tensors are joined when one is called
        self.layers = state["layers"]
        self._forget()

    def _forget(self) -> None:
        self._weight: torch.Tensor | PackedWeight | None = None
        self._bias: torch.Tensor | None = None
        self._tensors = JointTensors(None, None)
        self._waiting: PendingProduct | None = None
        self._parts: list[torch.Tensor] = []
        self._begins: list[int] = []
        self._facts: JointFacts | None = None
        self._is_joined, self._number = False, _known(self)

    @property
    def in_features(self) -> int:
        """Columns of the input."""
        return self.layers[0].in_features

    @property
    def is_one(self) -> bool:
        """Whether the layers are one product."""
        return _facts_of(self) is not None

    def product(self, x: torch.Tensor) -> torch.Tensor | None:
        """The outputs of all layers, one after another in the last dimension; None if they are not one product now."""
        facts = _facts_of(self)
        return None if facts is None else self._product(x, facts)

    def _product(self, x: torch.Tensor, facts: JointFacts) -> torch.Tensor | None:
        weight, bias = _joint(self, facts)
        if weight is None or x.dtype is not weight.dtype:
            return None
        if isinstance(weight, PackedWeight):
            return self._packed_product(x, facts, weight, bias)
        if torch.is_autocast_enabled(x.device.type):
            return None
        if torch.is_grad_enabled():
            learnt = self._learnt()
            if learnt is None:
                return None
            if learnt:
                weight = _of_parts(weight, [_main(layer) for layer in self.layers])
                bias = None if bias is None else _of_parts(bias, [layer.bias for layer in self.layers])
        dense: torch.Tensor = call("linear", x, weight, bias)
        return dense

    def _packed_product(
        self, x: torch.Tensor, facts: JointFacts, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor | None:
        if facts.shared and torch.is_grad_enabled() and x.requires_grad:
            # each layer's plan sums the gradients of the ranks
            return None
        learnt = [] if bias is None or not torch.is_grad_enabled() else self._learnt()
        if learnt is None:
            return None
        y: torch.Tensor = call(facts.op, x, weight)
        if learnt and bias is not None:
            bias = _of_parts(bias, [layer.bias for layer in self.layers])
        return y if bias is None else y + bias

    def _learnt(self) -> Sequence[torch.Tensor] | None:
        """The layers' tensors that learn, all of those that can; None if some do not, so that there is no one product.

        Words, scales and zero points of packed layers learn in no case.
        """
        held = [_held(layer)[-1:] if isinstance(layer, PackedLinear) else _held(layer) for layer in self.layers]
        can = [part for parts in held for part in parts if part is not None]
        learnt = [one for one in can if one.requires_grad]
        if learnt and (len(learnt) < len(can) or (not is_dynamo_compiling() and differentiating_otherwise())):
            return None
        return learnt

    def part(self, x: torch.Tensor, place: int) -> torch.Tensor | None:
        """The output of one layer, from the latest product if that was of ``x`` too; None as in ``product``.

        A product serves each layer once, in their order: a layer that is called again, or alone, computes anew.
        """
        state = _state(self, x)
        waiting = self._waiting if place else None
        # the place first, which is all that a program of one layer depends on
        if waiting is not None and waiting.place == place and waiting.x is x and waiting.state == state:
            parts = waiting.parts
        else:
            facts = _facts_of(self)
            y = None if facts is None else self._product(x, facts)
            if facts is None or y is None:
                return None
            parts = y.split(list(facts.sizes), -1)
        self._waiting = None if place == len(parts) - 1 else PendingProduct(place + 1, x, state, parts)
        return parts[place]

    def join(self) -> None:
        """Make the layers' tensors views of joint ones, if they are plain tensors of one kind."""
        self._weight = self._bias = self._waiting = None
        self._is_joined = True
        layers = self.layers
        self._join_weights()
        self._join_biases()
        self._parts = _parts_now(self)
        self._begins = [part.data_ptr() for part in self._parts]
        self._tensors = JointTensors(self._weight, self._bias)
        facts = JointFacts.of(layers, self._weight, self._bias)
        if self._facts not in (None, facts):
            self._number = _known(self)
        self._facts = facts

    def _join_weights(self) -> None:
        layers = self.layers
        if all(isinstance(layer, torch.nn.Linear) for layer in layers):
            weights = [*map(_main, layers)]
            if _alike(weights):
                self._weight = _joined([weight.data for weight in weights], 0)
                for weight, part in zip(weights, self._weight.split(_sizes(layers)), strict=True):
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
        for bias, part in zip(biases, self._bias.split(_sizes(self.layers)), strict=True):
            assert bias is not None
            bias.data = part

    def check(self) -> bool:
        """Whether the layers' tensors are still parts of the joint ones; those of a copy are joined first."""
        if not self._is_joined:
            self.join()
        if self._weight is None or not _has_its_parts(self):
            return False
        return [part.data_ptr() for part in self._parts] == self._begins


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


# Functions, since torch.compile guards each method of an object that is no module.


def _facts_of(group: LinearGroup) -> JointFacts | None:
    """What is known of a group's joint tensors; None if the layers' tensors are not their parts now."""
    if not is_dynamo_compiling():
        return group._facts if group.check() else None
    facts = _facts_of_number(group._number)
    return None if facts is None or not _has_its_parts(group) else JointFacts(*facts)


def _joint(group: LinearGroup, facts: JointFacts) -> tuple[torch.Tensor | PackedWeight | None, torch.Tensor | None]:
    """The joint weight and bias; in a trace a packed weight is made of its tensors and of what is known of it."""
    if not is_dynamo_compiling():
        return group._weight, group._bias
    held = group._tensors
    bias = held.bias if facts.biased else None
    if facts.form is None:
        return held.weight, bias
    bits, group_size, shape, codebook, has_zeros = facts.form
    zeros = held.zeros if has_zeros else None
    return PackedWeight(held.qweight, held.scales, zeros, bits, group_size, shape, codebook=codebook), bias


def _has_its_parts(group: LinearGroup) -> bool:
    """Whether the layers have the tensors that were joined; a compiled program is only run while they have."""
    now, before = _parts_now(group), group._parts
    return len(now) == len(before) and all(part is was for part, was in zip(now, before, strict=True))


def _parts_now(group: LinearGroup) -> list[torch.Tensor]:
    return [part for layer in group.layers for part in _held(layer) if part is not None]


def _state(group: LinearGroup, x: torch.Tensor) -> Hashable:
    """A key of everything that a product of ``x`` depends on: versions of all tensors, and whether autograd records it.

    In a trace the key holds the trace's number, since writes to tensors meanwhile are not known there.
    """
    if is_dynamo_compiling():
        return torch.is_grad_enabled(), version_of(x), trace_number()
    return torch.is_grad_enabled(), versions_of((x, *_parts_now(group)))


_GROUPS: WeakValueDictionary[int, LinearGroup] = WeakValueDictionary()
_NUMBERS = itertools.count()


def _known(group: LinearGroup) -> int:
    """A number by which a trace of torch.compile finds the group and its facts; other facts have another number."""
    number = next(_NUMBERS)
    _GROUPS[number] = group
    return number


@constant_while_tracing
def _facts_of_number(number: int) -> tuple[Any, ...] | None:
    """The facts of the group of that number, None if it is not whole."""
    group = _GROUPS[number]
    return tuple(group._facts) if group.check() and group._facts else None


def _sizes(layers: Sequence[AnyLinear]) -> list[int]:
    return [layer.out_features for layer in layers]


def _held(layer: AnyLinear) -> tuple[torch.Tensor | None, ...]:
    """All tensors of a layer that a group joins, the bias last."""
    if isinstance(layer, PackedLinear):
        buffers = layer._buffers
        return buffers["qweight"], buffers["scales"], buffers["zeros"], layer._parameters["bias"]
    return layer.weight, layer.bias


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
    sizes = _sizes(layers)
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
