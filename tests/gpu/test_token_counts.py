"""New token counts on a GPU: each is right, and nothing is bound anew for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import registry
import registry_cuda
import registry_torch
import registry_triton
from registry import Implementation
from registry.backends import CudaImplementation, TritonImplementation
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

# sizes that nobody has tuned: the heuristic answers, whatever winners are known here
COLS = 4104
N, K = 2112, 4224
ROWS = (*range(1, 301), 1024, 4097)
MOST_BOUND = 3
"""For all row counts: an unaligned twin is one, and a number that is a multiple of 16 may be another."""


def offered(op: str) -> dict[str, Implementation]:
    packages = (registry_triton, registry_cuda, registry_torch)
    every: list[Sequence[Implementation]] = [getattr(package, f"{op}_implementations")() for package in packages]
    return {implementation.name: implementation for some in every for implementation in some}


def only(op: str, name: str) -> Dispatcher:
    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.register(offered(op)[name])
    return dispatcher


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def right(y: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(y.float(), expected, atol=1e-2, rtol=2e-2)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often an implementation of a backend was bound from its artifacts."""
    counts: Counter[str] = Counter()

    def counted(backend: type[Any]) -> None:
        bind = backend.bind

        def counting(self: Any, *given: Any) -> Any:
            counts[self.name] += 1
            return bind(self, *given)

        monkeypatch.setattr(backend, "bind", counting)

    for backend in (TritonImplementation, CudaImplementation):
        counted(backend)
    return counts.total


@pytest.fixture(autouse=True)
def _finished() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", ["triton.row", "triton.online", "cuda.row", "cuda.online", "torch.native"])
def test_softmax_serves_every_token_count_after_one_call(bound: Callable[[], int], name: str) -> None:
    dispatcher = only("softmax", name)
    dispatcher.call("softmax", half(100, COLS))
    for rows in ROWS:
        x = half(rows, COLS)
        right(dispatcher.call("softmax", x), torch.softmax(x.float(), -1))
    assert dispatcher.explain("softmax", half(7, COLS)).implementation == name
    assert bound() <= MOST_BOUND


@pytest.mark.parametrize("name", ["triton.row", "triton.looped", "cuda.row", "cuda.online", "torch.native"])
def test_rms_norm_serves_every_token_count_after_one_call(bound: Callable[[], int], name: str) -> None:
    dispatcher = only("rms_norm", name)
    weight = half(COLS)
    dispatcher.call("rms_norm", half(100, COLS), weight)
    for rows in ROWS:
        x = half(rows, COLS)
        expected = torch.nn.functional.rms_norm(x.float(), (COLS,), weight.float(), 1e-6)
        torch.testing.assert_close(dispatcher.call("rms_norm", x, weight).float(), expected, atol=2e-2, rtol=3e-2)
    assert bound() <= MOST_BOUND


@pytest.mark.parametrize("name", ["", "triton.gemm", "triton.splitk", "cuda.mma", "torch.tinygemm", "torch.native"])
def test_gemm_int4_is_bound_for_few_token_counts(bound: Callable[[], int], name: str) -> None:
    dispatcher = only("gemm_int4", name) if name else Dispatcher(Catalog())
    weight = registry.quantize(half(N, K) / 64, group_size=128)
    full = weight.dequantize().float().t()
    dispatcher.call("gemm_int4", half(100, K), weight)
    for rows in range(1, 257):
        a = half(rows, K)
        torch.testing.assert_close(
            dispatcher.call("gemm_int4", a, weight).float(), a.float() @ full, atol=5e-2, rtol=3e-2
        )
    assert bound() <= 20, dispatcher.explain("gemm_int4", half(100, K), weight)


@pytest.mark.parametrize("name", ["triton.row", "cuda.row"])
def test_several_leading_sizes_and_misaligned_views_hit(bound: Callable[[], int], name: str) -> None:
    dispatcher = only("softmax", name)
    dispatcher.call("softmax", half(4, 25, COLS))
    for shape in ((1, 7, COLS), (7, 1, COLS), (3, 50, COLS)):
        x = half(*shape)
        right(dispatcher.call("softmax", x), torch.softmax(x.float(), -1))
    for rows in (9, 10):
        view = half(rows * COLS + 1)[1:].view(1, rows, COLS)
        right(dispatcher.call("softmax", view), torch.softmax(view.float(), -1))
    assert bound() <= MOST_BOUND


@pytest.mark.parametrize("name", ["triton.row", "cuda.row"])
def test_a_new_token_count_is_captured_without_a_call_before(bound: Callable[[], int], name: str) -> None:
    dispatcher = only("softmax", name)
    dispatcher.call("softmax", half(100, COLS))
    x = half(37, COLS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = dispatcher.call("softmax", x)
    x.copy_(half(37, COLS))
    graph.replay()
    right(y, torch.softmax(x.float(), -1))
    assert bound() <= MOST_BOUND


def test_scratch_and_grids_of_split_rows_follow_the_rows(bound: Callable[[], int]) -> None:
    dispatcher = only("softmax", "triton.split")
    cols = 8200
    dispatcher.call("softmax", half(100, cols))
    for rows in range(1, 301, 3):
        x = half(rows, cols)
        right(dispatcher.call("softmax", x), torch.softmax(x.float(), -1))
    assert bound() < 40
