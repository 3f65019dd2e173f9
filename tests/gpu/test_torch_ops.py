"""PyTorch around the dispatcher on a GPU: compiled programs, CUDA graphs, gradients on autograd's own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Backward, Config, Device, Implementation, Problem, implementation_of, quantize
from registry.artifact import Built
from registry.contracts import RMS_NORM
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.implementation import Run
from registry.tuner.stored_winners import problem_key
from tuning_db import CandidateKey, Decision, Environment, Protocol, Store

from ..serving import serving

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

close = torch.testing.assert_close


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    made = Dispatcher(Catalog())
    with serving(made):
        yield made
    torch.cuda.synchronize()
    torch._dynamo.reset()


def right(y: torch.Tensor, expected: torch.Tensor) -> None:
    close(y.double(), expected.double(), atol=2e-2, rtol=2e-2)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def test_one_compiled_program_serves_two_token_counts(dispatcher: Dispatcher) -> None:
    compiled = torch.compile(lambda t: dispatcher.call("softmax", t) + 1, fullgraph=True, dynamic=True)
    for rows in (64, 7, 64):
        x = half(rows, 1024)
        right(compiled(x), torch.softmax(x.double(), -1) + 1)
    for rows in (64, 7):
        assert dispatcher.explain("softmax", half(rows, 1024)).step != "reference"


def tuned(folder: Path, winners: Mapping[int, str]) -> Dispatcher:
    """A dispatcher with a database that names the winner of each row count, in its default configuration."""
    catalog, device = Catalog(), Device.of("cuda")
    op, environment = catalog.op("softmax"), Environment(device.hardware(), device.software())
    with Store.open(str(folder / "tuning.db")) as store:
        for rows, name in winners.items():
            problem = op.problem_of({"rows": rows, "cols": 1024, "dtype": "bfloat16"})
            implementation = catalog.implementation("softmax", name)
            config = implementation.default(problem, device)
            candidate = CandidateKey(name, implementation.fingerprint(), dict(config))
            decision = Decision(problem_key(op, problem), environment, Protocol("cold"), candidate, median_us=1.0)
            assert store.publish(store.start_run(environment), decision)
    return Dispatcher(catalog, str(folder / "tuning.db"))


def test_one_compiled_program_runs_the_winner_of_each_token_count(tmp_path: Path) -> None:
    winners = {7: "triton.row", 4096: "cuda.row"}
    dispatcher = tuned(tmp_path, winners)
    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with serving(dispatcher):
        compiled = torch.compile(lambda t: dispatcher.call("softmax", t) + 1, fullgraph=True, dynamic=True)
        for rows in (7, 4096, 7):
            x = half(rows, 1024)
            right(compiled(x), torch.softmax(x.double(), -1) + 1)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1
    told = {rows: dispatcher.explain("softmax", half(rows, 1024)) for rows in winners}
    assert {rows: (one.step, one.implementation) for rows, one in told.items()} == {
        rows: ("exact", name) for rows, name in winners.items()
    }
    assert {rows: one.calls for rows, one in told.items()} == {7: 2, 4096: 1}


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch captures nothing to get a memory pool
def test_reduce_overhead_replays_with_a_weight_in_a_closure(dispatcher: Dispatcher) -> None:
    w = quantize(half(512, 1024), bits=4, group_size=128)
    for tensor in (w.qweight, w.scales, w.zeros):
        assert tensor is not None
        torch._dynamo.mark_static_address(tensor)
    compiled = torch.compile(lambda a: dispatcher.call("gemm_int4", a, w) * 2, fullgraph=True, mode="reduce-overhead")
    expected = w.dequantize().double().T * 2
    with torch.no_grad():
        for _ in range(4):
            a = half(4, 1024)
            torch.compiler.cudagraph_mark_step_begin()
            close(compiled(a).double(), a.double() @ expected, atol=1.0, rtol=5e-2)


def test_capture_and_replay_of_calls_and_operators(dispatcher: Dispatcher) -> None:
    x = half(64, 1024)
    forms: list[Callable[..., Any]] = [lambda t: dispatcher.call("softmax", t), torch.ops.kernel_registry.softmax]
    for f in forms:
        f(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [f(x) for f in forms]
    x.copy_(half(64, 1024))
    graph.replay()
    for y in outputs:
        right(y, torch.softmax(x.double(), -1))


@pytest.mark.parametrize("form", ["call", "compiled"])
def test_gradients_on_autograds_own_thread(dispatcher: Dispatcher, form: str) -> None:
    def call(name: str, *args: Any) -> Any:
        return dispatcher.call(name, *args)

    f = call if form == "call" else torch.compile(call, fullgraph=True)
    x, weight = half(32, 512).requires_grad_(), half(512).requires_grad_()
    plain: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
        "softmax": (lambda a: torch.softmax(a, -1), (x,)),
        "rms_norm": (lambda a, b: torch.nn.functional.rms_norm(a, (512,), b, 1e-6), (x, weight)),
        "gelu": (lambda a: torch.nn.functional.gelu(a, approximate="tanh"), (x,)),
    }
    for name, (reference, args) in plain.items():
        seed = half(32, 512)
        for _ in range(2):
            found = torch.autograd.grad(f(name, *args), args, seed)
            expected = torch.autograd.grad(reference(*args), args, seed)
            for one, other in zip(found, expected, strict=True):
                close(one, other, atol=0.25 if one.dim() == 1 else 2e-2, rtol=5e-2)


class Told(Implementation):
    """softmax's backward by torch, which tells the thread that it ran on."""

    op = "softmax_backward"
    name = "a.told"
    device_types = frozenset({"cuda"})
    returns_outputs = True

    def __init__(self) -> None:
        self.threads: list[int] = []

    def preference(self, problem: Problem, device: Device) -> float:
        return -100.0

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Any, values: tuple[Any, ...], scratch: Any) -> Any:
            self.threads.append(threading.get_ident())
            grad_y, y, dim = values
            return torch.ops.aten._softmax_backward_data(grad_y, y, dim, y.dtype)

        return run


