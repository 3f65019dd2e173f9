"""``registry drift``: whether winners still beat their defaults by as much as when they were stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..display import text
from ..display.table import Column, print_problems
from ..options import Database, DeviceName, Json, Plugins, SeveralOps, catalog_with, device_of, split, whole_number

if TYPE_CHECKING:
    from ...discovery.catalog import Catalog
    from ...drift.retiming import DriftFinding
    from ...problem import Problem

_ORDER = ("wrong", "slower", "faster", "undecided", "stale", "no default", "same")
_COLUMNS = (
    Column("default then", right=True),
    Column("default now", right=True),
    Column("finding", label="finding"),
    Column("winner", label="winner"),
    Column("reason", label="reason"),
)


def drift(  # noqa: PLR0913, PLR0917  (an option each)
    sample: Annotated[
        int, typer.Option("--sample", metavar="N", parser=whole_number, help="At most so many winners are timed again.")
    ] = 16,
    counts: Annotated[
        list[Path] | None,
        typer.Option(
            "--counts",
            metavar="FILE",
            help="Calls by problem, as KERNEL_REGISTRY_RECORD and KERNEL_REGISTRY_MISSES write them. Repeatable. "
            "Default: the file of missed calls, if there is one.",
        ),
    ] = None,
    op: SeveralOps = None,
    always: Annotated[
        bool, typer.Option("--always", help="Also winners that were measured under this driver, torch and triton.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", parser=whole_number, help="The seed of the sample. Default: another each day."
        ),
    ] = None,
    device: DeviceName = None,
    db: Database = None,
    plugin: Plugins = None,
    json: Json = False,
) -> None:
    """Time a sample of winners against their defaults again.

    Those that were measured under another driver, torch or triton than is here now, drawn by their share of the calls'
    time. Each is verified and timed as tune does it, in minutes; nothing is stored. A ratio is the default's time over
    the winner's. Where its interval and the stored one are disjoint, where the winner is slower than the default, or
    not right any more, that is an alarm: tune again, or keep the older software.

    Exit code 0: no alarm, or nothing has changed; 1: an alarm; 2: a source cannot be read. Every Monday, by cron:

    0 5 * * 1  registry drift --json > drift.json || notify drift.json
    """
    from ...dispatch.resolve.winners import Winners
    from ...drift.retiming import retimed
    from ...drift.sampling import calls_of, changes, sampled, winners_of

    if sample < 1:
        raise typer.BadParameter(f"--sample {sample}: expected at least 1")
    catalog, there, winners = catalog_with(plugin), device_of(device), Winners(db)
    ops = split("--op", op)
    for name in ops:
        catalog.op(name)
    found = [one for one in winners_of(winners, catalog, there) if not ops or one.problem.op in ops]
    changed = [one for one in found if always or changes(one.decision, there)]
    calls = calls_of(_counted(counts, catalog), winners, catalog, there)
    drawn = sampled(changed, calls, sample, datetime.now(UTC).toordinal() if seed is None else seed)
    findings = retimed(drawn, catalog, there)
    if json:
        text.print_json([_data(one, changes(one.winner.decision, there)) for one in findings])
    else:
        told = Counter(change for one in changed for change in changes(one.decision, there))
        _say(findings, len(found), len(changed), told)
    raise typer.Exit(1 if any(one.alarms for one in findings) else 0)


def _counted(files: Iterable[Path] | None, catalog: Catalog) -> Mapping[Problem, int]:
    from ...dispatch.recording.misses import misses_file
    from ...tuner.shapes.shapes import read_shapes

    default = misses_file()
    total: Counter[Problem] = Counter()
    for path in files if files is not None else [default] if default.exists() else []:
        read = read_shapes(path, catalog)
        total.update(read.counts or dict.fromkeys(read.all, 1))
    return total


def _say(findings: Sequence[DriftFinding], known: int, changed: int, changes: Mapping[str, int]) -> None:
    if findings:
        ordered = sorted(findings, key=lambda one: _ORDER.index(one.kind))
        print_problems(_COLUMNS, [(one.winner.problem, _row(one)) for one in ordered])
        text.say()
    for change, count in changes.items():
        text.say(f"{change}: {text.plural(count, 'winner')}")
    counts: Counter[str] = Counter(one.kind for one in findings)
    told = ", ".join(f"{counts[kind]} {kind}" for kind in _ORDER if counts[kind])
    if not changed:
        text.say(f"{text.plural(known, 'winner')} here, none from before a change of driver, torch or triton")
        return
    none = "" if findings else ": none of them answers a call that was counted"
    text.say(f"{len(findings)} of {text.plural(changed, 'winner')} timed again{f': {told}' if told else none}")


def _row(one: DriftFinding) -> list[str]:
    candidate = one.winner.decision.candidate
    named = text.candidate(candidate.implementation, candidate.config)
    return [text.interval(one.then), text.interval(one.now), one.kind, named, one.reason]


def _data(one: DriftFinding, changed: Sequence[str]) -> dict[str, Any]:
    decision = one.winner.decision
    return {
        "kind": one.kind, "alarm": one.alarms, "op": decision.problem.op, "dims": decision.problem.dims,
        "implementation": decision.candidate.implementation, "config": decision.candidate.config,
        "then": one.then, "now": one.now, "reason": one.reason, "changed": list(changed), "uid": decision.uid,
    }  # fmt: skip
