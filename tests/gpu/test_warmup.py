"""Warming up on a GPU: what a capture then finds, and what stays allocated."""

from __future__ import annotations

import gc

import pytest
import torch

import registry
from registry import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.warmup import warm

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

DIMS: dict[str, int | float | str | bool] = {"rows": 48, "cols": 1536, "dtype": "bfloat16"}


def test_a_warm_shape_is_captured_with_its_kernel() -> None:
    dispatcher = Dispatcher(Catalog())
    problem = dispatcher.catalog.op("softmax").problem_of(DIMS)
    x = torch.randn(48, 1536, device="cuda", dtype=torch.bfloat16)
    (result,) = warm(dispatcher, [problem], Device.of("cuda"))
    assert not result.error
    bound = dispatcher.bound("softmax")
    misses = bound.misses
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = dispatcher.call("softmax", x)
        told = dispatcher.explain("softmax", x)
    graph.replay()
    torch.testing.assert_close(y.double(), torch.softmax(x.double(), -1), atol=2e-3, rtol=2e-2)
    assert (told.implementation, told.step) == (result.implementation, result.step)
    assert bound.misses == misses


def test_warming_leaves_no_memory_allocated_and_refuses_while_capturing() -> None:
    torch.cuda.synchronize()
    shapes: dict[str, list[dict[str, int | float | str | bool] | registry.Problem]] = {
        "softmax": [DIMS],
        "gemm_int4": [
            {"m": 1, "n": 512, "k": 1024, "group_size": 128, "bits": 4, "dtype": "bfloat16", "symmetric": False}
        ],
    }
    registry.warmup(shapes, device="cuda")
    gc.collect()  # what earlier tests left must not be freed in between
    before = torch.cuda.memory_allocated()
    results = registry.warmup(shapes, device="cuda")
    assert not any(result.error for result in results)
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    graph, x = torch.cuda.CUDAGraph(), torch.zeros(4, device="cuda")
    with torch.cuda.graph(graph):
        x.add_(1)
        with pytest.raises(registry.InvalidArgumentError, match="capturing"):
            registry.warmup(shapes, device="cuda")
