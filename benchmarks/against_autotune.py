"""`tune` beside `triton.autotune`: the same Triton kernels and configurations, the same problems, cold caches.

    python -m benchmarks.against_autotune [--shapes benchmarks/shapes/against_autotune.yaml]

Each goes in a process of its own with an empty cache. triton.autotune searches every configuration of every
implementation and keeps what its do_bench found fastest; `tune` runs as a user runs it, with verification and finals.
Then both winners race under benchmarks.racing.device_timing. Implementations of several launches are left out of both:
triton.autotune tunes one kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import registry
from registry import Device, Launch, Op, Problem
from registry.backends.triton import TritonImplementation
from registry.discovery.answers import refusals
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.space import Config
from registry.tuner.shapes.shapes import read_shapes
from tuning_db import Store

from .racing.device_timing import Race, ratio

HERE = Path(__file__).resolve().parent
IMPLEMENTATIONS = ("triton.row", "triton.online")
ROUNDS = 40


def able(op: Op, problem: Problem, device: Device) -> list[TritonImplementation]:
    """The Triton implementations of one launch that take the problem."""
    return [
        one
        for one in registry.implementations(op.name)
        if isinstance(one, TritonImplementation) and one.name in IMPLEMENTATIONS and not refusals(one, problem, device)
    ]


def autotune(shapes: Path) -> dict[str, tuple[str, Config]]:
    """The choice of triton.autotune for each problem, made in this process."""
    device, chosen = Device.best(), {}
    for problem in read_shapes(shapes, Catalog()).all:
        op = registry.ops()[problem.op]
        values = op.inputs(problem, op.kinds[0], torch.Generator(device.torch).manual_seed(7))
        found = [_best(op, one, problem, values, device) for one in able(op, problem, device)]
        _, name, config = min(found, key=lambda entry: entry[0])
        chosen[str(problem)] = (name, config)
    return chosen


def _best(
    op: Op, implementation: TritonImplementation, problem: Problem, values: tuple[Any, ...], device: Device
) -> tuple[float, str, Config]:
    import triton

    launches = {}
    for config in implementation.space(problem, device).configs:
        launch = implementation.launch(problem, config, device)
        assert isinstance(launch, Launch)
        launches[_key({**launch.constants, **launch.options})] = (config, launch)
    first = next(iter(launches.values()))[1]
    grids = {_key(launch.constants): launch.grid for _, launch in launches.values()}
    names = set(first.constants)
    tuned = triton.autotune(configs=[_config(launch) for _, launch in launches.values()], key=[])(first.kernel)
    outputs = {name: spec.empty() for name, spec in op.output_specs(op.arguments(values), device.torch).items()}
    tensors = {**dict(zip(op.parsed.names, values, strict=True)), **outputs}
    arguments = [tensors.get(one, one) if isinstance(one, str) else one for one in first.args]
    tuned[lambda meta: grids[_key({name: meta[name] for name in names})]](*arguments)
    torch.cuda.synchronize()
    best = tuned.best_config
    options = {"num_warps": best.num_warps, "num_stages": best.num_stages}
    config = launches[_key({**best.kwargs, **{name: options[name] for name in first.options}})][0]
    timings = getattr(tuned, "configs_timings", None)
    return (statistics.median(timings[best]) if timings else 0.0), implementation.name, config


def _config(launch: Launch) -> Any:
    import triton

    return triton.Config(dict(launch.constants), **dict(launch.options))


def _key(constants: Mapping[str, Any]) -> str:
    return json.dumps(sorted(constants.items()), default=str)


def _child(command: list[str], folder: Path) -> tuple[float, str]:
    """Seconds of a command with empty caches, and what it printed."""
    environment = {
        **os.environ, "TRITON_CACHE_DIR": str(folder / "triton"), "KERNEL_REGISTRY_CACHE": str(folder / "cache"),
    }  # fmt: skip
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    return seconds, done.stdout


def compare(theirs: Mapping[str, tuple[str, Config]], database: Path) -> list[str]:
    """A line a problem: the time of triton.autotune's choice over that of the stored winner."""
    device = Device.best()
    with Store.open(str(database), create=False, migrate=False) as store:
        decisions = store.winners(hardware=device.hardware())
    lines, ratios = [], []
    for decision in decisions:
        op = registry.ops()[decision.problem.op]
        problem = op.problem_of(decision.problem.dims)
        known = {one.name: one for one in registry.implementations(op.name)}
        name, config = theirs[str(problem)]
        pair = {
            "tune": Candidate(known[decision.candidate.implementation], decision.candidate.config),
            "triton.autotune": Candidate(known[name], config),
        }
        values = op.inputs(problem, op.kinds[0], torch.Generator(device.torch).manual_seed(7))
        arguments = op.arguments(values)
        size = op.floor(problem).bytes
        race = Race({label: build(op, one, problem, arguments, device) for label, one in pair.items()}, values, size)
        times = race.times(ROUNDS)
        race.close()
        ratios.append(ratio(times, "triton.autotune", "tune"))
        lines.append(f"{ratios[-1]:.3f}  {problem}: tune {pair['tune']}, triton.autotune {pair['triton.autotune']}")
    lines.append(
        f"triton.autotune's time over tune's: median {statistics.median(ratios):.3f}, least {min(ratios):.3f}, "
        f"most {max(ratios):.3f}; below 0.98 in {sum(one < 0.98 for one in ratios)} of {len(ratios)}"
    )
    return lines


def main() -> int:
    """Run both, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=Path, default=HERE / "shapes" / "against_autotune.yaml")
    parser.add_argument("--only-autotune", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_autotune:
        print(json.dumps(autotune(options.shapes)))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        again = [
            sys.executable,
            "-m",
            "benchmarks.against_autotune",
            "--shapes",
            str(options.shapes),
            "--only-autotune",
        ]
        theirs_s, printed = _child(again, folder / "theirs")
        theirs = json.loads(printed.strip().splitlines()[-1])
        command = [sys.executable, "-m", "registry.cli.main", "tune", "--shapes", str(options.shapes)]
        command += ["--db", str(folder / "tuning.db"), "--implementations", ",".join(IMPLEMENTATIONS)]
        ours_s, _ = _child(command, folder / "ours")
        lines = compare({key: tuple(value) for key, value in theirs.items()}, folder / "tuning.db")
    device = Device.best()
    print(*lines, sep="\n")
    print(f"triton.autotune {theirs_s:.0f} s, tune {ours_s:.0f} s, both with their processes' start and cold caches")
    print(f"{device.name}; {dict(device.software())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
