"""Humming's kernels as implementations: one with the library's choice of a tile, one with tiles to tune."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, ClassVar

import torch

from registry import Config, Device, Implementation, Problem, Space
from registry.artifact import Artifact, Built, Signature, Target, Variant
from registry.implementation import Run, Tensors

from . import kernels, order, tiles
from .form import LIBRARY, HummingForm, has_zeros, library_version, reasons
from .locks import Locks, locks_of

_TILE = 128
"""Rows and columns of the library's usual tile of results."""
_MOST_PARTS = 8
"""With parts of a sum in as many blocks, 1.25 times the allowed error was measured (an H200; m=300, n=512, k=4096)."""
_VARIABLES = ("HUMMING_COMPILER", "HUMMING_DEBUG_KERNEL", "HUMMING_DISABLE_PATCH_CUBIN")


class _Humming(Implementation):
    """A product by Humming. Its blocks add parts of a sum in half precision, some of them in any order."""

    device_types: ClassVar[frozenset[str]] = frozenset({"cuda"})
    deterministic = False
    compiles_anywhere: ClassVar[bool] = False

    def __init__(self, op: str) -> None:
        self.op = op

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Reasons: the library is missing, or has no kernel for the problem."""
        yield from reasons(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Below every other implementation until it is tuned, since its first call takes seconds."""
        return -10.0

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {"packed": ("qweight",), "factors": ("scales",)}
        if HummingForm.of(problem).zero_points:
            found["offsets"] = ("zeros",) if has_zeros(problem) else ("scales",)
        return found

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """The weight, its scales or its zero points in the order of registry_humming.order."""
        form, (value,) = HummingForm.of(problem), values
        if name == "packed":
            return order.packed(value, form)
        if name == "factors":
            return order.factors(value, form)
        return order.offsets(value if has_zeros(problem) else torch.full_like(value, 0.5), form)

    def prepared_config(self, problem: Problem, config: Config) -> Config:
        """No parameters: all tiles read one copy of a weight."""
        return {}

    @abstractmethod
    def choice(self, problem: Problem, config: Config) -> Mapping[str, Any]:
        """The tile, or the rows for which the library chooses one, as plain data."""

    def variants(self, problem: Problem, config: Config, device: Device, signature: Signature) -> tuple[Variant, ...]:
        """One variant: layer and tile, the library's version, and the GPU, whose properties the library asks for."""
        spec = {
            "layer": dict(HummingForm.of(problem).layer),
            "device": [device.index, device.name, device.architecture],
            "library": library_version(),
            **self.choice(problem, config),
        }
        return (Variant("humming", "humming", spec),)

    def compile(self, variant: Variant, target: Target) -> Artifact:
        """The kernel, in the library's cache of cubins, where the GPU is visible. Raises CompileError."""
        index, name, _ = variant.spec["device"]
        if torch.cuda.is_available() and index < torch.cuda.device_count() and Device.of(f"cuda:{index}").name == name:
            kernels.prepared(variant.spec, index)
        return Artifact(variant)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Load the kernel, by a launch on memory of its own: a capture would not let it be loaded."""
        (artifact,) = built.artifacts
        form, index, launch = HummingForm.of(problem), device.index, kernels.launcher()
        kernel, locks = kernels.prepared(artifact.variant.spec, index), locks_of(index)
        locks.fill()
        _launch_once(form, torch.device("cuda", index), kernel, launch, locks)
        n, k, last = form.n, form.k, 3 if form.zero_points else 2

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            packed, factors, *offsets = arguments[-last:]
            launch(
                kernel, arguments[0].view(-1, k), packed, factors, None, None, None, offsets[0] if offsets else None,
                None, outputs[0].view(-1, n), None, None, None, None, locks.current(), 1, 0, False,
            )  # fmt: skip

        return run

    def sources(self) -> Iterable[ModuleType | str]:
        """The class's modules, and the library's version."""
        return (*super().sources(), f"{LIBRARY} {library_version()}")

    def compiler_environment(self) -> Mapping[str, str]:
        """The environment variables that the library's compiler reads."""
        return {name: os.environ[name] for name in _VARIABLES if name in os.environ}


class HummingHeuristic(_Humming):
    """The tile that the library chooses for the problem's rows."""

    name = "humming.heuristic"
    transfers = False

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Besides what the library has no kernel for: products of few tiles, each a sum over many blocks."""
        yield from super().unsupported(problem, device)
        tiles_of_results = -(-problem.m // _TILE) * -(-problem.n // _TILE)
        if device.multiprocessors >= _MOST_PARTS * tiles_of_results:
            yield (
                f"{_MOST_PARTS} blocks or more would add their parts of a sum in half precision, which errs by more"
                " than the op allows; humming.tiles has tiles without that"
            )

    def choice(self, problem: Problem, config: Config) -> Mapping[str, Any]:
        """The rows for which the library is asked."""
        return {"rows": kernels.sampled(problem.m)}


class HummingTiles(_Humming):
    """A tile of registry_humming.tiles, whose kernel serves any number of rows."""

    name = "humming.tiles"
    any_size = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Besides what the library has no kernel for: GPUs whose instructions the tiles are not made for."""
        yield from super().unsupported(problem, device)
        if device.architecture.startswith("sm_") and device.capability > (9, 0):
            yield f"its tiles are made for compute capability 8.x and 9.0, this is {device.architecture}"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tiles that divide the weight and fit rows and GPU."""
        return tiles.space(problem, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """What the library's heuristics choose at many shapes of an H200."""
        return tiles.default(problem, device)

    def choice(self, problem: Problem, config: Config) -> Mapping[str, Any]:
        """The tile in the library's terms."""
        return {"tile": dict(tiles.tuning(config))}


def _launch_once(
    form: HummingForm, device: torch.device, kernel: torch.Tensor, launch: Callable[..., None], locks: Locks
) -> None:
    """One row times memory of any content, with the library's checks of shapes, which later launches leave out."""
    dtype: torch.dtype = getattr(torch, form.dtype)
    groups = form.k // form.group if form.group else 1
    a, y = torch.zeros((1, form.k), dtype=dtype, device=device), torch.empty((1, form.n), dtype=dtype, device=device)
    packed = torch.empty((form.k // order.TILE_K, form.n * form.bits // 2), dtype=torch.int32, device=device)
    factors = torch.empty((groups, form.n), dtype=dtype, device=device)
    offsets = torch.empty_like(factors) if form.zero_points else None
    with torch.cuda.device(device):
        launch(
            kernel, a, packed, factors, None, None, None, offsets, None, y, None, None, None, None,
            locks.current(), 1, 0, True,
        )  # fmt: skip
