"""Arguments that are written to and share memory: refused by every way in, hits among them."""

from __future__ import annotations

import itertools
import re

import pytest
import torch

import registry
from registry.dispatch.shared_memory import share_memory
from registry.errors import InvalidArgumentError

REFUSED = re.escape("fused_add_rms_norm: x and residual share memory, and x is written to")
add_norm = registry.op("fused_add_rms_norm")


@pytest.mark.parametrize("known", [False, True], ids=["new", "a hit"])
def test_one_memory_given_twice_is_an_error(known: bool) -> None:
    cols = 70 + known
    x = torch.randn(3, cols)
    if known:
        for rows in (3, 2):
            add_norm(x[:rows], torch.randn(rows, cols))
    before = x.clone()
    for residual in (x, x.view(3, cols), x.detach()):
        with pytest.raises(InvalidArgumentError, match=REFUSED):
            add_norm(x, residual)
    with pytest.raises(InvalidArgumentError, match=REFUSED):
        add_norm(x[:2], x[1:])
    with pytest.raises(InvalidArgumentError, match=REFUSED):
        torch.ops.kernel_registry.fused_add_rms_norm(x, x)
    with registry.using(fused_add_rms_norm="torch.native"), pytest.raises(InvalidArgumentError, match=REFUSED):
        add_norm(x, x)
    assert torch.equal(x, before)


def test_another_size_is_refused_too() -> None:
    for rows in (2, 3):
        add_norm(torch.randn(rows, 64), torch.randn(rows, 64))
    for rows in (4, 5):
        x = torch.randn(rows, 64)
        with pytest.raises(InvalidArgumentError, match=REFUSED):
            add_norm(x, x.view(rows, 64))


def test_columns_of_one_tensor_are_apart_until_they_overlap() -> None:
    wide = torch.randn(4, 24)
    for begin in (8, 7, 16):
        add_norm(wide[:, :7], wide[:, begin : begin + 7])
    for begin in (6, 1, 0):
        with pytest.raises(InvalidArgumentError, match=REFUSED):
            add_norm(wide[:, :7], wide[:, begin : begin + 7])


def test_elements_that_are_one_in_memory_are_not_written_to() -> None:
    for rows in (2, 3, 4):
        add_norm(torch.randn(rows, 72), torch.randn(rows, 72))
        for x, residual in ((1, rows), (rows, 1)):
            given = torch.randn(x, 72).expand(rows, 72), torch.randn(residual, 72).expand(rows, 72)
            name = "x" if x == 1 else "residual"
            with pytest.raises(InvalidArgumentError, match=rf"{name} is expanded[^\n]*\n.* {name}.clone"):
                add_norm(*given)
    one_row = torch.randn(72).expand(1, 72)
    add_norm(one_row, torch.randn(1, 72))
    add_norm(torch.randn(1, 72).expand(0, 72), torch.randn(0, 72))


def test_a_weight_may_not_lie_in_what_is_written_to() -> None:
    x = torch.randn(3, 8)
    with pytest.raises(InvalidArgumentError, match="x and weight share memory"):
        add_norm(x, torch.randn(3, 8), x[0])


def test_meta_tensors_share_memory_where_their_storage_is_one() -> None:
    x = torch.empty(4, 8, device="meta")
    add_norm(x, torch.empty_like(x), x.new_empty(8))
    add_norm(x[:2], x[2:])
    for other in (x, x.view(4, 8)):
        with pytest.raises(InvalidArgumentError, match=REFUSED):
            add_norm(x, other)


def test_memory_is_shared_where_an_element_is() -> None:
    shapes = [((2, 3), (6, 1)), ((3, 2), (1, 4)), ((2, 2, 2), (9, 3, 1)), ((4,), (3,)), ((5,), (1,)), ((0, 2), (2, 1))]
    flat = torch.zeros(40)
    for (one, other), (start, begin) in itertools.product(
        itertools.product(shapes, repeat=2), itertools.product((0, 1, 5), (0, 2, 4, 11))
    ):
        first = flat.as_strided(*one, start)
        second = flat.as_strided(*other, begin)
        flat.zero_()
        first.fill_(1.0)
        assert share_memory(first, second) == bool((second != 0).any()), (one, other, start, begin)
