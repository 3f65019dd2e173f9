"""topk_softmax: the experts of each token and their weights, vLLM's op of that name, from a router's logits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...contract import Backward, Floor, Op, RowMajor, Tolerance
from ...problem import Problem
from ..rounding import FLOAT32_UNIT, underflow, unit_roundoff
from .router_logits import (
    KINDS,
    SCORINGS,
    check_router,
    draw_logits,
    given_attributes,
    largest_log,
    router_examples,
    router_problem,
)


def topk_softmax_reference(
    router_logits: torch.Tensor, top_k: int, renormalize: bool = False, scoring: str = "softmax"
) -> tuple[torch.Tensor, torch.Tensor]:
    """``weights`` [tokens, top_k], the largest scores of each row in falling order, and their ``experts``, int32.

    ``router_logits`` is [tokens, experts]; scores are the softmax over all experts, or with ``scoring="sigmoid"`` each
    logit's sigmoid. With ``renormalize`` weights are divided by their sum. Weights are float32, of float64 logits
    float64, and computed so. Of experts with one score, any may be taken, and in any order. A softmax with NaN is NaN;
    its experts are any of the row, none twice.
    """
    wide = router_logits.to(torch.promote_types(router_logits.dtype, torch.float32))
    scores = wide.softmax(-1) if scoring == "softmax" else wide.sigmoid()
    # by the logits: different ones may have one score, e.g. 0
    experts = wide.detach().sort(stable=True, dim=-1, descending=True).indices[:, :top_k]
    weights = scores.gather(-1, experts)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.contiguous(), experts.to(torch.int32).clone(memory_format=torch.contiguous_format)


def router_outputs(logits: Any, top_k: int, *_: Any) -> list[Any]:
    """Shapes and dtypes of weights and experts, [tokens, top_k] each."""
    shape = (logits.shape[0], top_k)
    return [(shape, torch.promote_types(logits.dtype, torch.float32)), (shape, torch.int32)]


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    return draw_logits(problem, kind, generator), *given_attributes(problem)


def _scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each weight: the errors of its exponential, and of the sums that it is divided by."""
    roundings = 8.0 + math.sqrt(problem.experts) + 2.0 * largest_log(reference)
    return reference.abs() * roundings


def _experts_are_right(
    problem: Problem,
    values: Mapping[str, Any],
    results: Mapping[str, torch.Tensor],
    references: Mapping[str, torch.Tensor],
) -> Iterator[str]:
    """A fault unless experts are distinct, and their logits, in this order, are the largest ones of the row."""
    logits, found = values["router_logits"].double(), results["experts"].long()
    outside = (found < 0) | (found >= problem.experts)
    if outside.any():
        place = outside.nonzero()[0].tolist()
        yield f"experts{place} is {found[outside][0].item()}, expected 0 to {problem.experts - 1}"
        return
    order = found.sort(-1).values
    twice = (order[:, 1:] == order[:, :-1]).any(-1)
    if twice.any():
        row = int(twice.nonzero()[0])
        yield f"experts[{row}] is {found[row].tolist()}: one expert twice"
    right = logits.gather(-1, references["experts"].long())
    wrong = (logits.gather(-1, found) != right) & ~logits.isnan().any(-1, keepdim=True)
    if wrong.any():
        row, place = wrong.nonzero()[0].tolist()
        yield (
            f"experts[{row}, {place}] is {found[row, place].item()}, whose logit is"
            f" {logits[row, found[row, place]].item():.9g}, expected one with {right[row, place].item():.9g}"
        )


def _floor(problem: Problem) -> Floor:
    moved = problem.tokens * (problem.experts * problem.torch_dtype.itemsize + 8 * problem.top_k)
    return Floor(bytes=moved, flop=4 * problem.tokens * problem.experts)


TOPK_SOFTMAX = Op(
    name="topk_softmax",
    schema=(
        'topk_softmax(Tensor router_logits, int top_k, bool renormalize=False, str scoring="softmax")'
        " -> (Tensor weights, Tensor experts)"
    ),
    version=1,
    reference=topk_softmax_reference,
    fake=RowMajor(router_outputs),
    problem=router_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(
        {"float32": FLOAT32_UNIT, "float64": unit_roundoff(torch.float64)},
        {name: underflow(4)[name] for name in ("float32", "float64")},
        _scale,
    ),
    compare={"experts": _experts_are_right},
    static=frozenset({"experts", "top_k", "dtype"}),
    dynamic=frozenset({"tokens"}),
    choices={"renormalize": (False, True), "scoring": SCORINGS},
    kinds=KINDS,
    examples=router_examples(),
    check=check_router,
    backward=Backward(op="topk_softmax_backward", saved=("router_logits", "experts")),
)
