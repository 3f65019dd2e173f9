"""Two GPUs in one process: each gets its own kernels, winners and memory, whichever is current; a run tunes on both."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import registry
from registry import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.plans.plan import build
from registry.tuner.events import Event, RunEnded, TrialDone
from registry.tuner.limits import Budget
from registry.tuner.measure.nvml import identity_of
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune
from registry.tuner.workers.device_lock import _path
from tuning_db import Store

from .. import fresh

if torch.cuda.device_count() < 2:
    pytest.skip("needs two GPUs", allow_module_level=True)

GPUS = ("cuda:0", "cuda:1")
FORCED = [("triton.row", "cuda.row"), ("cuda.row", "triton.online"), ("torch.native", "triton.row")]


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    yield Dispatcher(Catalog())
    for gpu in GPUS:
        torch.cuda.synchronize(gpu)


@pytest.fixture(autouse=True)
def _first_is_current() -> Iterator[None]:
    with torch.cuda.device(0):
        yield
        assert torch.cuda.current_device() == 0, "a call left another GPU current"


def half(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=torch.bfloat16)


def right(x: torch.Tensor, y: torch.Tensor) -> None:
    assert y.device == x.device
    torch.testing.assert_close(y.double(), torch.softmax(x.double(), -1), atol=2e-3, rtol=2e-2)


def product(a: torch.Tensor, weight: registry.PackedWeight, y: torch.Tensor) -> None:
    assert y.device == a.device
    expected = a.double() @ weight.dequantize().double().T
    torch.testing.assert_close(y.double(), expected, atol=1.0, rtol=5e-2)


def together(*work: Callable[[], None]) -> None:
    """Each in a thread of its own; the first fault is raised."""
    faults: list[BaseException] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=guarded, args=(one,), daemon=True) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if faults:
        raise faults[0]
    assert not any(thread.is_alive() for thread in threads), "a thread stands still"


# --- which kernel runs where


def replayed_right(graph: torch.cuda.CUDAGraph, x: torch.Tensor, y: torch.Tensor) -> None:
    """Replay what the second GPU captured, on other inputs."""
    x.normal_()
    torch.cuda.synchronize("cuda:1")
    with torch.cuda.device(1):
        graph.replay()
    torch.cuda.synchronize("cuda:1")
    right(x, y)


@pytest.mark.parametrize("names", FORCED, ids=" then ".join)
def test_different_winners_forced_per_gpu_are_right_on_both(dispatcher: Dispatcher, names: tuple[str, str]) -> None:
    tensors = [half(gpu, 64, 1024) for gpu in GPUS]
    for _ in range(3):
        for x, name in zip(tensors, names, strict=True):
            with dispatcher.using(softmax=name):
                right(x, dispatcher.call("softmax", x))
                assert dispatcher.explain("softmax", x).implementation == name
    for x in tensors:  # and unforced, as hits
        right(x, dispatcher.call("softmax", x))
        right(x, dispatcher.call("softmax", x))


@pytest.mark.parametrize("names", FORCED, ids=" and ".join)
def test_threads_force_different_winners_at_the_same_time(dispatcher: Dispatcher, names: tuple[str, str]) -> None:
    def work(gpu: str, name: str) -> Callable[[], None]:
        def calls() -> None:
            x = half(gpu, 64, 1024)
            with dispatcher.using(softmax=name):
                for _ in range(100):
                    y = dispatcher.call("softmax", x)
                right(x, y)
                assert dispatcher.explain("softmax", x).implementation == name

        return calls

    together(*(work(gpu, name) for gpu, name in zip(GPUS, names, strict=True)))


@pytest.mark.parametrize("names", FORCED, ids=" and ".join)
def test_hits_on_both_gpus_take_turns_in_two_threads(dispatcher: Dispatcher, names: tuple[str, str]) -> None:
    """Both GPUs' calls are of one shape, so that they meet in one place of the table; counters tell them apart."""
    tensors = [half(gpu, 64, 1024) for gpu in GPUS]
    for x, name in zip(tensors, names, strict=True):
        with dispatcher.using(softmax=name):
            right(x, dispatcher.call("softmax", x))
    for x in tensors:
        right(x, dispatcher.call("softmax", x))
    bound = dispatcher.bound("softmax")
    misses, before = bound.misses, [dispatcher.explain("softmax", x).calls for x in tensors]

    def work(order: list[torch.Tensor]) -> Callable[[], None]:
        def calls() -> None:
            for _ in range(100):
                results = [dispatcher.call("softmax", x) for x in order]
            for x, y in zip(order, results, strict=True):
                right(x, y)

        return calls

    together(work(tensors), work(tensors[::-1]))
    assert bound.misses == misses, "all of them hit"
    after = [dispatcher.explain("softmax", x).calls for x in tensors]
    assert [late - early for late, early in zip(after, before, strict=True)] == [200, 200]
    for x, name in zip(tensors, names, strict=True):  # what was forced is still there, and right
        with dispatcher.using(softmax=name):
            right(x, dispatcher.call("softmax", x))
            assert dispatcher.explain("softmax", x).implementation == name


