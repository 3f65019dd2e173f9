"""``registry compare``: two databases or exports, or one at two dates."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import RegistryError, did_you_mean
from ...untrusted.file_kinds import refuse_pipe
from ..collecting import seldom_collecting
from ..display import text
from ..display.table import Column, print_problems
from ..options import Json, SeveralOps, split
from ..pages.page_file import check_out, write

if TYPE_CHECKING:
    from tuning_db import Store

    from ...report.comparison import TimedWinner, WinnerChange, WinnersComparison

_DATED = re.compile(r"(?P<where>.+)@(?P<when>\d{4}-\d{2}-\d{2}(?:[T ][0-9:.]+(?:Z|[+-]\d{2}:?\d{2})?)?)", re.DOTALL)
_DAY = len("2026-01-01")
_RELEASE = "release:"
"""How a source begins that is a release, by its name or id."""

_COLUMNS = (
    Column("µs before", right=True),
    Column("µs after", right=True),
    Column("ratio", right=True),
    Column("change", label="change"),
    Column("winner", label="winner"),
    Column("hardware", lifts=True, label="on"),
)


def compare(
    before: Annotated[
        str,
        typer.Argument(
            metavar="A", help="A database (path or URL) or an export; with @DATE: as it was then. Or release:NAME."
        ),
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="What to compare it with, likewise.")],
    op: SeveralOps = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Also write a page: one HTML file, which needs no network."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also the winners that are as fast as they were.")] = False,
    db: Annotated[
        str | None,
        typer.Option("--db", metavar="URL", help="The database of the releases. Default: as for other commands."),
    ] = None,
    json: Json = False,
) -> None:
    """Compare the winners of two databases, of one at two dates, or of two releases.

    Which winners got slower or faster beyond noise (the intervals of their times are disjoint), which are new or gone,
    and which are another implementation or configuration than before. An interval is that of the finals' processes, and
    at least as wide as their A/A noise; of an export without finals, the A/A noise, or 5%. Winners of different
    hardware are never compared. A DATE is an ISO date (UTC, to the end of that day) or an instant:

    registry compare tuning.db@2026-01-01 tuning.db

    Exit code 0: nothing got slower; 1: something got slower beyond noise; 2: a source cannot be read.
    """
    from ...report.comparison import compare_winners

    ops = split("--op", op)
    if out is not None:
        check_out(out)
    sides = [_winners(source, db) for source in (before, after)]
    for name in ops:
        _require_op(name, sides)
    chosen = [[one for one in side if not ops or one.decision.problem.op in ops] for side in sides]
    done = compare_winners(*chosen)
    if out is not None:
        _write(done, before, after, out)
    if json:
        text.print_json(_data(done))
    else:
        _say(done, all_=all_)
    raise typer.Exit(0 if done.ok else 1)


def _write(done: WinnersComparison, before: str, after: str, out: Path) -> None:
    from tuning_db.records import now

    from ...report.comparison_page import render_comparison

    sources = _shown(before), _shown(after)
    write(render_comparison(done, *sources, version=version("kernel-registry"), created=now()), out)


def _shown(source: str) -> str:
    """The source as a page may name it: without the password of a URL."""
    from tuning_db.database.location import locate

    where, when = _parted(source)
    return (where if "://" not in where else locate(where).shown) + (f"@{when}" if when else "")


def _parted(source: str) -> tuple[str, str]:
    """A source and the date that stands behind its last @, "" for none."""
    dated = _DATED.fullmatch(source)
    return (dated["where"], dated["when"]) if dated else (source, "")


def _require_op(name: str, sides: Sequence[Sequence[TimedWinner]]) -> None:
    known = {one.decision.problem.op for side in sides for one in side}
    if name not in known:
        stored = f"they have winners of {', '.join(sorted(known))}" if known else "they have no winner at all"
        raise RegistryError(
            f"--op {name}: neither A nor B has a winner of it", hint=did_you_mean(name, known) or stored
        )


def _winners(source: str, database: str | None) -> list[TimedWinner]:
    """The winners of a source that a user named. Raises RegistryError or TuningDBError for one that cannot be read."""
    from ...report.comparison import stored_winners

    where, when = _parted(source)
    with _opened(where, database) as store, seldom_collecting():
        return stored_winners(store, _instant(when) if when else None)


def _instant(told: str) -> datetime:
    """The instant that a date names: the last of its day, in UTC, where it has no time."""
    try:
        found = datetime.fromisoformat(told)
    except ValueError:
        raise RegistryError(f"{told!r} is no date", hint="expected e.g. 2026-01-31 or 2026-01-31T12:00Z") from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return found + timedelta(days=1, microseconds=-1) if len(told) == _DAY else found


@contextmanager
def _opened(where: str, database: str | None) -> Iterator[Store]:
    """A store of a database, of a release, or of an export, which is imported into a database of its own for that."""
    from tuning_db import ExchangeError, Store
    from tuning_db.exchange import lines

    if where.startswith(_RELEASE):
        from ...releases.pinning import release_named

        where = str(release_named(where.removeprefix(_RELEASE), database).path)
    try:
        refuse_pipe(Path(where))
    except OSError as fault:
        raise RegistryError(f"{where}: {fault.strerror}", hint="expected a database or a file") from None
    if not _is_export(where):
        with Store.open(where, create=False, migrate=False) as store:
            yield store
        return
    with tempfile.TemporaryDirectory(prefix="registry-compare-") as folder, Store.open(Path(folder) / "x.db") as store:
        try:
            with Path(where).open(encoding="utf-8") as stream:
                store.add_lines(lines(stream))
        except ExchangeError as fault:
            raise RegistryError(f"{where}, {fault.message}", hint=fault.hint) from None
        except UnicodeDecodeError:
            raise RegistryError(f"{where}: not UTF-8 text", hint="expected a file of `registry export`") from None
        yield store


def _is_export(where: str) -> bool:
    """True for a file that begins as JSON does."""
    try:
        with Path(where).open("rb") as stream:
            return stream.read(64).lstrip()[:1] == b"{"
    except (OSError, ValueError):
        return False  # a URL, or what Store tells of in its own words


def _say(done: WinnersComparison, *, all_: bool) -> None:
    from ...report.comparison import CHANGE_KINDS

    shown = [change for change in done.changes if all_ or change.kind != "same" or change.changed]
    shown.sort(key=lambda change: CHANGE_KINDS.index(change.kind))
    if shown:
        print_problems(_COLUMNS, [(change.problem, _row(change)) for change in shown])
        text.say()
    for names, which in ((done.only_before, "A"), (done.only_after, "B")):
        for name in names:
            text.say(f"not compared: {name}, which {which} alone has")
    counts: Counter[str] = Counter(change.kind for change in done.changes)
    changed = sum(change.changed for change in done.changes)
    told = [f"{counts[kind]} {kind}" for kind in CHANGE_KINDS if counts[kind]]
    told += [f"{changed} changed candidate"] if changed else []
    text.say(f"{text.plural(len(done.changes), 'winner')} compared{': ' if told else ''}{', '.join(told)}")


def _row(change: WinnerChange) -> list[str]:
    return [
        _time(change.before),
        _time(change.after),
        text.ratio(change.ratio),
        change.kind,
        _winner(change),
        change.hardware if change.regime == "cold" else f"{change.hardware}, {change.regime}",
    ]


def _time(winner: TimedWinner | None) -> str:
    return text.NOTHING if winner is None else text.microseconds(winner.time.value)


def _winner(change: WinnerChange) -> str:
    named = [
        text.candidate(one.decision.candidate.implementation, one.decision.candidate.config)
        for one in (change.before, change.after)
        if one is not None
    ]
    return " → ".join(dict.fromkeys(named))


def _data(done: WinnersComparison) -> dict[str, Any]:
    return {
        "ok": done.ok,
        "changes": [_change_data(change) for change in done.changes],
        "not_compared": {"before": done.only_before, "after": done.only_after},
    }


def _change_data(change: WinnerChange) -> dict[str, Any]:
    return {
        "kind": change.kind, "op": change.problem.op, "dims": change.problem.dims, "hardware": change.hardware,
        "regime": change.regime, "ratio": change.ratio, "changed": change.changed,
        "before": _winner_data(change.before), "after": _winner_data(change.after),
    }  # fmt: skip


def _winner_data(winner: TimedWinner | None) -> dict[str, Any] | None:
    if winner is None:
        return None
    one = winner.decision
    return {
        "implementation": one.candidate.implementation, "config": one.candidate.config, "time_us": winner.time,
        "created": one.created.isoformat(), "software": one.environment.software, "uid": one.uid,
    }  # fmt: skip
