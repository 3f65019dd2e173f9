"""``registry import-kernel`` and ``registry race``: kernels in the forms of other projects."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import RegistryError, in_a_line
from ..display import text
from ..display.table import Column, Group, print_table
from ..options import DeviceName, Json, Plugins, catalog_with, device_of, number

if TYPE_CHECKING:
    from ...discovery.catalog import Catalog
    from ...importers.detection import ImportedProblem
    from ...importers.race import RaceStanding
    from ...problem import Problem
    from ...sandbox.trial import SandboxedTrial

REFUSED = 1

Submissions = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SUBMISSION...",
        help="Files, or folders of files: ModelNew, custom_kernel, a solution's JSON, a function named as the op, .cpp "
        "or .cu for load_inline; FOLDER:function or ORG/NAME@COMMIT:function for a package of HF kernels.",
    ),
]  # fmt: skip
ProblemOption = Annotated[
    Path | None,
    typer.Option(
        "--problem", metavar="FILE",
        help="A problem that becomes an op: of KernelBench (Model), GPU MODE (reference.py or its folder), or "
        "FlashInfer-Bench (a definition's JSON).",
    ),
]  # fmt: skip
RacedOp = Annotated[str | None, typer.Option("--op", metavar="OP", help="Or an op that is there, e.g. softmax.")]
ShapesOption = Annotated[
    Path | None, typer.Option("--shapes", metavar="FILE", help="Problems of --op, see docs/shapes.md.")
]
Workloads = Annotated[
    Path | None,
    typer.Option("--workloads", metavar="FILE", help="FlashInfer-Bench's workloads, JSON or JSON lines."),
]
KeptIn = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", help="Store trials and winners in this database. Default: keep nothing."),
]
SearchSeconds = Annotated[
    float | None,
    typer.Option("--budget", metavar="SECONDS", parser=number, help="At most so long searching each problem."),
]
TracesFolder = Annotated[
    Path | None,
    typer.Option("--traces", metavar="FOLDER", help="Also write FlashInfer-Bench solutions and traces there."),
]
Sandboxed = Annotated[
    bool,
    typer.Option(
        "--sandbox",
        help="Run each behind bubblewrap, without network, files or other processes; judged and timed from outside."
        " For submissions of strangers. An error where bubblewrap is missing.",
    ),
]

_RANKED_BY = (
    "ranked by ratios of times that were taken side by side; a median is of all times of one, taken at any time"
)
_RANKED_IN_SANDBOXES = (
    "ranked by times over the reference's, in turns where one may win; times hold asking and copying, too"
)

_COLUMNS = (
    Column("rank", right=True),
    Column("submission"),
    Column("verdict"),
    Column("median", right=True),
    Column("interval", right=True),
    Column("× reference", right=True),
    Column("reason"),
)


def import_kernel(
    submissions: Submissions = None,
    problem: ProblemOption = None,
    op: RacedOp = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The plugin file to write. Default: print it.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a plugin file of foreign kernels: `tune --plugin FILE` then tries them.

    The file points to the sources, which stay where they are, by path and SHA-256: a changed source is refused. Nothing
    of the submissions is run. Exit codes: 0 all imported, 1 some file has no known form, 2 bad input.
    """
    from ...importers.plugin_file import entrants, plugin_text

    there = _problem(problem, op)
    name = there.name if there is not None else catalog_with(None).op(str(op)).name
    found, refused = entrants(submissions or [], name, there)
    made = plugin_text(name, there, found)
    if out is not None:
        out.write_text(made)
    if json:
        text.print_json({"op": name, "file": None if out is None else str(out), "imported": found, "refused": refused})
    elif out is None:
        sys.stdout.write(made)
    else:
        text.say(f"wrote {out}: {name} with {text.plural(len(found), 'submission')}")
    if not json:
        for label, why in refused.items():
            sys.stderr.write(f"refused: {label}: {why}\n")
    raise typer.Exit(REFUSED if refused else 0)


