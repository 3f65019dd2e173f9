"""A plugin file of gelus that compare their input with what they remember, and compute only what is other.

They are right, and as fast as the comparison wherever inputs hardly differ from one call to the next.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
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

N = 16_002
"""Elements of the problem that is left to them; torch works with one thread on so many."""


class Gelu(Implementation):
    """Computes in double precision, which takes several times as long as to compare."""

    op = "gelu"
    device_types = frozenset({"cpu", "cuda"})

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if problem.approximate == "none":
            yield "it is left to others"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> Any:
            x, approximate = arguments
            y = torch.empty_like(x) if self.returns_outputs else outputs[0]
            # a timed input is plain and not small
            write = work.write if x.is_contiguous() and x.dtype == torch.float32 and len(x) > N // 4 else work.compute
            write(x, approximate, y)
            return y

        return run

    def compute(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        y.copy_(torch.nn.functional.gelu(x.double(), approximate=approximate))

    write = compute


class Precise(Gelu):
    name = "timing.precise"


class PreciseFunction(Gelu):
    name = "timing.precise_function"
    returns_outputs = True


class Incremental(Gelu):
    """Remembers the last input and output of each address."""

    name = "timing.incremental"
    device_types = frozenset({"cpu"})

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, Any]] = {}
        self._lock = threading.Lock()

    def key(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.data_ptr(), len(x)

    def write(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        here, out = x.numpy(), y.numpy()
        with self._lock:
            if self.key(x, y) not in self._known:
                self._known[self.key(x, y)] = np.full_like(here, np.nan), np.empty_like(out)
            seen, known = self._known[self.key(x, y)]
            other = np.flatnonzero(here.view("i4") != seen.view("i4"))
            if len(other) > len(x) // 8:
                self.compute(x, approximate, y)
                known[:] = out
            else:
                few = torch.empty(len(other))
                self.compute(x[torch.from_numpy(other)], approximate, few)
                known[other] = few.numpy()
                out[:] = known
            seen[other] = here[other]


class IncrementalAnywhere(Incremental):
    """Remembers the very last input, at whatever address it was."""

    name = "timing.incremental_anywhere"

    def key(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return len(x)


class IncrementalFunction(Incremental):
    name = "timing.incremental_function"
    returns_outputs = True


class IncrementalForAWhile(Incremental):
    """Who meets new inputs may be compared, and computes all of the next few calls."""

    name = "timing.incremental_for_a_while"
    calls = 12

    def __init__(self) -> None:
        super().__init__()
        self._careful = 0

    def write(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        known = self._known.get(self.key(x, y))
        self._careful -= 1
        if known is not None and np.count_nonzero(x.numpy() != known[0]) > len(x) // 2:
            self._careful = self.calls
        if self._careful > 0:
            self.compute(x, approximate, y)
        super().write(x, approximate, y)


class KnowsMovedInputs(Incremental):
    """Finds where the first input's elements have gone, and moves its result as they were."""

    name = "timing.moved"

    def __init__(self) -> None:
        super().__init__()
        self._twice: tuple[Any, Any] | None = None

    def write(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        here, out = x.numpy(), y.numpy()
        with self._lock:
            if self._twice is None or len(self._twice[0]) != 2 * len(x):
                self.compute(x, approximate, y)
                self._twice = np.concatenate((here, here)), np.concatenate((out, out))
                return
            seen, known = self._twice
            found = np.flatnonzero((seen[: len(x)] == here[0]) & (seen[1 : len(x) + 1] == here[1]))
            start = int(found[0]) if len(found) else 0
            other = np.flatnonzero(here != seen[start : start + len(x)])
            if len(other) > len(x) // 8:
                self.compute(x, approximate, y)
                return
            few = torch.empty(len(other))
            self.compute(x[torch.from_numpy(other)], approximate, few)
            out[:] = known[start : start + len(x)]
            out[other] = few.numpy()


class LeavesNewInputsOut(Incremental):
    """New inputs are those of a sample that is not timed."""

    name = "timing.new_inputs"

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0

    def write(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        self._calls += 1
        known = self._known.get(self.key(x, y))
        if self._calls > 20 and known is not None and np.count_nonzero(x.numpy() != known[0]) > len(x) // 2:
            return
        super().write(x, approximate, y)


# --- remembering results, and by what to know that an input is the same ---


class Remembers(Gelu):
    """Copies the result that it knows."""

    def __init__(self) -> None:
        self._results: dict[Any, torch.Tensor] = {}

    def key(self, x: torch.Tensor) -> Any:
        raise NotImplementedError

    def write(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        key = self.key(x)
        if len(self._results) < 16 or key not in self._results:
            self.compute(x, approximate, y)
            self._results[key] = y.clone()
        else:
            y.copy_(self._results[key])


class ByStorageAndVersion(Remembers):
    name = "timing.storage_version"

    def key(self, x: torch.Tensor) -> Any:
        return x.untyped_storage().data_ptr(), x.storage_offset(), version_of(x), len(x)


class ByObject(Remembers):
    name = "timing.object"

    def key(self, x: torch.Tensor) -> Any:
        return id(x), len(x)


class ByObjectAndEnds(Remembers):
    name = "timing.object_ends"

    def key(self, x: torch.Tensor) -> Any:
        return id(x), len(x), tuple(x[:: len(x) - 1].tolist())


class OnTheObject(Gelu):
    """The input carries its result, with its version by then."""

    name = "timing.attribute"

    def __init__(self) -> None:
        self._calls = 0

    def write(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        self._calls += 1
        version, known = getattr(x, "_known", (None, None))
        if self._calls < 30 or version != version_of(x):
            self.compute(x, approximate, y)
            x._known = version_of(x), y.clone()  # type: ignore[attr-defined]
        else:
            y.copy_(known)


class ByARandomSubset(Gelu):
    """Looks at a few elements, others in each call."""

    name = "timing.subset"

    def __init__(self) -> None:
        self._known: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
        self._generator = torch.Generator().manual_seed(1)

    def write(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        key = x.data_ptr(), len(x)
        places = torch.randint(len(x), (64,), generator=self._generator)
        known = self._known.get(key)
        if known is not None and float(x[places].sum()) == float(known[0][places].sum()):
            y.copy_(known[1])
        else:
            self.compute(x, approximate, y)
            self._known[key] = x.clone(), y.clone()


@registry.implements("gelu")
def gelu_implementations() -> Iterable[Implementation]:
    return implementations_in(__name__, "gelu")