@pytest.mark.parametrize("name", ["triton.row", "cuda.row", "torch.compile"])
def test_each_gpu_has_a_plan_of_its_own(dispatcher: Dispatcher, name: str) -> None:
    (candidate,) = (each for each in dispatcher.catalog.implementations("softmax") if each.name == name)
    op = dispatcher.catalog.op("softmax")
    plans = []
    for gpu in GPUS:
        x = half(gpu, 32, 2048)
        arguments = op.arguments((x, -1))
        problem, device = op.pose(arguments), Device.of(gpu)
        config = candidate.default(problem, device)
        plan = build(op, registry.Candidate(candidate, config), problem, arguments, device)
        plans.append((x, plan))
    for x, plan in (*plans, *reversed(plans)):  # none is current that its tensors are not on, nor left so
        right(x, plan(x, -1))


def test_a_kernel_is_compiled_once_and_loaded_on_each_gpu(
    dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from registry.backends.triton import implementation as backend

    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path))
    before = set(backend._LOADED)
    # of a width and with warps that no other test has loaded
    tensors = [half(gpu, 48, 300) for gpu in GPUS]
    with dispatcher.using(softmax=("triton.row", {"rows_per_program": 1, "num_warps": 2})):
        for x in tensors:
            right(x, dispatcher.call("softmax", x))
    new = set(backend._LOADED) - before
    assert sorted(index for _, index in new) == [0, 1]
    assert len({key for key, _ in new}) == 1
    kernels = [file for file in tmp_path.rglob("*.cubin") if file.stem == "row_softmax"]
    assert len(kernels) == 1


# --- which GPU is current


@pytest.mark.parametrize("op", ["softmax", "rms_norm", "gemm_int4"])
@pytest.mark.parametrize("current", [0, 1])
def test_tensors_may_be_on_another_gpu_than_the_current_one(dispatcher: Dispatcher, op: str, current: int) -> None:
    contract = dispatcher.catalog.op(op)
    dims = dict(next(each for each in contract.examples if each["dtype"] == "bfloat16"))
    for gpu in (*GPUS, *GPUS):
        with torch.cuda.device(current):
            values = contract.inputs(contract.problem_of(dims), "normal", torch.Generator(gpu).manual_seed(3))
            y = dispatcher.call(op, *values)
            expected = contract.reference(*values)
            assert isinstance(expected, torch.Tensor)
            assert torch.cuda.current_device() == current
        assert y.device == torch.device(gpu)
        torch.testing.assert_close(y.double(), expected.double(), atol=2e-2, rtol=2e-2)


