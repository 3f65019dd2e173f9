"""KernelBench's form: a file with ``Model``, ``get_inputs`` and ``get_init_inputs``, and one with ``ModelNew``.

The parameters and buffers of ``Model`` are arguments of the op, behind its inputs. ``ModelNew`` is built from the same
``get_init_inputs`` and gets them by name, or, where it names them otherwise, by their order.
"""

from __future__ import annotations

import inspect
import keyword
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from ..errors import InvalidDefinitionError, UnsupportedError
from ..implementation import Implementation
from ..problem import Problem, Value, dtype_name
from .drawing import drawing, put_together, seed_from, taken_apart
from .foreign_file import ForeignFile, plain_name
from .problem_file import ProblemCase, ProblemFile
from .submission import Submission

VENDOR = "kernelbench"
_FIRST_SEED = 42


def is_problem(file: ForeignFile) -> bool:
    """Whether a file defines ``Model`` and its inputs."""
    return file.defines("Model", "get_inputs")


def is_submission(file: ForeignFile) -> bool:
    """Whether a file defines ``ModelNew``."""
    return file.defines("ModelNew")


class KernelBenchProblem(ProblemFile):
    """A ``Model`` with its inputs: one case, of the shapes that ``get_inputs`` makes."""

    def init_inputs(self) -> Any:
        """(args, keyword args) of ``Model`` and ``ModelNew``."""
        make = getattr(self.file.module(), "get_init_inputs", None)
        given = make() if make is not None else []
        return ((), dict(given)) if isinstance(given, dict) else (tuple(given), {})

    def model(self, device: torch.device, seed: int, name: str = "Model") -> torch.nn.Module:
        """``Model`` on a device, its weights drawn there from the seed."""
        with drawing(device, seed):
            args, keywords = self.init_inputs()
            return built(self.file.member(name), args, keywords, device)

    @cached_property
    def _first(self) -> tuple[Any, list[torch.Tensor], dict[str, torch.Tensor]]:
        """Template and tensors of the inputs, and the state; on meta where the file's functions can work there."""
        try:
            return self._drawn(torch.device("meta"), _FIRST_SEED)
        except Exception:  # a file may look at the data that it draws
            return self._drawn(torch.device("cpu"), _FIRST_SEED)

    def _drawn(self, device: torch.device, seed: int) -> tuple[Any, list[torch.Tensor], dict[str, torch.Tensor]]:
        state = state_of(self.model(device, seed))
        with drawing(device, seed + 1):
            given = self.file.member("get_inputs")()
        tensors: list[torch.Tensor] = []
        template = taken_apart(list(given), tensors)
        return template, [one.to(device).contiguous() for one in tensors], state

    @cached_property
    def names(self) -> Sequence[str]:
        template, tensors, state = self._first
        forward = list(inspect.signature(self.file.member("Model").forward).parameters)[1:]
        named = [forward[place] if place < len(forward) else f"x{place}" for place in range(len(template))]
        names: list[str] = []
        for name, part in zip(named, template, strict=True):
            inside: list[torch.Tensor] = []
            taken_apart(put_together(part, tensors), inside)
            names += (
                [plain_name(name)] if len(inside) == 1 else [f"{plain_name(name)}{at}" for at in range(len(inside))]
            )
        return _distinct([*names, *(plain_name(name) for name in state)])

    @property
    def weights(self) -> Sequence[str]:
        return self.names[len(self._first[1]) :]

    @cached_property
    def cases(self) -> Sequence[ProblemCase]:
        template, tensors, state = self._first
        if not tensors:
            raise InvalidDefinitionError(f"{self.file.path}: get_inputs() returns no tensor")
        every = [*tensors, *state.values()]
        dims: dict[str, Value] = {
            f"{name}_{axis}": size
            for name, one in zip(self.names, tensors, strict=False)
            for axis, size in enumerate(one.shape)
        }
        floating = [one.dtype for one in every if one.is_floating_point()]
        dims["dtype"] = dtype_name(floating[0] if floating else every[0].dtype)
        return [
            ProblemCase(dims, tuple(tuple(one.shape) for one in every), tuple(one.dtype for one in every), template)
        ]

    def draw(self, case: ProblemCase, generator: torch.Generator) -> list[torch.Tensor]:
        _, tensors, state = self._drawn(generator.device, seed_from(generator))
        return [*tensors, *(one.detach().contiguous() for one in state.values())]

    def drawn_weights(self) -> list[torch.Tensor]:
        return [one.contiguous() for one in state_of(self.model(torch.device("cpu"), _FIRST_SEED)).values()]

    def run(self, case: ProblemCase, tensors: Sequence[torch.Tensor]) -> Any:
        # a caller of its own for each thread: it holds the weights of its latest call
        callers: dict[torch.device, ModuleCaller] = vars(self._local).setdefault("callers", {})
        device = tensors[0].device
        if device not in callers:
            callers[device] = ModuleCaller(self.model(device, _FIRST_SEED), case, self._inputs)
        return callers[device](*tensors)

    @cached_property
    def _local(self) -> threading.local:
        return threading.local()

    @property
    def _inputs(self) -> int:
        return len(self.names) - len(self.weights)

    def reference_caller(self, problem: Problem, device: torch.device) -> Callable[..., Any]:
        return ModuleCaller(self.model(device, _FIRST_SEED), self.case_of(problem.dims), self._inputs)

    def submission(self, op: str, name: str, file: ForeignFile) -> Implementation:
        """The implementation by the ``ModelNew`` of a file."""

        def make(problem: Problem, device: torch.device) -> Callable[..., Any]:
            case = self.case_of(problem.dims)
            with drawing(device, _FIRST_SEED):
                args, keywords = self.init_inputs()
            made = torch.device(device)
            with torch.random.fork_rng(devices=[made] if made.type == "cuda" else []):
                module = built(file.member("ModelNew"), args, keywords, made)
            return ModuleCaller(module, case, self._inputs, list(self._first[2]))

        return Submission(op, name, make, (file.source, self.file.source))


