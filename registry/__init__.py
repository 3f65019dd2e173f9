"""Decides which kernel runs: every op is a hook, every implementation is proved and measured, the winner is remembered.

    import registry
    y = registry.call("softmax", x)

Importing this package loads neither Triton, nor a plugin, nor the database or the tuner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .contract import Backward, Floor, Op, Tolerance
from .device import Device
from .dispatch.dispatcher import Dispatcher
from .dispatch.explain import Explanation
from .dispatch.plan import Candidate
from .dispatch.warning import DispatchWarning
from .errors import (
    ArgumentTypeError,
    CompileError,
    DeviceError,
    InvalidArgumentError,
    InvalidDefinitionError,
    NotReadyError,
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
    from .tuner.events import Result

__version__ = "0.1.0"

_dispatcher = Dispatcher()

call = _dispatcher.call
op = _dispatcher.op
explain = _dispatcher.explain
using = _dispatcher.using
register = _dispatcher.register


def ops() -> dict[str, Op]:
    """Every op by name."""
    return _dispatcher.catalog.ops()


def implementations(op: str) -> tuple[Implementation, ...]:
    """Who implements an op, in the order of registration. Raises UnknownNameError."""
    return _dispatcher.catalog.implementations(op)


def plugins() -> tuple[PluginReport, ...]:
    """Every plugin that was found: version, ops, implementations, load time, fault."""
    return _dispatcher.catalog.plugins()


def configure(*, database: str | Path | None = None) -> None:
    """Read winners from ``database`` from now on: a file or an SQLAlchemy URL; None for the default place.

    Winners in memory are dropped, so this also makes a running process see what another one has tuned.
    """
    _dispatcher.configure(database=None if database is None else str(database))


def tune(
    op: str,
    problems: Sequence[Mapping[str, Value] | Problem] | str | Path,
    *,
    device: Device | str | None = None,
    budget: float | None = None,
    trials: int | None = None,
    implementations: Iterable[str] = (),
    retune: bool = False,
    database: str | Path | None = None,
) -> tuple[Result, ...]:
    """Find and store the winners of problems of ``op``; from then on ``call`` runs them.

    ``problems``: mappings of dimensions, Problems, or a shapes file. ``device``: the current GPU if there is one, else
    the CPU. ``budget`` in seconds and ``trials`` are per problem. ``database``: where ``configure`` says, when None.
    Raises RegistryError for unknown names and dimensions before anything is measured.
    """
    from .tuner.run import Budget
    from .tuner.run import tune as run
    from .tuner.shapes import load_shapes

    catalog = _dispatcher.catalog
    contract = catalog.op(op)
    if isinstance(implementations, str):
        implementations = (implementations,)
    if isinstance(problems, str | Path):
        wanted = load_shapes(problems, catalog, [op])[op]
    else:
        wanted = [_problem(contract, one) for one in problems]
    place = Device.best() if device is None else device if isinstance(device, Device) else Device.of(device)
    results = run(
        wanted,
        catalog=catalog,
        device=place,
        database=_dispatcher.database if database is None else str(database),
        budget=Budget(seconds=budget, trials=trials),
        implementations=tuple(implementations),
        retune=retune,
    )
    _dispatcher.forget()
    return results


def _problem(op: Op, given: Mapping[str, Value] | Problem) -> Problem:
    if isinstance(given, Problem):
        if given.op != op.name:
            raise InvalidArgumentError(f"tune({op.name!r}): {given} is a problem of another op")
        return given
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"tune({op.name!r}): {given!r} is no problem", hint="expected a list of mappings of dimensions, or a file"
        )
    return op.problem_of(given)


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
    "register",
    "tune",
    "using",
]