@pytest.mark.parametrize("compiling", [False, True])
def test_the_references_gradient_on_autograds_own_thread(dispatcher: Dispatcher, compiling: bool) -> None:
    schema = RMS_NORM.schema.replace("rms_norm", "acme::norm", 1)
    dispatcher.catalog.define(replace(RMS_NORM, name="acme::norm", schema=schema, backward=Backward.reference()))
    dispatcher.register(implementation_of("acme::norm", "acme.reference", RMS_NORM.reference, preference=9.0))
    norm: Any = lambda x, weight: dispatcher.call("acme::norm", x, weight)  # noqa: E731
    if compiling:
        norm = torch.compile(norm, fullgraph=True)
    x, weight = (torch.randn(shape, device="cuda", requires_grad=True) for shape in ((64, 512), (512,)))
    expected = torch.autograd.grad(RMS_NORM.reference(x, weight, 1e-6).pow(2).sum(), (x, weight))
    for _ in range(2):
        close(torch.autograd.grad(norm(x, weight).pow(2).sum(), (x, weight)), expected, atol=1e-3, rtol=1e-3)
    (alone,) = torch.autograd.grad(norm(x, weight.detach()).pow(2).sum(), x)
    close(alone, expected[0], atol=1e-3, rtol=1e-3)


def test_the_using_of_a_forward_reaches_its_backward_on_another_thread(dispatcher: Dispatcher) -> None:
    told = Told()
    dispatcher.register(told)
    x = half(32, 512).requires_grad_()
    with dispatcher.using(softmax_backward="a.told"):
        inside = dispatcher.call("softmax", x)
    outside = dispatcher.call("softmax", x)
    seed = half(32, 512)
    for y in (inside, outside):
        right(torch.autograd.grad(y, x, seed)[0], torch.autograd.grad(torch.softmax(x, -1), x, seed)[0])
    assert len(told.threads) == 1
    assert told.threads != [threading.get_ident()]


@pytest.mark.parametrize("name", ["softmax", "rms_norm"])
def test_opcheck(dispatcher: Dispatcher, name: str) -> None:
    x = torch.randn(8, 256, device="cuda")
    args = (x,) if name == "softmax" else (x, torch.randn(256, device="cuda"))
    torch.library.opcheck(getattr(torch.ops.kernel_registry, name).default, args)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_gradients_and_operators_on_another_gpu_than_the_current_one(dispatcher: Dispatcher) -> None:
    x = half(64, 1024).to("cuda:1").requires_grad_()
    for f in (lambda t: dispatcher.call("softmax", t), torch.ops.kernel_registry.softmax):
        y = f(x)
        seed = torch.randn_like(y)
        right(torch.autograd.grad(y, x, seed)[0], torch.autograd.grad(torch.softmax(x, -1), x, seed)[0])


def test_a_program_that_inductor_compiled_leaves_triton_s_kernels_as_they_were(dispatcher: Dispatcher) -> None:
    """Inductor names torch's ptxas to the whole process: winners that were measured before would be code of another."""
    kernels = [each for each in dispatcher.catalog.implementations("softmax") if each.name.startswith("triton.")]
    before = [each.fingerprint() for each in kernels]
    torch.compile(lambda x: torch.relu(x) * 2, dynamic=False)(torch.ones(1000, device="cuda"))
    assert kernels
    assert [each.fingerprint() for each in kernels] == before
