"""The program behind bubblewrap: binds one implementation, and runs it on the slots that it is asked for.

``python -m registry.sandbox.child DESCRIPTOR LIMITS``. Nothing here is trusted once the implementation is imported.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..contract import as_tuple
from ..correctness.output_faults import output_faults
from ..device import Device
from ..discovery.catalog import Catalog
from ..dispatch.plans.other_size import bound_by_call
from ..dispatch.plans.plan import Candidate, Plan
from ..errors import UnsupportedError
from ..tuner.verify.verdicts import WrongError
from ..tuner.workers.statuses import status_of
from . import wire
from .limits import limit_this_process
from .shared_memory import SharedMemory, opened
from .slots import SlotLayout, Slots, filled

_LONGEST_MESSAGE = 2000


class Subject:
    """The implementation in this process, its plan, and the slots that it runs on."""

    def __init__(self) -> None:
        self._told: Mapping[str, Any] = {}
        self._plan: Plan | None = None
        self._memory: SharedMemory | None = None
        self._values: list[tuple[Any, ...]] = []
        self._outputs: list[tuple[torch.Tensor, ...]] = []
        self._extended: list[tuple[Any, ...]] = []
        self._copies = False
        """Whether the implementation returns its outputs, which are then copied into the slots."""
        self._device = Device.of("cpu")

    def answered(self, message: Mapping[str, Any], descriptor: int) -> dict[str, str | bool]:
        """Do what a message says."""
        if message["do"] == "load":
            self._told = message
            self._device = Device.of(message["device"])
            self._imported()
            return {"ok": True}
        if message["do"] == "slots":
            return self._placed(message, descriptor)
        self.prepare()
        return {"ok": True}

    def _imported(self) -> None:
        told = self._told
        catalog = Catalog()
        if told["plugin"]:
            catalog.load_file(told["plugin"])
        self._op = catalog.op(told["op"])
        self._implementation = catalog.implementation(told["op"], told["name"])
        self._problem = self._op.problem_of(told["dims"])

    def _placed(self, message: Mapping[str, Any], descriptor: int) -> dict[str, str | bool]:
        layout = SlotLayout.of_data(message["layout"])
        self._memory = opened(descriptor, layout.nbytes, self._device.torch)
        slots, count = Slots(layout, self._memory.bytes), message["arguments"]
        self._values = [filled(message["values"], tensors[:count]) for tensors in slots.tensors]
        self._outputs = [tuple(tensors[count:]) for tensors in slots.tensors]
        if self._plan is None:
            self._plan = self._bound(self._values[0])
        self.prepare()
        implementation = self._plan.candidate.implementation
        return {"ok": True, "prepares": bool(self._plan.prepared), "deterministic": implementation.deterministic}

    def _bound(self, values: tuple[Any, ...]) -> Plan:
        op, implementation, device = self._op, self._implementation, self._device
        problem = op.pose(op.arguments(values), self._problem)
        if reasons := [*implementation.unsupported(problem, device)]:
            raise UnsupportedError("; ".join(reasons))
        config = self._told["config"]
        candidate = Candidate(implementation, implementation.default(problem, device) if config is None else config)
        self._copies = implementation.returns_outputs
        return bound_by_call(op, candidate, self._problem, op.arguments(values), device)

    def prepare(self) -> None:
        """Make prepared tensors anew: their sources were written to from outside."""
        assert self._plan is not None
        prepared = self._plan.prepared
        if prepared:
            weights = self._op.weights
            for values in self._values:
                for name, value in zip(self._op.parsed.names, values, strict=True):
                    if name in weights and isinstance(value, torch.Tensor):
                        torch.autograd.graph.increment_version(value)
        self._extended = [prepared.extend(values) for values in self._values]

    def run(self, first: int, count: int) -> None:
        """Run on ``count`` slots from ``first`` on, from the last to the first again, and wait until all is done."""
        assert self._plan is not None
        run, scratch = self._plan.run, tuple(spec.empty() for spec in self._plan.signature.scratch.values())
        total = len(self._values)
        for number in range(first, first + count):
            slot = number % total
            if not self._copies:
                run(self._outputs[slot], self._extended[slot], scratch)
                continue
            returned = as_tuple(run((), self._extended[slot], scratch))
            if count == 1 and (faults := output_faults(returned, self._plan.signature.outputs, self._values[slot])):
                raise WrongError("wrong_result", "; ".join(faults))
            for output, one in zip(self._outputs[slot], returned, strict=True):
                output.copy_(one)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device.torch)


def _guarded(end: socket.socket, do: Callable[[], Mapping[str, str | bool] | bytes]) -> None:
    """Send what ``do`` returns, or the fault that it raised."""
    try:
        found = do()
    except BaseException as fault:  # whatever a stranger's code raises is its outcome
        status, message = status_of(fault)
        found = {"ok": False, "status": status, "message": message[:_LONGEST_MESSAGE]}
    if isinstance(found, bytes):
        end.send(found)
    else:
        wire.send(end, found)


def main(arguments: Sequence[str]) -> None:
    """Answer packets until the other side goes."""
    limits = json.loads(arguments[1])
    limit_this_process(limits, is_gpu=bool(limits["is_gpu"]))
    end = socket.socket(fileno=int(arguments[0]))
    subject = Subject()
    with torch.no_grad():
        while True:
            message, done, first, count, descriptor = wire.received_by_sandbox(end)
            if message is None:
                _guarded(end, lambda: _run(subject, first, count, done))  # noqa: B023 (called before the next packet)
            else:
                _guarded(end, lambda: subject.answered(message, descriptor))  # noqa: B023


def _run(subject: Subject, first: int, count: int, done: bytes) -> bytes:
    subject.run(first, count)
    return done


if __name__ == "__main__":
    main(sys.argv[1:])
