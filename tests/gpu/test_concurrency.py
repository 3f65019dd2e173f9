"""Threads, streams, captures and eviction on a GPU. KERNEL_REGISTRY_HAMMER_S sets how long the hammer runs."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import registry
import tuning_db
from benchmarks.hammer import Hammer, cases
from registry.contract import as_tuple
from registry.correctness.bounds import bounds_of
from registry.correctness.numerics import own_error, reference64
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.warning import DispatchWarning

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

SECONDS = float(os.environ.get("KERNEL_REGISTRY_HAMMER_S", "5"))
GEMM = {"n": 1024, "k": 2048, "group_size": 128, "bits": 4, "symmetric": False, "dtype": "bfloat16"}
SOFTMAX = {"cols": 16384, "dtype": "bfloat16"}

# who keeps something beyond the plan: kernels, scratch, prepared weights, generated code
HELD = [
    ("softmax", "triton.row", {"rows": 24, "cols": 2048, "dtype": "bfloat16"}),
    ("softmax", "triton.split", {"rows": 3, **SOFTMAX}),
    ("softmax", "cuda.row", {"rows": 24, "cols": 2048, "dtype": "bfloat16"}),
    ("softmax", "torch.compile", {"rows": 24, "cols": 2048, "dtype": "bfloat16"}),
    ("gemm_int4", "triton.splitk", {"m": 16, **GEMM}),
    ("gemm_int4", "triton.gemv", {"m": 1, **GEMM}),
    ("gemm_int4", "torch.tinygemm", {"m": 16, **GEMM}),
    ("gemm_int4", "cuda.mma", {"m": 16, **GEMM}),
]
IDS = [f"{op}-{name}" for op, name, _ in HELD]


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    yield Dispatcher(Catalog())
    torch.cuda.synchronize()


def arguments(op: str, dims: dict[str, Any], seed: int = 1) -> tuple[Any, ...]:
    contract = registry.ops()[op]
    generator = torch.Generator("cuda").manual_seed(seed)
    return contract.inputs(contract.problem_of(dims), "normal", generator)


def check(op: str, values: tuple[Any, ...], y: torch.Tensor) -> None:
    contract = registry.ops()[op]
    problem = contract.pose(contract.arguments(values))
    wide = reference64(contract, values)
    (bounds,) = bounds_of(contract, problem, values, wide, own_error(contract, problem, values, wide))
    (output,) = as_tuple(y)
    assert bounds.holding(output), f"{problem}: out of bounds by {(output.double() - wide[0]).abs().max().item():.3g}"


def in_a_thread(work: Callable[[], Any]) -> Any:
    """What ``work`` returns in a thread that has never touched CUDA."""
    found: list[Any] = []

    def guarded() -> None:
        try:
            found.append(work())
        except BaseException as fault:
            found.append(fault)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(120)
    assert found, "the thread stands still"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


# --- many threads on many streams


@pytest.mark.timeout(300 + int(2 * SECONDS))
@pytest.mark.parametrize("forced", [False, True], ids=["as-called", "forced"])
def test_no_result_is_wrong_and_nobody_stands_still(dispatcher: Dispatcher, forced: bool) -> None:
    work = cases(dispatcher, "cuda", (1, 5, 16, 33), statics=1)
    hammer = Hammer(dispatcher, "cuda", work, threads=8, streams=4)
    outcome = hammer.run(SECONDS / 4 if forced else 3 * SECONDS / 4, forced=forced)
    sys.stdout.write(f"{outcome}\n")
    assert outcome.ok, str(outcome)
    assert outcome.forgotten > 0
    assert outcome.misses > 0


@pytest.mark.parametrize(("op", "name", "dims"), HELD, ids=IDS)
def test_the_first_call_of_all_may_come_from_a_new_thread(
    dispatcher: Dispatcher, op: str, name: str, dims: dict[str, Any]
) -> None:
    values = arguments(op, dims)
    torch.cuda.synchronize()

    def work() -> torch.Tensor:
        with dispatcher.using(**{op: name}):
            dispatcher.call(op, *values)
            y: torch.Tensor = dispatcher.call(op, *values)
        torch.cuda.synchronize()
        return y

    check(op, values, in_a_thread(work))


def test_a_stream_of_another_thread_is_obeyed_on_a_hit(dispatcher: Dispatcher) -> None:
    x = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
    call = dispatcher.op("softmax")
    call(x)
    torch.cuda.synchronize()

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(50_000_000)
            late = torch.randn_like(x)  # not there yet for whoever does not wait for this stream
            y = call(late)
        torch.cuda.synchronize()
        return late, y

    late, y = in_a_thread(work)
    check("softmax", (late, -1), y)


# --- what is dropped while somebody still needs it


@pytest.mark.parametrize(("op", "name", "dims"), HELD, ids=IDS)
def test_a_graph_replays_after_everything_it_came_from_was_dropped(op: str, name: str, dims: dict[str, Any]) -> None:
    dispatcher = Dispatcher(Catalog())
    values = arguments(op, dims)
    with dispatcher.using(**{op: name}):
        for _ in range(2):
            dispatcher.call(op, *values)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = dispatcher.call(op, *values)
    bound = dispatcher.bound(op)
    bound.clear()
    dispatcher.forget()
    del bound, dispatcher
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    garbage = [torch.full((2**20,), 7.0, device="cuda") for _ in range(32)]  # memory that was freed is taken by others
    values[0].copy_(arguments(op, dims, seed=2)[0])
    y.fill_(float("nan"))
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        check(op, values, y)
    assert all(bool((each == 7.0).all()) for each in garbage)


@pytest.mark.parametrize("name", ["torch.tinygemm", "cuda.mma"])
def test_prepared_memory_is_not_reused_before_other_streams_have_read_it(dispatcher: Dispatcher, name: str) -> None:
    values = arguments("gemm_int4", {"m": 16, **GEMM})
    stream = torch.cuda.Stream()
    with dispatcher.using(gemm_int4=name):
        dispatcher.call("gemm_int4", *values)  # prepared on this stream
        torch.cuda.synchronize()
        assert dispatcher.explain("gemm_int4", *values).prepared_bytes > 0
        with torch.cuda.stream(stream):
            dispatcher.call("gemm_int4", *values)
            torch.cuda._sleep(400_000_000)  # about 0.2 s
            y = dispatcher.call("gemm_int4", *values)
    dispatcher.forget()
    gc.collect()
    # whoever asks this stream for memory now must not get what the other is still to read
    sizes = {value.nbytes for value in values if isinstance(value, torch.Tensor)} | {2**power for power in range(9, 22)}
    garbage = [torch.full((size,), 0x55, dtype=torch.uint8, device="cuda") for size in sizes for _ in range(8)]
    torch.cuda.synchronize()
    check("gemm_int4", values, y)
    assert len(garbage) == 8 * len(sizes)


def test_many_shapes_evict_and_the_first_comes_back(dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    call, bound = dispatcher.op("rms_norm"), dispatcher.bound("rms_norm")
    monkeypatch.setattr(bound.table, "_most_shapes", 64)
    monkeypatch.setattr("registry.dispatch.resolve.candidates.MOST_PLANS", 64)
    weight = torch.ones(64, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(7, 64, device="cuda", dtype=torch.bfloat16)
    call(x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call(x, weight)
    first = weakref.ref(next(iter(bound.plans._plans.values())).plan)
    assert first() is not None
    for rows in range(8, 8 + 200):
        # twice: the latest hit is kept besides
        for _ in range(2):
            call(torch.empty(rows, 64, device="cuda", dtype=torch.bfloat16), weight)
    assert x.shape not in bound.table.now.shapes
    assert len(bound.table.now.shapes) == 64 >= len(bound.plans._plans)
    bound.clear()
    gc.collect()
    assert first() is None, "the plan that the graph was captured from is gone"
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    check("rms_norm", (x, weight, 1e-6), y)
    check("rms_norm", (x, weight, 1e-6), call(x, weight))


# --- capture


@pytest.fixture
def nothing_slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what must not happen while capturing and did."""
    happened: list[str] = []

    def forbidden(owner: Any, name: str) -> None:
        right = getattr(owner, name)

        def spy(*given: Any, **named: Any) -> Any:
            if torch.cuda.is_current_stream_capturing():
                happened.append(f"{getattr(owner, '__name__', owner)}.{name}")
            return right(*given, **named)

        monkeypatch.setattr(owner, name, spy)

    import triton

    from registry.backends.cuda import nvrtc

    forbidden(triton, "compile")
    forbidden(tuning_db.Store, "open")
    forbidden(torch.cuda, "synchronize")
    forbidden(torch.cuda.Stream, "synchronize")
    forbidden(torch, "compile")
    forbidden(nvrtc, "compile_source")
    return happened


