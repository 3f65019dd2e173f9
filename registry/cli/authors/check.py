"""``registry check``: what can be said of a plugin, with and without a GPU."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...paths import write_whole
from ..display import text
from ..options import Database, split

if TYPE_CHECKING:
    from ...checking.outcomes import CheckOutcome, PluginCheck

_WORDS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}


def check(
    plugin: Annotated[
        str,
        typer.Argument(
            metavar="PLUGIN", help="A .py file; or an installed plugin by its name, package, distribution or folder."
        ),
    ],
    arch: Annotated[
        list[str] | None,
        typer.Option(
            "--arch", metavar="ARCH", help="What to compile for. Repeatable, or with commas. Default: sm_80, sm_90."
        ),
    ] = None,
    limit: Annotated[
        float, typer.Option("--limit", metavar="SECONDS", min=1, help="The most seconds that one check may take.")
    ] = 600.0,
    db: Database = None,
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the outcomes as JSON; - is stdout, and no text."),
    ] = None,
) -> None:
    """Check a plugin: that it loads, is right, and compiles.

    Without a GPU: that it loads, the contracts of its ops, the numbers of its implementations on the CPU (Triton's in
    its interpreter, on small examples), and registers, spills, shared memory and occupancy for each --arch. With a GPU
    also the numbers there and at tuned shapes, capture and replay, two streams, and memory faults and races where
    compute-sanitizer is installed. Each check runs in a process of its own, so that a crash is one of the findings.

    Exit code 0: nothing was found; 1: a check failed; 2: there is no such plugin, or an option is wrong.
    """
    from ...checking.running import ARCHITECTURES, CheckRequest, check_plugin

    alone = json is not None and str(json) == "-"
    request = CheckRequest(plugin, split("--arch", arch) or ARCHITECTURES, db, limit)
    done = check_plugin(request, (lambda _: None) if alone else _say)
    if json is not None:
        _write(done, json)
    if not alone:
        text.say(_total(done))
    raise typer.Exit(0 if done.ok else 1)


def _say(outcome: CheckOutcome) -> None:
    text.say(
        f"{_WORDS[outcome.verdict]:<8}{outcome.name}: {outcome.subject} ({text.duration(outcome.seconds)})", hang=10
    )
    variants = outcome.details.get("variants", ())
    for kernel in dict.fromkeys(variant["kernel"] for variant in variants):
        alike = [variant for variant in variants if variant["kernel"] == kernel]
        text.say(f"{'':<10}{kernel or 'compiled'}: {_resources(alike)}", hang=12)
    for line in outcome.reason.splitlines():
        text.say(f"{'':<10}{line}", hang=12)


_UNITS = (
    ("registers", "registers", "d"),
    ("spill_bytes", "B spilled", "d"),
    ("shared_bytes", "B shared", "d"),
    ("threads", "threads", "d"),
    ("occupancy", "occupancy", ".2f"),
)


def _resources(variants: Sequence[Mapping[str, Any]]) -> str:
    """The number of variants of a kernel, and the least and the most of each resource that they need."""
    told = [text.plural(len(variants), "variant")]
    for name, unit, form in _UNITS:
        known = [variant[name] for variant in variants if variant.get(name) is not None]
        if known:
            least, most = (format(value, form) for value in (min(known), max(known)))
            told.append(f"{least if least == most else f'{least} to {most}'} {unit}")
    return ", ".join(told)


def _total(done: PluginCheck) -> str:
    counts = {word: sum(each.verdict == word for each in done.outcomes) for word in ("passed", "failed", "skipped")}
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def _write(done: PluginCheck, path: Path) -> None:
    document = json_module.dumps(done.as_data(), indent=2) + "\n"
    if str(path) == "-":
        sys.stdout.write(document)
    else:
        write_whole(path.resolve(), document.encode())
