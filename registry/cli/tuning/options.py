"""The options of ``tune`` beside those that name its problems."""

from __future__ import annotations

from typing import Annotated

import typer

from ..options import SEVERAL, number, whole_number

TunedOps = Annotated[
    list[str] | None, typer.Option("--op", metavar="OP", help=f"Only this op. {SEVERAL} Default: all of the problems.")
]
Devices = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="DEVICE,...",
        help="cuda for all visible GPUs, which share the problems; cuda:1 or cuda:0,cuda:2 for these; or cpu. "
        "Default: cuda where there is a GPU.",
    ),
]  # fmt: skip
Implementations = Annotated[
    list[str] | None, typer.Option("--implementations", metavar="NAME", help=f"Only these, e.g. triton.row. {SEVERAL}")
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--budget", metavar="SECONDS", parser=number, help="At most so long searching each problem. Default: 30."
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit", metavar="SECONDS", parser=number,
        help="At most about so long for the whole run; the same command goes on later.",
    ),
]  # fmt: skip
Trials = Annotated[
    int | None,
    typer.Option(
        "--trials",
        metavar="N",
        parser=whole_number,
        help="At most so many candidates for each problem. Default: until the search has settled, at most 64.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="List problems, candidates and why others are out; compile and measure nothing."),
]
Regime = Annotated[
    str,
    typer.Option(
        "--regime", metavar="cold|hot",
        help="Whether a call finds its inputs in memory (cold) or in the cache; dispatch runs winners of cold.",
    ),
]  # fmt: skip
Retune = Annotated[
    bool, typer.Option("--retune", help="Also problems that have a winner here already; it is the one to beat.")
]

AllSizes = Annotated[
    bool,
    typer.Option("--all-sizes", help="Tune each of many sizes to which winners transfer, not one for a range of them."),
]

SamplerName = Annotated[
    str,
    typer.Option(
        "--sampler", metavar="NAME",
        help="What proposes candidates: registry, an Optuna sampler (tpe, gp, nsgaii, random), or module:name.",
    ),
]  # fmt: skip
Storage = Annotated[
    str,
    typer.Option(
        "--storage", metavar="FILE|URL",
        help="Also keep the searches in this Optuna storage, for optuna-dashboard to show while they run.",
    ),
]  # fmt: skip

Fleet = Annotated[
    str | None,
    typer.Option(
        "--fleet", metavar="ADDRESS",
        help="Tune on a Ray cluster: auto, local or ray://HOST:10001. With --device cpu on its CPUs, else on its GPUs.",
    ),
]  # fmt: skip
Sandbox = Annotated[
    bool,
    typer.Option(
        "--sandbox",
        help="Run each candidate behind bubblewrap, without network, files or other processes; judged and timed from"
        " outside. A --plugin file of a stranger then runs nowhere else. Times include requests to the sandbox, so that"
        " nothing is kept unless --db names a database of its own. An error where bubblewrap is missing.",
    ),
]
Compilers = Annotated[
    int,
    typer.Option(
        "--compilers", metavar="N", parser=whole_number,
        help="With --fleet: CPUs of the cluster that compile ahead for all of its GPUs.",
    ),
]  # fmt: skip
