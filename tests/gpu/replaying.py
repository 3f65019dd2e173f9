"""Captured calls that are replayed after their inputs have changed."""

from __future__ import annotations

from typing import Any

import torch

from registry.arguments.schema import tensors_in
from registry.contract import Op, as_tuple
from registry.correctness.numerics import Comparison, judged
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.implementation import Implementation
from registry.problem import Problem


def replayed(op: Op, implementation: Implementation, problem: Problem) -> Comparison:
    """The verdict on a replay of the default configuration's plan, captured on other inputs at the same addresses.

    Weights stay: a prepared form follows ``registry.weights_changed`` alone.
    """
    device = Device.of("cuda")
    one, other = (op.draw(problem, "normal", torch.Generator("cuda").manual_seed(seed)) for seed in (0, 1))
    names = op.parsed.names
    other = tuple(a if name in op.weights else b for name, a, b in zip(names, one, other, strict=True))
    candidate = Candidate(implementation, implementation.default(problem, device))
    plan = build(op, candidate, problem, op.arguments(one), device)
    plan(*one)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = plan(*one)
    for mine, new in zip(tensors_in(one), tensors_in(other), strict=True):
        mine.copy_(new)
    graph.replay()
    torch.cuda.synchronize()
    return judged(op, problem, outputs, other)


def check_replay(plan: Plan, values: tuple[Any, ...]) -> None:
    """Fails unless a replay of the plan's captured call reads what the first argument has become since."""
    plan(*values)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = as_tuple(plan(*values))
    values[0].neg_()
    expected = [one.clone() for one in as_tuple(plan(*values))]
    graph.replay()
    assert all(map(torch.equal, found, expected))