def test_a_stream_of_the_other_gpu_is_obeyed(dispatcher: Dispatcher) -> None:
    x = half("cuda:1", 64, 1024)
    dispatcher.call("softmax", x)
    torch.cuda.synchronize("cuda:1")
    stream = torch.cuda.Stream("cuda:1")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = torch.randn_like(x)
        y = dispatcher.call("softmax", late)
    stream.synchronize()
    right(late, y)
    # the stream of cuda:1 stays what it was set to while cuda:0 is current
    torch.cuda.set_device(1)
    try:
        torch.cuda.set_stream(stream)
        torch.cuda._sleep(50_000_000)
        torch.cuda.set_device(0)
        late = torch.randn_like(x)
        y = dispatcher.call("softmax", late)
        stream.synchronize()
        right(late, y)
    finally:
        torch.cuda.set_stream(torch.cuda.default_stream("cuda:1"))
        torch.cuda.set_device(0)


def test_a_thread_for_each_gpu(dispatcher: Dispatcher) -> None:
    def work(gpu: str) -> Callable[[], None]:
        def calls() -> None:
            torch.cuda.set_device(gpu)
            weight = registry.quantize(half(gpu, 512, 1024))
            for rows in (1, 7, 16, 33, 7, 1):
                x, a = half(gpu, rows, 1000), half(gpu, rows, 1024)
                for _ in range(3):
                    right(x, dispatcher.call("softmax", x))
                    product(a, weight, dispatcher.call("gemm_int4", a, weight))

        return calls

    together(*(work(gpu) for gpu in GPUS for _ in range(2)))


# --- arguments of both


def test_arguments_on_two_gpus_are_an_error_that_names_both(dispatcher: Dispatcher) -> None:
    x, weight = half("cuda:0", 8, 512), half("cuda:1", 512)
    packed = registry.quantize(half("cuda:1", 256, 512))
    for _ in range(2):
        with pytest.raises(registry.InvalidArgumentError, match=r"cuda:0.*cuda:1"):
            dispatcher.call("rms_norm", x, weight)
        with pytest.raises(registry.InvalidArgumentError, match=r"cuda:0.*cuda:1"):
            dispatcher.call("gemm_int4", x, packed)
        # also when each alone is known already
        dispatcher.call("rms_norm", x, weight.to("cuda:0"))
        dispatcher.call("gemm_int4", x, packed.to("cuda:0"))


@pytest.mark.parametrize("name", ["triton.gemm", "torch.tinygemm"])
def test_a_packed_weight_moves_and_is_prepared_where_it_is(dispatcher: Dispatcher, name: str) -> None:
    weight = registry.quantize(half("cuda:0", 512, 1024))
    moved = weight.to("cuda:1")
    assert moved.device == torch.device("cuda:1")
    assert torch.equal(moved.qweight.cpu(), weight.qweight.cpu())
    with dispatcher.using(gemm_int4=name):
        for each in (weight, moved, weight, moved):
            a = half(str(each.device), 16, 1024)
            product(a, each, dispatcher.call("gemm_int4", a, each))


# --- graphs


@pytest.mark.parametrize("name", ["triton.row", "cuda.row", "torch.native"])
def test_a_graph_on_the_second_gpu(dispatcher: Dispatcher, name: str) -> None:
    x = half("cuda:1", 64, 1024)
    with dispatcher.using(softmax=name):
        dispatcher.call("softmax", x)
        torch.cuda.synchronize("cuda:1")
        with torch.cuda.device(1):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # torch's own is on the GPU that was first
                y = dispatcher.call("softmax", x)
    replayed_right(graph, x, y)


def test_a_capture_on_the_second_gpu_is_seen_while_the_first_is_current(dispatcher: Dispatcher) -> None:
    x = half("cuda:1", 72, 1024)
    dispatcher.call("softmax", half("cuda:1", 8, 512))
    torch.cuda.synchronize("cuda:1")
    with torch.cuda.device(1):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()), torch.cuda.device(0):
            y = dispatcher.call("softmax", x)  # not seen before: from memory, or the reference
    replayed_right(graph, x, y)


