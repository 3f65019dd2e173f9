"""``registry dashboard``: the searches, opened in optuna-dashboard."""

from __future__ import annotations

from typing import Annotated

import typer

from .display import text
from .options import Database, SeveralOps, split
from .stored import stored_facts

_HIGHEST_PORT = 65535


def dashboard(
    op: SeveralOps = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", help="The port to listen on; 0 takes a free one.")
    ] = 8080,
    db: Database = None,
) -> None:
    """Open the searches in optuna-dashboard.

    One study per problem, rebuilt from the stored trials. Changes made in the browser are not stored. There is no
    password: --host makes it reachable from other machines.
    """
    if not 0 <= port <= _HIGHEST_PORT:
        raise typer.BadParameter(f"--port {port}: expected 0 to {_HIGHEST_PORT}")
    ops = split("--op", op)
    from ..dashboard.serving import require, serve

    require()
    from tuning_db import Store

    from ..dashboard.studies import rebuild

    with Store.open(db, create=False, migrate=False) as store:
        facts = stored_facts(store, ops)
        storage = rebuild(facts, store)
    studies = sum(1 for section in facts.sections for problem in section.problems if problem.search.trials)
    trials = sum(section.trials for section in facts.sections)

    def opened(url: str) -> None:
        text.say(f"{text.plural(studies, 'study')} with {text.plural(trials, 'trial')} at {url} (Ctrl-C ends it)")

    serve(storage, host, port, opened)
