"""Arguments of top_k_top_p_sampling: their checks, their dimensions, and random ones of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, Value, dtype_name
from .. import fills
from ..checks import FLOATS, check_values, float_dtype, float_tensor, positive, shape_text

OP_NAME = "top_k_top_p_sampling"
KINDS = ("normal", "outliers", "ties", "constant", "masked", "spike_last", "edges", "special")
"""Kinds of logits. ties: a few levels alone. masked: a third of the tokens has -inf, in each row.

edges: filters that keep one token or all, and numbers at both ends of [0, 1). special: NaN, infinity, and -inf alone.
"""
_LARGEST_BELOW_1 = 1.0 - 2.0**-24
_FILTERS = (("top_k", torch.int32), ("top_p", torch.float32))


def sampling_problem(arguments: Arguments) -> Mapping[str, Value]:
    """The dimensions of a call. Raises InvalidArgumentError for tensors that do not go together."""
    op, logits = arguments.op, float_tensor(arguments, "logits")
    if len(logits.shape) != 2 or not logits.shape[1]:
        raise InvalidArgumentError(
            f"{op}: logits has shape {shape_text(logits.shape)}, expected [rows, cols] with at least one column",
            hint="of one token make a row: logits[None]; of [batch, 1, vocabulary]: logits[:, -1]",
        )
    rows, cols = logits.shape
    _check_of_rows(arguments, "uniform", torch.float32, rows)
    for name, dtype in _FILTERS:
        if arguments[name] is not None:
            _check_of_rows(arguments, name, dtype, rows)
    filters = {name: arguments[name] is not None for name, _ in _FILTERS}
    return {"rows": rows, "cols": cols, **filters, "dtype": dtype_name(logits.dtype)}


def _check_of_rows(arguments: Arguments, name: str, dtype: torch.dtype, rows: int) -> None:
    op, spec = arguments.op, arguments.tensor(name)
    if spec.dtype != dtype:
        raise InvalidArgumentError(
            f"{op}: {name} is {dtype_name(spec.dtype)}, expected {dtype_name(dtype)}",
            hint=f"convert it: {name}.to({dtype})",
        )
    if spec.shape != (rows,):
        hint = "torch.rand(rows, device=...)" if name == "uniform" else "one for each row, or a number for all"
        raise InvalidArgumentError(
            f"{op}: {name} has shape {shape_text(spec.shape)} but logits has {rows} rows", hint=f"expected {hint}"
        )


def with_row_filters(
    logits: Any, uniform: Any, top_k: Any = None, top_p: Any = None
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """A user's call in the schema's terms: a number, or a tensor of one element, stands for each row.

    A number that filters nothing becomes None. Raises InvalidArgumentError for one that no filter has.
    """
    if isinstance(logits, torch.Tensor) and logits.dim() == 2:
        rows, cols = logits.shape
        if isinstance(top_k, int | float):
            top_k = _top_k_of(top_k, cols)
        if isinstance(top_p, int | float):
            top_p = _top_p_of(top_p)
        top_k, top_p = (
            _for_rows(value, dtype, rows, logits.device)
            for value, (_, dtype) in zip((top_k, top_p), _FILTERS, strict=True)
        )
    return (logits, uniform, top_k, top_p), {}


def _top_k_of(top_k: float, cols: int) -> float | None:
    if type(top_k) is not int or top_k < 1:
        raise InvalidArgumentError(
            f"{OP_NAME}: top_k={top_k}", hint="expected an integer of at least 1, or None: all tokens are kept"
        )
    return top_k if top_k < cols else None


def _top_p_of(top_p: float) -> float | None:
    # written so that NaN fails too
    if isinstance(top_p, bool) or not 0.0 < top_p <= 1.0:
        raise InvalidArgumentError(
            f"{OP_NAME}: top_p={top_p}", hint="expected a share above 0 and of at most 1, or None"
        )
    return top_p if top_p < 1.0 else None


def _for_rows(value: Any, dtype: torch.dtype, rows: int, device: torch.device) -> Any:
    if isinstance(value, int | float):
        value = torch.full((1,), value, dtype=dtype, device=device)
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.dim() < 2:
        return value.expand(rows)
    return value


def check_sampling(problem: Problem) -> None:
    """Raise InvalidArgumentError for dimensions that no call has."""
    positive(problem, "rows", "cols")
    float_dtype(problem)


def check_sampling_data(values: Mapping[str, Any]) -> None:
    """Raise OutOfRangeError for numbers that no filter has, and for uniform numbers outside of [0, 1)."""
    uniform, top_k, top_p = values["uniform"], values["top_k"], values["top_p"]
    hint = "torch.rand makes them: 1 itself is none"
    check_values(OP_NAME, "uniform", uniform, ~((uniform >= 0.0) & (uniform < 1.0)), "at least 0 and below 1", hint)
    if top_k is not None:
        check_values(
            OP_NAME, "top_k", top_k, top_k < 1, "at least 1", "the number of columns keeps all tokens of a row"
        )
    if top_p is not None:
        wrong = ~((top_p > 0.0) & (top_p <= 1.0))
        check_values(OP_NAME, "top_p", top_p, wrong, "above 0 and at most 1", "1 keeps all tokens of a row")


def sampling_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """The schema's arguments in order."""
    rows, cols, device = problem.rows, problem.cols, generator.device
    logits = _logits(problem, kind, generator)
    uniform, top_p = (torch.rand(rows, device=device, generator=generator) for _ in range(2))
    top_k = torch.randint(1, min(cols, 100) + 1, (rows,), dtype=torch.int32, device=device, generator=generator)
    top_p.mul_(0.7).add_(0.3).clamp_(max=_LARGEST_BELOW_1)
    if kind == "edges":
        place = torch.arange(rows, device=device)
        top_k = torch.where(place % 3 > 0, torch.where(place % 3 > 1, 1, 2**31 - 1), top_k).to(torch.int32)
        top_p = torch.where(place % 4 > 1, torch.where(place % 4 > 2, 1e-6, 1.0), top_p)
        uniform = torch.where(place % 5 > 1, torch.where(place % 5 > 2, 0.0, _LARGEST_BELOW_1), uniform)
    elif kind == "special":
        uniform.mul_(0.5)
    return logits, uniform, top_k if problem.top_k else None, top_p if problem.top_p else None


