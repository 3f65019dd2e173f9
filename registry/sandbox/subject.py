"""A sandboxed implementation as the trusted side calls it, on its own problem and on others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..contract import Op
from ..device import Device
from ..errors import UnsupportedError
from ..implementation import Tensors
from ..problem import Arguments, Problem, TensorSpec
from ..untrusted.visible import visible
from .calls import SandboxedCalls
from .entrant import SandboxedEntrant
from .gpu_watch import GpuWatch
from .limits import SandboxLimits
from .memory.slots import BESIDE, SlotLayout, described, specs_in
from .program import SandboxedProgram
from .sharing import SharedSandbox

_EMPTY_REQUESTS = 8
_CHILD = "registry.sandbox.child"


class SandboxedSubject:
    """The implementation of an entrant, in a sandbox of its own, that runs ``problem``.

    Raises SandboxError where there is no sandbox here, and EntrantError for all that the entrant does wrong.
    """

    def __init__(
        self, entrant: SandboxedEntrant, op: Op, problem: Problem, device: Device, limits: SandboxLimits
    ) -> None:
        self._op = op
        self._problem = problem
        self._device = device
        self._limits = limits
        is_gpu = device.type == "cuda"
        watch = GpuWatch(device.torch, limits.gpu_bytes) if is_gpu else None
        self.program = SandboxedProgram(
            _CHILD, entrant.view(device, limits), entrant.environment(device), limits, is_gpu=is_gpu
        )
        self.sandbox = SharedSandbox(self.program, op, device, limits, watch)
        self._load = {
            "do": "load", "plugin": entrant.plugin_inside, "op": entrant.op, "name": entrant.name,
            "config": entrant.config, "device": "cuda:0" if is_gpu else "cpu",
        }  # fmt: skip
        self._count = 0
        """How many kinds of calls there are."""
        self.deterministic = False

    def load(self, values: tuple[Any, ...], outputs: Sequence[TensorSpec], count: int) -> None:
        """Import the entrant, and share ``count`` slots with it, for arguments like ``values``."""
        self.program.ask(self._load, self._limits.load_s)
        arguments = self._op.arguments(values)
        layout = SlotLayout((*_specs(arguments), *outputs), count)
        told, self.calls = self._placed(self._problem, arguments, layout, is_other=False)
        self.deterministic = told.get("deterministic") is True

    def calls_of(
        self, problem: Problem, arguments: Arguments, outputs: Sequence[TensorSpec], like: SandboxedCalls | None = None
    ) -> SandboxedCalls:
        """Calls of another problem or form, to be made until the next are asked for.

        ``like``: calls that were made, whose run dispatch may use for these. What is beside arguments and outputs is
        checked. Raises UnsupportedError where the implementation does not support them, or would have to compile.
        """
        layout = SlotLayout((*_specs(arguments), *outputs), 1, BESIDE)
        _, made = self._placed(problem, arguments, layout, is_other=True, like=like)
        return made

    def _placed(
        self,
        problem: Problem,
        arguments: Arguments,
        layout: SlotLayout,
        *,
        is_other: bool,
        like: SandboxedCalls | None = None,
    ) -> tuple[Mapping[str, str | bool], SandboxedCalls]:
        place = self.sandbox.spare_memory if is_other else self.sandbox.new_memory
        memory, held = place(layout.nbytes)
        message = {
            "do": "slots", "layout": layout.as_data(), "values": described(arguments.unrecorded.values()),
            "arguments": len(_specs(arguments)), "dims": dict(problem.dims), "memory": memory,
            "is_other": is_other, "like": -1 if like is None else like.number,
        }  # fmt: skip
        number, self._count = self._count, self._count + 1
        told = self.sandbox.ask(message, number, self._limits.load_s)
        if told.get("refused"):
            raise UnsupportedError(visible(str(told["refused"])))
        prepares = told.get("prepares") is True
        return told, SandboxedCalls(self.sandbox, number, arguments, layout, held, prepares=prepares)

    @property
    def prepares(self) -> bool:
        """True if the implementation prepares weights, which then stay from call to call."""
        return self.calls.prepares

    def run(self, outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
        """One call of the problem that the subject was built for."""
        self.calls.run(outputs, arguments, scratch)

    def timed(self, first: int, arguments: Sequence[tuple[Any, ...]], outputs: Sequence[Tensors]) -> float:
        """The µs of a request for calls of its own problem, see ``SandboxedCalls``."""
        return self.calls.timed(first, arguments, outputs)

    def request_us(self) -> float:
        """The shortest of a few requests to do nothing, in µs: so long do asking and answering take."""
        taken = []
        for _ in range(_EMPTY_REQUESTS):
            taken.append(self.program.run(0, 0))
            self.program.stop()
        return min(taken)

    def close(self) -> None:
        """End the sandbox."""
        self.sandbox.close()


def _specs(arguments: Arguments) -> list[TensorSpec]:
    return [spec for _, spec in specs_in(arguments)]
