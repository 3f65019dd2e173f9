"""Replay searches on measured landscapes: ``python -m benchmarks.landscapes``. Needs no GPU.

Prints regret against the optimum, median and 90th percentile in percent over problems and seeds, after so many trials;
differences within a landscape's noise count as none; then the milliseconds of a core that a proposal takes, what is
learnt of its trial included. ``--chart`` writes the curves of the 90th percentile as SVG.
With ``--synthetic`` the landscapes come from a model instead, on which nothing was tuned for.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..arguments import output_file
from . import synthetic
from .chart import chart
from .format import Landscape, files, load
from .replaying import Curve
from .tasks import BUDGET, Task, begin, run

HERE = Path(__file__).parent
AT = (10, 25, 50, 60, 100)
MEAN_AT = 60

NAMES = (
    "ours, together",
    "ours, alone",
    "--sampler tpe",
    "TPE",
    "GP",
    "random",
    "exhaustive",
    "ours, together, stopping",
)


def measured(paths: Iterable[Path]) -> dict[str, list[Landscape]]:
    """The landscapes by op. gemm_int4 a second time without torch's implementations, which are there untuned."""
    groups: dict[str, list[Landscape]] = {}
    for path in paths:
        for landscape in load(path).landscapes:
            groups.setdefault(landscape.op.rpartition(":")[2], []).append(landscape)
    if "gemm_int4" in groups:
        own = [landscape.without("torch.") for landscape in groups["gemm_int4"]]
        groups["gemm_int4, Triton only"] = own
    return groups


def modelled() -> dict[str, list[Landscape]]:
    """Landscapes of the model, by kind."""
    products = [
        synthetic.matmul(m, n, k, seed=m + n) for m, n, k in ((4096, 4096, 4096), (512, 8192, 4096), (64, 4096, 4096))
    ]
    rows = [synthetic.rows(r, c, seed=r + c) for r, c in ((4096, 4096), (1024, 16384), (16, 32000))]
    return {"modelled matmul": products, "modelled rows": rows}


def table(group: str, curves: dict[str, list[Curve]], seeds: dict[str, int]) -> list[str]:
    """Markdown rows of one group."""
    lines = []
    for name in NAMES:
        if name not in curves:
            continue
        cells = [_cell([curve.after(trials) for curve in curves[name]]) for trials in AT]
        stops = [curve.stop for curve in curves[name]]
        if name.endswith("stopping"):
            cells = ["-"] * len(AT)
        at_stop = _cell([curve.after(curve.stop) for curve in curves[name]])
        cells.append(f"{at_stop} after {statistics.fmean(stops):.0f}" if name.startswith("ours") else "-")
        trials = sum(len(curve.regrets) for curve in curves[name])
        cells.append(f"{100 * statistics.fmean(curve.after(MEAN_AT) for curve in curves[name]):.2f}")
        cells.append(f"{1e3 * sum(curve.cpu_s for curve in curves[name]) / trials:.1f}")
        lines.append(f"| {group} | {name} | {seeds[name]} | " + " | ".join(cells) + " |")
    return lines


def _cell(regrets: Sequence[float]) -> str:
    """Median / 90th percentile, in percent; nothing ran yet is infinite."""
    ordered = sorted(regrets)
    shown = []
    for share in (0.5, 0.9):
        value = ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
        shown.append("∞" if math.isinf(value) else f"{100 * value:.1f}".removesuffix(".0"))
    return " / ".join(shown)


def _percentiles(curves: Sequence[Curve], share: float) -> list[float]:
    values = []
    for trials in range(1, BUDGET + 1):
        ordered = sorted(curve.after(trials) for curve in curves)
        values.append(ordered[math.ceil(share * len(ordered)) - 1])
    return values


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="*", type=Path, help="files of landscapes; default: those kept here")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--gp-seeds", type=int, default=1, help="seeds of GP, which is slow and needs scipy; 0: none")
    parser.add_argument("--strategy", action="append", choices=NAMES, help="only this one; repeatable")
    parser.add_argument("--synthetic", action="store_true", help="landscapes of a model")
    parser.add_argument("--chart", type=output_file, help="an SVG file to write")
    parser.add_argument("--jobs", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Replay, print the table, write the chart."""
    options = _options()
    # one thread a process, set before a child imports numpy: small matrices gain nothing from more
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    groups = modelled() if options.synthetic else measured(options.file or files(HERE))
    names = [name for name in NAMES if not options.strategy or name in options.strategy]
    if options.gp_seeds and importlib.util.find_spec("scipy") is None:
        print("GP is left out: Optuna's GPSampler needs scipy (pip install scipy)")
        options.gp_seeds = 0
    special = {"GP": options.gp_seeds, "exhaustive": 1}
    seeds = {name: special.get(name, options.seeds) for name in names}
    tasks = [Task(group, name, seed) for group in groups for name in names for seed in range(seeds[name])]
    found: dict[str, dict[str, list[Curve]]] = {group: {} for group in groups}
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.jobs, begin, (groups,)) as pool:
        for task, curves in pool.imap_unordered(run, tasks):
            found[task.group].setdefault(task.strategy, []).extend(curves)
    problems = sum(len(group) for group in groups.values())
    print(f"{problems} landscapes, {time.monotonic() - began:.0f} s. Median / 90th percentile of regret in %.\n")
    print(
        "| landscapes | search | seeds | " + " | ".join(map(str, AT)) + f" | where it stops | mean at {MEAN_AT} | ms |"
    )
    print("| --- " * (len(AT) + 6) + "|")
    for group, by_name in found.items():
        print("\n".join(table(group, by_name, seeds)))
    everything = {name: [c for by_name in found.values() for c in by_name.get(name, [])] for name in names}
    everything = {name: curves for name, curves in everything.items() if curves}
    print("\n".join(table("all", everything, seeds)))
    if options.chart:
        shown = {name: _percentiles(curves, 0.9) for name, curves in everything.items() if "stopping" not in name}
        options.chart.write_text(chart("Regret, 90th percentile over problems and seeds", shown, 0.3))


if __name__ == "__main__":
    main()
