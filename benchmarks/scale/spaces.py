"""A space of a million configurations, planned and searched: the child process of the scale benchmark.

    python -m benchmarks.scale.spaces [--configs 1000000] [--trials 64]

Times are those of the host alone: a made-up landscape answers in place of a device.
"""

from __future__ import annotations

import argparse
import json
import math
import time

import registry
from registry.artifact import Built
from registry.discovery.catalog import Catalog
from registry.implementation import Run
from registry.space import Config
from registry.tuner.planning.problems import plan
from registry.tuner.search.proposals import Searcher

PARAMETERS = 6


class Vast(registry.Implementation):
    """An implementation with six parameters, of whose combinations one constraint leaves about half."""

    op, name = "softmax", "bench.vast"
    device_types = frozenset({"cpu"})

    def __init__(self, configs: int) -> None:
        self._values = round((2 * configs) ** (1 / PARAMETERS))

    def space(self, _problem: registry.Problem, _device: registry.Device) -> registry.Space:
        space = registry.Space(**{f"p{place}": range(self._values) for place in range(PARAMETERS)})
        return space.require("p0 + p1 is small", lambda config: config["p0"] + config["p1"] < self._values)

    def bind(self, _problem: registry.Problem, _config: Config, _device: registry.Device, _built: Built) -> Run:
        raise AssertionError("never run")


def microseconds(config: Config) -> float:
    """A landscape with one valley."""
    return 10.0 * math.exp(sum(0.05 * (value - 3) ** 2 for value in config.values()))


def main() -> None:
    """Plan, search, and print seconds as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=int, default=10**6)
    parser.add_argument("--trials", type=int, default=64)
    options = parser.parse_args()
    catalog = Catalog(entry_points=())
    catalog.register(Vast(options.configs))
    problem = registry.Problem("softmax", {"rows": 64, "cols": 256, "dtype": "float32"})
    device = registry.Device.of("cpu")
    began = time.perf_counter()
    (planned,) = plan((problem,), catalog, device)
    seconds = {"configs": planned.candidates, "planning_s": time.perf_counter() - began}
    began = time.perf_counter()
    searcher = Searcher(planned)
    seconds["starting_the_search_s"] = time.perf_counter() - began
    best, began = math.inf, time.perf_counter()
    for _ in range(options.trials):
        for candidate in searcher.ask(1):
            us = microseconds(candidate.config)
            best = min(best, us)
            searcher.tell(candidate, us)
    seconds |= {"a_trial_s": (time.perf_counter() - began) / options.trials, "best_over_optimum": best / 10.0}
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