def _logits(problem: Problem, kind: str, generator: torch.Generator) -> torch.Tensor:
    """Logits ``[rows, cols]`` of about the spread of a language model's."""
    logits = fills.normal((problem.rows, problem.cols), problem.torch_dtype, generator).mul_(2.5)
    if kind == "outliers":
        # exp(200) overflows fp32
        fills.plant_outliers(logits, 200.0, generator)
    elif kind == "ties":
        logits.round_()
    elif kind == "constant":
        logits.fill_(-120.0)
    elif kind == "masked":
        third = torch.arange(problem.cols, device=logits.device) % 3 == 1
        logits.masked_fill_(third, -torch.inf)
    elif kind == "spike_last":
        # the last token has about as much mass as all others
        logits[:, -1:] = logits.float().logsumexp(-1, keepdim=True).to(logits.dtype)
    elif kind == "special":
        logits[::5] = -torch.inf
        fills.plant_in_rows(logits, (torch.nan, torch.inf), generator)
    return logits


def sampling_examples() -> tuple[dict[str, Value], ...]:
    """Small problems, most of them odd, with each filter and without; one in float64."""
    sizes = ((1, 1), (3, 7), (9, 130), (6, 1025), (2, 4099))
    pairs = [(torch.float64, sizes[2]), *((dtype, size) for dtype in FLOATS for size in sizes)]
    return tuple(
        {
            "rows": rows,
            "cols": cols,
            "top_k": place % 4 != 0,
            "top_p": place % 4 != 3 and place % 5 != 4,
            "dtype": dtype_name(dtype),
        }
        for place, (dtype, (rows, cols)) in enumerate(pairs)
    )
