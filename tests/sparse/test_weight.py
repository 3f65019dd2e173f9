"""2:4 sparse weights: the layout, which elements are kept, the errors, and what survives a round trip."""

from __future__ import annotations

import copy
import io
import pickle
from itertools import combinations
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import registry
from registry import InvalidArgumentError, Sparse24Weight, sparsify24
from registry.sparse import CODES, pack_codes
from registry.sparse.sparsifying import _BLOCKS

Tensor = torch.Tensor


def weight(n: int = 12, k: int = 140, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(one: Sparse24Weight, other: Sparse24Weight) -> bool:
    return all(torch.equal(mine, others) for mine, others in zip(one.tensors, other.tensors, strict=True))


def test_the_places_of_group_g_stand_at_bit_4_times_g_mod_8_of_word_g_div_8() -> None:
    given = torch.zeros(2, 44)
    given[1, 4 * 9 + 1], given[1, 4 * 9 + 3] = 5.0, 7.0
    found = Sparse24Weight.from_dense_24(given)
    assert found.meta.shape == (2, 2)
    # places 1 and 3 in the tenth four, 0 and 1 in all the others, no bit after the last of eleven
    assert found.meta[1].tolist() == [0x44444444, 0x4D4]
    expected = torch.zeros(22)
    expected[18:20] = torch.tensor([5.0, 7.0])
    assert found.values[1].equal(expected)


def test_codes_are_those_of_the_sparse_tensor_cores() -> None:
    assert tuple(low | high << 2 for low, high in combinations(range(4), 2)) == CODES
    assert pack_codes(torch.tensor([CODES], dtype=torch.int32)).tolist() == [[0xED9C84]]


def test_the_two_greatest_of_each_four_are_kept_and_of_equal_ones_the_first() -> None:
    given = torch.tensor([[1.0, -3.0, 2.0, 0.0, 1.0, 1.0, 1.0, -1.0, 0.0, 2.0, 1.0, -2.0, 0.0, 0.0, 0.0, 4.0]])
    kept = [[0.0, -3.0, 2.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 2.0, 0.0, -2.0, 0.0, 0.0, 0.0, 4.0]]
    assert sparsify24(given).dense().tolist() == kept
    assert sparsify24(given).meta.tolist() == [[0xCD49]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_kept_element_is_greater_than_those_left_out(dtype: torch.dtype) -> None:
    given = weight(dtype=dtype)
    dense = sparsify24(given).dense()
    assert dense.dtype == dtype
    there = dense.view(12, 35, 4) != 0
    assert (there.sum(-1) == 2).all()
    assert dense[dense != 0].equal(given[dense != 0])
    sizes = given.view(12, 35, 4).abs().float()
    assert (sizes.masked_fill(~there, 9e9).amin(-1) >= sizes.masked_fill(there, 0).amax(-1)).all()


def test_a_transposable_pattern_is_the_best_of_those_sparse_along_both_directions() -> None:
    given = weight(8, 40)
    dense = sparsify24(given, transposable=True).dense()
    assert ((dense != 0).view(8, 10, 4).sum(2) == 2).all()
    assert ((dense != 0).view(2, 4, 40).sum(1) == 2).all()
    Sparse24Weight.from_dense_24(dense.T.contiguous())
    assert len(_BLOCKS) == 90
    for row in (0, 4):
        for column in range(0, 40, 4):
            block = given[row : row + 4, column : column + 4].abs()
            best = max(float((block * torch.tensor(one)).sum()) for one in _BLOCKS)
            assert float(dense[row : row + 4, column : column + 4].abs().sum()) == pytest.approx(best)


@pytest.mark.parametrize("transposable", [False, True])
def test_a_weight_larger_than_a_piece_is_sparsified_as_in_one(
    monkeypatch: pytest.MonkeyPatch, transposable: bool
) -> None:
    whole = sparsify24(weight(44, 64), transposable)
    monkeypatch.setattr("registry.packed.layout.CHUNK", 64 * 64)
    assert same(whole, sparsify24(weight(44, 64), transposable))


def test_what_is_sparse_already_stays_as_it_is() -> None:
    made = sparsify24(weight(dtype=torch.bfloat16).T.contiguous().T)
    assert same(Sparse24Weight.from_dense_24(made.dense()), made)
    assert Sparse24Weight.from_dense_24(torch.zeros(3, 8)).dense().equal(torch.zeros(3, 8))
    holes = made.dense() * (torch.rand(12, 140) < 0.5)
    assert Sparse24Weight.from_dense_24(holes).dense().equal(holes)


def test_it_survives_copying_pickling_and_state_dicts() -> None:
    made = sparsify24(weight(dtype=torch.float16))
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    loaded = Sparse24Weight.from_state_dict(torch.load(file, weights_only=True))
    for other in (loaded, copy.deepcopy(made), copy.copy(made), pickle.loads(pickle.dumps(made))):
        assert same(made, other)
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    assert same(made, torch.load(file, weights_only=True))


def test_it_is_a_tree_of_tensors() -> None:
    made = sparsify24(weight())
    leaves, structure = pytree.tree_flatten(made)
    assert len(leaves) == 2
    assert same(pytree.tree_unflatten(leaves, structure), made)
    same_structure = pytree.treespec_loads(pytree.treespec_dumps(structure))
    assert same(pytree.tree_unflatten(leaves, same_structure), made)


def test_it_tells_what_it_is_and_moves() -> None:
    made = sparsify24(weight())
    half = made.to(dtype=torch.bfloat16)
    assert (made.shape, half.dtype, half.device, half.nbytes) == (
        (12, 140), torch.bfloat16, torch.device("cpu"), 12 * (140 + 4 * 5),
    )  # fmt: skip
    assert half.dense().equal(made.dense().bfloat16())
    assert made.to("meta").device.type == "meta"
    assert repr(half) == "Sparse24Weight(12x140, bfloat16, cpu, 1920 bytes)"


VALUES, META = torch.ones(3, 4), torch.full((3, 1), 0x44, dtype=torch.int32)
DENSE = torch.zeros(5, 16)
DENSE[3, 9:12] = 1.0
WRONG: list[tuple[Any, str]] = [
    (
        lambda: Sparse24Weight(VALUES, META.long()),
        r"meta is int64 of shape \(3, 1\)\n  expected int32 of shape \(3, 1\)",
    ),
    (lambda: Sparse24Weight(VALUES, META[:2]), r"meta is int32 of shape \(2, 1\)\n  expected int32 of shape \(3, 1\)"),
    (lambda: Sparse24Weight(VALUES[:, :3], META), r"values is float32 of shape \(3, 3\)"),
    (lambda: Sparse24Weight(VALUES.double(), META), "values is float64"),
    (lambda: Sparse24Weight(VALUES, META.to("meta")), "several devices: cpu, meta"),
    (lambda: Sparse24Weight(VALUES, META, 2), "version 2, this is version 1"),
    (lambda: Sparse24Weight([1], META), "values is a list, expected a Tensor"),  # type: ignore[arg-type]
    (lambda: Sparse24Weight.from_state_dict({"values": VALUES}), r"its state is \['values'\]"),
    (lambda: Sparse24Weight.from_state_dict([1]), "its state is list"),  # type: ignore[arg-type]
    (lambda: Sparse24Weight.from_dense_24(DENSE), r"weight\[3, 8:12\] has 3 elements that are not 0"),
    (
        lambda: sparsify24(torch.ones(4, 6)),
        r"weight has shape \(4, 6\)\n  expected \[N, K\] as nn.Linear, K a multiple",
    ),
    (lambda: sparsify24(torch.ones(4)), r"weight has shape \(4,\)"),
    (lambda: sparsify24(torch.ones(0, 4)), r"weight has shape \(0, 4\)"),
    (lambda: sparsify24(torch.ones(4, 4).double()), "weight is float64"),
    (lambda: sparsify24(torch.ones(4, 4, device="meta")), "is on meta, so it has no values"),
    (lambda: sparsify24(torch.full((4, 4), torch.nan)), "holds NaN or infinity"),
    (lambda: sparsify24(torch.ones(6, 4), transposable=True), "weight has N=6"),
    (lambda: sparsify24(torch.ones(4, 4), transposable=1), "transposable must be True or False"),  # type: ignore[arg-type]
    (lambda: sparsify24([1.0]), "weight is a list"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_no_such_weight_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_the_names_are_public() -> None:
    assert {"Sparse24Weight", "sparsify24"} <= set(registry.__all__)
