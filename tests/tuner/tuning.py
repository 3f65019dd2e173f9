"""Starts real tuning runs, each in a process of its own: ``tuning.py`` reads one JSON object a line.

The runs are forked, so that the libraries are imported once: by this process, which first tells how many seconds that
took. A run's keeper and its template are executed as a user's are, and import them anew, or ``forked`` too. Of each run
the events come out in a file, last its end.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, cast

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Problem
from registry.tuner.decide import judge
from registry.tuner.events import Event, ProblemDecided, TrialDone
from registry.tuner.limits import Budget
from registry.tuner.processes import keeper, template
from registry.tuner.processes.spawning import Launched
from registry.tuner.workers import preloading

PLUGIN = Path(__file__).with_name("repeated.py")
LIBRARIES = ("registry.tuner.run", "alembic.command", "sqlalchemy.dialects.sqlite", "tuning_db.store")
FORKING = multiprocessing.get_context("fork")


def main() -> None:
    for module in LIBRARIES:
        importlib.import_module(module)
    preloading.preload()
    _say(time.process_time())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the runs: nothing of them stays
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run(json.loads(line))
        _say(child)


def _say(number: float) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _run(order: dict[str, Any]) -> None:
    from registry.tuner.options import TuneOptions
    from registry.tuner.run import tune

    code = 1
    os.environ.clear()
    os.environ.update(order["environment"])
    if order["forked"]:
        keeper.launch = _fork_keeper
    with Path(order["events"]).open("a", buffering=1) as events:

        def observe(event: Event) -> None:
            said = {"event": type(event).__name__, "status": event.status if isinstance(event, TrialDone) else ""}
            said |= {"verdict": event.result.verdict} if isinstance(event, ProblemDecided) else {}
            events.write(json.dumps(said) + "\n")

        try:
            judge.MOST_BLOCKS = judge.BLOCKS  # each block costs a process of its own
            catalog = Catalog()
            catalog.load_file(PLUGIN)
            problems = [Problem("square", {"n": n, "dtype": "float32"}) for n in order["sizes"]]
            results = tune(
                problems,
                catalog=catalog,
                device=Device.of("cpu"),
                database=order["database"],
                options=TuneOptions(Budget(trials=order["trials"]), implementations=["repeated.any"]),
                observer=observe,
            )
            said = [[result.problem.n, dict(result.config), result.verdict] for result in results]
            events.write(json.dumps({"event": "results", "results": said}) + "\n")
            code = 0
        except BaseException:
            events.write(json.dumps({"event": "fault", "fault": traceback.format_exc()}) + "\n")
    os._exit(code)


def _fork_keeper(*modules: str) -> Launched:
    """As ``keeper.launch``."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    temporary = keeper._temporary_folder()
    process = FORKING.Process(target=_keep, args=(ours, theirs, os.getpid(), temporary))
    process.start()
    theirs.close()
    return cast("Launched", (cast("Any", process)._popen, ours, temporary))


def _keep(ours: socket.socket, theirs: socket.socket, run: int, temporary: str) -> None:
    ours.close()
    os.setsid()
    setattr(keeper.Keeper, keeper.Keeper._start_template.__name__, _fork_template)
    sys.argv = ["keeper.py", str(theirs.detach()), str(run), temporary]
    keeper.main()


def _fork_template(kept_by: keeper.Keeper) -> None:
    """As ``Keeper._start_template``."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        kept_by._client.close()
        _be_template(theirs.detach())
    theirs.close()
    forked = keeper.Template(ours, pid=pid)
    kept_by._templates.append(forked)
    kept_by._selector.register(ours, selectors.EVENT_READ, lambda: kept_by._from_template(forked))


def _be_template(descriptor: int) -> None:
    """What it imports is imported already."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(keeper._QUIET)
    try:
        template.main([str(descriptor), str(os.getppid()), "registry.tuner.workers.worker_process"])
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
