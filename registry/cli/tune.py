"""``tune``: from a shapes file to winners in the database."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from . import app as application
from .options import SEVERAL, Database, Json, Plugins, catalog_with, number, split, whole_number
from .problems import options as of_model
from .problems.sandboxed import check_sandboxed, database_of, in_sandboxes, options_in_sandboxes
from .problems.told import check_source, told_shapes

if TYPE_CHECKING:
    from ..device import Device
    from ..discovery.catalog import Catalog
    from ..tuner.events import Result
    from ..tuner.options import TuneOptions
    from ..tuner.shapes.shapes import Shapes as ToldShapes
    from .display.progress import Display

UNDECIDED = 1

TunedOps = Annotated[
    list[str] | None, typer.Option("--op", metavar="OP", help=f"Only this op. {SEVERAL} Default: all of the problems.")
]
Devices = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="DEVICE,...",
        help="cuda for all visible GPUs, which share the problems; cuda:1 or cuda:0,cuda:2 for these; or cpu. "
        "Default: cuda where there is a GPU.",
    ),
]  # fmt: skip
Implementations = Annotated[
    list[str] | None, typer.Option("--implementations", metavar="NAME", help=f"Only these, e.g. triton.row. {SEVERAL}")
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--budget", metavar="SECONDS", parser=number, help="At most so long searching each problem. Default: 30."
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit", metavar="SECONDS", parser=number,
        help="At most about so long for the whole run; the same command goes on later.",
    ),
]  # fmt: skip
Trials = Annotated[
    int | None,
    typer.Option(
        "--trials",
        metavar="N",
        parser=whole_number,
        help="At most so many candidates for each problem. Default: until the search has settled, at most 64.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="List problems, candidates and why others are out; compile and measure nothing."),
]
Regime = Annotated[
    str,
    typer.Option(
        "--regime", metavar="cold|hot",
        help="Whether a call finds its inputs in memory (cold) or in the cache; dispatch runs winners of cold.",
    ),
]  # fmt: skip
Retune = Annotated[
    bool, typer.Option("--retune", help="Also problems that have a winner here already; it is the one to beat.")
]

AllSizes = Annotated[
    bool,
    typer.Option("--all-sizes", help="Tune each of many sizes to which winners transfer, not one for a range of them."),
]

SamplerName = Annotated[
    str,
    typer.Option(
        "--sampler", metavar="NAME",
        help="What proposes candidates: registry, an Optuna sampler (tpe, gp, nsgaii, random), or module:name.",
    ),
]  # fmt: skip
Storage = Annotated[
    str,
    typer.Option(
        "--storage", metavar="FILE|URL",
        help="Also keep the searches in this Optuna storage, for optuna-dashboard to show while they run.",
    ),
]  # fmt: skip

Fleet = Annotated[
    str | None,
    typer.Option(
        "--fleet", metavar="ADDRESS",
        help="Tune on a Ray cluster: auto, local or ray://HOST:10001. With --device cpu on its CPUs, else on its GPUs.",
    ),
]  # fmt: skip
Sandbox = Annotated[
    bool,
    typer.Option(
        "--sandbox",
        help="Run each candidate behind bubblewrap, without network, files or other processes; judged and timed from"
        " outside. A --plugin file of a stranger then runs nowhere else. Its times include asking, so that nothing is"
        " kept unless --db names a database of its own. An error where bubblewrap is missing.",
    ),
]
Compilers = Annotated[
    int,
    typer.Option(
        "--compilers", metavar="N", parser=whole_number,
        help="With --fleet: CPUs of the cluster that compile ahead for all of its GPUs.",
    ),
]  # fmt: skip


def tune(  # noqa: PLR0913, PLR0917  (an option each)
    shapes: of_model.ShapesFile = None,
    model: of_model.ModelName = None,
    from_misses: of_model.FromMisses = False,
    batch: of_model.Batches = None,
    context: of_model.Contexts = None,
    model_dtype: of_model.ModelDtype = None,
    tensor_parallel: of_model.TensorParallel = 1,
    quantize: of_model.QuantizedAs = "none",
    group_size: of_model.GroupSize = of_model.GROUP_SIZE,
    separate: of_model.Separate = False,
    page: of_model.Page = 0,
    training: of_model.Training = False,
    save_shapes: of_model.SaveShapes = None,
    op: TunedOps = None,
    implementations: Implementations = None,
    device: Devices = None,
    db: Database = None,
    budget: Seconds = None,
    trials: Trials = None,
    time_limit: TimeLimit = None,
    plugin: Plugins = None,
    dry_run: DryRun = False,
    retune: Retune = False,
    all_sizes: AllSizes = False,
    regime: Regime = "cold",
    sampler: SamplerName = "registry",
    storage: Storage = "",
    fleet: Fleet = None,
    compilers: Compilers = 0,
    sandbox: Sandbox = False,
    json: Json = False,
) -> None:
    """Find and store the winner of each problem.

    That is the fastest of the candidates that are right: each is verified against a float64 reference before it is
    timed. Ctrl-C keeps what was measured, but with --sandbox only where --db says so. Exit codes: 0 all decided, 1 some
    problem has no winner (no candidate was right, its finals decided nothing, or the time limit left it out), 2 bad
    input, 130 interrupted.
    """
    _check_positive("--budget", budget)
    _check_positive("--trials", trials)
    _check_positive("--time-limit", time_limit)
    told_model = of_model.ModelOptions(
        model, batch, context, model_dtype, tensor_parallel, quantize, group_size, separate, page, training, save_shapes
    )
    check_source(shapes, told_model, misses=from_misses)
    ops, names = split("--op", op), split("--implementations", implementations)
    if sandbox:
        check_sandboxed(db)
    if fleet is not None:
        _refuse_beside_fleet(time_limit, storage, dry_run=dry_run, json=json, sandbox=sandbox)
        from ..device import Device
        from ..tuner.limits import Budget
        from ..tuner.options import TuneOptions
        from .fleet.on_ray import tune_on_fleet

        catalog = catalog_with(plugin)
        told, _ = told_shapes(shapes, told_model, catalog, ops, Device.best())
        options = TuneOptions(
            Budget(budget, trials), implementations=names, retune=retune, all_sizes=all_sizes, regime=regime,
            sampler=sampler,
        )  # fmt: skip
        raise typer.Exit(tune_on_fleet(told, catalog, fleet, device, db, options, plugin or (), compilers))
    from ..tuner.processes import spawning
    from ..tuner.workers import preloading

    # the processes of the run import torch while this one reads the file
    with spawning.kept(preloading.ENTRY, now=not dry_run):
        there, catalog = _devices(device), catalog_with(None if sandbox else plugin)
        told, notes = told_shapes(shapes, told_model, catalog, ops, there[0])
        if sandbox:
            catalog, more = in_sandboxes(plugin or (), told, catalog, there[0], every=all_sizes, kept=db is not None)
            notes = (*notes, *more)
        if dry_run:
            _show_plan(told, catalog, there, names, notes, every=all_sizes, json=json)
            return
        from ..tuner.limits import Budget
        from ..tuner.options import TuneOptions

        options = TuneOptions(
            Budget(budget, trials, run_seconds=time_limit), implementations=names, retune=retune,
            all_sizes=all_sizes, regime=regime,
            sampler=sampler, storage=storage,
        )  # fmt: skip
        with database_of(db, sandbox=sandbox) as kept:
            if sandbox:
                options = options_in_sandboxes(options, catalog, there[0])
            display = _display(json)
            display.keeps = kept == db
            results = _tuned(told, catalog, there, notes, kept, options, display)
    display.conclude(results)
    raise typer.Exit(_exit_code(results, display))


def _refuse_beside_fleet(time_limit: float | None, storage: str, *, dry_run: bool, json: bool, sandbox: bool) -> None:
    given = {
        "--time-limit": time_limit, "--storage": storage, "--dry-run": dry_run, "--json": json, "--sandbox": sandbox,
    }  # fmt: skip
    if names := [name for name, value in given.items() if value]:
        raise typer.BadParameter(f"{', '.join(names)} with --fleet: jobs are tuned one by one, by many workers")


def _tuned(
    told: ToldShapes,
    catalog: Catalog,
    devices: Sequence[Device],
    notes: Sequence[str],
    database: str | None,
    options: TuneOptions,
    display: Display,
) -> tuple[Result, ...]:
    """The results of a run, which ``display`` shows."""
    from ..tuner import run
    from ..tuner.events import Note

    with display:
        for note in notes:
            display(Note(note))
        return run.tune(
            told.all, catalog=catalog, device=devices, database=database, options=options, observer=display,
            counts=told.counts,
        )  # fmt: skip


def _devices(wanted: str | None) -> tuple[Device, ...]:
    from ..device import Device, devices_of

    return devices_of(Device.best().type if wanted is None else wanted)


def _show_plan(
    told: ToldShapes,
    catalog: Catalog,
    devices: Sequence[Device],
    names: list[str],
    notes: Sequence[str],
    *,
    every: bool,
    json: bool,
) -> None:
    from ..device import by_hardware
    from ..tuner.planning.compiling import with_launches_checked
    from ..tuner.planning.problems import plan
    from ..tuner.planning.ranges import represented
    from .display.dry_run import show

    wanted = represented(told.all, told.counts, catalog.op, every=every)
    planned = [
        (group, [with_launches_checked(one) for one in plan(wanted.problems, catalog, group[0], names)])
        for group in by_hardware(devices)
    ]
    show(planned, (*notes, *wanted.notes), json=json)


def _check_positive(option: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise typer.BadParameter(f"{option} {value:g}: expected more than 0")


def _display(json: bool) -> Display:
    from .display.progress import JsonLines, LiveDisplay, PlainLines

    if json:
        return JsonLines()
    return LiveDisplay() if sys.stdout.isatty() else PlainLines()


def _exit_code(results: tuple[Result, ...], display: Display) -> int:
    if display.ended is not None and display.ended.interrupted:
        return application.ToldCode(application.INTERRUPTED)
    timed_out = display.ended is not None and display.ended.timed_out
    return UNDECIDED if timed_out or any(result.verdict == "none" for result in results) else 0


def new_tune_app() -> typer.Typer:
    """The ``tune`` program."""
    program = application.new_app("")
    program.command(name="tune")(tune)
    return program


def main() -> None:
    """Entry point of the script ``tune``."""
    application.run_to_the_end(new_tune_app(), "tune")
