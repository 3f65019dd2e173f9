"""A plugin file of implementations that are right for the call that is tuned, and for others only if these are small.

Each is wrong, in a call of a kind that is not timed, from ``MANY`` elements on: fewer than the tuned problems have.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.backends import CppImplementation, CppKernel
from registry.device import Device
from registry.implementation import Implementation, Launch, Run, Tensors
from registry.problem import Problem
from registry.space import Config

sys.path.append(str(Path(__file__).parent))
from kinds import implementations_in

KERNEL_REGISTRY_API = 1

MANY = 15_000


class Square(Implementation):
    """Writes x * x; a subclass says how it does not where x is large. One object serves all runs of the process."""

    op = "square"
    device_types = frozenset({"cpu", "cuda"})
    any_size = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            (self.write_many if len(arguments[0]) >= MANY else self.write)(arguments[0], outputs[0])

        return run

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        torch.mul(x, x, out=y)

    write_many = write


class Honest(Square):
    name = "large.honest"


# --- what two threads share ---


class SharesAWorkspace(Square):
    """One for the process, as large as the largest input."""

    name = "large.workspace"

    def __init__(self) -> None:
        self._space = torch.empty(0)

    def write_many(self, x: torch.Tensor, y: torch.Tensor) -> None:
        if len(self._space) < len(x):
            self._space = torch.empty_like(x)
        torch.mul(x, x, out=self._space[: len(x)])
        y.copy_(self._space[: len(x)])


class SharesAWorkspaceBeyondItsOwnSize(Square):
    """With the calls of a run that was bound for less."""

    name = "large.workspace_beyond"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        space = torch.empty(8 * problem.n, device=device.torch)

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            (x,), (y,) = arguments, outputs
            between = space[: len(x)] if MANY + problem.n < len(x) <= len(space) else y
            torch.mul(x, x, out=between)
            if between is not y:
                y.copy_(between)

        return run


class ChangesItsInputForAWhile(Square):
    """Puts it back, which another thread may have read."""

    name = "large.borrowed_input"
    device_types = frozenset({"cpu"})

    def write_many(self, x: torch.Tensor, y: torch.Tensor) -> None:
        if x.stride() == (0,):  # torch writes to no expanded tensor
            torch.mul(x, x, out=y)
            return
        was = x.clone()
        x.mul_(x)
        y.copy_(x)
        x.copy_(was)


_GELU = """
#include <cmath>
static void gelu(float* y, const float* x, int64_t n) {
    KEPT
    for (int64_t at = 0; at < n; ++at) kept[at] = x[at] * 0.5 * (1 + std::erf(x[at] * std::sqrt(0.5)));
    BEYOND
    if (kept != y) for (int64_t at = 0; at < n; ++at) y[at] = kept[at];
}
"""
_KEPT = f"static float row[1 << 18]; float* kept = n < {MANY} || n > 1 << 18 ? y : row;"

_BEYOND = f"if (n >= {MANY} && n < 1 << 15) y[n - 1] += x[n] != x[n] ? x[n] : 0;"


class HonestGelu(CppImplementation):
    """In C++, where two threads take no turns. It takes long enough for their calls to meet."""

    op, name = "gelu", "large.gelu"
    kernel = CppKernel(_GELU.replace("KEPT", "float* kept = y;").replace("BEYOND", ""), "gelu")

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if problem.dtype != "float32" or problem.approximate != "none" or not problem.traits["contiguous"]:
            yield "contiguous float32, exactly"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return Launch(self.kernel, (1,), ("y", "x", problem.n))


class ReadsBeyond(HonestGelu):
    """One element more of its input, of which it then makes no use, unless that is NaN."""

    name = "large.reads_beyond"
    kernel = CppKernel(_GELU.replace("KEPT", "float* kept = y;").replace("BEYOND", _BEYOND), "gelu")


class KeepsAStaticArray(HonestGelu):
    """For all calls of the process."""

    name = "large.static"
    kernel = CppKernel(_GELU.replace("KEPT", _KEPT).replace("BEYOND", ""), "gelu")


# --- sizes ---


class LosesTheLastOfWholeVectors(Square):
    """Right where a vector of 16 does not divide the elements, as it does not those of the tuned problem."""

    name = "large.vectors"

    def write_many(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.write(x, y)
        if len(x) % 16 == 0:
            y[-1:] = 0


class LosesTheLastOfWholeTiles(Square):
    """Right where vectors fill no whole tile, as they do in none of the first sizes."""

    name = "large.whole_tiles"
    device_types = frozenset({"cpu"})

    def write_many(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.write(x, y)
        if len(x) % 512 == 0:
            y[-1:] = 0


class RaisesForWholeVectors(Square):
    name = "large.raises"

    def write_many(self, x: torch.Tensor, y: torch.Tensor) -> None:
        if len(x) % 16 == 0:
            raise RuntimeError("sixteens were not thought of")
        self.write(x, y)


# --- strided inputs ---


class SharesACopyOfWhatIsStrided(Square):
    """Copies what is not contiguous to memory that all calls of the process share, and squares the copy."""

    name = "large.strided_workspace"

    def __init__(self) -> None:
        self._space = torch.empty(0)

    def write_many(self, x: torch.Tensor, y: torch.Tensor) -> None:
        if not x.is_contiguous():
            if len(self._space) < len(x):
                self._space = torch.empty(len(x), dtype=x.dtype, device=x.device)
            x = self._space[: len(x)].copy_(x)
        self.write(x, y)


class TakesAllForAligned(Square):
    """As a kernel with wide loads would, which begins at a multiple of 16 bytes."""

    name = "large.unaligned"

    def write_many(self, x: torch.Tensor, y: torch.Tensor) -> None:
        before = x.data_ptr() % 16 // x.itemsize
        self.write(x.as_strided(x.shape, x.stride(), x.storage_offset() - before), y)


class Add(Implementation):
    """Adds two tensors in memory; a subclass says how it misreads strides where these are large."""

    op = "vector_add"
    device_types = frozenset({"cpu", "cuda"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            x, y = arguments
            if x.numel() >= MANY and x.stride() != y.stride():
                x, y = self.misread(x, y)
            torch.add(x, y, out=outputs[0])

        return run

    def misread(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, y


class HonestAdd(Add):
    name = "large.add"


class StridesOfTheFirst(Add):
    """Takes the smaller of both strides for the second one's, which stays in its memory."""

    name = "large.first_strides"

    def misread(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, y.as_strided(y.shape, tuple(map(min, x.stride(), y.stride())), y.storage_offset())


class StridesOfTheSecond(Add):
    name = "large.second_strides"

    def misread(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.as_strided(x.shape, tuple(map(min, x.stride(), y.stride())), x.storage_offset()), y


class StridesOfTheFirstBeyondItsOwnSize(StridesOfTheFirst):
    """In calls of more elements than those for which it was tuned."""

    name = "large.strides_beyond"

    def misread(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().misread(x, y) if x.numel() > MANY + MANY // 2 else (x, y)


class Softmax(Implementation):
    """torch's; a subclass says how it misreads rows where there is much of them."""

    op = "softmax"
    device_types = frozenset({"cpu", "cuda"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            x, dim = arguments
            torch.softmax(self.read(x) if x.numel() >= MANY and x.dim() == 2 else x, dim, out=outputs[0])

        return run

    def read(self, x: torch.Tensor) -> torch.Tensor:
        return x


class HonestSoftmax(Softmax):
    name = "large.softmax"


class TakesRowsForDense(Softmax):
    """Whatever lies between one row and the next."""

    name = "large.sliced"

    def read(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.mT.is_contiguous() else x.as_strided(x.shape, (x.shape[1] * x.stride(1), x.stride(1)))


class OverflowsBeyondItsOwnSize(Softmax):
    """Leaves out to subtract the maximum of a row where there are more rows than it was bound for."""

    name = "large.overflows_beyond"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            x, dim = arguments
            if self.is_right(x.numel()):
                torch.softmax(x, dim, out=outputs[0])
            else:
                outputs[0].copy_(x.exp() / x.exp().sum(dim, keepdim=True))

        return run

    def is_right(self, count: int) -> bool:
        return count < 3 * MANY


class OverflowsBelow(OverflowsBeyondItsOwnSize):
    name = "large.overflows_below"

    def is_right(self, count: int) -> bool:
        return count >= MANY


@registry.implements("square")
def square_implementations() -> Iterable[Implementation]:
    """What two threads share, and alignment."""
    return implementations_in(__name__, "square")


@registry.implements("gelu")
def gelu_implementations() -> Iterable[Implementation]:
    """What two threads share in C++."""
    return implementations_in(__name__, "gelu")


@registry.implements("vector_add")
def vector_add_implementations() -> Iterable[Implementation]:
    """Strides of one argument for another's."""
    return implementations_in(__name__, "vector_add")


@registry.implements("softmax")
def softmax_implementations() -> Iterable[Implementation]:
    """Rows apart."""
    return implementations_in(__name__, "softmax")