def built(kind: Any, args: tuple[Any, ...], keywords: dict[str, Any], device: torch.device) -> torch.nn.Module:
    """A module on a device. Raises UnsupportedError if the class makes something else."""
    made = kind(*args, **keywords)
    if not isinstance(made, torch.nn.Module):
        raise UnsupportedError(f"{kind.__name__} makes a {type(made).__name__}, expected a torch.nn.Module")
    return made.to(device)


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, then buffers, by name."""
    every = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach() for name, tensor in every}


class ModuleCaller:
    """Calls a module with the tensors of a call: inputs first, then its state, which is put in by reference.

    ``names``: of the state as ``Model`` has it; a module with other names gets it by order, if the shapes agree.
    Raises UnsupportedError if the module's state is another one.
    """

    def __init__(
        self, module: torch.nn.Module, case: ProblemCase, inputs: int, names: Sequence[str] | None = None
    ) -> None:
        self._module = module
        self._template = case.template
        self._inputs = inputs
        own = state_of(module)
        order = list(own) if names is None else _order(own, names, case.shapes[inputs:])
        buffers = {name for name, _ in module.named_buffers()}
        self._places = [(*_holder(module, name), name in buffers) for name in order]
        self._recurrent = [one for one in module.modules() if isinstance(one, torch.nn.RNNBase)]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        for (holder, name, buffer), tensor in zip(self._places, tensors[self._inputs :], strict=True):
            # a buffer is written to while training
            holder[name] = tensor.clone() if buffer else tensor
        for module in self._recurrent:  # these hold their weights a second time
            module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
        with torch.no_grad():
            return self._module(*put_together(self._template, tensors[: self._inputs]))


def _holder(module: torch.nn.Module, name: str) -> tuple[dict[str, Any], str]:
    path, _, own = name.rpartition(".")
    owner: Any = module.get_submodule(path)
    return (owner._parameters if own in owner._parameters else owner._buffers), own


def _order(own: dict[str, torch.Tensor], names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> list[str]:
    if set(own) == set(names):
        return list(names)
    found = [tuple(one.shape) for one in own.values()]
    if found != list(shapes):
        told = ", ".join(f"{name} {list(one.shape)}" for name, one in own.items()) or "none"
        expected = ", ".join(f"{name} {list(shape)}" for name, shape in zip(names, shapes, strict=True)) or "none"
        raise UnsupportedError(
            f"ModelNew's parameters and buffers are {told}, expected {expected}",
            hint="give them the names of Model's, or the same shapes in the same order",
        )
    return list(own)


def _distinct(names: Sequence[str]) -> list[str]:
    """The names as arguments of a schema: no word of Python, none twice."""
    made: list[str] = []
    for name in names:
        base = f"{name}_" if keyword.iskeyword(name) or name == "self" else name
        number, unique = 1, base
        while unique in made:
            number += 1
            unique = f"{base}_{number}"
        made.append(unique)
    return made
