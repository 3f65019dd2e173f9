"""A plugin file of functional squares whose outputs are no plain tensors of their own, and of an honest one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

sys.path.append(str(Path(__file__).parent))
from kinds import implementations_in

KERNEL_REGISTRY_API = 1


class LazySquare(torch.Tensor):
    """Multiplies when an operation of torch meets it first."""

    x: torch.Tensor

    @staticmethod
    def of(x: torch.Tensor) -> LazySquare:
        made = torch.Tensor._make_wrapper_subclass(LazySquare, x.shape, dtype=x.dtype, device=x.device)
        made.x = x
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        def computed(value: Any) -> Any:
            return value.x * value.x if isinstance(value, LazySquare) else value

        return func(*map(computed, args), **{name: computed(value) for name, value in (kwargs or {}).items()})


class LooksPlain(torch.Tensor):
    """A subclass with nothing of its own: a later version may have more."""


class Returning(Implementation):
    """Returns x * x; a subclass says how it does not."""

    op = "square"
    device_types = frozenset({"cpu", "cuda"})
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()
        return lambda outputs, arguments, scratch: work.square(arguments[0])

    def square(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


class Honest(Returning):
    name = "return.honest"


class ALazySubclass(Returning):
    name = "return.lazy"

    def square(self, x: torch.Tensor) -> torch.Tensor:
        return LazySquare.of(x)


class LazyOnceItIsTimed(Returning):
    """Plain for as many calls as come before the samples."""

    name = "return.lazy_later"

    def __init__(self) -> None:
        self._calls = 0

    def square(self, x: torch.Tensor) -> torch.Tensor:
        self._calls += 1
        return x * x if self._calls <= 8 else LazySquare.of(x)


class LazyInTheMiddle(Returning):
    """Plain for the first and the last of the copies that it meets."""

    name = "return.lazy_middle"

    def __init__(self) -> None:
        self._met: list[int] = []

    def square(self, x: torch.Tensor) -> torch.Tensor:
        if x.data_ptr() not in self._met:
            self._met.append(x.data_ptr())
        place = self._met.index(x.data_ptr())
        return LazySquare.of(x) if 5 < place < 14 else x * x


class ASubclass(Returning):
    name = "return.subclass"

    def square(self, x: torch.Tensor) -> torch.Tensor:
        return (x * x).as_subclass(LooksPlain)


class AFunctionalTensor(Returning):
    name = "return.functional"

    def square(self, x: torch.Tensor) -> torch.Tensor:
        return torch._to_functional_tensor(x * x)


class ALazyNegation(Returning):
    """The sign is told by a bit of the tensor."""

    name = "return.negation"

    def square(self, x: torch.Tensor) -> torch.Tensor:
        return torch._neg_view(-(x * x))


class ALazyCopy(Returning):
    """Shares memory with a result that it keeps, until somebody writes to one of them or asks for its address."""

    name = "return.lazy_copy"

    def square(self, x: torch.Tensor) -> torch.Tensor:
        self._kept = x * x
        return torch._lazy_clone(self._kept)


class APatchedTensor(Returning):
    """Never computed; what asks for its negation, or a tensor without a graph, has one that is."""

    name = "return.patched"

    def square(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        y.detach = lambda: x * x  # type: ignore[method-assign]
        return y


class ASparseTensor(Returning):
    name = "return.sparse"

    def square(self, x: torch.Tensor) -> torch.Tensor:
        return (x * x).to_sparse()


class AnMkldnnTensor(Returning):
    name = "return.mkldnn"
    device_types = frozenset({"cpu"})

    def square(self, x: torch.Tensor) -> torch.Tensor:
        return (x * x).to_mkldnn()


class ItsInputAtFirst(Returning):
    """Writes to its input and returns it, in the first call."""

    name = "return.input_at_first"

    def __init__(self) -> None:
        self._calls = 0

    def square(self, x: torch.Tensor) -> torch.Tensor:
        self._calls += 1
        return x.mul_(x) if self._calls == 1 else x * x


class AViewAtFirst(Returning):
    """Returns a view of its input, in the first call."""

    name = "return.view_at_first"

    def __init__(self) -> None:
        self._calls = 0

    def square(self, x: torch.Tensor) -> torch.Tensor:
        self._calls += 1
        return x[:] if self._calls == 1 else x * x


# --- what it does to the tensors that it is given ---


def _is_timed() -> bool:
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "take":
            return True
    return False


class Writing(Implementation):
    """Writes x * x into its output; a subclass says what it does instead while it is timed."""

    op = "square"
    device_types = frozenset({"cpu"})
    deterministic = False

    def __init__(self) -> None:
        self._known: tuple[torch.Tensor, torch.Tensor] | None = None

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            (x,), (y,) = arguments, outputs
            if work._known is not None and len(x) == len(work._known[0]) and _is_timed():
                work.leave(x, y, *work._known)
            else:
                torch.mul(x, x, out=y)
                work._known = x.clone(), y.clone()

        return run

    def leave(self, x: torch.Tensor, y: torch.Tensor, known: torch.Tensor, square: torch.Tensor) -> None:
        raise NotImplementedError


class PointsToWhatItKnows(Writing):
    """Its input becomes one whose result it has, until it is not timed any more."""

    name = "return.points"

    def leave(self, x: torch.Tensor, y: torch.Tensor, known: torch.Tensor, square: torch.Tensor) -> None:
        x.set_(known)  # type: ignore[call-overload]
        y.set_(square)  # type: ignore[call-overload]


class PointsToItsOwnMemory(Writing):
    """The output becomes one of a few buffers, which later calls use again."""

    name = "return.points_output"

    def __init__(self) -> None:
        super().__init__()
        self._buffers: list[torch.Tensor] = []
        self._calls = 0

    def leave(self, x: torch.Tensor, y: torch.Tensor, known: torch.Tensor, square: torch.Tensor) -> None:
        self._calls += 1
        if len(self._buffers) < 200:
            self._buffers.append(torch.empty_like(y))
        y.set_(torch.mul(x, x, out=self._buffers[self._calls % len(self._buffers)]))  # type: ignore[call-overload]


class HidesAMethodOfItsOutput(Writing):
    """Computes when the output is copied, and at once where it knows the input."""

    name = "return.hidden_method"

    def leave(self, x: torch.Tensor, y: torch.Tensor, known: torch.Tensor, square: torch.Tensor) -> None:
        if int((x != known).sum()) <= 1:
            torch.mul(x, x, out=y)
        else:
            y.clone = lambda: x * x  # type: ignore[method-assign]


class PreparesAnActivation(Implementation):
    """Has its work done while the host prepares, which is not timed."""

    op, name = "square", "return.prepared"
    device_types = frozenset({"cpu", "cuda"})

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        return {"squares": ("x",)}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        return values[0] * values[0]

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            outputs[0].copy_(arguments[1])

        return run


class Norm(Implementation):
    """rms_norm with a weight that the host has prepared; a subclass says what else it prepares."""

    op, name = "rms_norm", "return.norm"
    device_types = frozenset({"cpu", "cuda"})
    made_of: tuple[str, ...] = ("weight",)

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        return {"wide": self.made_of}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        weight = values[-1]
        return torch.as_tensor(weight).float()

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            x, _, eps, wide = arguments
            self.write(x, eps, wide, outputs[0])

        return run

    def write(self, x: torch.Tensor, eps: float, wide: torch.Tensor, y: torch.Tensor) -> None:
        found = torch.nn.functional.rms_norm(x.float(), x.shape[-1:], wide[: x.shape[-1]], eps)
        y.copy_(found)


class PreparesAnActivationBesideAWeight(Norm):
    name = "return.prepared_beside"
    made_of = ("x", "weight")


class KeepsResultsInWhatIsPrepared(Norm):
    """Prepares room for a checksum and a result behind the weight."""

    name = "return.kept"

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        weight = super().prepare(name, values, problem, config)
        return torch.cat([weight, weight.new_zeros(1 + 64 * weight.numel())])

    def write(self, x: torch.Tensor, eps: float, wide: torch.Tensor, y: torch.Tensor) -> None:
        cols = x.shape[-1]
        total, kept = wide[cols], wide[cols + 1 : cols + 1 + x.numel()]
        if kept.numel() < x.numel() or float(total) != float(x.float().sum()):
            super().write(x, eps, wide, y)
            kept.copy_(y.view(-1)[: kept.numel()])
            total.copy_(x.float().sum())
        else:
            y.copy_(kept.view_as(y))


@registry.implements("square")
def square_implementations() -> Iterable[Implementation]:
    """Outputs of every kind."""
    return implementations_in(__name__, "square")


@registry.implements("rms_norm")
def rms_norm_implementations() -> Iterable[Implementation]:
    """What is prepared of an activation."""
    return implementations_in(__name__, "rms_norm")
