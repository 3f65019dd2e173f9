"""The guard of a family: which tensors of other sizes it takes, by layout."""

from __future__ import annotations

import itertools

import pytest
import torch

from registry.arguments.schema import Schema
from registry.arguments.specs import TensorSpec
from registry.dispatch.hit.family import family_of

COPY = Schema.parse("copy(Tensor x) -> Tensor y")
SHAPES = {
    2: [(4, 8), (8, 4), (1, 8), (8, 1), (1, 1), (12, 20)],
    3: [(2, 4, 8), (4, 2, 8), (1, 4, 8), (4, 1, 8), (4, 8, 1), (1, 1, 8), (3, 4, 12)],
    4: [(2, 3, 4, 8), (1, 3, 4, 8), (2, 1, 4, 8), (2, 3, 1, 8), (2, 3, 4, 1)],
}


def arranged(shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Tensors of a shape in every order of dimensions, of a wider one's columns, and expanded."""
    orders = itertools.permutations(range(len(shape)))
    found = [torch.empty([shape[place] for place in order]).permute(_inverse(order)) for order in orders]
    wide = torch.empty(*shape[:-1], 32)[..., : shape[-1]]
    return [*found, wide, torch.empty(shape[-1]).expand(shape)]


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(place) for place in range(len(order)))


@pytest.mark.parametrize("dimensions", SHAPES)
@pytest.mark.few(1)
def test_a_family_takes_the_tensors_of_its_layout(dimensions: int) -> None:
    tensors = [tensor for shape in SHAPES[dimensions] for tensor in arranged(shape)]
    taken = 0
    for first in tensors:
        guard = family_of(COPY, (first,), False)
        assert guard is not None
        own = TensorSpec.of(first)
        for other in tensors:
            spec = TensorSpec.of(other)
            alike = spec.layout == own.layout and (own.layout != "other" or spec.strides == own.strides)
            arguments = guard.specs(other)
            assert (arguments is not None) is (alike and spec.alignment == own.alignment)
            if arguments is not None:
                assert arguments.unrecorded == {"x": spec}
                taken += 1
    assert taken > len(tensors)
