"""Winners whose sources have changed, but not what they run: carried over to today's fingerprints, with the proof.

    python -m benchmarks.winners.carried --before FOLDER --winners registry/shipped/nvidia-h200.jsonl --gpu h200
                                         --write FILE

A fingerprint covers whole modules, also those that an implementation imports for one function. ``FOLDER`` is a
checkout of the revision in which the winners were measured. For each winner that is stale here, both revisions say what
the candidate runs: its launches (kernel, grid, arguments, constants, options, cluster, shared memory), the variants
that are compiled, which hold the kernels' texts, scratch, and what it prepares of random weights, bit by bit; without
kernels of its own, the syntax of its classes and of all that is named there within their package. A winner
for which all of it is equal is written with today's fingerprint, since the measured code is what runs; any other is
left out, and told. What holds as it is, is written as it is. Each revision answers in a process of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.learnt_defaults import GPUS
from registry.arguments.inputs import arguments_of
from registry.arguments.schema import tensors_in
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate
from registry.problem import canonical_json
from registry.space import Config
from registry.tuner.planning.variants import variants_at

from .reachable_code import UntoldError, reachable_code

_LIBRARIES = frozenset({"humming", "cublaslt"})
"""Plugins whose implementations have a library's version in their fingerprints."""

_ROOT = Path(__file__).parents[2]


def what_runs(decision: dict[str, Any], catalog: Catalog, gpu: str) -> tuple[str, str]:
    """The implementation's fingerprint, and a hash of all that the decision's candidate runs; "" where it does not."""
    asked, wanted = decision["problem"], decision["candidate"]
    op, device = catalog.op(asked["op"]), GPUS[gpu]
    found = [one for one in catalog.implementations(op.name) if one.name == wanted["implementation"]]
    if not found:
        return "", ""
    (implementation,) = found
    problem, config = op.problem_of(asked["dims"]), wanted["config"]
    arguments = arguments_of(op, problem)
    variants = variants_at(op, Candidate(implementation, config), problem, arguments, device)
    launch = getattr(implementation, "launch", None)
    if variants is None or (variants and launch is None):
        return implementation.fingerprint(), ""
    if launch is None:
        return implementation.fingerprint(), _code_that_runs(implementation, config)
    made = launch(problem, config, device)
    launches = made if isinstance(made, list | tuple) else (made,)
    told = [
        *(variant.key for variant in variants),
        *(
            canonical_json([
                one.grid, one.args, dict(one.constants), dict(one.options), one.cluster, one.shared_bytes
            ])
            for one in launches
        ),
        str(implementation.scratch(problem, config, device)),
        *prepared(op, implementation, problem, config),
    ]  # fmt: skip
    return implementation.fingerprint(), _hashed(told)


def _code_that_runs(implementation: Any, config: Config) -> str:
    """A hash of the Python code that a candidate without kernels of its own runs; "" where that cannot be told."""
    try:
        return _hashed([canonical_json(config), *reachable_code(implementation)])
    except UntoldError:
        return ""


def _hashed(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def holds(decision: dict[str, Any], catalog: Catalog) -> bool:
    """True if the sources of the decision's candidate are as they were, or are not here."""
    wanted = decision["candidate"]
    found = [one for one in catalog.implementations(decision["problem"]["op"]) if one.name == wanted["implementation"]]
    return not found or any(_unsupported(one) or one.fingerprint() == wanted["fingerprint"] for one in found)


def _unsupported(implementation: Any) -> bool:
    """True for a library that is not installed: its version is part of the fingerprint."""
    return implementation.name.partition(".")[0] in _LIBRARIES


def prepared(op: Any, implementation: Any, problem: Any, config: Config) -> list[str]:
    """A hash of each tensor that the candidate prepares of random weights."""
    forms = implementation.prepared(problem, config)
    if not forms:
        return []
    values = dict(zip(op.parsed.names, op.draw(problem, op.kinds[0], torch.Generator().manual_seed(0)), strict=True))
    found = []
    for name, sources in forms.items():
        tensor = implementation.prepare(name, tuple(values[source] for source in sources), problem, config)
        data = [one.contiguous().view(torch.uint8).numpy().tobytes() for one in tensors_in((tensor,))]
        found.append(f"{name} {tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(b''.join(data)).hexdigest()}")
    return found


def answers(folder: Path, decisions: Sequence[dict[str, Any]], gpu: str) -> dict[str, list[str]]:
    """Fingerprint and hash of what runs, by a decision's uid, as the checkout in that folder says."""
    paths = [str(folder), str(folder / "plugins")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    # this package by its path: that revision may lack it, or have a former one
    asking = (
        "import sys, types; sys.modules['asked'] = types.ModuleType('asked');"
        f" sys.modules['asked'].__path__ = [{str(Path(__file__).parent)!r}];"
        f" from asked.carried import answer; answer({gpu!r})"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", asking],
        input=json.dumps(list(decisions)), env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def answer(gpu: str) -> None:
    """Read decisions from standard input, and print what this revision runs for each."""
    catalog = Catalog()
    print(json.dumps({one["uid"]: what_runs(one, catalog, gpu) for one in json.load(sys.stdin)}))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the winners, and print what was carried over and what was left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the revision that was measured")
    parser.add_argument("--winners", type=Path, required=True)
    parser.add_argument("--gpu", choices=tuple(GPUS), required=True)
    parser.add_argument("--write", type=Path, required=True)
    options = parser.parse_args(arguments)
    records = [json.loads(line) for line in options.winners.read_text(encoding="utf-8").splitlines()]
    decisions = {one["decision"]["uid"]: one["decision"] for one in records if one["kind"] == "decision"}
    catalog = Catalog()
    stale = {one["uid"]: one for one in decisions.values() if not holds(one, catalog)}
    today = answers(_ROOT, list(stale.values()), options.gpu)
    before = answers(options.before.resolve(), list(stale.values()), options.gpu)
    left = set()
    for uid, one in stale.items():
        measured = before[uid][0] == one["candidate"]["fingerprint"]
        if measured and today[uid][1] and today[uid][1] == before[uid][1]:
            one["candidate"]["fingerprint"] = today[uid][0]
            print(f"carried over: {_told(one)}")
        else:
            left.add(uid)
            print(f"left out: {_told(one)}")
    kept = [one for one in records if _uid(one) not in left]
    options.write.write_text("".join(json.dumps(one) + "\n" for one in kept), encoding="utf-8")
    print(f"{len(stale) - len(left)} carried over, {len(left)} left out, {len(decisions) - len(stale)} held")


def _uid(record: dict[str, Any]) -> str:
    named: Any = record.get("decision")
    return named["uid"] if isinstance(named, dict) else str(named)


def _told(decision: dict[str, Any]) -> str:
    problem, candidate = decision["problem"], decision["candidate"]
    dims = " ".join(f"{name}={value}" for name, value in problem["dims"].items())
    return f"{problem['op']} {candidate['implementation']} {dims}"


if __name__ == "__main__":
    main()
