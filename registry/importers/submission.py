"""A foreign kernel as an implementation: its code is imported where it first runs, in a worker process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import torch

from ..artifact import Built
from ..device import Device
from ..implementation import Implementation, Run, Tensors
from ..problem import Problem
from ..space import Config

Caller = Callable[..., Any]
"""A function of the schema's values in order; returns the outputs, or writes into them, which then come first."""

Maker = Callable[[Problem, torch.device], Caller]
"""``make(problem, device)``: imports the foreign code and returns its caller. Called once for each thread."""


class Submission(Implementation):
    """An implementation by foreign Python code.

    ``make`` returns its caller, ``texts`` are what its fingerprint covers. It gets contiguous tensors only, and
    what it returns is made contiguous, in its own time. It is never
    captured in a CUDA graph, and may differ from run to run in its rounding: its author promised neither.
    """

    deterministic = False
    capturable = False

    def __init__(
        self, op: str, name: str, make: Maker, texts: Sequence[str], *, into: bool = False, preference: float = -2.0
    ) -> None:
        vars(self).update(op=op, name=name, returns_outputs=not into, device_types=frozenset({"cpu", "cuda"}))
        self._make = make
        self._texts = tuple(texts)
        self._preference = preference

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if not problem.traits["contiguous"]:
            yield "submissions get contiguous tensors only"

    def preference(self, problem: Problem, device: Device) -> float:
        return self._preference

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """A run with a caller of its own for each thread: a module holds the weights of its latest call."""
        there, local = device.torch, threading.local()
        local.caller = self._make(problem, there)
        make, into = self._make, not self.returns_outputs

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Any:
            try:
                caller = local.caller
            except AttributeError:
                caller = local.caller = make(problem, there)
            if into:
                caller(*outputs, *arguments)
                return None
            returned = caller(*arguments)
            if isinstance(returned, torch.Tensor):
                return returned.contiguous()
            if not isinstance(returned, list | tuple):
                return returned
            return tuple(one.contiguous() if isinstance(one, torch.Tensor) else one for one in returned)

        return run

    def sources(self) -> Iterable[ModuleType | str]:
        return self._texts

    def __repr__(self) -> str:
        return f"<submission {self.name} of {self.op}>"
