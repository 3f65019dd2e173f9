"""``registry profile``: the time of calls by op and implementation, of given problems or of a program."""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import RegistryError, UnknownNameError
from . import app as application
from .display import text
from .options import SEVERAL, Database, DeviceName, Json, Plugins, catalog_with, device_of, split, whole_number
from .pages.page_file import check_place

if TYPE_CHECKING:
    from ..device import Device
    from ..discovery.catalog import Catalog
    from ..problem import Problem
    from ..profiling.trace import Trace

ProgramWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="COMMAND", help="Behind --: a program to profile, e.g. -- python script.py --its-own=option."
    ),
]
ProfiledOps = Annotated[
    list[str] | None, typer.Option("--op", metavar="OP", help=f"Only this op. {SEVERAL} Default: all.")
]
Problems = Annotated[
    Path | None,
    typer.Option("--shapes", metavar="FILE", help="Call the problems of a shapes file, in place of a program."),
]
Calls = Annotated[
    int, typer.Option("--calls", metavar="N", parser=whole_number, help="With --shapes: calls of each problem.")
]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Keep the chrome trace; Perfetto shows it.")
]
TensorBoard = Annotated[
    Path | None, typer.Option("--tensorboard", metavar="DIR", help="Put the trace where TensorBoard's plugin looks.")
]
Ncu = Annotated[
    bool,
    typer.Option(
        "--ncu", help="With --shapes: Nsight Compute's metrics and advice for what runs each problem, instead."
    ),
]


def profile(  # noqa: PLR0913, PLR0917  (an option each)
    command: ProgramWords = None,
    op: ProfiledOps = None,
    shapes: Problems = None,
    calls: Calls = 20,
    device: DeviceName = None,
    trace: TraceFile = None,
    tensorboard: TensorBoard = None,
    ncu: Ncu = False,
    db: Database = None,
    plugin: Plugins = None,
    json: Json = False,
) -> None:
    """Time calls by op, problem and implementation, under torch's profiler.

    Either of the problems in a shapes file, or of a program behind --, whose exit code is passed on. Each row tells
    which implementation ran, its calls, their time, its share of the program's, and the share of the floor that it
    reaches: of a copy of the bytes that the problem must move, timed here, or of its FLOP at the GPU's peak.
    """
    given, ops = list(command or ()), split("--op", op)
    _check_source(given, shapes, ncu=ncu)
    if calls < 1:
        raise typer.BadParameter(f"--calls {calls}: expected at least 1")
    _check_places(trace, tensorboard)
    catalog, there = catalog_with(plugin), device_of(device)
    if given:
        _check_ops(ops, catalog)
    problems = () if shapes is None else _problems(shapes, catalog, ops)
    if ncu:
        _show_ncu(problems, there, db, plugin or (), json=json)
        return
    code = 0
    with tempfile.TemporaryDirectory(prefix="kernel-registry-profile-") as name:
        folder = Path(name)
        if given:
            code = _run(given, folder)
        else:
            _call(problems, catalog, there, db, calls, folder)
        files = sorted(folder.glob("*.json"), key=lambda path: -path.stat().st_size)
        if not files:
            raise RegistryError(
                f"no trace was written; the program's exit code is {code}",
                hint="a program is profiled from its import of registry to its end, unless it is killed",
            )
        whole = _read(files) if given else _read(files).of_calls_alone
        _keep(files, trace, tensorboard)
    _show(whole.only(ops) if ops else whole, catalog, there, json=json)
    raise typer.Exit(application.ToldCode(code))


def _check_source(command: Sequence[str], shapes: Path | None, *, ncu: bool) -> None:
    """Raise RegistryError unless there is either a command or a file, and for ``ncu`` a file."""
    if bool(command) == (shapes is not None):
        raise RegistryError(
            "both --shapes and a command were given" if command else "nothing to profile",
            hint="expected --shapes FILE, or a command: registry profile -- python script.py",
        )
    if command and ncu:
        raise RegistryError(
            "--ncu is for --shapes", hint="leave it out, or name problems with --shapes, e.g. a recording's"
        )


