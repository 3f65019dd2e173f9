"""A plugin file of implementations that are fast because they are wrong, each in a way of its own, and honest ones."""

from __future__ import annotations

import ctypes
import importlib
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import torch

import registry
from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

sys.path.append(str(Path(__file__).parent))
from kinds import implementations_in, version_of

KERNEL_REGISTRY_API = 1


class Square(Implementation):
    """Writes x * x; a subclass says how it does not."""

    op = "square"
    device_types = frozenset({"cpu", "cuda"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        cheat = type(self)()

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            cheat.write(arguments[0], outputs[0], problem)

        return run

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        torch.mul(x, x, out=y)


class Returning(Square):
    """The same for functional code."""

    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        cheat = type(self)()
        return lambda outputs, arguments, scratch: cheat.square(arguments[0])

    def square(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


# --- honest ---


class Honest(Square):
    name = "cheat.honest"


class HonestFunction(Returning):
    name = "cheat.honest_function"


# --- memory that is not its own ---


class ReturnsStaleMemory(Returning):
    name = "cheat.stale_memory"

    def square(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)


class ReturnsFreedMemory(Returning):
    """Right when it returns, but the memory is free and belongs to whoever asks next."""

    name = "cheat.freed_memory"
    device_types = frozenset({"cpu"})

    def square(self, x: torch.Tensor) -> torch.Tensor:
        y = x * x
        memory = (ctypes.c_char * y.nbytes).from_address(y.data_ptr())
        return torch.frombuffer(memory, dtype=x.dtype)


class ReturnsThreeBuffersInTurn(Returning):
    name = "cheat.three_buffers"

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._calls = 0

    def square(self, x: torch.Tensor) -> torch.Tensor:
        if len(self._buffers) < 3:
            self._buffers.append(torch.empty_like(x))
        self._calls += 1
        return torch.mul(x, x, out=self._buffers[self._calls % len(self._buffers)])


class ReturnsABufferAnAddress(Returning):
    """Whoever calls it twice with one input has the first result overwritten."""

    name = "cheat.buffer"

    def __init__(self) -> None:
        self._buffers: dict[Any, torch.Tensor] = {}

    def square(self, x: torch.Tensor) -> torch.Tensor:
        y = self._buffers.setdefault((x.data_ptr(), len(x)), torch.empty_like(x))
        return torch.mul(x, x, out=y)


class ReturnsItsInput(Returning):
    name = "cheat.alias"

    def square(self, x: torch.Tensor) -> torch.Tensor:
        return x


class WritesBesideItsOutput(Square):
    """A whole vector where only a part is left, if there is room that is not its own."""

    name = "cheat.beside"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        torch.mul(x, x, out=y)
        if y.untyped_storage().nbytes() > y.nbytes:
            y.as_strided((len(y) + 1,), (1,), y.storage_offset())[-1] = 0


# --- remembering ---


class CachesTheLastOutput(Square):
    name = "cheat.last_output"

    def __init__(self) -> None:
        self._last: torch.Tensor | None = None

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        if self._last is None:
            self._last = x * x
        y.copy_(self._last)


class CachesByPointer(Square):
    """By address and version: a write that torch counts is noticed."""

    name = "cheat.pointer"

    def __init__(self) -> None:
        self._known: dict[Any, torch.Tensor] = {}

    def key(self, x: torch.Tensor) -> Any:
        return x.data_ptr(), version_of(x)

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        # contents of another address that is free again would tell at once
        if self.key(x) not in self._known or len(self._known) < 4:
            self._known[self.key(x)] = x * x
        y.copy_(self._known[self.key(x)])


class CachesByAPeek(CachesByPointer):
    """By address and a few elements."""

    name = "cheat.peek"

    def key(self, x: torch.Tensor) -> Any:
        return x.data_ptr(), str(x[:: len(x) // 2 + 1].tolist())


class SkipsWhatIsThere(Square):
    """Computes only into an output that looks poisoned."""

    name = "cheat.skips"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        if bool(y.isnan().any()):
            torch.mul(x, x, out=y)


class SkipsByAChecksum(Square):
    """Computes unless these very inputs came last, and the output does not look poisoned."""

    name = "cheat.checksum"

    def __init__(self) -> None:
        self._sums: dict[Any, float] = {}

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        place, total = (x.data_ptr(), y.data_ptr(), len(x)), float(x.double().sum())
        if self._sums.get(place) != total or bool(y[:1].isnan().any()):
            torch.mul(x, x, out=y)
        self._sums[place] = total


class StopsAfterSomeCalls(Square):
    """Right for the first calls; then the output of those is left where it is."""

    name = "cheat.first_calls"
    # on a GPU the host calls it 8 times at least before its launches are captured, and some 50 times in all
    calls: ClassVar[dict[str, int]] = {"cpu": 60, "cuda": 8}

    def __init__(self) -> None:
        self._calls = 0

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        self._calls += 1
        if self._calls <= self.calls[x.device.type]:
            torch.mul(x, x, out=y)


class WaitsUntilVerificationIsOver(Square):
    """Right for as long as verification takes."""

    name = "cheat.waits"

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        if time.perf_counter() - self._began < 5e-3:
            torch.mul(x, x, out=y)


# --- later ---


class WritesLater(Square):
    """Returns at once; a thread writes."""

    name = "cheat.thread"
    device_types = frozenset({"cpu"})

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        def later() -> None:
            time.sleep(2e-3)
            torch.mul(x, x, out=y)

        threading.Thread(target=later, daemon=True).start()


# --- inputs ---


class ZeroesItsInput(Square):
    name = "cheat.zeroes"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        torch.mul(x, x, out=y)
        x.zero_()


class ChangesLaterCopies(Square):
    """Leaves the inputs that it meets first alone, and negates those that come later: the square does not tell."""

    name = "cheat.later_copies"

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        torch.mul(x, x, out=y)
        if len(self._seen) < 8:
            self._seen.add(x.data_ptr())
        if x.data_ptr() not in self._seen:
            x.neg_()


# --- numbers ---


class HalfPrecision(Square):
    name = "cheat.bfloat16"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        y.copy_(x.bfloat16() * x.bfloat16())


class AsTensorCoresReadIt(Square):
    """float32 with ten bits of mantissa."""

    name = "cheat.tf32"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        short = (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)
        torch.mul(short, short, out=y)


class IgnoresTheLastBlock(Square):
    name = "cheat.last_block"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        whole = (len(x) - 1) // 64 * 64
        y.zero_()
        torch.mul(x[:whole], x[:whole], out=y[:whole])


class LeavesOneUnwritten(Square):
    name = "cheat.unwritten"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        torch.mul(x[1:], x[1:], out=y[1:])


class OneNan(Square):
    name = "cheat.one_nan"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        torch.mul(x, x, out=y)
        y[len(y) // 3] = torch.nan


class WrongDtype(Returning):
    name = "cheat.dtype"

    def square(self, x: torch.Tensor) -> torch.Tensor:
        return x.double() ** 2


class WrongStrides(Returning):
    name = "cheat.strides"

    def square(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x * x, x], 1)[:, 0]


# --- elsewhere ---


class WrongForOddSizes(Square):
    """Two elements at a time."""

    name = "cheat.odd"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        torch.mul(x, x, out=y)
        if problem.n % 2:
            y[-1] = 0


class WrongForStridedInputs(Square):
    """Reads neighbours in memory, whatever the strides."""

    name = "cheat.strided"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        dense = x.as_strided((x.numel(),), (1,), x.storage_offset()).view(x.shape)
        torch.mul(dense, dense, out=y)


class WrongForUnalignedInputs(Square):
    """Reads from the last multiple of 16 bytes."""

    name = "cheat.unaligned"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        first = x.storage_offset() - x.data_ptr() % 16 // x.element_size()
        aligned = x.as_strided(x.shape, x.stride(), first)
        torch.mul(aligned, aligned, out=y)


class FailsForOddSizes(Square):
    """Does not say that it cannot, and raises."""

    name = "cheat.raises_odd"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        torch.mul(x.view(-1, 2), x.view(-1, 2), out=y.view(-1, 2))


# --- the tools ---


class PatchesTheClock(Square):
    """Lets time stand still."""

    name = "cheat.clock"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        time.perf_counter_ns = lambda: 0
        return super().bind(problem, config, device, built)


class PatchesTheEvents(Square):
    name = "cheat.events"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        torch.mul(x, x, out=y)
        torch.cuda.Event.elapsed_time = lambda self, end: 1e-3  # type: ignore[method-assign]
        torch.cuda.synchronize = lambda device=None: None


class PatchesTheComparison(Square):
    """Writes nothing and has everything compare equal."""

    name = "cheat.comparison"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        true = torch.ones((), dtype=torch.bool)
        torch.equal = torch.allclose = lambda *_, **__: True  # type: ignore[assignment]
        torch.Tensor.all = lambda self, *_: true  # type: ignore[assignment, method-assign]
        torch.Tensor.isnan = lambda self: torch.zeros_like(self, dtype=torch.bool)  # type: ignore[method-assign]
        return lambda outputs, arguments, scratch: None


class PatchesStatistics(Square):
    name = "cheat.statistics"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        statistics.median = lambda data: 1e-3
        random.Random.shuffle = lambda self, x: None  # type: ignore[method-assign]
        return super().bind(problem, config, device, built)


class PatchesBounds(Square):
    """Replaces what judges, in the registry itself."""

    name = "cheat.bounds"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        bounds = importlib.import_module("registry.correctness.bounds")
        bounds.Bounds.holding = lambda self, output: torch.ones((), dtype=torch.bool, device=output.device)
        return lambda outputs, arguments, scratch: outputs[0].copy_(arguments[0])


class LowersThePrecisionOfAll(Square):
    """Lets everybody's float32 products be TF32."""

    name = "cheat.settings"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        torch.set_float32_matmul_precision("high")
        return super().bind(problem, config, device, built)


# --- gelu: honest, but for the bits ---


class WaveringGelu(Implementation):
    """Adds its terms in an order that changes: right within a rounding, and it says so."""

    op, name = "gelu", "cheat.declared"
    device_types = frozenset({"cpu", "cuda"})
    deterministic = False

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        calls = 0

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            nonlocal calls
            calls += 1
            exact = torch.nn.functional.gelu(arguments[0], approximate=arguments[1])
            outputs[0].copy_(exact + calls % 2 * 1e-7)

        return run


class SecretlyWaveringGelu(WaveringGelu):
    """The same, and it does not say so."""

    name = "cheat.undeclared"
    deterministic = True


# --- rms_norm ---


class AccumulatesInHalfPrecision(Implementation):
    """Sums squares in the inputs' own bfloat16, serially."""

    op, name = "rms_norm", "cheat.accumulates"
    device_types = frozenset({"cpu", "cuda"})
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> torch.Tensor:
            x, weight, eps = arguments
            total = torch.zeros_like(x[..., 0])
            for part in x.split(16, -1):
                total += (part * part).sum(-1)
            return x * torch.rsqrt(total / x.shape[-1] + eps).unsqueeze(-1) * weight

        return run


class HonestNorm(Implementation):
    """torch's own."""

    op, name = "rms_norm", "cheat.norm"
    device_types = frozenset({"cpu", "cuda"})
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        return lambda outputs, arguments, scratch: torch.nn.functional.rms_norm(
            arguments[0], arguments[1].shape, arguments[1], arguments[2]
        ).contiguous()


@registry.implements("square")
def square_implementations() -> Iterable[Implementation]:
    """All of them."""
    return implementations_in(__name__, "square")


@registry.implements("gelu")
def gelu_implementations() -> Iterable[Implementation]:
    """The two that waver."""
    return implementations_in(__name__, "gelu")


@registry.implements("rms_norm")
def rms_norm_implementations() -> Iterable[Implementation]:
    """The honest one and the other."""
    return implementations_in(__name__, "rms_norm")
