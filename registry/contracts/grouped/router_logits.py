"""Logits of a router: their checks, their dimensions, and random ones of every kind."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, Value, check_choice, dtype_name
from .. import fills
from ..checks import FLOATS, float_dtype, float_tensor, positive, shape_text

SCORINGS = ("softmax", "sigmoid")
KINDS = ("normal", "outliers", "ties", "masked", "constant", "special")
"""Kinds of logits. ties: a few levels alone. masked: a third of the experts has -inf, in each row."""


def router_problem(arguments: Arguments) -> Mapping[str, Value]:
    """The dimensions of a call. Raises InvalidArgumentError for logits that are no rows, and for a wrong top_k."""
    op, logits = arguments.op, float_tensor(arguments, "router_logits")
    if len(logits.shape) != 2 or not logits.shape[1]:
        raise InvalidArgumentError(
            f"{op}: router_logits has shape {shape_text(logits.shape)}", hint="expected [tokens, experts]"
        )
    tokens, experts = logits.shape
    top_k, scoring = arguments.integer("top_k"), arguments.text("scoring")
    check_choice(op, "scoring", scoring, SCORINGS)
    _check_top_k(op, top_k, experts)
    return {
        "tokens": tokens,
        "experts": experts,
        "top_k": top_k,
        "renormalize": arguments.flag("renormalize"),
        "scoring": scoring,
        "dtype": dtype_name(logits.dtype),
    }


def check_router(problem: Problem) -> None:
    """Raise InvalidArgumentError for dimensions that no call has."""
    positive(problem, "tokens", "experts", "top_k")
    float_dtype(problem)
    _check_top_k(problem.op, problem.top_k, problem.experts)


def _check_top_k(op: str, top_k: int, experts: int) -> None:
    if not 1 <= top_k <= experts:
        raise InvalidArgumentError(f"{op}: top_k={top_k} of {experts} experts", hint=f"expected 1 to {experts}")


def draw_logits(problem: Problem, kind: str, generator: torch.Generator) -> torch.Tensor:
    """Random logits ``[tokens, experts]`` in the problem's dtype."""
    shape = (problem.tokens, problem.experts)
    logits = fills.normal(shape, problem.torch_dtype, generator)
    if kind == "outliers":
        fills.plant_outliers(logits.mul_(3.0), 40.0, generator)
    elif kind == "ties":
        logits.round_()
    elif kind == "constant":
        logits.fill_(0.25)
    elif kind == "special":
        fills.plant_in_rows(logits, (torch.nan,), generator)
    elif kind == "masked":
        third = torch.arange(problem.experts, device=logits.device) % 3 == 1
        logits.masked_fill_(third, -torch.inf)
    return logits


def router_examples() -> tuple[dict[str, Value], ...]:
    """Small problems, most of them odd; one in float64."""
    sizes = ((1, 8, 2), (7, 60, 4), (33, 128, 8), (5, 5, 5))
    ways = itertools.cycle(itertools.product((False, True), SCORINGS))
    pairs = [(torch.float64, sizes[1]), *((dtype, each) for dtype in FLOATS for each in (*sizes, sizes[1]))]
    return tuple(
        {
            "tokens": tokens,
            "experts": experts,
            "top_k": top_k,
            "renormalize": renormalize,
            "scoring": scoring,
            "dtype": dtype_name(dtype),
        }
        for (dtype, (tokens, experts, top_k)), (renormalize, scoring) in zip(pairs, ways, strict=False)
    )


def largest_log(scores: torch.Tensor) -> torch.Tensor:
    """``abs(log(score))``, float64, at most 100: an exponential errs by as many roundings of fp32."""
    return scores.double().abs().clamp_min(1e-44).log().abs()


def given_attributes(problem: Problem) -> tuple[Any, ...]:
    """The attributes of a problem's calls."""
    return problem.top_k, problem.renormalize, problem.scoring