def test_a_capture_on_one_gpu_does_not_bind_calls_on_the_other(dispatcher: Dispatcher) -> None:
    """Whether a stream captures is a question to the tensors' GPU, not to the current one."""
    x, other = half("cuda:1", 64, 1024), half("cuda:0", 64, 1024)
    for tensor in (x, other):
        dispatcher.call("softmax", tensor)
    torch.cuda.synchronize("cuda:0")
    torch.cuda.synchronize("cuda:1")
    with torch.cuda.device(1):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
            y = dispatcher.call("softmax", x)
            with torch.cuda.device(0):
                z = dispatcher.call("softmax", other)  # runs now; the graph has no part of it
    torch.cuda.synchronize("cuda:0")
    right(other, z)
    replayed_right(graph, x, y)


# --- hammering both


def test_both_are_hammered_at_once(dispatcher: Dispatcher) -> None:
    from benchmarks.hammer import Hammer, cases

    outcomes: dict[str, Any] = {}

    def work(gpu: str) -> Callable[[], None]:
        hammer = Hammer(dispatcher, gpu, cases(dispatcher, gpu, (1, 16), statics=1), threads=3, streams=2)

        def calls() -> None:
            outcomes[gpu] = hammer.run(1.5, forced=False)

        return calls

    together(*(work(gpu) for gpu in GPUS))
    assert all(outcome.ok for outcome in outcomes.values()), "\n".join(map(str, outcomes.values()))
    assert set(outcomes) == set(GPUS)


# --- tuning on both


def test_a_run_shares_its_problems_among_gpus_of_one_model(catalog: Catalog, tmp_path: Path, own_lock: None) -> None:
    gpus = [Device.of(gpu) for gpu in GPUS]
    if gpus[0].hardware() != gpus[1].hardware():
        pytest.skip("needs two GPUs of one model")
    database, events = tmp_path / "run.db", list[Event]()
    problems = [
        catalog.op("softmax").problem_of({"rows": rows, "cols": 1000, "dtype": "bfloat16"})
        for rows in (64, 256, 1024, 4096, 8192, 16384)
    ]
    names = ["torch.native", "triton.row", "cuda.row"]
    results = tune(
        problems, catalog=catalog, device=gpus, database=str(database), observer=events.append,
        options=TuneOptions(Budget(trials=12), implementations=names),
    )  # fmt: skip
    assert {result.problem for result in results} == set(problems)
    assert {result.verdict for result in results} == {"new"}
    tried = {event.device for event in events if isinstance(event, TrialDone)} - {""}
    assert tried == set(GPUS)
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert {one.identity for one in ended.devices} == {identity_of(gpu) for gpu in gpus}
    with Store.open(database) as store:
        assert len(store.winners(op="softmax", hardware=gpus[0].hardware())) == len(problems)
        told = {trial.details.get("device") for trial in store.trials(op="softmax")} - {None}
    assert told == {identity_of(gpu) for gpu in gpus}


@pytest.mark.parametrize("by", ["number", "UUID", "beginning of the UUID"])
def test_a_gpu_has_one_lock_whatever_its_place_in_a_process(by: str, own_lock: None) -> None:
    second = identity_of(Device.of("cuda:1"))
    names = {"number": "1", "UUID": f"GPU-{second}", "beginning of the UUID": f"GPU-{second[:8]}"}
    code = (
        "from registry.device import Device; from registry.tuner.workers import device_lock as lock;"
        "print(lock._path(Device.of('cuda:0'), 'device'))"
    )
    done = fresh.run("-c", code, env={**os.environ, "CUDA_VISIBLE_DEVICES": names[by]})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(_path(Device.of("cuda:1"), "device"))
    assert _path(Device.of("cuda:0"), "device") != _path(Device.of("cuda:1"), "device")
