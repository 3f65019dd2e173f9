"""``registry``: the program and its commands."""

from __future__ import annotations

import typer

from . import app as application
from .authors.check import check
from .authors.compare import compare
from .authors.new import new_op, new_plugin
from .authors.race import import_kernel, race
from .authors.scaffold import scaffold
from .compile import compile_
from .dashboard import dashboard
from .db import upgrade
from .doctor import doctor
from .exchange import export, import_
from .explain import explain
from .fleet.commands import plan, status, watch, work
from .ops import ops
from .plugins import plugins
from .profile import profile
from .releases import release
from .releases.drift import drift
from .report import report
from .results import results
from .tune import tune
from .winners import winners

HELP = "Which kernel runs: the ops, who implements them, what was measured here, and what won."


def new_registry_app() -> typer.Typer:
    """The ``registry`` program."""
    program = application.new_app(HELP)
    shown = (
        tune, race, ops, plugins, explain, winners, profile, results, compare, drift, report, dashboard, doctor, export,
    )  # fmt: skip
    for command in shown:
        program.command(name=command.__name__)(command)
    program.command(name="compile")(compile_)
    program.command(name="check")(check)
    program.command(name="scaffold")(scaffold)
    program.command(name="import")(import_)
    program.command(name="import-kernel")(import_kernel)
    database = application.new_app("Upgrade the tuning database.")
    database.command(name="upgrade")(upgrade)
    database.callback()(_several)
    program.add_typer(database, name="db")
    fleet = application.new_app("Many GPUs, many machines: a queue in the database, and workers.")
    fleet.command(name="plan")(plan)
    fleet.command(name="work")(work)
    fleet.command(name="status")(status)
    fleet.command(name="watch")(watch)
    program.add_typer(fleet, name="fleet")
    releases = application.new_app("Sets of winners that never change: to pin processes to, to sign and to pass on.")
    releases.command(name="create")(release.create)
    releases.command(name="list")(release.list_)
    releases.command(name="export")(release.export)
    releases.command(name="import")(release.import_)
    releases.command(name="prune")(release.prune)
    program.add_typer(releases, name="release")
    new = application.new_app("A package to begin with.")
    new.command(name="plugin")(new_plugin)
    new.command(name="op")(new_op)
    program.add_typer(new, name="new")
    return program


def _several() -> None:
    """Does nothing: with a callback typer keeps the group ``db``, although it has only one command."""


def main() -> None:
    """Entry point of the script ``registry``."""
    application.run_to_the_end(new_registry_app(), "registry")


if __name__ == "__main__":
    main()
