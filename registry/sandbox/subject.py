"""A sandboxed implementation as the trusted side calls it: arguments are copied in, a run is requested, results out.

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
from ..contract import Op
from ..correctness.bits import as_bits
from ..device import Device
from ..implementation import Tensors
from ..problem import Problem, TensorSpec
from .entrant import SandboxedEntrant
from .gpu_watch import GpuWatch
from .limits import SandboxLimits
from .program import SandboxedProgram
from .shared_memory import SharedMemory, made
from .slots import SlotLayout, Slots, described, spanned

_LOOKS = 48
"""Elements of an output that are read at once when a run has ended."""
_EMPTY_REQUESTS = 8
_CHILD = "registry.sandbox.child"


@dataclass(frozen=True)
class _EarlyLook:
    """Secret places of one output of one call of a request."""

    call: int
    output: int
    places: torch.Tensor


class SandboxedSubject:
    """The implementation of an entrant, in a sandbox of its own. ``values``: example arguments, for their specs.

    Raises SandboxError where there is no sandbox here, and EntrantError for all that the entrant does wrong.
    """

    def __init__(
        self, entrant: SandboxedEntrant, op: Op, problem: Problem, device: Device, limits: SandboxLimits
    ) -> None:
        self._op = op
        self._device = device
        self._limits = limits
        self._memory: SharedMemory | None = None
        self._watch = GpuWatch(device.torch, limits.gpu_bytes) if device.type == "cuda" else None
        self.program = SandboxedProgram(
            _CHILD, entrant.view(device, limits), entrant.environment(device), limits, is_gpu=device.type == "cuda"
        )
        inside = "cuda:0" if device.type == "cuda" else "cpu"
        self._load = {
            "do": "load", "plugin": entrant.plugin_inside, "op": entrant.op, "name": entrant.name,
            "dims": dict(problem.dims), "config": entrant.config, "device": inside,
        }  # fmt: skip
        self.prepares = False
        """Whether it prepares weights: these then stay from call to call."""
        self.deterministic = False
        self.alone_us = math.inf
        """The shortest time of a request for one call, in µs."""

    def load(self, values: tuple[Any, ...], outputs: Sequence[TensorSpec], count: int) -> None:
        """Import the entrant, and share ``count`` slots with it, for arguments like ``values``."""
        self.program.ask(self._load, self._limits.load_s)
        self._parameters = [
            parameter
            for parameter, value in zip(self._op.parsed.parameters, values, strict=True)
            for _ in tensors_in((value,))
        ]
        layout = SlotLayout((*map(TensorSpec.of, tensors_in(values)), *outputs), count)
        self._spans = [spanned(spec) for spec in layout.tensors]
        self._memory = made(layout.nbytes, self._device.torch)
        self._slots = Slots(layout, self._memory.bytes)
        message = {
            "do": "slots", "layout": layout.as_data(), "values": described(values), "arguments": len(self._parameters)
        }  # fmt: skip
        told = self.program.ask(message, self._limits.load_s, self._memory.descriptor)
        self.prepares, self.deterministic = told.get("prepares") is True, told.get("deterministic") is True

    def run(self, outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
        """One call, in a slot that is chosen at random."""
        us = self.timed(secrets.randbelow(self._slots.layout.count), [arguments], [outputs])
        self.alone_us = min(self.alone_us, us)

    def timed(self, first: int, arguments: Sequence[tuple[Any, ...]], outputs: Sequence[Tensors]) -> float:
        """The µs of a request for calls in as many slots from ``first`` on as there are arguments and outputs."""
        given, count = list(map(tensors_in, arguments)), len(arguments)
        if self.prepares:
            self._renew_weights(first, given)
        for call, tensors in enumerate(given):
            for place, tensor in enumerate(tensors):
                self._slots.flat(first + call, place).copy_(self._row(tensor, place))
            self._slots.spoil(first + call, len(self._parameters))
        looks = self._early_looks(count)
        self._settle()
        if self._watch is not None and count > 1:
            self._watch.check_idle(self.program)
        us = self.program.run(first, count)
        seen = [self._output(first + look.call, look.output)[look.places] for look in looks]
        self._settle()
        self.program.stop()
        if self._watch is not None:
            self._watch.check_memory(self.program, self._slots.layout.nbytes)
        self._read_back(first, given)
        for call, results in enumerate(outputs):
            for place, tensor in enumerate(results):
                self._row(tensor, len(self._parameters) + place).copy_(self._output(first + call, place))
        for look, held in zip(looks, seen, strict=True):
            self._row(outputs[look.call][look.output], len(self._parameters) + look.output)[look.places] = held
        return us

    def request_us(self) -> float:
        """The shortest of a few requests to do nothing, in µs: so long do asking and answering take."""
        taken = []
        for _ in range(_EMPTY_REQUESTS):
            taken.append(self.program.run(0, 0))
            self.program.stop()
        return min(taken)

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
                if self._parameters[place].name in self._op.weights and not torch.equal(as_bits(there), as_bits(here)):
                    there.copy_(here)
                    changed = True
        self._settle()
        if changed:
            self.program.ask({"do": "weights"}, self._limits.run_s)

    def _early_looks(self, count: int) -> list[_EarlyLook]:
        """Places in the last call's outputs, whose work ends last, and in those of a call that is chosen at random."""
        looks = []
        for call in {count - 1, secrets.randbelow(count)}:
            for output, span in enumerate(self._spans[len(self._parameters) :]):
                if span:
                    drawn = [0, span - 1, *(secrets.randbelow(span) for _ in range(_LOOKS))]
                    looks.append(_EarlyLook(call, output, torch.tensor(drawn, device=self._device.torch)))
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
                    self.program.refuse("wrong_result", f"it changes its input {self._parameters[place].name}")

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device.torch)

    def close(self) -> None:
        """End the sandbox."""
        self.program.close()
        if self._memory is not None:
            self._memory.close()
