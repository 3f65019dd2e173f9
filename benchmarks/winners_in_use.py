"""In a process of its own: call ops on tuned problems and show that dispatch runs exactly the stored winner.

    python -m benchmarks.winners_in_use [--db FILE]

Prints a line a tuned problem of the ops given and exits with 1 when ``explain`` says anything but the exact winner, or
when the outputs differ from the reference by more than the op's tolerance.
"""

from __future__ import annotations

import argparse
import sys

import torch

import registry
from registry.contract import as_tuple
from registry.correctness.numerics import compare, own_error, reference64
from tuning_db import Decision, Store


def check(decision: Decision, device: registry.Device) -> list[str]:
    """The faults of dispatch on one tuned problem, empty if there are none. Prints its line."""
    op = registry.ops()[decision.problem.op]
    problem = op.problem_of(decision.problem.dims)
    values = op.inputs(problem, op.kinds[0], torch.Generator(device.torch).manual_seed(1))
    output = registry.call(op.name, *values)
    told = registry.explain(op.name, *values)
    reference = reference64(op, values)
    found = compare(op, problem, as_tuple(output), reference, own_error(op, problem, values, reference))
    stored = (decision.candidate.implementation, dict(decision.candidate.config))
    faults = [] if found.ok else [found.message]
    if told.step != "exact" or (told.implementation, dict(told.config)) != stored:
        faults.append(f"explain says {told.step} {told.implementation} {dict(told.config)}, stored is {stored}")
    print(f"{'; '.join(faults) or 'ok':3} {problem}: {told.step} {told.implementation} {dict(told.config)}")
    return faults


def main() -> int:
    """Check every winner of this device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", help="the tuning database; default: as for `tune`")
    parser.add_argument("--op", action="append", help="only this op; repeatable")
    options = parser.parse_args()
    if options.db:
        registry.configure(database=options.db)
    device = registry.Device.best()
    with Store.open(options.db, create=False, migrate=False) as store:
        winners = [
            each
            for each in store.winners(hardware=device.hardware())
            if not options.op or each.problem.op in options.op
        ]
    faults = [fault for decision in winners for fault in check(decision, device)]
    print(f"{len(winners)} winners, {len(faults)} faults")
    return int(bool(faults) or not winners)


if __name__ == "__main__":
    sys.exit(main())