@pytest.mark.parametrize("known", [False, True], ids=["nothing-known", "other-shapes-known"])
@pytest.mark.parametrize("op", ["softmax", "rms_norm", "gemm_int4"])
def test_capture_with_an_unseen_shape_does_nothing_slow(
    dispatcher: Dispatcher, op: str, known: bool, nothing_slow: list[str]
) -> None:
    (dynamic,) = registry.ops()[op].dynamic
    static = GEMM if op == "gemm_int4" else {"cols": 1024, "dtype": "bfloat16"}
    if known:
        for rows in (1, 40):
            dispatcher.call(op, *arguments(op, {dynamic: rows, **static}))
    values = arguments(op, {dynamic: 21, **static})
    torch.cuda.current_blas_handle()  # the reference multiplies by cuBLAS, which no capture may load
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    told = contextlib.nullcontext() if known else pytest.warns(DispatchWarning, match="reference is captured for " + op)
    with told, torch.cuda.graph(graph):
        y = dispatcher.call(op, *values)
    values[0].copy_(arguments(op, {dynamic: 21, **static}, seed=2)[0])
    graph.replay()
    torch.cuda.synchronize()
    check(op, values, y)
    assert nothing_slow == []
    after = dispatcher.call(op, *values)
    check(op, values, after)
    assert dispatcher.explain(op, *values).step != "reference"


