"""The gradient of an embedding by its weight."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Floor, Op, RowMajor, Tolerance
from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, Value
from .. import fills
from ..checks import same_dtype, shape_text
from ..rounding import fp32_weight, underflow, units
from .embedding import EMBEDDING
from .embedding_indices import check_embedding, check_indices_data, draw_indices, embedding_examples, embedding_problem

KINDS = ("normal", "outliers", "spike_last", "one_index", "padding", "special")


def embedding_backward_reference(
    grad_y: torch.Tensor, indices: torch.Tensor, weight: torch.Tensor, padding_idx: int | None = None
) -> torch.Tensor:
    """``grad_weight`` [n, cols], row-major: the sum of the rows of ``grad_y`` [..., cols] that each index has.

    A row of the weight that no index names has the gradient 0, and so has row ``padding_idx``, which counts from the
    end if it is negative. Of the weight only the shape and dtype matter. Halves are summed in fp32, and rounded once.
    """
    wide = grad_y.reshape(-1, weight.shape[1]).to(torch.promote_types(grad_y.dtype, torch.float32))
    total = torch.zeros(weight.shape, dtype=wide.dtype, device=wide.device)
    total = total.index_add(0, indices.reshape(-1), wide)
    if padding_idx is not None:
        place = torch.arange(weight.shape[0], device=wide.device) == padding_idx % weight.shape[0]
        total = total.masked_fill(place[:, None], 0.0)
    return total.to(weight.dtype)


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    dims = embedding_problem(arguments)
    gradient, indices, weight = (arguments.tensor(name) for name in ("grad_y", "indices", "weight"))
    expected = (*indices.shape, weight.shape[1])
    if gradient.shape != expected:
        raise InvalidArgumentError(
            f"{arguments.op}: grad_y is {shape_text(gradient.shape)} but y is {shape_text(expected)}",
            hint="a gradient has the shape of what it is the gradient of",
        )
    same_dtype(arguments.op, ("weight", weight), ("grad_y", gradient))
    return dims


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    shape, dtype = (problem.rows, problem.cols), problem.torch_dtype
    grad_y, indices = fills.normal(shape, dtype, generator), draw_indices(problem, generator)
    weight = torch.zeros((problem.vocabulary, problem.cols), dtype=dtype, device=indices.device)
    padding = int(problem.vocabulary) - 1
    if kind == "outliers":
        fills.plant_outliers(grad_y, 60.0, generator)
    elif kind == "spike_last":
        grad_y[-1:] = 50.0
    elif kind == "one_index":
        # a long sum, far from 0, that loses terms if it is kept in half precision
        indices = indices[:1].expand(problem.rows).contiguous()
        grad_y.add_(1.0)
    elif kind == "padding":
        padding = int(problem.vocabulary) // 3 - problem.vocabulary
        third = torch.arange(problem.rows, device=indices.device) % 3 == 0
        indices = torch.where(third, problem.vocabulary // 3, indices)
    elif kind == "special":
        fills.plant_special(grad_y, [torch.nan, torch.inf, -torch.inf])
    return grad_y, indices, weight, padding


def _scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Relative to each output and, in fp32's roundings, to the sum of magnitudes: a serial sum errs by their root."""
    magnitudes = values["grad_y"].double().abs().nan_to_num(0.0, 0.0, 0.0)
    sums = embedding_backward_reference(magnitudes, values["indices"], reference, values["padding_idx"])
    counts = torch.bincount(values["indices"].reshape(-1), minlength=reference.shape[0]).double()[:, None]
    return reference.abs() + fp32_weight(problem) * (1.0 + counts.sqrt()) * sums


def _floor(problem: Problem) -> Floor:
    elements = (problem.rows + problem.vocabulary) * problem.cols
    moved = elements * problem.torch_dtype.itemsize + 8 * problem.rows
    return Floor(bytes=moved, flop=problem.rows * problem.cols)


EMBEDDING_BACKWARD = Op(
    name="embedding_backward",
    schema=(
        "embedding_backward(Tensor grad_y, Tensor indices, Tensor weight, int? padding_idx=None) -> Tensor grad_weight"
    ),
    version=1,
    reference=embedding_backward_reference,
    fake=RowMajor(lambda _, __, weight, ___: [(weight.shape, weight.dtype)]),
    problem=_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(units(float32=2.0, half=1.1), underflow(4), _scale),
    static=EMBEDDING.static,
    dynamic=EMBEDDING.dynamic,
    distributions=EMBEDDING.distributions,
    kinds=KINDS,
    examples=embedding_examples(),
    check=check_embedding,
    check_data=partial(check_indices_data, "embedding_backward"),
    independent=frozenset({"indices"}),
    numbers=frozenset({"padding_idx"}),
)
