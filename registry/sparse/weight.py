"""Sparse24Weight: a linear layer's weight of which two of each four elements along K are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import InvalidArgumentError
from ..packed.checks import check_integers, check_tensor, refuse_nested
from ..problem import dtype_name
from .checks import check_dense, check_parts
from .layout import compressed, dense, greatest

VERSION = 1


@dataclass(frozen=True, eq=False, repr=False)
class Sparse24Weight:
    """A linear layer's weight ``[N, K]`` that is 2:4 sparse along K, in 9/16 of the bytes of halves.

    values  ``[N, K / 2]``, float16, bfloat16 or float32: the activations' dtype
    meta    int32 ``[N, ceil(K / 32)]``: the places of the two values in each four, the lower one first. They are not
            checked, as that would wait for a GPU: ``sparsify24`` and ``from_dense_24`` make right ones
    """

    values: torch.Tensor
    meta: torch.Tensor
    version: int = VERSION

    def __post_init__(self) -> None:
        for name in _TENSORS:
            check_tensor(f"Sparse24Weight: {name}", getattr(self, name))
        check_integers("Sparse24Weight", version=self.version)
        if self.version != VERSION:
            raise InvalidArgumentError(
                f"Sparse24Weight: version {self.version}, this is version {VERSION}", hint="sparsify the weight again"
            )
        check_parts("Sparse24Weight", self.values, self.meta)

    @classmethod
    def from_dense_24(cls, weight: torch.Tensor) -> Sparse24Weight:
        """The 2:4 sparse form of a weight ``[N, K]`` that is 2:4 sparse already; every element that is not 0 is kept.

        Raises InvalidArgumentError with the first four elements of which more than two are not 0.
        """
        given = check_dense("from_dense_24", weight)
        there = given.unflatten(1, (-1, 4)) != 0
        crowded = (there.sum(-1) > 2).nonzero()
        if len(crowded):
            row, group = crowded[0].tolist()
            count = int(there[row, group].sum())
            raise InvalidArgumentError(
                f"from_dense_24: weight[{row}, {4 * group}:{4 * group + 4}] has {count} elements that are not 0",
                hint="expected at most two of each four along K; registry.sparsify24(weight) keeps the two greatest",
            )
        return cls(*compressed(given, greatest(there.to(torch.int8))))

    @property
    def shape(self) -> tuple[int, int]:
        """The logical shape, ``(N, K)`` as ``torch.nn.Linear`` holds it."""
        return self.values.shape[0], 2 * self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values, which activations must have."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weight's tensors."""
        return self.values.device

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors that the weight consists of: ``values``, then ``meta``."""
        return self.values, self.meta

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def dense(self) -> torch.Tensor:
        """The weight ``[N, K]``, 0 where nothing was kept."""
        return dense(self.values, self.meta)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Sparse24Weight:
        """A copy of the weight on another device, or with values in another dtype."""
        return Sparse24Weight(self.values.to(device=device, dtype=dtype), self.meta.to(device=device))

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers only: ``torch.load(weights_only=True)`` reads it back."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Sparse24Weight:
        """The weight that ``state_dict`` wrote. Raises InvalidArgumentError for missing or unknown entries."""
        names = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        if names != sorted(_FIELDS):
            raise InvalidArgumentError(
                f"Sparse24Weight: its state is {names}", hint=f"expected what state_dict() returned: {_FIELDS}"
            )
        return cls(**state)

    def __repr__(self) -> str:
        return (
            f"Sparse24Weight({self.shape[0]}x{self.shape[1]}, {dtype_name(self.dtype)}, {self.device}, "
            f"{self.nbytes} bytes)"
        )


_TENSORS = ("values", "meta")
_FIELDS = (*_TENSORS, "version")


def _flatten(weight: Sparse24Weight) -> tuple[list[Any], list[Any]]:
    return list(weight.tensors), [weight.version]


def _flatten_with_keys(weight: Sparse24Weight) -> tuple[list[tuple[Any, Any]], list[Any]]:
    tensors, context = _flatten(weight)
    return [(pytree.GetAttrKey(name), tensor) for name, tensor in zip(_TENSORS, tensors, strict=True)], context


def _unflatten(tensors: Iterable[Any], context: Sequence[Any]) -> Sparse24Weight:
    # unchecked: a map over a tree may put anything in the tensors' places, at least temporarily
    weight = object.__new__(Sparse24Weight)
    for name, value in zip(_FIELDS, (*tensors, *context), strict=True):
        refuse_nested(f"Sparse24Weight: {name}", value)
        object.__setattr__(weight, name, value)
    return weight


# torch.export's documentation names this module, underscore or not
pytree.register_pytree_node(
    Sparse24Weight,
    _flatten,
    _unflatten,
    serialized_type_name="registry.Sparse24Weight",
    to_dumpable_context=list,
    from_dumpable_context=list,
    flatten_with_keys_fn=_flatten_with_keys,
)
# tensors and numbers: as safe to unpickle as a state dict
torch.serialization.add_safe_globals([Sparse24Weight])
