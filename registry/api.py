"""The bodies of the public functions: their arguments, the checks of these, and the dispatcher of the process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING

from .api_checks import WantedProblems, check_limit, database_of, name_of_op, names_of, problems_of
from .contract import Op
from .device import Device, DeviceNames, devices_of
from .discovery.answers import no_implementation
from .discovery.plugin import PluginReport
from .dispatch.compiled import installing
from .dispatch.dispatcher import Dispatcher
from .dispatch.plans import prepared
from .dispatch.torch_side import operators
from .dispatch.torch_side.profiles import PROFILE_VARIABLE
from .errors import InvalidArgumentError, UnsupportedError
from .implementation import Implementation
from .untrusted.visible import visible

if TYPE_CHECKING:
    from .dispatch.warmup import Warmed
    from .tuner.events import Result
    from .tuner.shapes.shapes import Shapes

dispatcher = Dispatcher()
"""The one dispatcher of the process."""
operators.serve(dispatcher)
operators.SERVING.traced = installing.saw
operators.define_box()
if "KERNEL_REGISTRY_AGREE" in os.environ:
    from .distributed import first_call

    dispatcher.check_once = first_call.compared if first_call.wanted() else None
if PROFILE_VARIABLE in os.environ:  # set by `registry profile`
    from .profiling import program

    program.begin()

call = dispatcher.call
op = dispatcher.op
explain = dispatcher.explain
using = dispatcher.using
register = dispatcher.register
define = dispatcher.define
load_file = dispatcher.load_file
reload = dispatcher.reload
configure = dispatcher.configure
record = dispatcher.recorder.record
unrecorded = dispatcher.recorder.paused
weights_changed = prepared.weights_changed


def ops() -> dict[str, Op]:
    """Every op by name."""
    return dispatcher.catalog.ops()


def implementations(op: str) -> tuple[Implementation, ...]:
    """The implementations of an op, in the order of registration. Raises UnknownNameError."""
    return dispatcher.catalog.implementations(name_of_op(op))


def plugins() -> tuple[PluginReport, ...]:
    """Every plugin that was found: version, ops, implementations, load time, fault."""
    return dispatcher.catalog.plugins()


def warmup(
    shapes: str | Path | Mapping[str, WantedProblems], *, device: Device | str | None = None
) -> tuple[Warmed, ...]:
    """Build, load and run the plans of problems once, so that later calls and CUDA graph captures find them in memory.

    ``shapes``: a shapes file, or op -> problems (mappings of dimensions, or Problems). ``device``: the current GPU if
    there is one, else the CPU. Inputs are made as the op makes them (row-major, aligned, without gradient) and freed
    again; another layout is another plan. Returns what answers each problem, or why nothing does. Raises RegistryError
    for unknown names and dimensions before anything runs.
    """
    from .dispatch.warmup import warm

    catalog = dispatcher.catalog
    if isinstance(shapes, str | Path):
        from .tuner.shapes.shapes import load_shapes

        wanted = load_shapes(shapes, catalog)
    elif isinstance(shapes, Mapping):
        contracts = {name: catalog.op(name) for name in shapes}
        wanted = {name: problems_of("warmup", contracts[name], shapes[name]) for name in shapes}
    else:
        raise InvalidArgumentError(
            f"warmup({shapes!r:.80})", hint='expected a shapes file, or e.g. {"softmax": [{"rows": 1, ...}]}'
        )
    return warm(dispatcher, [problem for found in wanted.values() for problem in found], _device(device))


def tune(  # noqa: PLR0913  (an option each)
    op: str,
    problems: WantedProblems | str | Path,
    *,
    device: DeviceNames | None = None,
    budget: float | None = None,
    trials: int | None = None,
    implementations: Iterable[str] = (),
    retune: bool = False,
    all_sizes: bool = False,
    time_limit: float | None = None,
    database: str | Path | None = None,
    sampler: str = "registry",
    storage: str = "",
) -> tuple[Result, ...]:
    """Find and store the winners of problems of ``op``; from then on ``call`` runs them.

    ``problems``: mappings of dimensions, Problems, or a shapes file, by whose counts they are weighed. ``device``: by
    default the current GPU if there is one, else the CPU; "cuda" is every visible GPU, "cuda:0,cuda:2" or a list names
    the GPUs that share the problems. ``budget`` in seconds and ``trials`` are per problem, ``time_limit`` in seconds is
    for the whole run: repeating the call tunes the problems that it left out. ``database``: None for the one that
    ``configure`` names. ``sampler``: a built-in one ("registry", "tpe", "gp", "nsgaii", "random"), one that a package
    registers, or ``module:name``. ``storage``: a file or URL in which Optuna keeps the searches, "" for none.
    ``all_sizes``: tune each problem, also if one winner transfers to more than four of them.
    Problems that no implementation supports, or that do not fit the device's memory, have no result: a RuntimeWarning
    tells each reason after the run. Raises RegistryError for unknown names and dimensions, and UnsupportedError for an
    op that nobody implements, before anything is measured.
    """
    from .tuner.limits import Budget
    from .tuner.options import TuneOptions
    from .tuner.run import tune as run
    from .tuner.skipped import SkippedProblems

    contract = dispatcher.catalog.op(name_of_op(op))
    names = names_of("tune", "implementations", implementations)
    place = dispatcher.database if database is None else database_of("tune", database)
    check_limit("tune", "budget", budget, Real)
    check_limit("tune", "time_limit", time_limit, Real)
    check_limit("tune", "trials", trials, Integral)
    limits = Budget(budget, trials, run_seconds=time_limit)
    options = TuneOptions(
        limits, implementations=names, retune=retune, all_sizes=all_sizes, sampler=sampler, storage=storage
    )
    told = _told(contract, problems)
    if not dispatcher.catalog.implementations(contract.name):
        raise UnsupportedError(f"tune: {no_implementation(contract)}")
    there = (Device.best(),) if device is None else devices_of(device)
    catalog = dispatcher.catalog
    skipped = SkippedProblems()
    results = run(
        told.all, catalog=catalog, device=there, database=place, options=options, counts=told.counts, observer=skipped
    )
    dispatcher.forget()
    for text in skipped.texts():
        warnings.warn(visible(text), RuntimeWarning, stacklevel=2)
    return results


def _told(op: Op, problems: WantedProblems | str | Path) -> Shapes:
    """The problems of ``op`` in ``problems``, and the calls of each by a program where a shapes file counts them."""
    from .tuner.shapes.shapes import Shapes, read_shapes

    if isinstance(problems, str | Path):
        return read_shapes(problems, dispatcher.catalog, [op.name])
    return Shapes({op.name: problems_of("tune", op, problems)})


def _device(given: Device | str | None) -> Device:
    if given is None:
        return Device.best()
    return given if isinstance(given, Device) else Device.of(given)
