"""Dispatch on a GPU: hits, streams, capture, alignment on a hit, threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

import registry
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

FORCED = ["triton.row", "cuda.row", "torch.native"]


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    yield Dispatcher(Catalog())
    torch.cuda.synchronize()


def right(y: torch.Tensor, x: torch.Tensor) -> None:
    torch.testing.assert_close(y.double(), torch.softmax(x.double(), -1), atol=2e-3, rtol=2e-2)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("name", FORCED)
def test_hits_are_right_on_any_stream(dispatcher: Dispatcher, name: str) -> None:
    x = half(64, 1024)
    stream = torch.cuda.Stream()
    with dispatcher.using(softmax=name):
        right(dispatcher.call("softmax", x), x)
        misses = dispatcher.bound("softmax").misses
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # work of another stream would not wait for this
            other = torch.randn_like(x)
            y = dispatcher.call("softmax", other)
        stream.synchronize()
        right(y, other)
    assert dispatcher.bound("softmax").misses == misses + 1  # a forced call is never a plain hit


@pytest.mark.parametrize("name", FORCED)
def test_a_misaligned_view_is_right_on_a_hit(dispatcher: Dispatcher, name: str) -> None:
    x = half(64, 1024)
    shifted = half(64 * 1024 + 1)[1:].view(64, 1024)
    with dispatcher.using(softmax=name):
        right(dispatcher.call("softmax", x), x)
        try:
            right(dispatcher.call("softmax", shifted), shifted)
        except registry.UnsupportedError:
            assert name == "cuda.row"
        right(dispatcher.call("softmax", x), x)
    for tensor in (x, shifted, x):
        right(dispatcher.call("softmax", tensor), tensor)
    torch.cuda.synchronize()


def test_capture_uses_what_is_in_memory(dispatcher: Dispatcher) -> None:
    x = half(64, 1024)
    right(dispatcher.call("softmax", x), x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = dispatcher.call("softmax", x)
    x.copy_(half(64, 1024))
    graph.replay()
    right(y, x)


def test_capture_of_a_new_shape_takes_what_needs_no_loading_and_leaves_no_trace(dispatcher: Dispatcher) -> None:
    dispatcher.call("softmax", half(8, 512))
    x = torch.randn(32, 40_000, device="cuda")  # no other test loads a kernel for rows of that length
    bound = dispatcher.bound("softmax")
    known = len(bound.table)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = dispatcher.call("softmax", x)
        told = dispatcher.explain("softmax", x)
        with dispatcher.using(softmax="triton.row"), pytest.raises(registry.UnsupportedError, match="capturing"):
            dispatcher.call("softmax", x)
    graph.replay()
    right(y, x)
    assert (told.step, told.implementation) == ("default", "torch.native")
    assert any("capturing" in miss for miss in told.misses)
    assert len(bound.table) == known
    right(dispatcher.call("softmax", x), x)
    assert dispatcher.explain("softmax", x).implementation != "torch.native"


@pytest.mark.parametrize("name", FORCED)
def test_threads_without_a_context_of_their_own(dispatcher: Dispatcher, name: str) -> None:
    x = half(64, 1024)
    faults: list[BaseException] = []
    with dispatcher.using(softmax=name):
        dispatcher.call("softmax", x)

    def work() -> None:
        try:
            with dispatcher.using(softmax=name):
                for _ in range(20):
                    right(dispatcher.call("softmax", x), x)
            for rows in (64, 65, 66):
                other = x[:1].expand(rows, 1024).contiguous()
                right(dispatcher.call("softmax", other), other)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_a_fresh_thread_may_launch_first_of_all(dispatcher: Dispatcher) -> None:
    x = half(64, 1024)
    call = dispatcher.op("softmax")
    call(x)
    torch.cuda.synchronize()
    found: list[torch.Tensor | BaseException] = []

    def work() -> None:
        try:
            found.append(call(x))  # a hit: nothing else of this thread has touched CUDA
        except BaseException as fault:
            found.append(fault)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert isinstance(found[0], torch.Tensor), found[0]
    right(found[0], x)


def test_prepared_weights_are_not_made_while_capturing(dispatcher: Dispatcher) -> None:
    a = half(4, 1024)
    ready = registry.quantize(half(512, 1024), bits=4, group_size=128)
    fresh = registry.quantize(half(512, 1024), bits=4, group_size=128)
    dispatcher.call("gemm_int4", a, ready)
    dispatcher.call("gemm_int4", a, ready)
    # what answers in place of the kernel is torch's product, and torch cannot set cuBLAS up during a capture
    torch.cuda.current_blas_handle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        told = [dispatcher.explain("gemm_int4", a, weight) for weight in (ready, fresh)]
        one = dispatcher.call("gemm_int4", a, ready)
        two = dispatcher.call("gemm_int4", a, fresh)
    graph.replay()
    assert told[0].prepared_bytes > 0
    assert told[0].implementation != told[1].implementation
    assert any("is not prepared yet" in why for why in told[1].misses)
    for y, weight in ((one, ready), (two, fresh)):
        expected = a.double() @ weight.dequantize().double().T
        torch.testing.assert_close(y.double(), expected, atol=0.5, rtol=5e-2)


def test_a_gradient_and_an_autocast_block(dispatcher: Dispatcher) -> None:
    x = half(16, 256).requires_grad_()
    with torch.autocast("cuda", torch.float16):
        y = dispatcher.call("softmax", x)
    assert y.dtype == torch.bfloat16
    (found,) = torch.autograd.grad(y.float().square().sum(), x)
    (expected,) = torch.autograd.grad(torch.softmax(x, -1).float().square().sum(), x)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=5e-2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_another_gpu_than_the_current_one(dispatcher: Dispatcher) -> None:
    x = half(64, 1024).to("cuda:1")
    for _ in range(2):
        y = dispatcher.call("softmax", x)
        assert y.device == x.device
        right(y, x)


def test_a_tensor_that_was_freed_reaches_no_kernel_on_a_hit() -> None:
    x = torch.randn(64, 4096, device="cuda")
    expected = torch.softmax(x, -1)
    for implementation in ("triton.row", "cuda.row"):
        with registry.using(softmax=implementation):
            registry.call("softmax", x)
            freed = torch.randn(64, 4096, device="cuda")
            freed.untyped_storage().resize_(0)
            with pytest.raises((RuntimeError, registry.RegistryError)):
                registry.call("softmax", freed)
            torch.testing.assert_close(registry.call("softmax", x), expected)