def race(  # noqa: PLR0913, PLR0917  (an option each)
    submissions: Submissions = None,
    problem: ProblemOption = None,
    op: RacedOp = None,
    shapes: ShapesOption = None,
    workloads: Workloads = None,
    device: DeviceName = None,
    db: KeptIn = None,
    budget: SearchSeconds = None,
    traces: TracesFolder = None,
    plugin: Plugins = None,
    sandbox: Sandboxed = False,
    json: Json = False,
) -> None:
    """Rank submissions beside the implementations that are there.

    Each is verified against a float64 reference on inputs it cannot foresee, before, while and after it is timed, in
    worker processes: this process runs nothing of a submission. A process contains crashes, not malice; --sandbox does
    more. Exit codes: 0 every submission is right, 1 some are out, 2 bad input, or no sandbox.
    """
    from ...importers.plugin_file import entrants, plugin_text
    from ...importers.race import race as held
    from ...tuner.limits import Budget
    from ...tuner.options import TuneOptions

    if budget is not None and not budget > 0:
        raise typer.BadParameter(f"--budget {budget:g}: expected more than 0")
    if sandbox:
        _check_sandboxed(db, plugin, traces)
    there, on = _problem(problem, op), device_of(device)
    catalog = catalog_with(plugin)
    name = there.name if there is not None else catalog.op(str(op)).name
    found, refused = entrants(submissions or [], name, there)
    if sandbox:
        from ...importers.sandboxed_race import MEASURE_S, SandboxedRace, fit_for_sandboxes

        found, unfit = fit_for_sandboxes(found, submissions or [])
        refused = {**refused, **unfit}
    with _plugin(plugin_text(name, there, found)) as file:
        catalog.load_file(file)
        problems = _problems(catalog, name, there, shapes, workloads)
        if sandbox:
            told = _say_trial if not json else _say_nothing
            sandboxed = SandboxedRace(
                catalog.op(name), there, found, catalog, on, seconds=budget or MEASURE_S, observe=told
            )
            standings = sandboxed.held(problems, refused)
        else:
            options = TuneOptions(Budget(budget))
            standings = held(problems, found, refused, catalog=catalog, device=on, database=db, options=options)
    if traces is not None:
        from ...importers.flashinfer_traces import write_traces

        write_traces(traces, there, found, standings, on.name)
    if json:
        text.print_json([_plain(one) for one in standings])
    else:
        _show(standings, _RANKED_IN_SANDBOXES if sandbox else _RANKED_BY)
    raise typer.Exit(REFUSED if any(one.is_submission and one.status != "ok" for one in standings) else 0)


def _check_sandboxed(db: str | None, plugin: Sequence[Path] | None, traces: Path | None) -> None:
    """Raise RegistryError for options that do not go with --sandbox, or where there is no sandbox here."""
    from ...sandbox.bubblewrap import bubblewrap

    for option, given, why in (
        ("--plugin", plugin, "this process would run the file: name it as a submission, or leave out --sandbox"),
        ("--db", db, "times of requests to a sandbox are not those of a call: tune with a plugin file instead"),
        ("--traces", traces, "times of requests to a sandbox are not those of a call"),
    ):
        if given:
            raise RegistryError(f"{option} does not go with --sandbox", hint=why)
    bubblewrap()


def _say_trial(label: str, trial: SandboxedTrial) -> None:
    """A line on stderr for each time that an entrant was tried."""
    outcome = trial.outcome
    took = f"{outcome.status} after {outcome.seconds:.0f} s"
    if outcome.status == "ok":
        took += f": {trial.calls} calls a sample, {trial.request_us:.0f} µs of asking in each"
        took += f"; memory limited by {trial.limited_by}"
    sys.stderr.write(f"{label}: {took}\n")


def _say_nothing(_label: str, _trial: SandboxedTrial) -> None: ...


def _problem(problem: Path | None, op: str | None) -> ImportedProblem | None:
    from ...importers.detection import imported

    if (problem is None) == (op is None):
        raise RegistryError("expected one of --problem and --op", hint="--problem FILE, or --op softmax")
    if problem is None:
        return None
    found = imported(problem)
    try:
        found.op  # noqa: B018  (the problem file is run here: what is wrong with it is told before anything else)
    except RegistryError:
        raise
    except Exception as fault:
        raise RegistryError(f"{problem}: {in_a_line(fault)}", hint="the problem file is run to make its op") from fault
    return found


@contextmanager
def _plugin(made: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="race-") as folder:
        file = Path(folder) / "race.py"
        file.write_text(made)
        yield file


def _problems(
    catalog: Catalog, name: str, there: ImportedProblem | None, shapes: Path | None, workloads: Path | None
) -> list[Problem]:
    from ...tuner.shapes.shapes import load_shapes

    op = catalog.op(name)
    if shapes is not None:
        return load_shapes(shapes, catalog, [name]).get(name, [])
    if there is None:
        raise RegistryError(f"which problems of {name}?", hint="--shapes FILE, such as configs/smoke.yaml")
    return [op.problem_of(dims) for dims in there.problems(workloads)]


def _plain(one: RaceStanding) -> dict[str, Any]:
    problem = None if one.problem is None else {"op": one.problem.op, "dims": dict(one.problem.dims)}
    return {**vars(one), "problem": problem}


def _show(standings: Sequence[RaceStanding], ranked_by: str) -> None:
    groups: dict[str, list[list[str]]] = {}
    for one in standings:
        title = "" if one.problem is None else text.named(one.problem)
        groups.setdefault(title or "no known form", []).append(_row(one))
    print_table(_COLUMNS, [Group(title, rows) for title, rows in groups.items()])
    if any(one.in_finals for one in standings):
        text.say(ranked_by)


def _row(one: RaceStanding) -> list[str]:
    interval = ""
    if one.low_us is not None and one.high_us is not None:
        interval = f"{text.microseconds(one.low_us)} to {text.microseconds(one.high_us)}"
    median = "" if one.median_us is None else text.microseconds(one.median_us)
    times = "" if one.times_reference is None else f"{one.times_reference:.2f}"
    return [str(one.rank or ""), one.label, one.status, median, interval, times, text.shortened(one.reason)]
