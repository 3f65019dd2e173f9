"""Kernels that begin before the kernel ahead has ended: they read what it wrote, in a row and in a captured graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from registry.arguments.schema import tensors_in, with_tensors
from registry.contract import as_tuple
from registry.correctness.numerics import judged
from registry.correctness.output_faults import poison
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.problem import Problem
from registry.tuner.verify.late_inputs import late_inputs
from registry.tuner.verify.late_runs import LateRuns

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

CATALOG = Catalog()
HALF = {"dtype": "bfloat16"}
INT4 = {"group_size": 128, "bits": 4, "symmetric": False, **HALF}
DECODE = {
    "heads": 32, "kv_heads": 8, "q_len": 1, "head_dim": 128, "span": False, "kv_dtype": "auto", "softcap": False,
    "lengths": "full", **HALF,
}  # fmt: skip
ROTARY = {
    "q_len": 1, "heads": 32, "kv_heads": 8, "head_dim": 128, "rotary_dim": 128, "style": "neox", "kv_len": 64, **HALF,
}  # fmt: skip
CASES = (
    ("fused_add_rms_norm", "triton.row", {"rows": 1, "cols": 4096, "weight": True, **HALF}),
    ("silu_and_mul", "triton.block", {"rows": 16, "cols": 14336, **HALF}),
    ("gelu_and_mul", "triton.block", {"rows": 16, "cols": 2048, "approximate": "tanh", **HALF}),
    ("silu_and_mul_backward", "triton.block", {"rows": 16, "cols": 2048, **HALF}),
    ("rotary_kv_append", "triton.block", {"batch": 16, "positions": False, **ROTARY}),
    ("gemm_int4", "cuda.mma", {"m": 1, "n": 6144, "k": 4096, **INT4}),
    ("gemm_int4", "cuda.mma", {"m": 16, "n": 4096, "k": 14336, **INT4}),
    ("attention_decode", "cuda.mma", {"batch": 1, "kv_len": 1024, "page": 16, **DECODE}),
    ("attention_decode", "cuda.mma", {"batch": 16, "kv_len": 1024, "page": False, **DECODE}),
)


def plan_of(op: str, name: str, dims: dict[str, Any]) -> tuple[Plan, Problem]:
    contract, device = CATALOG.op(op), Device.of("cuda")
    problem = contract.problem_of(dims)
    (implementation,) = (one for one in CATALOG.implementations(op) if one.name == name)
    candidate = Candidate(implementation, implementation.default(problem, device))
    arguments = contract.arguments(contract.draw(problem, "normal", torch.Generator("cuda").manual_seed(0)))
    return build(contract, candidate, problem, arguments, device), problem


@pytest.mark.parametrize(("op", "name", "dims"), CASES, ids=str)
def test_inputs_outputs_and_scratch_that_arrive_late_are_waited_for(op: str, name: str, dims: dict[str, Any]) -> None:
    contract = CATALOG.op(op)
    plan, problem = plan_of(op, name, dims)
    values = contract.draw(problem, "normal", torch.Generator("cuda").manual_seed(0))
    pristine = with_tensors(values, torch.clone)
    prepared = plan.prepared.extend(values)
    for _ in range(20):
        given = with_tensors(values, torch.clone) if contract.parsed.mutates else values
        named = zip(contract.parsed.names, given, strict=True)
        fresh = tuple(value for name, value in named if name not in contract.weights)
        outputs = plan.allocate()
        scratch = tuple(spec.empty() for spec in plan.signature.scratch.values())
        poison((*outputs, *scratch))
        late = late_inputs(Device.of("cuda"), tensors_in(fresh), (*outputs, *scratch))
        assert late is not None
        late.spoil()
        torch.cuda._sleep(2_000_000)  # the plan is queued before they have arrived
        late.arrive()
        plan.checked_run(outputs, (*given, *prepared[len(values) :]), scratch)
        verdict = judged(contract, problem, contract.results(outputs, given), pristine)
        assert not verdict.message


def test_a_layer_in_a_graph_gives_bit_by_bit_what_it_gives_one_launch_at_a_time() -> None:
    norm, _ = plan_of("fused_add_rms_norm", "triton.row", {"rows": 1, "cols": 4096, "weight": True, **HALF})
    wide, wide_problem = plan_of("gemm_int4", "cuda.mma", {"m": 1, "n": 28672, "k": 4096, **INT4})
    gated, _ = plan_of("silu_and_mul", "triton.block", {"rows": 1, "cols": 14336, **HALF})
    narrow, narrow_problem = plan_of("gemm_int4", "cuda.mma", {"m": 1, "n": 4096, "k": 14336, **INT4})
    contract = CATALOG.op("gemm_int4")
    up, down = (
        contract.draw(problem, "normal", torch.Generator("cuda").manual_seed(1))[1:]
        for problem in (wide_problem, narrow_problem)
    )
    x, residual, weight = (torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    start = x.clone(), residual.clone()

    def layer(between: bool) -> torch.Tensor:
        def done() -> None:
            if between:
                torch.cuda.synchronize()

        for _ in range(4):
            norm(x, residual, weight.view(-1), 1e-5, 0.0)
            done()
            (y,) = as_tuple(wide(x, *up))
            done()
            (y,) = as_tuple(gated(y))
            done()
            (y,) = as_tuple(narrow(y, *down))
            done()
            x.copy_(y / y.abs().amax())
            done()
        return x.clone()

    def again() -> None:
        x.copy_(start[0])
        residual.copy_(start[1])

    expected = layer(between=True)
    again()
    assert torch.equal(layer(between=False), expected)
    graph = torch.cuda.CUDAGraph()
    again()
    with torch.cuda.graph(graph):
        found = layer(between=False)
    for _ in range(50):
        again()
        graph.replay()
        assert torch.equal(found, expected)


def test_a_launch_that_comes_too_late_for_its_inputs_is_noticed() -> None:
    x, y = torch.randn(1024, device="cuda"), torch.empty(1024, device="cuda")
    expected = x.square()
    runs = LateRuns(Device.of("cuda"), [x])
    runs.begin([y])
    time.sleep(0.5)  # the wait takes 1 ms
    torch.square(x, out=y)
    runs.queued()
    assert runs.missed
    while runs.wait_longer():
        pass
    runs.begin([y])
    torch.square(x, out=y)
    runs.queued()
    assert not runs.missed
    assert torch.equal(y, expected)


def product(n: int, k: int, seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of one row of ``k`` numbers: its product with int4 weights that are drawn from the seed."""
    plan, problem = plan_of("gemm_int4", "cuda.mma", {"m": 1, "n": n, "k": k, **INT4})
    weights = CATALOG.op("gemm_int4").draw(problem, "normal", torch.Generator("cuda").manual_seed(seed))[1:]

    def multiplied(row: torch.Tensor) -> torch.Tensor:
        (y,) = as_tuple(plan(row, *weights))
        assert isinstance(y, torch.Tensor)
        return y

    return multiplied


