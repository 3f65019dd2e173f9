"""4-bit products of lengths that nobody tuned, near one that torch.compile won: right, shared, and captured."""

from __future__ import annotations

import pytest
import torch

import registry
from registry import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.warning import DispatchWarning
from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Store

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

WEIGHT = registry.quantize(torch.randn(512, 1024, dtype=torch.bfloat16), bits=4, group_size=128).to("cuda")
DIMS: dict[str, int | float | str | bool] = {
    "n": 512,
    "k": 1024,
    "group_size": 128,
    "bits": 4,
    "dtype": "bfloat16",
    "symmetric": False,
}


@pytest.fixture
def tuned(store: Store) -> Dispatcher:
    """torch.compile won at m=256."""
    dispatcher, device = Dispatcher(Catalog()), Device.of("cuda")
    op = dispatcher.catalog.op("gemm_int4")
    (compiled,) = (each for each in dispatcher.catalog.implementations(op.name) if each.name == "torch.compile")
    environment = Environment(device.hardware(), device.software())
    key = ProblemKey(op.name, op.version, {"m": 256, **DIMS}, tuple(sorted(op.static)))
    winner = CandidateKey(compiled.name, compiled.fingerprint(), {})
    decision = Decision(key, environment, Protocol("cold"), winner, median_us=10.0, floor_us=5.0, verdict="new")
    store.publish(store.start_run(environment), decision)
    return dispatcher


def check(dispatcher: Dispatcher, m: int) -> None:
    a = torch.randn(m, 1024, device="cuda", dtype=torch.bfloat16)
    expected = a.double() @ WEIGHT.dequantize().double().T
    torch.testing.assert_close(dispatcher.call("gemm_int4", a, WEIGHT).double(), expected, atol=0.5, rtol=2e-2)
    told = dispatcher.explain("gemm_int4", a, WEIGHT)
    assert (told.implementation == "torch.compile") == (told.step == "exact") == (m == 256)


def test_new_lengths_do_not_take_what_was_compiled_for_another(tuned: Dispatcher) -> None:
    from torch._dynamo.utils import counters

    check(tuned, 256)
    before = counters["stats"]["unique_graphs"]
    for m in (300, 301, 333, 400, 511):
        check(tuned, m)
    assert counters["stats"]["unique_graphs"] == before


def test_a_new_length_is_captured_after_its_first_call(tuned: Dispatcher) -> None:
    for m in (300, 310, 320):
        check(tuned, m)
    a = torch.randn(320, 1024, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = tuned.call("gemm_int4", a, WEIGHT)
    a.copy_(torch.randn_like(a))
    graph.replay()
    expected = a.double() @ WEIGHT.dequantize().double().T
    torch.testing.assert_close(y.double(), expected, atol=0.5, rtol=2e-2)


def test_a_new_length_in_a_capture_before_any_call_is_the_reference_and_told(tuned: Dispatcher) -> None:
    a = torch.randn(345, 1024, device="cuda", dtype=torch.bfloat16)
    torch.cuda.current_blas_handle()  # the reference multiplies by cuBLAS, which no capture may load
    graph = torch.cuda.CUDAGraph()
    with pytest.warns(DispatchWarning, match=r"reference is captured for gemm_int4\(m=345"), torch.cuda.graph(graph):
        y = tuned.call("gemm_int4", a, WEIGHT)
    graph.replay()
    expected = a.double() @ WEIGHT.dequantize().double().T
    torch.testing.assert_close(y.double(), expected, atol=0.5, rtol=2e-2)
    check(tuned, 345)
