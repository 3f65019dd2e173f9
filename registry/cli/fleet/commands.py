"""``registry fleet plan``, ``work`` and ``status``: the work queue in the database."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from ..display import text
from ..options import SEVERAL, Database, DeviceName, Json, Plugins, catalog_with, device_of, number, split, whole_number
from ..problems import options as of_model
from ..problems.told import check_source, told_shapes
from ..tuning.options import AllSizes, Implementations, Regime, Retune, Seconds, Trials, TunedOps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from ...fleet.planner import Planned
    from ...fleet.worker import LeasingWorker

_HIGHEST_PORT = 65535
_QUESTIONS_A_LEASE = 3
"""Questions to the database that may go unanswered, one after another, in the time of a lease."""

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--gpus", metavar="MODEL",
        help=f'Models of GPUs as the driver names them, e.g. "NVIDIA H200"; cpu for CPUs. {SEVERAL} '
        "Default: those of this machine.",
    ),
]  # fmt: skip
JobSize = Annotated[
    int, typer.Option("--job-size", metavar="N", parser=whole_number, help="At most so many problems in a job.")
]
Attempts = Annotated[
    int, typer.Option("--attempts", metavar="N", parser=whole_number, help="Give a job up after so many attempts.")
]
LeaseSeconds = Annotated[
    float,
    typer.Option(
        "--lease", metavar="SECONDS", parser=number,
        help="A job goes to another worker when this one has been silent for so long.",
    ),
]  # fmt: skip
Stay = Annotated[bool, typer.Option("--stay", help="Wait for further plans when no job is left.")]
Calibrate = Annotated[
    bool | None,
    typer.Option(
        "--calibrate/--no-calibrate",
        help="Compare the device with others of its model, and set it aside if it is slower. Default: for a GPU.",
    ),
]
UntilEof = Annotated[
    bool,
    typer.Option("--until-eof", help="Leave, as on SIGTERM, when standard input ends: with the program that holds it."),
]


def plan(  # noqa: PLR0913, PLR0917  (an option each)
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
    gpus: Models = None,
    op: TunedOps = None,
    implementations: Implementations = None,
    budget: Seconds = None,
    trials: Trials = None,
    job_size: JobSize = 8,
    attempts: Attempts = 3,
    plugin: Plugins = None,
    retune: Retune = False,
    all_sizes: AllSizes = False,
    regime: Regime = "cold",
    db: Database = None,
    json: Json = False,
) -> None:
    """Queue problems as jobs, each for one model of GPU.

    A job holds problems that share compiled kernels; one worker tunes it on one GPU. Problems that open jobs hold
    already are left out, so a plan may be repeated, and several may plan at once. Workers must have the versions of
    torch, Triton and plugins that are installed here.

    Exit codes: 0 all queued, 1 an op is left out since its tolerance accepts what was not computed, 2 bad input.
    """
    from tuning_db import JobQueue

    from ...device import Device
    from ...fleet.planner import plan_fleet
    from ...tuner.limits import Budget
    from ...tuner.options import TuneOptions

    told_model = of_model.ModelOptions(
        model, batch, context, model_dtype, tensor_parallel, quantize, group_size, symmetric, lm_head, separate, page,
        training, None,
    )  # fmt: skip
    check_source(shapes, told_model, misses=from_misses)
    ops, names, models = split("--op", op), split("--implementations", implementations), split("--gpus", gpus)
    catalog = catalog_with(plugin)
    told, notes = told_shapes(shapes, told_model, catalog, ops, Device.best())
    options = TuneOptions(
        Budget(budget, trials), implementations=names, retune=retune, all_sizes=all_sizes, regime=regime
    )
    with JobQueue.open(db) as queue:
        planned = plan_fleet(
            queue, told.all, models or _models_here(), catalog=catalog, options=options, counts=told.counts,
            most_problems=job_size, most_attempts=attempts,
        )  # fmt: skip
        where = queue.url
    _say(planned, where, notes, as_json=json)
    if planned.faulty:
        raise typer.Exit(1)


def work(
    device: DeviceName = None,
    lease: LeaseSeconds = 180.0,
    stay: Stay = False,
    until_eof: UntilEof = False,
    calibrate: Calibrate = None,
    plugin: Plugins = None,
    db: Database = None,
) -> None:
    """Work on queued jobs with one device, until none is left for it.

    Started on any machine that reaches the database, by hand, Slurm or Kubernetes; one for each GPU. On SIGTERM and
    Ctrl-C the present job goes back to the queue, and trials are kept.

    Exit codes: 0 no job is left, or told to stop; 1 this machine cannot go on (a full disk, a lost GPU, a GPU slower
    than others of its model); 2 bad input, or versions that the fleet does not work with.
    """
    if not lease > 0:
        raise typer.BadParameter(f"--lease {lease:g}: expected more than 0")
    from tuning_db import JobQueue
    from tuning_db.queue.job_queue import SILENCE_S

    from ...fleet.worker import LeasingWorker, WorkOptions
    from ...tuner.processes import spawning
    from ...tuner.workers import preloading

    # a short lease must not be lost while a stalled network is waited for
    silence_s = min(SILENCE_S, lease / _QUESTIONS_A_LEASE)
    with spawning.kept(preloading.ENTRY), JobQueue.open(db, silence_s=silence_s) as queue:
        here = device_of(device)
        calibrated = here.type == "cuda" if calibrate is None else calibrate
        options = WorkOptions(lease, stay, calibrate=calibrated)
        worker = LeasingWorker(queue, db, here, catalog_with(plugin), options, text.say)
        text.say(f"{here} works on jobs of {queue.url}")
        _leave_when_told(worker)
        if until_eof:
            threading.Thread(target=_leave_at_eof, args=(worker,), daemon=True).start()
        summary = worker.run()
    if summary.fault:
        text.say(f"left: {summary.fault}")
    else:
        text.say(f"left after {text.plural(summary.done, 'job')}")
    raise typer.Exit(1 if summary.fault else 0)


def status(db: Database = None, json: Json = False) -> None:
    """Show jobs, workers and the latest failures.

    Exit code 1 when some job was given up.
    """
    from dataclasses import asdict

    from tuning_db import JobQueue

    from ..display import fleet_table

    with JobQueue.open(db, create=False, migrate=False) as queue:
        found = queue.status()
    if json:
        text.print_json(asdict(found))
    else:
        fleet_table.show(found)
    raise typer.Exit(1 if found.failed else 0)


def watch(
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", help="The port to listen on; 0 takes a free one.")
    ] = 8081,
    db: Database = None,
) -> None:
    """Show the status as a page that keeps up with it, in a browser.

    The page can only be read. /status.json is what status --json prints. There is no password: --host makes it
    reachable from other machines.
    """
    if not 0 <= port <= _HIGHEST_PORT:
        raise typer.BadParameter(f"--port {port}: expected 0 to {_HIGHEST_PORT}")
    from tuning_db import JobQueue

    from ...dashboard.fleet_page import application
    from ...dashboard.serving import listen

    def opened(url: str) -> None:
        text.say(f"the fleet is at {url} (Ctrl-C ends it)")

    with JobQueue.open(db, create=False, migrate=False) as queue:
        listen(application(queue.status, queue.url), host, port, opened)


def _models_here() -> list[str]:
    from ...device import Device
    from ...fleet.planner import CPU

    return list(dict.fromkeys(device.name for device in Device.visible())) or [CPU]


def _say(planned: Planned, where: str, notes: Sequence[str], *, as_json: bool) -> None:
    """Print what was planned into the database at ``where``, behind the notes on its problems."""
    if as_json:
        told = {"database": where, "devices": list(planned.devices), "left_out": list(planned.faulty)}
        text.print_json({**told, **vars(planned.added)})
        return
    for note in (*notes, *planned.notes):
        text.say(note)
    text.say(_told(planned, where))


def _told(planned: Planned, where: str) -> str:
    added = planned.added
    told = f"{text.plural(added.jobs, 'job')} with {text.plural(added.problems, 'problem')} queued in {where}"
    told += f", for {' and '.join(planned.devices)}"
    if added.already:
        told += f"; {text.plural(added.already, 'problem')} left out, which open jobs hold already"
    return told


def _leave_when_told(worker: LeasingWorker) -> None:
    def leave(number: int, _: FrameType | None) -> None:
        text.say(f"{signal.Signals(number).name}: the present job goes back to the queue")
        worker.leave()

    for told in (signal.SIGTERM, signal.SIGINT):
        signal.signal(told, leave)


def _leave_at_eof(worker: LeasingWorker) -> None:
    # not sys.stdin.buffer: its lock, held by a thread that reads, aborts the interpreter when it ends
    while os.read(sys.stdin.fileno(), 1 << 10):
        pass
    worker.leave()
