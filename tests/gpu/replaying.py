"""A captured call that is replayed after its inputs have changed."""

from __future__ import annotations

import torch

from registry.arguments.schema import tensors_in
from registry.contract import Op
from registry.correctness.numerics import Comparison, judged
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, build
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
