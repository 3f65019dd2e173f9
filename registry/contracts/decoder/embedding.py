"""embedding: rows of a weight by index, torch.nn.functional.embedding's semantics.

Indices are on the device and are not read by the host: with one outside of the weight, memory beside it is read.
``KERNEL_REGISTRY_CHECK=1`` finds such a call.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ...contract import Backward, Floor, Op, RowMajor, Tolerance
from ...problem import Problem
from .. import fills
from ..rounding import units
from .embedding_indices import (
    FREQUENCIES,
    check_embedding,
    check_indices_data,
    draw_indices,
    embedding_examples,
    embedding_problem,
    rows_met,
)


def embedding_reference(indices: torch.Tensor, weight: torch.Tensor, padding_idx: int | None = None) -> torch.Tensor:
    """``weight[indices]``: ``[...]``, int64 or int32, and ``[n, cols]`` to ``[..., cols]``, row-major.

    ``padding_idx``, counted from the end if negative, changes the gradient alone: that row's is 0.
    """
    del padding_idx
    return weight.index_select(0, indices.reshape(-1)).view(*indices.shape, weight.shape[1])


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    weight = fills.normal((problem.vocabulary, problem.cols), problem.torch_dtype, generator)
    # one plan answers all kinds: each has a row that is padding
    indices, padding = draw_indices(problem, generator), int(problem.vocabulary) - 1
    if kind == "ends":
        # the first and the last row in turn, of which the first is padding: a copy all the same
        padding = 0
        indices = torch.arange(problem.rows, device=indices.device) % 2 * (problem.vocabulary - 1)
    elif kind == "special":
        fills.plant_special(weight, [torch.nan, torch.inf, -0.0, -torch.inf])
    return indices, weight, padding


def _floor(problem: Problem) -> Floor:
    size = problem.torch_dtype.itemsize
    read = rows_met(problem.rows, problem.vocabulary, problem.frequency)
    return Floor(bytes=(problem.rows + read) * problem.cols * size + 8 * problem.rows, flop=0)


EMBEDDING = Op(
    name="embedding",
    schema="embedding(Tensor indices, Tensor weight, int? padding_idx=None) -> Tensor y",
    version=1,
    reference=embedding_reference,
    fake=RowMajor(lambda indices, weight, _: [((*indices.shape, weight.shape[1]), weight.dtype)]),
    problem=embedding_problem,
    inputs=_inputs,
    floor=_floor,
    # a copy is exact
    tolerance=Tolerance(units(float32=0.0, half=0.0), units(float32=0.0, half=0.0), lambda _, reference: reference),
    static=frozenset({"cols", "vocabulary", "dtype"}),
    dynamic=frozenset({"rows"}),
    distributions={"frequency": FREQUENCIES},
    kinds=("normal", "ends", "special"),
    examples=embedding_examples(),
    check=check_embedding,
    check_data=partial(check_indices_data, "embedding"),
    independent=frozenset({"indices"}),
    backward=Backward(op="embedding_backward", saved=("indices", "weight")),
    weights=frozenset({"weight"}),
)
