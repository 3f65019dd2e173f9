"""Calls of one problem in a sandbox: arguments are copied in, a run is requested, results are copied out.

All that is compared or counted is private: of the shared memory only copies are looked at, which are made while the
sandbox is stopped. What an output holds at a few secret places is read as soon as the run is said to have ended, before
the sandbox is stopped, and is what counts there: a result that comes late is wrong.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..arguments.schema import tensors_in
from ..correctness.bits import as_bits
from ..implementation import Tensors
from ..problem import Arguments, TensorSpec
from .memory.slots import SlotLayout, Slots, described, spanned, specs_in
from .sharing import SharedSandbox

_LOOKS = 48
"""Elements of an output that are read at once when a run has ended."""


@dataclass(frozen=True)
class _EarlyLook:
    """Secret places of one output of one call of a request."""

    call: int
    output: int
    places: torch.Tensor


class SandboxedCalls:
    """Calls with arguments of one form by the implementation in a sandbox, which knows them by ``number``.

    ``memory``: of the slots. Raises EntrantError for all that the implementation does wrong.
    """

    def __init__(
        self,
        sandbox: SharedSandbox,
        number: int,
        arguments: Arguments,
        layout: SlotLayout,
        memory: torch.Tensor,
        *,
        prepares: bool,
    ) -> None:
        self.number = number
        self.arguments = arguments
        self.prepares = prepares
        """Whether weights are prepared for them: these then stay from call to call."""
        self.alone_us = math.inf
        """The shortest time of a request for one call, in µs."""
        self.sandbox = sandbox
        self._layout = layout
        self._slots = Slots(layout, memory)
        by_name = {each.name: each for each in sandbox.op.parsed.parameters}
        self._parameters = [by_name[name] for name, _ in specs_in(arguments)]
        self._spans = [spanned(spec) for spec in layout.tensors]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The specs of the outputs."""
        return self._layout.tensors[len(self._parameters) :]

    def run(self, outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
        """Run one call in the sandbox, in a slot that is chosen at random."""
        us = self.timed(secrets.randbelow(self._layout.count), [arguments], [outputs])
        self.alone_us = min(self.alone_us, us)

    def timed(self, first: int, arguments: Sequence[tuple[Any, ...]], outputs: Sequence[Tensors]) -> float:
        """The µs of a request for calls in as many slots from ``first`` on as there are arguments and outputs."""
        given, count, box = list(map(tensors_in, arguments)), len(arguments), self.sandbox
        if self.prepares:
            self._renew_weights(first, given)
        spoilt = [self._fill(first + call, tensors) for call, tensors in enumerate(given)]
        looks = self._early_looks(count)
        box.choose(self.number)
        box.settle()
        if box.watch is not None and count > 1:
            box.watch.check_idle(box.program)
        us = box.program.run(first, count)
        seen = [self._output(first + look.call, look.output)[look.places] for look in looks]
        box.settle()
        box.program.stop()
        if box.watch is not None:
            box.watch.check_memory(box.program, box.nbytes)
        self._read_back(first, given)
        self._check_beside(first, spoilt)
        for call, results in enumerate(outputs):
            for place, tensor in enumerate(results):
                self._row(tensor, len(self._parameters) + place).copy_(self._output(first + call, place))
        for look, held in zip(looks, seen, strict=True):
            self._row(outputs[look.call][look.output], len(self._parameters) + look.output)[look.places] = held
        return us

    def _fill(self, slot: int, tensors: Sequence[torch.Tensor]) -> int:
        """Write the arguments of a call, and the same byte wherever it may write its results or nothing at all."""
        count = len(self._parameters)
        byte = self._slots.spoil(slot, 0 if self._layout.beside else count)
        for place, tensor in enumerate(tensors):
            self._slots.flat(slot, place).copy_(self._row(tensor, place))
        return byte

    def _check_beside(self, first: int, spoilt: Sequence[int]) -> None:
        if self._layout.beside and not all(
            self._slots.is_kept_beside(first + call, byte) for call, byte in enumerate(spoilt)
        ):
            self.sandbox.program.refuse("wrong_result", "it writes outside its arguments and outputs")

    def _output(self, slot: int, place: int) -> torch.Tensor:
        return self._slots.flat(slot, len(self._parameters) + place)

    def _row(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        """A private tensor's memory as one row, holes included."""
        return tensor.as_strided((self._spans[place],), (1,), tensor.storage_offset())

    def _renew_weights(self, first: int, given: Sequence[Sequence[torch.Tensor]]) -> None:
        """Write weights that have changed, and let the entrant prepare them: before it may see any other input."""
        changed = False
        for call, tensors in enumerate(given):
            for place, tensor in enumerate(tensors):
                there, here = self._slots.flat(first + call, place), self._row(tensor, place)
                is_weight = self._parameters[place].name in self.sandbox.op.weights
                if is_weight and not torch.equal(as_bits(there), as_bits(here)):
                    there.copy_(here)
                    changed = True
        self.sandbox.settle()
        if changed:
            self.sandbox.ask({"do": "weights"}, self.number, self.sandbox.limits.run_s)

    def _early_looks(self, count: int) -> list[_EarlyLook]:
        """Places in the last call's outputs, whose work ends last, and in those of a call that is chosen at random."""
        looks = []
        for call in {count - 1, secrets.randbelow(count)}:
            for output, span in enumerate(self._spans[len(self._parameters) :]):
                if span:
                    drawn = [0, span - 1, *(secrets.randbelow(span) for _ in range(_LOOKS))]
                    looks.append(_EarlyLook(call, output, torch.tensor(drawn, device=self.sandbox.device.torch)))
        return looks

    def _read_back(self, first: int, given: Sequence[Sequence[torch.Tensor]]) -> None:
        """Fetch arguments that the op mutates; of others see in two calls that they are unchanged."""
        looked_at = {len(given) - 1, secrets.randbelow(len(given))}
        for call, tensors in enumerate(given):
            for place, tensor in enumerate(tensors):
                there, here = self._slots.flat(first + call, place), self._row(tensor, place)
                if self._parameters[place].mutated:
                    here.copy_(there)
                elif call in looked_at and not torch.equal(as_bits(there), as_bits(here)):
                    self.sandbox.program.refuse("wrong_result", f"it changes its input {self._parameters[place].name}")

    def of_two_threads(self, inputs: Sequence[tuple[Any, ...]], each: int) -> tuple[tuple[Tensors, ...], ...]:
        """For each of two inputs the results (``Op.results``) of its calls, made by two threads at once.

        As ``results_of_two_threads``, but that the process in the sandbox has the threads. No results where the calls
        would take more than a half of what a sandbox may have.
        """
        box = self.sandbox
        results = box.op.result_specs(self.arguments, box.device.torch)
        given = SlotLayout(self._layout.tensors[: len(self._parameters)], len(inputs))
        made = SlotLayout(tuple(results), 2 * each)
        limit = box.limits.gpu_bytes if box.device.type == "cuda" else box.limits.memory_bytes
        if given.nbytes + 2 * made.nbytes > limit // 2:
            return ((), ())
        number, memory = box.spare_memory(given.nbytes + made.nbytes)
        there, places = Slots(given, memory), Slots(made, memory[given.nbytes :])
        rows = [
            (there.flat(slot, place), self._row(tensor, place), self._parameters[place])
            for slot, values in enumerate(inputs)
            for place, tensor in enumerate(tensors_in(values))
        ]
        for shared, own, _ in rows:
            shared.copy_(own)
        for slot in range(2 * each):
            places.spoil(slot, 0)
        box.settle()
        message = {
            "do": "threads", "given": given.as_data(), "made": made.as_data(), "memory": number, "each": each,
            "values": described(self.arguments.unrecorded.values()),
        }  # fmt: skip
        box.ask(message, self.number, box.limits.run_s)
        box.settle()
        for shared, own, parameter in rows:
            if not torch.equal(as_bits(shared), as_bits(own)):
                box.program.refuse("wrong_result", f"it changes its input {parameter.name}")
        found = [tuple(one.clone() for one in tensors) for tensors in places.tensors]
        # one call of the second thread is on the first input, too
        return tuple(found[: each + 1]), tuple(found[each + 1 :])
