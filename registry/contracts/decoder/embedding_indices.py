"""Indices of embeddings: their checks, their dimensions, and random ones of either frequency."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, Value, dtype_name
from ..checks import FLOATS, check_values, float_dtype, float_tensor, index_tensor, positive, shape_text

_ALONE, _GROUPS = 2**20, 4096

FREQUENCIES = ("skewed", "uniform")
"""Distributions of indices: entry i about 1 / (i + 1) as often as the first, as words of a text; all alike."""


def embedding_problem(arguments: Arguments) -> Mapping[str, Value]:
    """The dimensions of a call. Raises InvalidArgumentError for a weight that is no matrix, or a wrong padding."""
    weight, indices, op = float_tensor(arguments, "weight"), index_tensor(arguments, "indices"), arguments.op
    if len(weight.shape) != 2 or not weight.shape[0] or not weight.shape[1]:
        raise InvalidArgumentError(f"{op}: weight has shape {shape_text(weight.shape)}", hint="expected [n, cols]")
    vocabulary, cols = weight.shape
    padding = arguments["padding_idx"]
    if padding is not None and not -vocabulary <= arguments.integer("padding_idx") < vocabulary:
        raise InvalidArgumentError(
            f"{op}: padding_idx={padding} but weight has {vocabulary} rows",
            hint=f"expected {-vocabulary} to {vocabulary - 1}, or None",
        )
    return {"rows": indices.numel, "cols": cols, "vocabulary": vocabulary, "dtype": dtype_name(weight.dtype)}


def check_embedding(problem: Problem) -> None:
    """Raise InvalidArgumentError for dimensions that no call has."""
    positive(problem, "rows", "cols", "vocabulary")
    float_dtype(problem)


def check_indices_data(op: str, values: Mapping[str, Any]) -> None:
    """Raise OutOfRangeError for an index of no row of the weight."""
    indices, count = values["indices"], values["weight"].shape[0]
    wrong = (indices < 0) | (indices >= count)
    check_values(
        op, "indices", indices, wrong, f"0 to {count - 1}, a row of weight", "does the tokenizer fit the model?"
    )


def draw_indices(problem: Problem, generator: torch.Generator) -> torch.Tensor:
    """Random indices, int64 ``[rows]``, by the problem's frequency."""
    if problem.frequency == "uniform":
        return torch.randint(problem.vocabulary, (problem.rows,), device=generator.device, generator=generator)
    drawn = torch.rand(problem.rows, dtype=torch.float64, device=generator.device, generator=generator)
    indices = torch.pow(problem.vocabulary + 1.0, drawn).long()
    return indices.sub_(1).clamp_(0, problem.vocabulary - 1)


@lru_cache(maxsize=256)
def rows_met(rows: int, vocabulary: int, frequency: str) -> int:
    """The expected number of different rows of the weight that so many indices name."""
    if frequency == "uniform":
        counts, shares = np.array([float(vocabulary)]), np.array([1.0 / vocabulary])
    else:
        bounds = _bounds(vocabulary)
        counts = np.diff(bounds)
        shares = np.diff(np.log(bounds)) / np.log(vocabulary + 1.0) / counts
    with np.errstate(divide="ignore"):  # an only row is missed by no index
        met = -np.expm1(float(rows) * np.log1p(-shares))
    return max(1, round(float(np.sum(counts * met))))


def _bounds(vocabulary: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Bounds of groups of rows, from 1 to one more than there are: each row by itself, but for those far behind.

    Of these neighbours are met nearly equally often.
    """
    alone = min(vocabulary, _ALONE)
    behind = np.geomspace(alone + 1.0, vocabulary + 1.0, _GROUPS)[1:] if vocabulary > alone else np.empty(0)
    return np.concatenate([np.arange(1.0, alone + 2.0), behind])


def embedding_examples() -> tuple[dict[str, Value], ...]:
    """Small problems, most sizes odd; one in float64."""
    sizes = ((1, 64, 33), (7, 33, 5), (40, 130, 100), (300, 24, 70))
    pairs = [(torch.float64, sizes[1]), *((dtype, each) for dtype in FLOATS for each in sizes)]
    return tuple(
        {
            "rows": rows,
            "cols": cols,
            "vocabulary": count,
            "frequency": FREQUENCIES[place % 2],
            "dtype": dtype_name(dtype),
        }
        for place, (dtype, (rows, cols, count)) in enumerate(pairs)
    )
