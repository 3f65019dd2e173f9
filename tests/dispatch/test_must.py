"""States that a call must survive whoever runs it: real kernels on tensors that start anywhere, scratch, huge grids."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import registry
from registry import Config, Device, Implementation, Problem, TensorSpec
from registry.arguments.schema import with_tensors
from registry.artifact import Built
from registry.backends.triton.bound_launch import full_grid
from registry.contract import as_tuple
from registry.contracts import BOX
from registry.correctness.numerics import judged
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.implementation import Run
from registry.problem import FULL_ALIGNMENT

from ..tiers import one_of_each

OPS = [op.name for op in BOX]


@pytest.fixture(scope="module")
def everything() -> Dispatcher:
    """With the plugins in the box, shared: plans are hits from the second call on."""
    return Dispatcher(Catalog())


def shifted(value: Any) -> Any:
    """The same tensor one element further on than memory is given out."""
    if not isinstance(value, torch.Tensor):
        return value
    moved = torch.empty(value.numel() + 1, dtype=value.dtype)[1:].view(value.shape)
    assert moved.data_ptr() % FULL_ALIGNMENT
    return moved.copy_(value)


def right(op: registry.Op, values: tuple[Any, ...], output: Any) -> bool:
    return judged(op, op.pose(op.arguments(values)), as_tuple(output), values).ok


# --- a misaligned view on a hit


@pytest.mark.parametrize("name", one_of_each(OPS, lambda name: name.partition("_")[0]))
@pytest.mark.few(2)
def test_tensors_that_start_anywhere_are_right_on_hits_of_every_kernel(everything: Dispatcher, name: str) -> None:
    op = everything.catalog.op(name)
    dims = next((each for each in op.examples if each["dtype"] == "bfloat16"), op.examples[0])
    names = [each.name for each in everything.catalog.implementations(name) if "cpu" in each.device_types]
    for implementation in [None, *(each for each in names if each != "torch.compile")]:
        chosen = contextlib.nullcontext() if implementation is None else everything.using(**{name: implementation})
        with chosen:
            for rows in (5, 12, 5):
                values = op.inputs(
                    op.problem_of({**dims, **dict.fromkeys(op.dynamic, rows)}),
                    "normal",
                    torch.Generator().manual_seed(rows),
                )
                other = tuple(map(shifted, values))
                only_first = (shifted(values[0]), *values[1:])
                for given in (values, other, values, only_first):
                    before = with_tensors(given, torch.clone) if op.parsed.mutates else given
                    try:
                        output = everything.call(name, *given)
                    except registry.UnsupportedError:
                        assert implementation is not None
                        continue
                    found = op.results(output, given)
                    assert right(op, before, found), f"{implementation}: {rows} {sorted(op.dynamic)}"


# --- scratch


class Scratching(Implementation):
    """softmax by way of scratch, slowly: whoever shares it is found out."""

    op = "softmax"
    name = "test.scratching"
    device_types = frozenset({"cpu"})

    def __init__(self) -> None:
        self.together = threading.Barrier(2)

    def preference(self, problem: Problem, device: Device) -> float:
        return 1e9

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return {"exponentials": TensorSpec.contiguous((problem.rows, problem.cols), torch.float32)}

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: tuple[torch.Tensor, ...], values: tuple[Any, ...], scratch: tuple[torch.Tensor, ...]) -> None:
            torch.exp(values[0].float(), out=scratch[0])
            with contextlib.suppress(threading.BrokenBarrierError):
                self.together.wait(5)
            outputs[0].copy_(scratch[0] / scratch[0].sum(-1, keepdim=True))

        return run


def in_threads(*work: Callable[[], Any]) -> list[Any]:
    found: list[Any] = [None] * len(work)

    def guarded(place: int) -> None:
        try:
            found[place] = work[place]()
        except BaseException as fault:
            found[place] = fault

    threads = [threading.Thread(target=guarded, args=(place,), daemon=True) for place in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


def test_scratch_is_made_for_each_call_also_the_first_of_a_new_thread(dispatcher: Dispatcher) -> None:
    dispatcher.register(Scratching())
    tensors = [torch.randn(6, 8), torch.randn(6, 8)]
    for _ in range(3):
        outputs = in_threads(*(lambda x=x: dispatcher.call("softmax", x) for x in tensors))
        for x, y in zip(tensors, outputs, strict=True):
            torch.testing.assert_close(y, torch.softmax(x, -1))
    assert dispatcher.explain("softmax", tensors[0]).implementation == "test.scratching"


# --- a grid of 2**31 and more


@pytest.mark.parametrize("grid", [(2**31,), (65536, 65536), (2**16, 2**15)])
def test_a_grid_too_large_is_refused_before_a_launch_and_the_next_one_runs(
    dispatcher: Dispatcher, told: Any, grid: tuple[int, ...]
) -> None:
    class Huge(told):  # type: ignore[misc]
        def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
            full_grid(grid, f"{self.name} of {self.op}")
            run: Run = super().bind(problem, config, device, built)
            return run

    huge, next_best = Huge("a.huge", 2.0), told("b.fine", 1.0)
    dispatcher.register(huge)
    dispatcher.register(next_best)
    x = torch.randn(3, 4)
    with pytest.warns(registry.DispatchWarning, match=r"a\.huge.*grid"):
        torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    dispatcher.call("softmax", x)
    assert huge.runs == []
    assert len(next_best.runs) == 2
    assert any("grid" in miss for miss in dispatcher.explain("softmax", x).misses)
    with (
        dispatcher.using(softmax="a.huge"),
        pytest.raises(registry.UnsupportedError, match=f"grid {grid[0]} x .* is more than a launch may have"),
    ):
        dispatcher.call("softmax", x)


# --- dropping what is in use


def test_a_plan_may_be_forgotten_while_it_runs(dispatcher: Dispatcher, told: Any) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(x: torch.Tensor, dim: int) -> torch.Tensor:
        inside.set()
        assert go_on.wait(30)
        return torch.softmax(x, dim)

    dispatcher.register(told("a.slow", 1.0, result=slow))
    x = torch.randn(3, 4)

    def forgets() -> None:
        assert inside.wait(30)
        dispatcher.forget()
        gc.collect()
        go_on.set()

    y, _ = in_threads(lambda: dispatcher.call("softmax", x), forgets)
    torch.testing.assert_close(y, torch.softmax(x, -1))
    # what was resolved before was not kept; the next call resolves again
    misses = dispatcher.bound("softmax").misses
    dispatcher.call("softmax", x)
    dispatcher.call("softmax", x)
    assert dispatcher.bound("softmax").misses == misses + 1
