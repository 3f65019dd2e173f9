"""A served dispatcher, implementations that tell who ran, and what each op in the box is in plain torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from registry import Config, Device, Implementation, Problem, Space
from registry.artifact import Built
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.implementation import Run
from registry.paths import cache_folder

from ...serving import serving
from ...tiers import THOROUGH

Tensors = tuple[torch.Tensor, ...]


class Seen(Implementation):
    """An op by its reference that remembers the shapes it ran on."""

    device_types = frozenset({"cpu", "cuda"})
    returns_outputs = True

    def __init__(self, op: str, reference: Callable[..., Any], name: str, only_rows: int | None = None) -> None:
        self.op = op
        self.name = name
        self.shapes: list[tuple[int, ...]] = []
        self._reference = reference
        self._only_rows = only_rows

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        if self._only_rows is not None and problem.rows != self._only_rows:
            yield f"only for {self._only_rows} rows"

    def space(self, problem: Problem, device: Device) -> Space:
        return Space()

    def preference(self, problem: Problem, device: Device) -> float:
        return 1.0

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, values: tuple[Any, ...], scratch: Tensors) -> Any:
            self.shapes.append(tuple(values[0].shape))
            return self._reference(*values)

        return run


@dataclass(frozen=True)
class Case:
    """An op of the box that has a backward, in plain torch. ``args`` of ``[rows, 8]``, but for a weight."""

    name: str
    plain: Callable[..., torch.Tensor]
    tensors: int
    weight: bool = False

    def args(self, rows: int = 4) -> Tensors:
        """Fresh arguments."""
        generator = torch.Generator().manual_seed(rows)
        shapes = [(8,) if self.weight and place == 1 else (rows, 8) for place in range(self.tensors)]
        return tuple(torch.randn(shape, generator=generator) for shape in shapes)


CASES = [
    Case("softmax", lambda x: torch.softmax(x, -1), 1),
    Case("square", lambda x: x * x, 1),
    Case("gelu", lambda x: torch.nn.functional.gelu(x, approximate="tanh"), 1),
    Case("vector_add", lambda x, y: x + y, 2),
    Case("rms_norm", lambda x, w: torch.nn.functional.rms_norm(x, (8,), w, 1e-6), 2, weight=True),
]


@pytest.fixture(
    params=[case if case.name in ("softmax", "rms_norm") else pytest.param(case, marks=THOROUGH) for case in CASES],
    ids=lambda case: case.name,
)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    """It knows the ops in the box and no implementation, and torch's operators run its calls."""
    made = Dispatcher(Catalog(entry_points=()))
    with serving(made):
        yield made
    torch._dynamo.reset()


@pytest.fixture
def add(dispatcher: Dispatcher) -> Callable[..., Seen]:
    """Register an implementation that tells."""

    def add(op: str, name: str = "a.seen", only_rows: int | None = None) -> Seen:
        made = Seen(op, dispatcher.catalog.op(op).reference, name, only_rows)
        dispatcher.register(made)
        return made

    return add


@pytest.fixture
def shared_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``torch.compile`` compiles in C++ has the headers that the registry has precompiled, which takes 10 s."""
    codecache = importlib.import_module("torch._inductor.codecache")
    folder = cache_folder("torchinductor", "precompiled_headers")
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(folder), raising=False)
    monkeypatch.setattr(codecache, "_HEADER_LOCK_DIR", str(folder / "locks"), raising=False)
