"""Decides which kernel runs: every op is a hook, every implementation is proved and measured, the winner is remembered.

    import registry
    y = registry.call("softmax", x)

Importing this package loads neither Triton, nor a plugin, nor the database or the tuner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING

from . import torch_ops
from .api_checks import Wanted, check_limit, database_of, name_of_op, names_of, problems_of
from .contract import Backward, Floor, Op, Tolerance
from .device import Device
from .dispatch.dispatcher import KEEP, Dispatcher, Keep
from .dispatch.explain import Explanation
from .dispatch.mode import Mode
from .dispatch.plan import Candidate
from .dispatch.warning import DispatchWarning
from .errors import (
    ArgumentTypeError,
    CompileError,
    DeviceError,
    InvalidArgumentError,
    InvalidDefinitionError,
    NotReadyError,
    NotTunedError,
    OutOfResourcesError,
    PluginError,
    RegistryError,
    ShapesFileError,
    StoreError,
    UnknownNameError,
    UnsupportedError,
)
from .hooks import defines, implements
from .implementation import Implementation, Launch
from .packed import PackedWeight, quantize
from .plugin import PluginReport, PluginWarning
from .problem import Arguments, Problem, TensorSpec, Value
from .space import Config, Space

if TYPE_CHECKING:
    from .dispatch.warmup import Warmed
    from .tuner.events import Result

__version__ = "0.1.0"

_dispatcher = Dispatcher()
torch_ops.serve(_dispatcher)
torch_ops.define_box()

call = _dispatcher.call
op = _dispatcher.op
explain = _dispatcher.explain
using = _dispatcher.using
register = _dispatcher.register
reload = _dispatcher.reload
record = _dispatcher.recorder.record


def ops() -> dict[str, Op]:
    """Every op by name."""
    return _dispatcher.catalog.ops()


def implementations(op: str) -> tuple[Implementation, ...]:
    """Who implements an op, in the order of registration. Raises UnknownNameError."""
    return _dispatcher.catalog.implementations(name_of_op(op))


def plugins() -> tuple[PluginReport, ...]:
    """Every plugin that was found: version, ops, implementations, load time, fault."""
    return _dispatcher.catalog.plugins()


def configure(*, database: str | Path | Keep | None = KEEP, mode: Mode | Keep = KEEP) -> None:
    """Change where winners come from and what may answer, from now on; what is not given stays as it is.

    ``database``: a file or an SQLAlchemy URL; None for the default place. ``mode``: "tuned" (the best that is known),
    "reference" (always the op's reference: no kernel is built, ``using`` asks in vain) or "strict" (NotTunedError
    where only a heuristic could choose). ``KERNEL_REGISTRY_MODE`` says it for a process that does not. Plans and
    winners in memory are dropped. Raises InvalidArgumentError for anything else, and then changes nothing.
    """
    _dispatcher.configure(database=database, mode=mode)


def warmup(shapes: str | Path | Mapping[str, Wanted], *, device: Device | str | None = None) -> tuple[Warmed, ...]:
    """Build, load and run the plans of problems once, so that later calls and CUDA graph captures find them in memory.

    ``shapes``: a shapes file, or op -> problems (mappings of dimensions, or Problems). ``device``: the current GPU if
    there is one, else the CPU. Inputs are made as the op makes them (row-major, aligned, without gradient) and freed
    again; another layout is another plan. Returns what answers each problem, or why nothing does. Raises RegistryError
    for unknown names and dimensions before anything runs.
    """
    from .dispatch.warmup import warm

    catalog = _dispatcher.catalog
    if isinstance(shapes, str | Path):
        from .tuner.shapes import load_shapes

        wanted = load_shapes(shapes, catalog)
    elif isinstance(shapes, Mapping):
        contracts = {name: catalog.op(name) for name in shapes}
        wanted = {name: problems_of("warmup", contracts[name], shapes[name]) for name in shapes}
    else:
        raise InvalidArgumentError(
            f"warmup({shapes!r:.80})", hint='expected a shapes file, or e.g. {"softmax": [{"rows": 1, ...}]}'
        )
    return warm(_dispatcher, [problem for found in wanted.values() for problem in found], _device(device))


def tune(
    op: str,
    problems: Wanted | str | Path,
    *,
    device: Device | str | None = None,
    budget: float | None = None,
    trials: int | None = None,
    implementations: Iterable[str] = (),
    retune: bool = False,
    database: str | Path | None = None,
) -> tuple[Result, ...]:
    """Find and store the winners of problems of ``op``; from then on ``call`` runs them.

    ``problems``: mappings of dimensions, Problems, or a shapes file, by whose counts they are weighed. ``device``: the
    current GPU if there is one, else the CPU. ``budget`` in seconds and ``trials`` are per problem. ``database``: where
    ``configure`` says, when None.
    Raises RegistryError for unknown names and dimensions before anything is measured.
    """
    from .tuner.run import Budget
    from .tuner.run import tune as run
    from .tuner.shapes import read_shapes

    catalog = _dispatcher.catalog
    contract = catalog.op(name_of_op(op))
    names = names_of("tune", "implementations", implementations)
    place = _dispatcher.database if database is None else database_of("tune", database)
    check_limit("tune", "budget", budget, Real)
    check_limit("tune", "trials", trials, Integral)
    counts: Mapping[Problem, int] = {}
    if isinstance(problems, str | Path):
        told = read_shapes(problems, catalog, [op])
        wanted, counts = told.problems[op], told.counts
    else:
        wanted = problems_of("tune", contract, problems)
    results = run(
        wanted,
        catalog=catalog,
        device=_device(device),
        database=place,
        budget=Budget(seconds=budget, trials=trials),
        implementations=names,
        retune=retune,
        counts=counts,
    )
    _dispatcher.forget()
    return results


def _device(given: Device | str | None) -> Device:
    if given is None:
        return Device.best()
    return given if isinstance(given, Device) else Device.of(given)


__all__ = [
    "ArgumentTypeError",
    "Arguments",
    "Backward",
    "Candidate",
    "CompileError",
    "Config",
    "Device",
    "DeviceError",
    "DispatchWarning",
    "Explanation",
    "Floor",
    "Implementation",
    "InvalidArgumentError",
    "InvalidDefinitionError",
    "Launch",
    "NotReadyError",
    "NotTunedError",
    "Op",
    "OutOfResourcesError",
    "PackedWeight",
    "PluginError",
    "PluginReport",
    "PluginWarning",
    "Problem",
    "RegistryError",
    "ShapesFileError",
    "Space",
    "StoreError",
    "TensorSpec",
    "Tolerance",
    "UnknownNameError",
    "UnsupportedError",
    "Value",
    "call",
    "configure",
    "defines",
    "explain",
    "implementations",
    "implements",
    "op",
    "ops",
    "plugins",
    "quantize",
    "record",
    "register",
    "reload",
    "tune",
    "using",
    "warmup",
]
