"""Running one plan in two threads at once, which shows wrong results if calls share state such as a workspace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...arguments.schema import with_tensors
from ...backends import InductorImplementation
from ...correctness.batched import copy_each
from ...correctness.output_faults import poison
from ...device import Device
from ...implementation import Tensors
from .plan import Plan

CALLS = 11
"""The number of calls of each thread, one after another, each with its own outputs."""

MOST_CALLS = 35
"""The most calls of each thread: short ones meet less often."""

_SHARED = frozenset({1, 6})
"""The indices of calls in which both threads get one input: a plan that changes an input temporarily fails there."""

_IN_TURNS = (slice(0, 3), slice(3, 6), slice(6, 8))
"""The calls in which the threads alternate after each operation of torch, in three rounds; then they run freely.

What a thread makes for itself at its first call puts it behind the other, for all of the first round.
"""

_OPERATIONS = ((1, 1), (1, 1), (2, 1))
"""Operations of each thread's turn in each round: in the last one thread overtakes the other. Threads that are always
equally far do not see that both write the same to an input, and put it back."""

_PATIENCE_S = 0.5
"""The longest wait of a thread for its turn, in seconds: the other thread may wait for a lock that it holds."""

_ROUND_S = 10.0
"""The longest wait for the other thread to end a round."""

_DELAY_CYCLES = 2_000_000
"""A delay of about 1 ms on the GPU, in which both threads enqueue work, so that their streams run it at once."""

_sleep: Callable[[int], None] = torch.cuda._sleep  # bound at import: a plugin may patch it later


def results_of_two_threads(
    plan: Plan, inputs: Sequence[tuple[Any, ...]], device: Device, calls: int = CALLS
) -> tuple[tuple[Tensors, ...], ...]:
    """For each of two inputs the results (``Op.results``) of its calls, made by two threads at once.

    Each thread makes ``calls`` of them, at least two, with an input of its own, but for one or two calls of both on the
    first input.

    On a GPU each thread has its own stream, and the current stream waits for both. Raises any exception of a call.
    """
    turns = [_Turns() for _ in _IN_TURNS]
    works = [_ThreadWork(plan, inputs, device, turns, me, calls) for me in range(len(inputs))]
    threads = [threading.Thread(target=work.run, name="registry-two-threads") for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for work in works:
        work.join_stream()
    for work in works:
        if work.fault is not None:
            raise work.fault
    made = [made for work in works for made in work.results]
    return tuple(tuple(results for given, results in made if given == which) for which in range(len(inputs)))


class _Turns:
    """The turns of two threads that alternate, until one of them waits too long."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)
        self._condition = threading.Condition()
        self._whose: int | None = 0

    def give(self, me: int) -> None:
        """Let the other thread go on, and wait for its next operation."""
        with self._condition:
            if self._whose is not None:
                self._whose = 1 - me
                self._condition.notify_all()
                if not self._condition.wait_for(lambda: self._whose in {me, None}, _PATIENCE_S):
                    self.end()

    def end(self) -> None:
        """Let both threads run freely."""
        with self._condition:
            self._whose = None
            self._condition.notify_all()


class _InTurns(TorchFunctionMode):
    """A mode that gives the other thread a turn after each operation of torch, or after so many."""

    def __init__(self, turns: _Turns, me: int, operations: int) -> None:
        super().__init__()
        self._turns, self._me = turns, me
        self._operations, self._made = operations, 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        self._made += 1
        if self._made % self._operations == 0:
            self._turns.give(self._me)
        return made


class _ThreadWork:
    """The calls of one thread."""

    def __init__(
        self,
        plan: Plan,
        inputs: Sequence[tuple[Any, ...]],
        device: Device,
        turns: Sequence[_Turns],
        me: int,
        calls: int,
    ) -> None:
        implementation = plan.candidate.implementation
        self._plan, self._device = plan, device.torch
        self._turns, self._me = turns, me
        # whatever torch.compile has compiled is compiled again under a mode, or ends in an error
        self._takes_turns = not isinstance(implementation, InductorImplementation)
        self._given = [0 if call in _SHARED else me for call in range(calls)]
        values = [inputs[which] for which in self._given]
        self._values = [with_tensors(each, torch.clone) for each in values] if plan.op.parsed.mutates else values
        self._outputs: list[Tensors] = [() if implementation.returns_outputs else plan.allocate() for _ in self._given]
        poison(self._outputs[0])
        for place, poisoned in enumerate(self._outputs[0]):
            others = [outputs[place] for outputs in self._outputs[1:]]
            copy_each(others, [poisoned] * len(others))
        self._stream = torch.cuda.Stream(self._device) if device.type == "cuda" else None
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self.fault: BaseException | None = None

    def run(self) -> None:
        """Make all calls, the first few in turns with the other thread."""
        on_stream = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        try:
            with torch.no_grad(), on_stream:
                for number, (turns, places) in enumerate(zip(self._turns, _IN_TURNS, strict=True)):
                    with suppress(threading.BrokenBarrierError):
                        turns.barrier.wait(_ROUND_S if number else None)
                    if self._stream is not None:
                        _sleep(_DELAY_CYCLES)
                    self._call_in_turns(turns, range(len(self._values))[places], _OPERATIONS[number][self._me])
                self._call_freely()
        except BaseException as fault:  # a stranger's code: it is told by whoever asked
            self.fault = fault
            for turns in self._turns:
                turns.end()
                turns.barrier.abort()

    def _call_in_turns(self, turns: _Turns, places: Iterable[int], operations: int) -> None:
        mode = _InTurns(turns, self._me, operations)
        in_turns: AbstractContextManager[Any] = mode if self._takes_turns else nullcontext()
        with in_turns:
            for place in places:
                self._outputs[place] = self._plan.into(self._outputs[place], self._values[place])
        turns.end()

    def _call_freely(self) -> None:
        """The other calls, with as little between them as possible: a short kernel must meet another one.

        Of 33 calls of 10 µs in C++ 13 met one on two cores; made as a user makes them, 1 in 100 did.
        """
        begun = _IN_TURNS[-1].stop
        plan, after = self._plan, self._outputs[begun:]
        scratch = tuple(spec.empty() for spec in plan.signature.scratch.values())
        extended = [plan.prepared.extend(values) for values in self._values[begun:]]
        with suppress(threading.BrokenBarrierError):
            self._turns[-1].barrier.wait(_PATIENCE_S)
        returned = list(map(plan.run, after, extended, [scratch] * len(after)))
        if plan.candidate.implementation.returns_outputs:
            self._outputs[begun:] = map(plan.returned, returned)

    def join_stream(self) -> None:
        """Let the current stream wait for this thread's stream."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    @property
    def results(self) -> list[tuple[int, Tensors]]:
        """For each call the index of its input, and its results."""
        results = map(self._plan.op.results, self._outputs, self._values)
        return list(zip(self._given, results, strict=True))