def _check_places(trace: Path | None, tensorboard: Path | None) -> None:
    """Raise RegistryError for places where no trace can be put, before a program has run for it."""
    if trace is not None:
        check_place("--trace", trace, hint="name a file: a trace is written when all has run")
    if tensorboard is not None:
        try:
            tensorboard.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise RegistryError(
                f"--tensorboard {tensorboard}: {fault.strerror}", hint="expected a folder that can be written to"
            ) from None


def _check_ops(ops: Sequence[str], catalog: Catalog) -> None:
    """Raise UnknownNameError for an op that nobody defines; one of a name like acme::op may be the program's own."""
    known = catalog.ops()
    for op in ops:
        if op not in known and "::" not in op:
            raise UnknownNameError("op", op, known)


def _run(command: Sequence[str], folder: Path) -> int:
    from ..profiling.command import run_profiled

    return run_profiled(command, folder)


def _problems(shapes: Path, catalog: Catalog, ops: Sequence[str]) -> tuple[Problem, ...]:
    from ..tuner.shapes.shapes import read_shapes

    return read_shapes(shapes, catalog, ops).all


def _call(
    problems: Sequence[Problem], catalog: Catalog, device: Device, database: str | None, calls: int, folder: Path
) -> None:
    from ..dispatch.dispatcher import Dispatcher
    from ..profiling.problems import profiled_problems

    dispatcher = Dispatcher(catalog, database=database)
    for fault in profiled_problems(dispatcher, problems, device, calls, folder / "trace.json"):
        typer.echo(f"left out: {fault}", err=True)


def _read(files: Sequence[Path]) -> Trace:
    from ..profiling.trace import Trace, read_trace

    whole = Trace()
    for path in files:
        whole += read_trace(path)
    return whole


def _keep(files: Sequence[Path], trace: Path | None, tensorboard: Path | None) -> None:
    """Copy the traces to where they were asked for: of several processes the largest has the name that was given."""
    try:
        if tensorboard is not None:
            for path in files:
                # the name by which TensorBoard's plugin finds a trace and its worker
                worker = f"{socket.gethostname()}_{path.stem}.{time.time_ns() // 1_000_000}"
                shutil.copyfile(path, tensorboard / f"{worker}.pt.trace.json")
        for number, path in enumerate(files if trace is not None else ()):
            assert trace is not None
            shutil.copyfile(path, trace if number == 0 else trace.with_suffix(f".{path.stem}.json"))
    except OSError as fault:
        raise RegistryError(
            f"{fault.filename}: {fault.strerror}", hint="expected a place that can be written"
        ) from None


def _show(whole: Trace, catalog: Catalog, device: Device, *, json: bool) -> None:
    from ..device import Device
    from ..profiling.floors import Floors
    from ..profiling.summary import summed
    from .display.profile_table import show

    # a program's calls on the CPU are measured against the CPU
    floors = Floors(device if whole.on_device else Device.of("cpu"))
    rows = summed(whole, catalog.ops(), floors.us)
    if json:
        text.print_json([{**asdict(row), "of_floor": row.of_floor} for row in rows])
        return
    show(rows, whole)


def _show_ncu(
    problems: Sequence[Problem], device: Device, database: str | None, files: Sequence[Path], *, json: bool
) -> None:
    from ..profiling.ncu import MeasuredCall, ncu_reports, require_ncu
    from .display.profile_table import show_kernels

    ncu = require_ncu()
    if device.type != "cuda":
        raise RegistryError(f"--ncu measures kernels of a GPU, and the device is {device}", hint="give --device cuda")
    found = {
        problem: ncu_reports(ncu, MeasuredCall(problem, device.label, database, tuple(files))) for problem in problems
    }
    if json:
        text.print_json(
            [
                {"problem": str(problem), "kernels": [asdict(one) for one in kernels]}
                for problem, kernels in found.items()
            ]
        )
        return
    show_kernels(found)
