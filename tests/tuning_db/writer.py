"""Processes that open one store at the same moment and write: ``writer.py PLACE PROCESSES TRIALS``.

They are forked, so that the libraries are imported once. Each prints a line: whether its decision won.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback

from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Store, Trial


def main() -> int:
    place, processes, trials = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for module in ("alembic.command", "sqlalchemy.dialects.sqlite", "tuning_db.store"):
        importlib.import_module(module)
    assert "torch" not in sys.modules
    waiting, start = os.pipe()
    children = []
    for number in range(processes):
        child = os.fork()
        if child == 0:
            os.close(start)
            os.read(waiting, 1)  # returns in all of them when the parent closes its end
            os._exit(write(place, number, trials))
        children.append(child)
    os.close(start)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


def write(place: str, number: int, trials: int) -> int:
    """Adds trials one by one, then publishes a first decision; returns the exit status."""
    environment, protocol = Environment({"gpu": "H200"}, {"torch": "2.11"}), Protocol("cold")
    problem = ProblemKey("softmax", 1, {"rows": 1, "cols": 8}, ("cols",))
    try:
        with Store.open(place) as store:
            run = store.start_run(environment)
            for index in range(trials):
                candidate = CandidateKey("triton.row", "f", {"num_warps": index})
                message = f"{number}/{index}"
                store.add_trials(run, [Trial(problem, candidate, environment, protocol, "ok", message, 1.0)])
            decision = Decision(problem, environment, protocol, candidate, 1.0)
            os.write(1, b"won\n" if store.publish(run, decision) else b"lost\n")
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
