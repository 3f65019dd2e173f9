"""CUDA kernels on a GPU: numerics against float64, unaligned views, other streams and threads, graphs, nvcc."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
import torch

from registry.backends.cuda import CudaImplementation, CudaKernel, inline
from registry.contracts import GELU, RMS_NORM, SOFTMAX, SQUARE
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.implementation import Implementation, Launch
from registry.problem import Problem
from registry_cuda.elementwise import VectorElementwise
from registry_cuda.inline_square import InlineSquare
from registry_cuda.rows import CudaRmsNorm, CudaSoftmax, cluster, looped, row

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("cuda.core")

DTYPES = ("float32", "float16", "bfloat16")
ROWS = [kind(form) for kind in (CudaSoftmax, CudaRmsNorm) for form in (row, cluster, looped)]
OPS = {op.name: op for op in (SQUARE, GELU, SOFTMAX, RMS_NORM)}


def names(implementations: list[Any]) -> list[str]:
    return [f"{implementation.op}-{implementation.name}" for implementation in implementations]


def inputs_of(problem: Problem, kind: str) -> tuple[Any, ...]:
    return OPS[problem.op].inputs(problem, kind, torch.Generator("cuda").manual_seed(1))


def plan_for(implementation: Implementation, values: tuple[Any, ...], config: Any = None) -> Plan:
    op, device = OPS[implementation.op], Device.of("cuda")
    arguments = op.arguments(values)
    problem = op.pose(arguments)
    assert not list(implementation.unsupported(problem, device))
    config = implementation.default(problem, device) if config is None else config
    return build(op, Candidate(implementation, config), problem, arguments, device)


def check(problem: Problem, y: torch.Tensor, values: tuple[Any, ...], what: object) -> None:
    op = OPS[problem.op]
    reference = op.reference(*[value.double() if isinstance(value, torch.Tensor) else value for value in values])
    assert isinstance(reference, torch.Tensor)
    dtype = str(problem.dtype)
    allowed = op.tolerance.rtol[dtype] * op.tolerance.scale(problem, reference) + op.tolerance.atol[dtype]
    expected, error = reference.to(y.dtype).double(), (y.double() - reference).abs()
    same = (y.double() == expected) | (y.double().isnan() & expected.isnan())
    assert bool((same | (error <= allowed)).all()), f"{problem} {what}: worst {error[~same].max().item():.3g}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("implementation", ROWS, ids=names(ROWS))
def test_rows_are_right(implementation: Any, dtype: str) -> None:
    device = Device.of("cuda")
    for rows, cols in ((1, 1), (5, 31), (33, 1024), (3, 4097), (130, 8192), (7, 32000), (3, 128256), (2, 151937)):
        problem = Problem(implementation.op, {"rows": rows, "cols": cols, "dtype": dtype})
        if list(implementation.unsupported(problem, device)):
            continue
        for kind in OPS[implementation.op].kinds:
            values = inputs_of(problem, kind)
            check(problem, plan_for(implementation, values)(*values), values, kind)


@pytest.mark.parametrize("implementation", ROWS, ids=names(ROWS))
def test_every_config_over_rows_is_right(implementation: Any) -> None:
    problem = Problem(
        implementation.op, {"rows": 5, "cols": 16384 if implementation.form is cluster else 8200, "dtype": "bfloat16"}
    )
    values = inputs_of(problem, "normal")
    for config in implementation.space(problem, Device.of("cuda")):
        check(problem, plan_for(implementation, values, config)(*values), values, config)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["square", "gelu"])
def test_elementwise_is_right(name: str, dtype: str) -> None:
    for n in (1, 31, 4097, 5_000_003):
        for approximate in ("none", "tanh") if name == "gelu" else ("",):
            dims = {"n": n, "dtype": dtype} | ({"approximate": approximate} if approximate else {})
            problem = Problem(name, dims)
            for kind in OPS[name].kinds:
                values = inputs_of(problem, kind)
                check(problem, plan_for(VectorElementwise(name), values)(*values), values, kind)


def test_every_elementwise_config_is_right() -> None:
    problem = Problem("square", {"n": 300_001, "dtype": "float16"})
    values = inputs_of(problem, "normal")
    for config in VectorElementwise("square").space(problem, Device.of("cuda")):
        check(problem, plan_for(VectorElementwise("square"), values, config)(*values), values, config)


@pytest.mark.parametrize("implementation", [*ROWS, VectorElementwise("square")], ids=[*names(ROWS), "square"])
def test_a_plan_for_aligned_tensors_serves_unaligned_ones(implementation: Any) -> None:
    dims = {"n": 16384 * 3} if implementation.op == "square" else {"rows": 3, "cols": 16384}
    problem = Problem(implementation.op, {**dims, "dtype": "bfloat16"})
    values = inputs_of(problem, "normal")
    plan = plan_for(implementation, values)
    shifted = torch.empty(values[0].numel() + 1, dtype=torch.bfloat16, device="cuda")[1:].view(values[0].shape)
    shifted.copy_(values[0])
    assert shifted.data_ptr() % 16
    check(problem, plan(shifted, *values[1:]), values, "unaligned")
    check(problem, plan(*values), values, "aligned")


@pytest.mark.parametrize("implementation", ROWS, ids=names(ROWS))
def test_a_plan_can_be_captured(implementation: Any) -> None:
    problem = Problem(implementation.op, {"rows": 64, "cols": 16384, "dtype": "bfloat16"})
    values = inputs_of(problem, "normal")
    plan = plan_for(implementation, values)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = plan(*values)
    values[0].copy_(inputs_of(problem, "outliers")[0])
    graph.replay()
    check(problem, y, values, "captured")


def test_other_streams_and_new_threads_are_right() -> None:
    problem = Problem("softmax", {"rows": 512, "cols": 4096, "dtype": "float32"})
    values = inputs_of(problem, "normal")
    plan = plan_for(CudaSoftmax(row), values)
    results: list[torch.Tensor] = []

    def work() -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            results.extend(plan(*values) for _ in range(20))
        stream.synchronize()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80
    for y in results:
        check(problem, y, values, "thread")


def test_a_number_is_read_at_each_call() -> None:
    problem = Problem("rms_norm", {"rows": 8, "cols": 1024, "dtype": "float32"})
    x, weight, _ = inputs_of(problem, "near_zero")
    plan = plan_for(CudaRmsNorm(row), (x, weight, 1e-6))
    for eps in (1e-6, 1e-2):
        check(problem, plan(x, weight, eps), (x, weight, eps), eps)


def test_square_by_nvcc_is_right() -> None:
    if reasons := inline.missing(with_cuda=True):
        pytest.skip("; ".join(reasons))
    problem = Problem("square", {"n": 100_003, "dtype": "bfloat16"})
    values = inputs_of(problem, "normal")
    plan = plan_for(InlineSquare(), values)
    check(problem, plan(*values), values, "inline")


class Tell(CudaImplementation):
    """Each row of y: what its thread block was given."""

    op = "rms_norm"
    name = "test.tell"
    source = r"""
