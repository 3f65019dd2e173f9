"""A database whose winners the test names, and the code that Inductor generates for calls of a dispatcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from registry import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.tuner.stored_winners import problem_key
from tuning_db import CandidateKey, Decision, Environment, Protocol, Store

Sizes = Mapping[str, Any]


def publish(
    database: Path,
    catalog: Catalog,
    winners: Mapping[str, tuple[str, Sizes]],
    device: str = "cpu",
    baselines: Mapping[str, float] | None = None,
) -> None:
    """Store an implementation, in its default configuration, as the winner of a problem of each op.

    ``baselines``: other implementations' times over the winner's.
    """
    where = Device.of(device)
    environment = Environment(where.hardware(), where.software())
    with Store.open(str(database)) as store:
        for name, (implementation_name, sizes) in winners.items():
            op, implementation = catalog.op(name), catalog.implementation(name, implementation_name)
            problem = op.problem_of(dict(sizes))
            config = dict(implementation.default(problem, where))
            candidate = CandidateKey(implementation_name, implementation.fingerprint(), config)
            decision = Decision(
                problem_key(op, problem),
                environment,
                Protocol("cold"),
                candidate,
                median_us=1.0,
                baselines=baselines or {},
            )
            assert store.publish(store.start_run(environment), decision)


def tuned(
    database: Path,
    winners: Mapping[str, tuple[str, Sizes]],
    device: str = "cpu",
    baselines: Mapping[str, float] | None = None,
) -> Dispatcher:
    """A dispatcher with the box's implementations, and with these winners."""
    catalog = Catalog()
    publish(database, catalog, winners, device, baselines)
    return Dispatcher(catalog, str(database))


def generated(function: Callable[..., Any], *args: Any) -> tuple[Any, list[str]]:
    """The result of a compiled function's first call, and the code that Inductor generated for it."""
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    # code from a cache is not generated again
    with config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        result: tuple[Any, list[str]] = run_and_get_code(function, *args)
    return result


def without_comments(code: str) -> str:
    """Generated code without its comments, which name what a line was made from."""
    return "\n".join(line for line in code.splitlines() if not line.lstrip().startswith("#"))


def told_by_a_process(program: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """What a process of its own prints as JSON that compiles, with torch's caches and the winners in ``folder``."""
    places = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "KERNEL_REGISTRY_DB": str(folder / "tuning.db")}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told