class DecoderLayers:
    """Two layers of one decode step: each kernel follows the one whose result it reads, without torch's between.

    The edges are sum with norm -> product -> rotary embedding -> attention -> product -> sum with norm -> product ->
    gated product -> product -> sum with norm.
    """

    HEADS, KV_HEADS, HEAD_DIM, KV_LEN, HIDDEN, INTERMEDIATE = 32, 8, 128, 1024, 4096, 14336

    def __init__(self) -> None:
        kv = self.KV_HEADS * self.HEAD_DIM
        shape = {"rows": 1, "cols": self.HIDDEN, "weight": True, **HALF}
        self.norm, _ = plan_of("fused_add_rms_norm", "triton.row", shape)
        self.query, self.out = (product(self.HIDDEN, self.HIDDEN, seed) for seed in (1, 2))
        self.key, self.value = (product(kv, self.HIDDEN, seed) for seed in (3, 4))
        self.up = product(2 * self.INTERMEDIATE, self.HIDDEN, 5)
        self.down = product(self.HIDDEN, self.INTERMEDIATE, 6)
        self.gated, _ = plan_of("silu_and_mul", "triton.block", {"rows": 1, "cols": self.INTERMEDIATE, **HALF})
        rotary = {"batch": 1, "positions": False, **ROTARY, "kv_len": self.KV_LEN}
        self.append, problem = plan_of("rotary_kv_append", "triton.block", rotary)
        decode = {"batch": 1, "kv_len": self.KV_LEN, "page": False, **DECODE}
        self.attention, _ = plan_of("attention_decode", "cuda.mma", decode)
        generator = torch.Generator("cuda").manual_seed(7)
        drawn = CATALOG.op("rotary_kv_append").draw(problem, "normal", generator)
        self.angles, self.keys, self.values = drawn[3:6]
        self.held = torch.full_like(drawn[6], self.KV_LEN - 24)
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
        self.x, self.residual, self.weight = (torch.randn(1, self.HIDDEN, **options) for _ in range(3))
        self._mutated = (self.x, self.residual, self.keys, self.values)
        self._start = tuple(one.clone() for one in self._mutated)

    def again(self) -> None:
        """Put back what ``run`` has changed."""
        for one, start in zip(self._mutated, self._start, strict=True):
            one.copy_(start)

    def run(self, done: Callable[[], None] = lambda: None) -> tuple[torch.Tensor, ...]:
        """The last product, the residual and the caches. ``done`` is called after each kernel."""
        x = self.x
        for _ in range(2):
            self._add_and_norm(x)
            done()
            x = self.out(self._attended(x, done))
            done()
            self._add_and_norm(x)
            done()
            x = self.up(x)
            done()
            (x,) = as_tuple(self.gated(x))
            done()
            x = self.down(x)
            done()
        return x, self.residual, self.keys, self.values

    def _add_and_norm(self, x: torch.Tensor) -> None:
        self.norm(x, self.residual, self.weight.view(-1), 1e-5, 0.0)

    def _attended(self, x: torch.Tensor, done: Callable[[], None]) -> torch.Tensor:
        parts = list[torch.Tensor]()
        for multiply, heads in ((self.query, self.HEADS), (self.key, self.KV_HEADS), (self.value, self.KV_HEADS)):
            parts.append(multiply(x).view(1, 1, heads, self.HEAD_DIM))
            done()
        rotated, lengths = self.append(*parts, self.angles, self.keys, self.values, self.held, None, True)
        done()
        out, _ = self.attention(rotated, self.keys, self.values, lengths, None, None, None, None, 0.0, -1)
        done()
        assert isinstance(out, torch.Tensor)
        return out.view(1, self.HIDDEN)


def test_decoder_layers_without_a_kernel_of_torch_between_give_bit_by_bit_what_they_give_one_launch_at_a_time() -> None:
    layers = DecoderLayers()
    expected = tuple(one.clone() for one in layers.run(torch.cuda.synchronize))
    assert all(bool(one.isfinite().all()) for one in expected)
    for _ in range(20):
        layers.again()
        assert all(map(torch.equal, layers.run(), expected))
    graph = torch.cuda.CUDAGraph()
    layers.again()
    with torch.cuda.graph(graph):
        found = layers.run()
    for _ in range(50):
        layers.again()
        graph.replay()
        assert all(map(torch.equal, found, expected))