extern "C" __global__ void tell(float *y, const float *x, const float *weight, long long rows, float eps, bool flag,
                                long long big, float factor) {
  unsigned rank, blocks;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  float *row = y + 8 * blockIdx.x;
  if (threadIdx.x == 0) {
    row[0] = x[8 * blockIdx.x]; row[1] = weight[1]; row[2] = rows; row[3] = eps; row[4] = flag;
    row[5] = big == -(1LL << 40); row[6] = factor; row[7] = 10 * rank + blocks;
  }
}
"""

    def launch(self, problem: Problem, config: Any, device: Device) -> Launch:
        cluster = (2,) if device.capability >= (9, 0) else ()
        args = ("y", "x", "weight", problem.rows, "eps", True, -(2**40), 2.5)
        return Launch(CudaKernel(self.source, "tell"), (problem.rows,), args, options={"block": 32}, cluster=cluster)


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="clusters")
def test_a_plan_launches_in_line_and_a_kernel_gets_every_kind_of_argument() -> None:
    x, weight = torch.randn(4, 8, device="cuda"), torch.randn(8, device="cuda")
    plan = plan_for(Tell(), (x, weight, 0.125), {})
    # with several GPUs a function around it looks at the current one
    call = inspect.getclosurevars(plan.call).nonlocals.get("call", plan.call)
    assert {"k_pack", "k_enqueue"} <= {*call.__code__.co_names}
    outputs = (torch.empty_like(x),)
    for eps in (0.125, 0.5):
        for y in (plan(x, weight, eps), plan.run(outputs, (x, weight, eps), ()) or outputs[0]):
            for block in range(4):
                expected = [x[block, 0].item(), weight[1].item(), 4.0, eps, 1.0, 1.0, 2.5, 10.0 * (block % 2) + 2]
                assert y[block].tolist() == expected


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="clusters")
def test_a_plan_with_a_cluster_serves_threads_and_streams_at_once() -> None:
    plans = plan_for(Tell(), (torch.randn(4, 8, device="cuda"), torch.randn(8, device="cuda"), 0.125), {})
    wrong: list[Any] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            x, weight = torch.randn(4, 8, device="cuda"), torch.randn(8, device="cuda")
            told = [plans(x, weight, number + turn / 1024) for turn in range(200)]
            eps = torch.stack(told)[:, :, 3].cpu()
            same = torch.stack(told)[:, :, 0] == x[:, 0]
            expected = number + torch.arange(200)[:, None].expand(200, 4) / 1024
            if not torch.equal(eps, expected) or not bool(same.all()):
                wrong.append((number, eps))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
