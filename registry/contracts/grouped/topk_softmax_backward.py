"""The gradient of topk_softmax by the router's logits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ...contract import Floor, Op, RowMajor, Tolerance
from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, Value, dtype_name
from .. import fills
from ..checks import check_values, shape_text
from ..rounding import fp32_weight, underflow, units
from .router_logits import draw_logits, given_attributes, largest_log, router_examples, router_problem
from .topk_softmax import TOPK_SOFTMAX, router_outputs, topk_softmax_reference

KINDS = ("normal", "outliers", "masked", "constant", "special", "shifted")


def topk_softmax_backward_reference(
    grad_weights: torch.Tensor,
    router_logits: torch.Tensor,
    experts: torch.Tensor,
    top_k: int,
    renormalize: bool = False,
    scoring: str = "softmax",
) -> torch.Tensor:
    """``grad_router_logits`` [tokens, experts] from ``grad_weights`` [tokens, top_k] and the chosen experts.

    ``p`` are the scores, ``w`` the weights, and ``s`` the sum of the chosen scores. The gradient by a chosen score is
    ``g``, with ``renormalize`` ``(g - sum(g * w)) / s``, by another one 0. A softmax has
    ``p * (g - sum(g * p))``, a sigmoid ``g * p * (1 - p)``. Computed in fp32, or wider, and rounded once.
    """
    wide = router_logits.to(torch.promote_types(router_logits.dtype, torch.float32))
    places, gradient = experts[:, :top_k].long(), grad_weights.to(wide.dtype)
    if scoring == "softmax" and renormalize:
        # a softmax over the chosen alone
        shares = wide.gather(-1, places).softmax(-1)
        slopes = shares * (gradient - (gradient * shares).sum(-1, keepdim=True))
        result = torch.zeros_like(wide).scatter(-1, places, slopes)
        # a NaN of any expert is in all weights
        result = result + torch.where(wide.isnan().any(-1, keepdim=True), math.nan, 0.0)
        return result.to(router_logits.dtype)
    scores = wide.softmax(-1) if scoring == "softmax" else wide.sigmoid()
    if renormalize:
        chosen = scores.gather(-1, places)
        total = chosen.sum(-1, keepdim=True)
        gradient = (gradient - (gradient * chosen).sum(-1, keepdim=True) / total) / total
    slopes = torch.zeros_like(wide).scatter(-1, places, gradient)
    if scoring == "softmax":
        result = scores * (slopes - (slopes * scores).sum(-1, keepdim=True))
    else:
        result = torch.where(slopes == 0.0, 0.0, slopes * scores * (1.0 - scores))
    return result.to(router_logits.dtype)


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    dims = router_problem(arguments)
    expected = (dims["tokens"], dims["top_k"])
    wide = torch.promote_types(arguments.tensor("router_logits").dtype, torch.float32)
    for name, dtype in (("grad_weights", wide), ("experts", torch.int32)):
        spec = arguments.tensor(name)
        if spec.shape != expected or spec.dtype != dtype:
            raise InvalidArgumentError(
                f"{arguments.op}: {name} is {dtype_name(spec.dtype)} of shape {shape_text(spec.shape)},"
                f" expected {dtype_name(dtype)} of shape {expected[0]}x{expected[1]}",
                hint="weights and experts are the outputs of topk_softmax",
            )
    return dims


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    logits = draw_logits(problem, kind, generator)
    if logits.is_meta:
        specs = router_outputs(logits, problem.top_k)
        weights, experts = (logits.new_empty(shape, dtype=dtype) for shape, dtype in specs)
    else:
        weights, experts = topk_softmax_reference(logits, *given_attributes(problem))
    grad_weights = fills.normal(tuple(weights.shape), weights.dtype, generator)
    if kind == "shifted":
        grad_weights.add_(8.0)
    return grad_weights, logits, experts, *given_attributes(problem)


def _scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Relative to each output and, in fp32's roundings, to the terms whose difference it is."""
    logits, places = values["router_logits"].double(), values["experts"].long()
    size = values["grad_weights"].double().abs()
    scores = (logits.softmax(-1) if problem.scoring == "softmax" else logits.sigmoid()).nan_to_num(0.0)
    chosen = scores.gather(-1, places)
    mean = (size * chosen).sum(-1, keepdim=True)
    if problem.renormalize:
        total = chosen.sum(-1, keepdim=True).clamp_min(1e-300)
        size, mean = (size + mean / total) / total, 2.0 * mean / total
    terms = torch.zeros_like(logits).scatter(-1, places, size)
    if problem.scoring == "softmax":
        terms = terms + mean
    roundings = 16.0 + math.sqrt(problem.experts) + 2.0 * largest_log(scores)
    allowed: torch.Tensor = reference.abs() + fp32_weight(problem) * roundings * scores * terms
    return allowed


def _check_data(values: Mapping[str, Any]) -> None:
    experts, count = values["experts"], values["router_logits"].shape[1]
    check_values(
        "topk_softmax_backward",
        "experts",
        experts,
        (experts < 0) | (experts >= count),
        f"0 to {count - 1}, an expert",
        "it is the second output of topk_softmax",
    )


def _floor(problem: Problem) -> Floor:
    moved = problem.tokens * (2 * problem.experts * problem.torch_dtype.itemsize + 8 * problem.top_k)
    return Floor(bytes=moved, flop=8 * problem.tokens * problem.experts)


TOPK_SOFTMAX_BACKWARD = Op(
    name="topk_softmax_backward",
    schema=(
        "topk_softmax_backward(Tensor grad_weights, Tensor router_logits, Tensor experts, int top_k,"
        ' bool renormalize=False, str scoring="softmax") -> Tensor grad_router_logits'
    ),
    version=1,
    reference=topk_softmax_backward_reference,
    fake=RowMajor(lambda _, logits, *__: [(logits.shape, logits.dtype)]),
    problem=_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(units(float32=2.0, half=1.1), underflow(16), _scale),
    static=TOPK_SOFTMAX.static,
    dynamic=TOPK_SOFTMAX.dynamic,
    choices=TOPK_SOFTMAX.choices,
    kinds=KINDS,
    examples=router_examples(),
    check=TOPK_SOFTMAX.check,
    check_data=_check_data,
)
