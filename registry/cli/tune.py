"""``tune``: from a shapes file to winners in the database."""

from __future__ import annotations

import typer

from . import app as application
from .options import Database, Json, Plugins, split
from .problems import options as of_model
from .tuning.options import (
    AllSizes,
    Compilers,
    Devices,
    DryRun,
    Fleet,
    Implementations,
    Regime,
    Retune,
    SamplerName,
    Sandbox,
    Seconds,
    Storage,
    TimeLimit,
    Trials,
    TunedOps,
)
from .tuning.request import TuneRequest
from .tuning.running import tune_here, tune_on_cluster


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
    symmetric: of_model.Symmetric = False,
    lm_head: of_model.LmHead = False,
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
    timed. A problem with a winner is left alone, unless an implementation is there that the winner has not met: it is
    raced again. Ctrl-C keeps what was measured, but with --sandbox only where --db says so. Exit codes: 0 all decided,
    1 some problem has no winner (no candidate was right, its finals decided nothing, the time limit left it out, or
    its op's tolerance accepts what was not computed), 2 bad input, 130 interrupted.
    """
    model_options = of_model.ModelOptions(
        model, batch, context, model_dtype, tensor_parallel, quantize, group_size, symmetric, lm_head, separate, page,
        training, save_shapes,
    )  # fmt: skip
    request = TuneRequest(
        shapes=shapes, model=model_options, misses=from_misses, ops=tuple(split("--op", op)),
        implementations=tuple(split("--implementations", implementations)), device=device, db=db, budget=budget,
        trials=trials, time_limit=time_limit, plugins=tuple(plugin or ()), dry_run=dry_run, retune=retune,
        all_sizes=all_sizes, regime=regime, sampler=sampler, storage=storage, fleet=fleet, compilers=compilers,
        sandbox=sandbox, json=json,
    )  # fmt: skip
    request.check()
    raise typer.Exit(tune_here(request) if fleet is None else tune_on_cluster(request, fleet))


def new_tune_app() -> typer.Typer:
    """The ``tune`` program."""
    program = application.new_app("")
    program.command(name="tune")(tune)
    return program


def main() -> None:
    """Entry point of the script ``tune``."""
    application.run_to_the_end(new_tune_app(), "tune")
