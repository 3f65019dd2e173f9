"""Packed weights cut into the parts of ranks: each is what packing it alone gives, together they are the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from registry.errors import InvalidArgumentError
from registry.packed import GROUP_SIZES, PackedWeight, quantize

if TYPE_CHECKING:  # see late_imports
    from registry.integrations.transformers.parallel.cuts import (
        COLUMNS,
        ROWS,
        Cut,
        cut_of,
        cut_packed,
        shared_group_size,
    )

pytestmark = pytest.mark.usefixtures("late_imports")

Meshes = Callable[[int, int], Any]


@pytest.fixture
def mesh_of_rank() -> Iterator[Meshes]:
    """Makes the mesh of a number of ranks, of which this process plays one that communicates with none."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def made(rank: int, ranks: int) -> Any:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
        return init_device_mesh("cpu", (ranks,))

    try:
        yield made
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def parts(weight: PackedWeight, cut: Cut, ranks: int, mesh_of_rank: Meshes) -> list[PackedWeight]:
    return [cut_packed(weight, cut, mesh_of_rank(rank, ranks)) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.few(4)
def test_parts_by_columns_are_what_packing_them_alone_gives(
    ranks: int, bits: int, symmetric: bool, mesh_of_rank: Meshes
) -> None:
    weight = torch.randn(6, 96 * ranks, generator=torch.Generator().manual_seed(bits))
    whole = quantize(weight, bits, 32, symmetric)
    for part, alone in zip(
        parts(whole, Cut(COLUMNS, weight.shape[1]), ranks, mesh_of_rank), weight.chunk(ranks, 1), strict=True
    ):
        expected = quantize(alone, bits, 32, symmetric)
        assert part.shape == expected.shape == (6, 96)
        assert all(torch.equal(one, other) for one, other in zip(part.tensors, expected.tensors, strict=True))


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("codebook", [None, "nf4"])
def test_parts_by_rows_are_rows_of_the_whole_also_where_two_matrices_are_in_one(
    split: int, codebook: str | None, mesh_of_rank: Meshes
) -> None:
    weight = torch.randn(10 * split, 64, generator=torch.Generator().manual_seed(2))
    whole = quantize(weight, 4, 32, codebook=codebook)
    rows = [each.chunk(3) for each in whole.dequantize().chunk(split)]
    for rank, part in enumerate(parts(whole, Cut(ROWS, 10 * split, split), 3, mesh_of_rank)):
        # 10 rows are 4, 4 and 2
        assert torch.equal(part.dequantize(), torch.cat([pieces[rank] for pieces in rows]))


def test_one_group_of_all_columns_is_one_of_each_part(mesh_of_rank: Meshes) -> None:
    weight = torch.randn(6, 80, generator=torch.Generator().manual_seed(3))
    whole = quantize(weight, 4, -1)
    found = parts(whole, Cut(COLUMNS, 80), 2, mesh_of_rank)
    assert [part.group_size for part in found] == [40, 40]
    assert torch.equal(torch.cat([part.dequantize() for part in found], 1), whole.dequantize())


def test_parts_that_are_no_whole_groups_and_words_are_told(mesh_of_rank: Meshes) -> None:
    mesh = mesh_of_rank(0, 2)
    with pytest.raises(InvalidArgumentError, match="2 ranks share its 96 columns, which cuts groups of 32 at 0 to 48"):
        cut_packed(quantize(torch.randn(8, 96), 4, 32), Cut(COLUMNS, 96), mesh)
    with pytest.raises(InvalidArgumentError, match="which cuts groups of 24 at 0 to 12"):
        cut_packed(quantize(torch.randn(8, 24), 4, -1), Cut(COLUMNS, 24), mesh)
    order = torch.arange(64, dtype=torch.int32) % 2
    packed = quantize(torch.randn(8, 64), 4, 32)
    ordered = PackedWeight(packed.qweight, packed.scales, packed.zeros, 4, 32, (8, 64), g_idx=order)
    with pytest.raises(InvalidArgumentError, match="act-order"):
        cut_packed(ordered, Cut(ROWS, 8), mesh)
    with pytest.raises(InvalidArgumentError, match="2 rows or columns leave nothing to rank 2 of 3"):
        cut_packed(quantize(torch.randn(2, 32), 4, 32), Cut(ROWS, 2), mesh_of_rank(2, 3))


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_a_shared_group_size_is_the_largest_of_which_each_rank_has_whole_ones(bits: int) -> None:
    for ranks in (1, 2, 3, 8):
        for k in (96, 120, 1376 * 8, 4096, 64):
            each = -(-k // ranks)
            bounds = [min(at * each, k) for at in range(ranks + 1)]
            fitting = [
                size
                for size in GROUP_SIZES
                if size <= 128 and size * bits % 32 == 0 and not any(bound % size for bound in bounds)
            ]
            if fitting:
                assert shared_group_size(128, bits, k, ranks) == fitting[-1]
            else:
                with pytest.raises(InvalidArgumentError, match=f"{ranks} ranks share its {k} columns, {each} each"):
                    shared_group_size(128, bits, k, ranks)


def test_placements_that_no_plan_has_are_told() -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    assert cut_of([Replicate()], (4, 8)) is None
    assert cut_of([Shard(-1)], (4, 8)) == Cut(1, 8)
    for placements in ([Shard(0), Shard(1)], [Partial()], []):
        with pytest.raises(InvalidArgumentError, match="it is placed by"):
            cut_of(placements, (4, 8))


def test_a_tensor_of_parts_is_the_whole_to_torch(mesh_of_rank: Meshes) -> None:
    whole = torch.arange(60).reshape(2, 10, 3)
    for cut in (Cut(1, 10), Cut(1, 10, 2), Cut(2, 3)):
        for rank in range(2):
            mesh = mesh_of_rank(rank, 2)
            part = cut.part(whole, mesh)
            made: Any = cut.whole(part, mesh)
            assert made.shape == whole.shape
            assert made.placements == (cut.placement(),)
            assert torch.equal(made.to_local(), part)
