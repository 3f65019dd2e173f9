"""Cut: how ranks share one dimension of a tensor; packed weights cut into the parts that they have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ....errors import InvalidArgumentError
from ....packed import GROUP_SIZES, PackedWeight, per_word

ROWS, COLUMNS = 0, 1
"""The dimensions of a weight [N, K]: ranks share the rows in a colwise plan, the columns in a rowwise one."""


@dataclass(frozen=True)
class Cut:
    """One dimension of a tensor, of which each rank of a mesh has a part.

    dim    the dimension
    size   its length in the whole tensor
    split  the number of equal pieces that each are shared, such as gate and up in one tensor; 1: the whole dimension
    """

    dim: int
    size: int
    split: int = 1

    def placement(self) -> Any:
        """The cut as a placement of torch's DTensor."""
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor.placement_types import _StridedShard

        if self.split == 1:
            return Shard(self.dim)
        return _StridedShard(dim=self.dim, split_factor=self.split)

    def whole(self, part: torch.Tensor, mesh: Any) -> torch.Tensor:
        """The DTensor of which this rank has ``part``."""
        from torch.distributed.tensor import DTensor

        shape = list(part.shape)
        shape[self.dim] = self.size
        stride = torch.empty(shape, device="meta").stride()
        given: dict[str, Any] = {"run_check": False, "shape": torch.Size(shape), "stride": stride}
        return DTensor.from_local(part.contiguous(), mesh, [self.placement()], **given)

    def part(self, whole: torch.Tensor, mesh: Any) -> torch.Tensor:
        """This rank's part of a tensor that the rank has as a whole."""
        return whole.index_select(self.dim, self.places(mesh).to(whole.device))

    def places(self, mesh: Any) -> torch.Tensor:
        """Indices in the cut dimension of this rank's parts.

        Raises InvalidArgumentError for a rank that has none.
        """
        from torch.distributed.tensor import distribute_tensor

        along = replace(self, dim=0).placement()
        every = torch.arange(self.size, device=mesh.device_type)
        own: torch.Tensor = distribute_tensor(every, mesh, [along], src_data_rank=None).to_local()
        if not len(own):
            raise InvalidArgumentError(
                f"{self.size} rows or columns leave nothing to rank {mesh.get_local_rank()} of {mesh.size()}",
                hint="a plan for fewer ranks, or without this layer",
            )
        return own


def cut_of(placements: Sequence[Any], shape: Sequence[int]) -> Cut | None:
    """The cut of a DTensor that one mesh dimension places, None for one of which every rank has all.

    Raises InvalidArgumentError for other placements.
    """
    first = placements[0] if len(placements) == 1 else None
    dim = getattr(first, "dim", None)
    if first is not None and first.is_replicate():
        return None
    if first is None or dim is None:
        raise InvalidArgumentError(
            f"it is placed by {', '.join(map(str, placements))}",
            hint="packed layers are shared by the ranks of one dimension of a mesh, those of a tensor-parallel plan",
        )
    dim %= len(shape)
    return Cut(dim, shape[dim], getattr(first, "split_factor", 1))


def shared_group_size(group_size: int, bits: int, k: int, ranks: int) -> int:
    """The largest group size up to ``group_size`` of which every rank has whole groups of ``k`` columns.

    Raises InvalidArgumentError where there is none.
    """
    each = -(-k // ranks)
    common, word = math.gcd(each, k), per_word(bits)
    fitting = [size for size in GROUP_SIZES if size <= group_size and not common % size and not size % word]
    if not fitting:
        sizes = f"{GROUP_SIZES[0]} to {group_size}"
        raise InvalidArgumentError(
            f"{ranks} ranks share its {k} columns, {each} each, which no groups of {sizes} fill",
            hint="a plan for fewer ranks, or leave this layer as it is",
        )
    return fitting[-1]


def cut_packed(weight: PackedWeight, cut: Cut, mesh: Any) -> PackedWeight:
    """This rank's part of a weight; ``cut`` is of ``[N, K]``.

    Raises InvalidArgumentError for an act-order, and for parts that are no whole words and groups.
    """
    if weight.g_idx is not None:
        raise InvalidArgumentError(
            "its columns are in act-order, which ranks do not share", hint="load it without a tensor-parallel plan"
        )
    (n, k), places = weight.shape, cut.places(mesh)
    tensors = {name: getattr(weight, name) for name in ("qweight", "scales", "zeros")}
    if cut.dim == ROWS:
        ids = places.to(weight.device)
        tensors = {name: each if each is None else each.index_select(1, ids) for name, each in tensors.items()}
        return replace(weight, **tensors, shape=(len(ids), k))
    begin, end = int(places[0]), int(places[-1]) + 1
    word, size = per_word(weight.bits), weight.group_size
    alone = size >= k
    if end - begin != len(places) or any(at % (word if alone else math.lcm(word, size)) for at in (begin, end % k)):
        raise InvalidArgumentError(
            f"{mesh.size()} ranks share its {k} columns, which cuts groups of {size} at {begin} to {end}",
            hint="a plan for another number of ranks, or smaller groups",
        )
    tensors["qweight"] = weight.qweight[begin // word : -(-end // word)].contiguous()
    if not alone:
        for name in ("scales", "zeros"):
            held = tensors[name]
            tensors[name] = None if held is None else held[begin // size : -(-end // size)].contiguous()
    return replace(weight, **tensors, shape=(n, end - begin), group_size=end - begin if alone else size)
