"""From a tuning database to a file of landscapes: the problems of which every candidate was tried.

    tune --op softmax --shapes some.yaml --trials 100000 --budget 100000 --db x.db
    python -m benchmarks.landscapes.export x.db softmax.json.gz [--op softmax] [--plugin kernels.py]

Spaces, defaults and variants are those of the implementations installed here, for the device that was measured. No
GPU is needed. ``--noise`` is the relative difference of two measurements of one candidate on that machine; where it is
not given it is the median over the blocks of the finals in the database, where the incumbent entered twice.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, Draft
from registry.problem import canonical_json
from registry.tuner.planning.problems import ImplementationPlan, ProblemPlan, plan
from tuning_db import Protocol, Store, Trial

from ..arguments import output_file
from .format import File, Landscape, Measured, Point, numbered, save

_SHARED_BYTES = {80: 166_912, 86: 101_376, 87: 166_912, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
"""Shared memory that one block can opt in to, by compute capability (CUDA programming guide, technical appendix)."""

_REGISTERS = 65_536


def device_of(hardware: Mapping[str, Any], protocol: Mapping[str, Any]) -> Device:
    """The measured device, as its implementations saw it; what the stored identity leaves out is known or derived."""
    here = Device.best()
    if dict(here.hardware()) == dict(hardware):
        return here
    digits = str(hardware["architecture"]).removeprefix("sm_")
    shared = _SHARED_BYTES.get(int(digits), 101_376) if digits.isdigit() else 0
    return Device(
        type=hardware["type"],
        index=0,
        name=hardware["name"],
        architecture=hardware["architecture"],
        multiprocessors=hardware["multiprocessors"],
        memory_bytes=hardware.get("memory_bytes", here.memory_bytes),
        l2_bytes=protocol["cache_bytes"],
        shared_bytes=shared,
        registers=_REGISTERS if digits.isdigit() else 0,
        warp_size=32 if hardware["type"] == "cuda" else 1,
        mig=hardware["mig"],
    )


def landscapes(trials: Sequence[Trial], device: Device, catalog: Catalog, noise: float) -> list[Landscape]:
    """A landscape of every problem that was tried whole, in the order of their first trials; the rest is reported."""
    by_problem: dict[str, list[Trial]] = {}
    for trial in trials:
        by_problem.setdefault(trial.problem.key, []).append(trial)
    numbers: dict[str, int] = {}
    found = []
    for group in by_problem.values():
        key = group[0].problem
        op = catalog.op(key.op)
        (planned,) = plan([op.problem_of(key.dims)], catalog, device)
        tried = {_name(trial.candidate.implementation, trial.candidate.config): trial for trial in group}
        if missing := [str(c) for c in _candidates(planned) if _name(c.implementation.name, c.config) not in tried]:
            example = missing[0]
            print(f"left out: {planned.problem}: {len(missing)} of {planned.candidates} untried, e.g. {example}")
            continue
        choices = tuple(_measured(choice, planned, tried, numbers) for choice in planned.supported)
        landscape = Landscape(op.name, key.dims, tuple(sorted(op.static)), tuple(sorted(op.dynamic)), choices, noise)
        found.append(landscape)
        print(f"{landscape.name}: {landscape.size} candidates, best {landscape.best_us:.2f} us")
    return found


def _candidates(planned: ProblemPlan) -> Iterable[Candidate]:
    for choice in planned.supported:
        for config in choice.configs:
            yield Candidate(choice.implementation, config)


def _measured(
    choice: ImplementationPlan, planned: ProblemPlan, tried: Mapping[str, Trial], numbers: dict[str, int]
) -> Measured:
    implementation = choice.implementation
    domains = implementation.space(planned.problem, planned.device).domains
    assert choice.default is not None
    points = []
    for config in choice.configs:
        trial = tried[_name(implementation.name, config)]
        variants = numbered(_variants(planned, Candidate(implementation, config)), numbers)
        points.append(Point(_places(domains, config), trial.status, trial.median_us, trial.censored, variants))
    preference = implementation.preference(planned.problem, planned.device)
    return Measured(implementation.name, domains, _places(domains, choice.default), tuple(points), preference)


def _variants(planned: ProblemPlan, candidate: Candidate) -> list[str]:
    draft = Draft.of(planned.op, candidate, planned.problem, planned.arguments, planned.device)
    return [f"{candidate.implementation.name} {variant.key}" for variant in draft.variants()]


def _places(domains: Mapping[str, Sequence[Any]], config: Mapping[str, Any]) -> tuple[int, ...]:
    """The places of a configuration's values in their domains, by canonical JSON, so that True is not 1."""
    return tuple(
        [canonical_json(value) for value in values].index(canonical_json(config[name]))
        for name, values in domains.items()
    )


def _name(implementation: str, config: Mapping[str, Any]) -> str:
    return f"{implementation} {canonical_json(dict(config))}"


def noise_of(store: Store) -> float | None:
    """Relative difference of a candidate and its copy in a block of finals, the median over all blocks."""
    differences = []
    for decision in store.winners():
        blocks: dict[tuple[int, str, str], list[float]] = {}
        for final in store.finals(decision.uid):
            if final.candidate is not None:
                blocks.setdefault((final.block, final.candidate.key, final.role), []).append(final.us)
        for (block, key, role), copies in blocks.items():
            if role == "copy" and (originals := blocks.get((block, key, "candidate"))):
                differences.append(abs(statistics.median(copies) / statistics.median(originals) - 1.0))
    return statistics.median(differences) if differences else None


def main() -> int:
    """Read, check, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("db", help="a tuning database")
    parser.add_argument("out", type=output_file, help="the file to write, *.json.gz")
    parser.add_argument("--op", action="append", help="only this op; repeatable")
    parser.add_argument("--plugin", action="append", default=[], help="a plugin file that was tuned; repeatable")
    parser.add_argument("--noise", type=float, help="relative difference of two measurements of one candidate")
    options = parser.parse_args()
    catalog = Catalog()
    for file in options.plugin:
        catalog.load_file(file)
    with Store.open(options.db, create=False, migrate=False) as store:
        trials = [trial for trial in reversed(store.trials()) if not options.op or trial.problem.op in options.op]
        noise = noise_of(store) if options.noise is None else options.noise
    if not trials:
        print(f"{options.db} holds no trials of {options.op or 'any op'}")
        return 1
    if noise is None:
        print(f"{options.db} holds no finals that tell its noise: give --noise, e.g. --noise 0.005")
        return 1
    last = trials[-1]
    same = [trial for trial in trials if _measured_alike(trial, last)]
    device = device_of(last.environment.hardware, last.protocol.details)
    found = landscapes(same, device, catalog, noise)
    if not found:
        print("nothing to write: no problem was tried whole")
        return 1
    save(options.out, File(tuple(found), last.environment.hardware, last.environment.software, _plain(last.protocol)))
    print(f"{options.out}: {len(found)} problems, {sum(each.size for each in found)} candidates, noise {noise:.4f}")
    return 0


def _measured_alike(trial: Trial, other: Trial) -> bool:
    """Whether two trials are of one machine, one software and one protocol, as a landscape must be."""
    return trial.environment == other.environment and trial.protocol == other.protocol


def _plain(protocol: Protocol) -> dict[str, Any]:
    return {"regime": protocol.regime, **protocol.details}


if __name__ == "__main__":
    sys.exit(main())