def test_capture_on_one_thread_leaves_the_others_calls_right(dispatcher: Dispatcher) -> None:
    """``thread_local`` capture: another thread builds plans meanwhile, which may allocate."""
    values = arguments("softmax", {"rows": 32, "cols": 1024, "dtype": "bfloat16"})
    other = arguments("rms_norm", {"rows": 5, "cols": 4096, "dtype": "bfloat16"})
    dispatcher.call("softmax", *values)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = dispatcher.call("softmax", *values)
        meanwhile = in_a_thread(lambda: dispatcher.call("rms_norm", *other))
    graph.replay()
    torch.cuda.synchronize()
    check("softmax", values, y)
    check("rms_norm", other, meanwhile)


# --- alignment on a hit


@pytest.mark.parametrize("op", ["softmax", "rms_norm", "gemm_int4"])
def test_a_misaligned_view_with_another_row_count_is_right_on_a_hit(dispatcher: Dispatcher, op: str) -> None:
    (dynamic,) = registry.ops()[op].dynamic
    static = GEMM if op == "gemm_int4" else {"cols": 1000, "dtype": "bfloat16"}
    for rows in (16, 17, 16, 40, 17):
        values = arguments(op, {dynamic: rows, **static}, seed=rows)
        x = values[0]
        shifted = torch.empty(x.numel() + 1, device="cuda", dtype=x.dtype)[1:].view(x.shape)
        shifted.copy_(x)
        assert shifted.data_ptr() % 16
        for given in (x, shifted, x, shifted):
            check(op, values, dispatcher.call(op, given, *values[1:]))
    torch.cuda.synchronize()
