"""Starts real tuning runs, each in a process of its own: ``tuning.py`` reads one JSON object a line.

The runs are forked, so that the libraries are imported once. Of each run the events come out in a file, last its end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import registry.tuner.run  # noqa: F401  (imported before the fork)
from registry.device import Device
from registry.discovery import Catalog
from registry.problem import Problem
from registry.tuner.events import Event, TrialDone
from registry.tuner.problem_search import Budget

PLUGIN = Path(__file__).with_name("repeated.py")


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the runs: nothing of them stays
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run(json.loads(line))
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


def _run(order: dict[str, Any]) -> None:
    from registry.tuner.run import tune

    code = 1
    with Path(order["events"]).open("a", buffering=1) as events:

        def observe(event: Event) -> None:
            said = {"event": type(event).__name__, "status": event.status if isinstance(event, TrialDone) else ""}
            events.write(json.dumps(said) + "\n")

        try:
            catalog = Catalog()
            catalog.load_file(PLUGIN)
            problems = [Problem("square", {"n": n, "dtype": "float32"}) for n in order["sizes"]]
            results = tune(
                problems,
                catalog=catalog,
                device=Device.of("cpu"),
                database=order["database"],
                budget=Budget(trials=order["trials"]),
                implementations=["repeated.any"],
                observer=observe,
            )
            said = [[result.problem.n, dict(result.config), result.verdict] for result in results]
            events.write(json.dumps({"event": "results", "results": said}) + "\n")
            code = 0
        except BaseException:
            events.write(json.dumps({"event": "fault", "fault": traceback.format_exc()}) + "\n")
    os._exit(code)


if __name__ == "__main__":
    main()
