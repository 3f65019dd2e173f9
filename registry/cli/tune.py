"""``tune``: from a shapes file to winners in the database."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import app as application
from .options import Database, DeviceName, Json, Plugins, catalog_with, split

if TYPE_CHECKING:
    from ..tuner.events import Result
    from .progress import Display

UNDECIDED = 1
SEVERAL = "Repeatable, or separated by commas."


def tune(  # noqa: PLR0913, PLR0917  (an option each)
    shapes: Annotated[
        Path,
        typer.Option(
            "--shapes", metavar="FILE", help="The problems, e.g. configs/llm.yaml; docs/shapes.md has the grammar."
        ),
    ],
    op: Annotated[
        list[str] | None, typer.Option("--op", metavar="OP", help=f"Only this op. {SEVERAL} Default: all in the file.")
    ] = None,
    implementations: Annotated[
        list[str] | None,
        typer.Option("--implementations", metavar="NAME", help=f"Only these, e.g. triton.row. {SEVERAL}"),
    ] = None,
    device: DeviceName = None,
    db: Database = None,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="SECONDS", help="At most so long searching each problem.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", metavar="N", help="At most so many candidates for each problem.")
    ] = None,
    plugin: Plugins = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="List problems, candidates and why others are out; compile and measure nothing."
        ),
    ] = False,
    retune: Annotated[
        bool, typer.Option("--retune", help="Also problems that have a winner here already; it is the one to beat.")
    ] = False,
    json: Json = False,
) -> None:
    """Find the fastest right candidate for each problem, and remember it.

    Every candidate is verified against a float64 reference before it is timed. Ctrl-C keeps what was measured.
    Exit codes: 0 all decided, 1 no candidate was right for some problem, 2 bad input, 130 interrupted.
    """
    _check_positive("--budget", budget)
    _check_positive("--trials", trials)
    from ..device import Device
    from ..tuner.planning import plan
    from ..tuner.shapes import all_problems, load_shapes

    there = Device.best() if device is None else Device.of(device)
    catalog = catalog_with(plugin)
    problems = tuple(all_problems(load_shapes(shapes, catalog, split("--op", op))))
    wanted = split("--implementations", implementations)
    if dry_run:
        from .dry_run import show

        show(plan(problems, catalog, there, wanted), there, json=json)
        return
    from ..tuner.run import Budget
    from ..tuner.run import tune as run
    from .progress import say_results

    with _display(json) as display:
        results = run(
            problems,
            catalog=catalog,
            device=there,
            database=db,
            budget=Budget(seconds=budget, trials=trials),
            implementations=wanted,
            retune=retune,
            observer=display,
        )
    if json:
        say_results(results)
    else:
        _conclude(results, display)
    raise typer.Exit(_exit_code(results, display))


def _check_positive(option: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise typer.BadParameter(f"{option} {value:g}: expected more than 0")


def _display(json: bool) -> Display:
    from .progress import JsonLines, LiveDisplay, PlainLines

    if json:
        return JsonLines()
    return LiveDisplay() if sys.stdout.isatty() else PlainLines()


def _conclude(results: tuple[Result, ...], display: Display) -> None:
    from . import closing, text

    if results:
        text.say()
        closing.print_results(results)
        text.say()
    ended = display.ended
    if ended is None:
        return
    skipped = f", {len(display.skipped)} skipped" if display.skipped else ""
    text.say(
        f"{text.plural(len(results), 'problem')}{skipped}, {text.plural(ended.trials, 'trial')} "
        f"in {text.duration(ended.seconds)} ({text.duration(ended.device_seconds)} on the device)"
    )
    if ended.interrupted:
        text.say(
            f"interrupted: every finished trial is kept, {text.plural(ended.undecided, 'problem')} undecided; "
            "the same command goes on from here"
        )


def _exit_code(results: tuple[Result, ...], display: Display) -> int:
    if display.ended is not None and display.ended.interrupted:
        return application.INTERRUPTED
    return UNDECIDED if any(result.verdict == "none" for result in results) else 0


def new_tune_app() -> typer.Typer:
    """The ``tune`` program."""
    program = application.new_app("")
    program.command(name="tune")(tune)
    return program


def main() -> None:
    """Entry point of the script ``tune``."""
    sys.exit(application.run(new_tune_app(), "tune"))
