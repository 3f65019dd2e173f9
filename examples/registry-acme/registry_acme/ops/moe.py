"""``acme::topk_routing``, whose indices may be any of a tie's, and ``acme::moe_linear``, one weight an expert."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from registry import Arguments, Floor, InvalidArgumentError, Op, Problem, Value
from registry.problem import dtype_name

from .rounding import of_a_sum

ROUTING = ("even", "skewed")
"""Every expert is as likely as any other, or the first gets half of all tokens."""


def routing_reference(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``top_k`` largest probabilities of each row, scaled to sum 1, and their experts: ``[tokens, top_k]`` each."""
    values, experts = logits.to(torch.promote_types(logits.dtype, torch.float32)).topk(top_k, dim=-1)
    return values.softmax(-1), experts.to(torch.int32)


def moe_reference(
    x: torch.Tensor, weights: tuple[torch.Tensor, ...], shares: torch.Tensor, experts: torch.Tensor
) -> torch.Tensor:
    """``y[t] = sum over j of shares[t, j] * x[t] @ weights[experts[t, j]].T``: ``[tokens, k]`` to ``[tokens, n]``."""
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.new_zeros((x.shape[0], weights[0].shape[0]), dtype=wide)
    for expert, weight in enumerate(weights):
        share = (shares * (experts == expert)).sum(-1, keepdim=True)
        y += share * (x.to(wide) @ weight.to(wide).T)
    return y.to(x.dtype)


def routing_dims(arguments: Arguments) -> dict[str, Value]:
    """tokens, experts, top_k."""
    logits, top_k = arguments.tensor("logits"), arguments.integer("top_k")
    if len(logits.shape) != 2 or not 0 < top_k <= logits.shape[1]:
        raise InvalidArgumentError(f"{arguments.op}: logits are {logits.shape}, top_k={top_k}")
    tokens, experts = logits.shape
    return {"tokens": tokens, "experts": experts, "top_k": top_k, "dtype": dtype_name(logits.dtype)}


def moe_dims(arguments: Arguments) -> dict[str, Value]:
    """tokens, n, k, experts, top_k."""
    x, weights = arguments.tensor("x"), arguments.tensors_of("weights")
    shares, experts = arguments.tensor("shares"), arguments.tensor("experts")
    if not weights or len({(weight.shape, weight.dtype) for weight in weights}) > 1 or len(x.shape) != 2:
        raise InvalidArgumentError(
            f"{arguments.op}: x is {x.shape}, and {len(weights)} weights", hint="expected equal ones"
        )
    n, k = weights[0].shape
    if k != x.shape[1] or x.dtype != weights[0].dtype:
        raise InvalidArgumentError(
            f"{arguments.op}: x is {x.shape} of {x.dtype}, a weight {n}x{k} of {weights[0].dtype}"
        )
    if shares.shape != experts.shape or shares.shape[0] != x.shape[0] or experts.dtype != torch.int32:
        raise InvalidArgumentError(f"{arguments.op}: shares are {shares.shape}, experts are {experts.shape}")
    dims = {"tokens": x.shape[0], "n": n, "k": k, "experts": len(weights), "top_k": shares.shape[1]}
    return {**dims, "dtype": dtype_name(x.dtype)}


def routing_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """``ties``: logits of a few values only, so that many are equal."""
    shape, device = (problem.tokens, problem.experts), generator.device
    logits = torch.randn(shape, dtype=problem.torch_dtype, device=device, generator=generator)
    return (logits.round() if kind == "ties" else logits), problem.top_k


def moe_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """``x`` of noise; experts by the distribution, none of them twice for a token."""
    dtype, device = problem.torch_dtype, generator.device
    x = torch.randn(problem.tokens, problem.k, dtype=dtype, device=device, generator=generator)
    if kind == "spike_last":
        x[:, -1:] = 4.0 * math.sqrt(problem.k)
    shape = (problem.n, problem.k)
    weights = [torch.randn(shape, dtype=dtype, device=device, generator=generator) for _ in range(problem.experts)]
    logits = torch.rand(problem.tokens, problem.experts, device=device, generator=generator)
    if problem.routing == "skewed":
        logits[: problem.tokens // 2 + 1, 0] += 1.0
    shares, experts = routing_reference(logits, problem.top_k)
    return x, weights, shares, experts


def wrong_experts(
    problem: Problem, values: Mapping[str, Any], results: Mapping[str, torch.Tensor], _: Mapping[str, torch.Tensor]
) -> Iterator[str]:
    """Why ``experts`` are not those of each row's largest logits; of equal logits any may be taken."""
    logits, experts = values["logits"], results["experts"].long()
    if int(experts.min()) < 0 or int(experts.max()) >= problem.experts:
        yield "an index is no expert"
    elif bool((experts.sort(-1).values.diff(dim=-1) == 0).any()):
        yield "a token has one expert twice"
    elif not torch.equal(logits.gather(-1, experts), logits.topk(problem.top_k, dim=-1).values):
        yield "an expert is none of the largest, or they are not in descending order"


def routing_floor(problem: Problem) -> Floor:
    """Logits read, two outputs written."""
    read = problem.tokens * problem.experts
    return Floor(bytes=read * problem.torch_dtype.itemsize + 8 * problem.tokens * problem.top_k, flop=read)


def moe_floor(problem: Problem) -> Floor:
    """The weights of the experts that can be reached, x and y."""
    reached = min(problem.experts, problem.tokens * problem.top_k)
    numbers = reached * problem.n * problem.k + problem.tokens * (problem.n + problem.k)
    flop = 2 * problem.tokens * problem.top_k * problem.n * problem.k
    return Floor(bytes=numbers * problem.torch_dtype.itemsize, flop=flop)


TOPK_ROUTING = Op(
    name="acme::topk_routing",
    schema="acme::topk_routing(Tensor logits, int top_k) -> (Tensor shares, Tensor experts)",
    version=1,
    reference=routing_reference,
    problem=routing_dims,
    inputs=routing_inputs,
    floor=routing_floor,
    tolerance=of_a_sum(4.0, lambda problem: problem.top_k),
    compare={"experts": wrong_experts},
    static=frozenset({"experts", "top_k", "dtype"}),
    dynamic=frozenset({"tokens"}),
    kinds=("normal", "ties"),
    examples=tuple({"tokens": 9, "experts": 8, "top_k": 2, "dtype": dtype} for dtype in ("float32", "bfloat16")),
)
MOE_LINEAR = Op(
    name="acme::moe_linear",
    schema="acme::moe_linear(Tensor x, Tensor[] weights, Tensor shares, Tensor experts) -> Tensor y",
    version=1,
    reference=moe_reference,
    problem=moe_dims,
    inputs=moe_inputs,
    floor=moe_floor,
    tolerance=of_a_sum(4.0, lambda problem: problem.k * problem.top_k),
    static=frozenset({"n", "k", "experts", "top_k", "dtype"}),
    dynamic=frozenset({"tokens"}),
    distributions={"routing": ROUTING},
    weights=frozenset({"weights"}),
    kinds=("normal", "spike_last"),
    examples=tuple(
        {"tokens": 9, "n": 17, "k": 33, "experts": 4, "top_k": 2, "dtype": dtype, "routing": routing}
        for dtype, routing in zip(("float32", "bfloat16"), ROUTING, strict=True)
    ),
)
