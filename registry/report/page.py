"""The pages: fill the templates with facts. The template engine escapes every text that comes from a database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

from tuning_db import StoredRun
from tuning_db.considered import IMPLEMENTATIONS
from tuning_db.snapshot import LEARNT

from ..untrusted.visible import visible
from . import charts, figures, formats, intervals
from .charts import Chart
from .facts import TORCH, Facts, ProblemFacts, Section
from .kernels import MOST_CONFIGS, KernelPage, kernels
from .leaderboard import LeaderboardRow, leaderboard
from .roofline import roofline
from .sources import InstalledSource
from .work import WORK

GENERATOR = "kernel-registry report"
"""The generator named in the page's head, by which `registry report` knows a report that it may replace."""

PALETTE = 10
"""Number of colours of series; style.css defines as many."""

SHOWN_CHARTS = 6
"""Number of charts that are open at first, those with the most points; the others are folded."""

_FILTERS = (
    "microseconds",
    "ratio",
    "ratio_unless",
    "percent",
    "dimension",
    "pairs",
    "plain",
    "duration",
    "named",
    "device",
    "excess",
    "bytes_",
)

_FOR_PROGRAMS = {"seconds", LEARNT, WORK, IMPLEMENTATIONS}
_FIXED = {TORCH: 0, figures.COMPILED: 1}


@dataclass(frozen=True)
class PageSection:
    """One section as the templates show it. ``cells`` are the dimensions of each problem, by its key."""

    anchor: str
    section: Section
    overview: figures.Overview
    colors: Mapping[str, int]
    x_name: str | None
    charts: list[Chart]
    too_few: int
    descent: Chart | None
    descents: list[figures.Descent]
    statuses: figures.Statuses
    intervals: Mapping[str, intervals.Drawn]
    roofline: Chart | None
    standings: list[LeaderboardRow]
    kernels: Mapping[str, KernelPage]
    cells: Mapping[str, str]


def render(
    facts: Facts,
    *,
    version: str,
    created: datetime,
    sources: Mapping[tuple[str, str], InstalledSource] | None = None,
) -> str:
    """The report. ``sources`` are those of the implementations that are installed, by op and name, if asked for."""
    taken: dict[str, int] = {}
    engine = environment()
    dims: Any = getattr(engine.get_template("cells.html.j2").module, "dims")  # noqa: B009  a macro
    parts = [
        _part(f"s{number}", section, _colors(section, taken), dims) for number, section in enumerate(facts.sections)
    ]
    section, kernel = engine.get_template("section.html.j2"), engine.get_template("kernel.html.j2")
    shown = [(part, page) for part in parts for page in part.kernels.values()]
    # pages by themselves: as parts of one template, each of their pieces passes through all that include them
    page = engine.get_template("report.html.j2").render(
        facts=facts,
        parts=parts,
        sections=(section.render(part=part, sources=sources) for part in parts),
        kernels=(kernel.render(part=part, k=page, sources=sources) for part, page in shown),
        noise=[part for part in parts if part.overview.noise is not None],
        identities=_identities(facts),
        version=version,
        created=created,
    )
    return visible(page)


def _part(
    anchor: str, section: Section, colors: Mapping[str, int], dims: Callable[[Section, ProblemFacts], str]
) -> PageSection:
    drawn, too_few = charts.time_charts(section)
    found = figures.descents(section)
    return PageSection(
        anchor,
        section,
        figures.overview(section),
        colors,
        charts.x_dimension(section),
        drawn,
        too_few,
        charts.descent_chart(found),
        found,
        figures.statuses(section),
        intervals.intervals(section),
        roofline(section),
        leaderboard(section),
        {kernel.implementation: kernel for kernel in kernels(section, anchor)},
        {facts.problem.key: dims(section, facts) for facts in section.problems},
    )


def _colors(section: Section, taken: dict[str, int]) -> dict[str, int]:
    """Implementation -> its colour's number. torch's two have fixed ones, others keep theirs between sections."""
    colors = dict(_FIXED)
    names = [name for name in section.implementations if name not in _FIXED]
    for name in sorted(names, key=lambda name: name not in taken):
        used = Counter(colors.values())
        kept = taken.get(name)
        if kept is None or used[kept]:
            elsewhere = Counter(taken.values())
            kept = min(range(PALETTE), key=lambda color: (used[color], elsewhere[color], color))
        colors[name] = kept
        taken.setdefault(name, kept)
    return colors


def _identities(facts: Facts) -> list[tuple[str, Mapping[str, Any]]]:
    """Each hardware, software and protocol under which the page's times were measured, once."""
    problems = [problem for section in facts.sections for problem in section.problems]
    environments = {problem.environment.key: problem.environment for problem in problems}.values()
    protocols = {problem.protocol.key: problem.protocol for problem in problems}.values()
    hardware = {one.hardware_key: one.hardware for one in environments}
    software = {one.software_key: one.software for one in environments}
    return [
        *(("Hardware", identity) for identity in hardware.values()),
        *(("Software", identity) for identity in software.values()),
        *(("Protocol", {"regime": one.regime, **one.details}) for one in protocols),
    ]


def _run_details(run: StoredRun) -> list[tuple[str, Any]]:
    """A run's details and summary, without its seconds, which follow from start and end, and what programs read."""
    stored = {**run.details, **run.summary}
    return [(name.replace("_", " "), value) for name, value in stored.items() if name not in _FOR_PROGRAMS]


def rendered(template: str, **values: Any) -> str:
    """The page that a template makes of values, such as names in a database: a terminal may show it, too."""
    return visible(environment().get_template(template).render(**values))


def environment() -> jinja2.Environment:
    """The template engine, with the formats and the figures that templates use."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    found.filters.update({name: getattr(formats, name) for name in _FILTERS})
    found.globals.update(
        run_details=_run_details,
        shown_charts=SHOWN_CHARTS,
        rival=figures.rival,
        tied_with=figures.tied_with,
        percentile=figures.percentile,
        box=charts,
        compiled=figures.COMPILED,
        most_configs=MOST_CONFIGS,
        generator=GENERATOR,
    )
    return found
