"""``registry results``: the winners, and the trials behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, lru_cache
from itertools import chain, groupby
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import RegistryError, UnknownNameError
from .collecting import seldom_collecting
from .display import text
from .display.table import Column, print_long_table, print_problems
from .display.winners_table import COMPILED, verdict, with_reason
from .options import SEVERAL, Database, Json, SeveralOps, check_stored_op, device_of, split
from .stored import baselines_of

if TYPE_CHECKING:
    from tuning_db import CandidateKey, Decision, Store, Trial

STATUSES = frozenset(
    {
        "ok", "unsupported", "compile_error", "out_of_resources", "wrong_result", "nondeterministic", "timeout",
        "crash", "out_of_memory", "error",
    }
)  # fmt: skip
"""The statuses of a trial."""

FIGURES = tuple(Column(name, right=True) for name in ("µs", "of floor", "× default", "× torch", "× compile"))
"""The columns of a winner's time, part of the floor, and ratios."""

_COLUMNS = (
    Column("hardware", lifts=True, label="on"),
    Column("winner"),
    Column("config"),
    *FIGURES,
    Column("verdict"),
    Column("when", lifts=True),
)


def results(
    op: SeveralOps = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="DEVICE", help="Only results of this device's kind. Default: of all hardware."
        ),
    ] = None,
    trials: Annotated[
        bool, typer.Option("--trials", help="Every trial, also the failed ones, instead of the winners.")
    ] = False,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS", help=f"Only trials that ended so, e.g. wrong_result. {SEVERAL}"),
    ] = None,
    db: Database = None,
    json: Json = False,
) -> None:
    """List the winners, or every trial.

    With problem, hardware, config, median µs, fraction of the floor and speedups. `× default` is the default's time
    over the winner's, with the interval in which another measurement is expected to find it; `≈` stands before the
    candidates that could not be told from the winner. Behind the verdict `new` stands why a winner stored before did
    not enter the finals.
    """
    ops: list[str | None] = [*dict.fromkeys(split("--op", op))] or [None]
    wanted = _statuses(status, trials=trials)
    hardware = None if device is None else device_of(device).hardware()
    from tuning_db import Store

    with Store.open(db, create=False, migrate=False) as store, seldom_collecting():
        for name in ops:
            check_stored_op(name, store)
        if trials:
            without = () if json else ("samples",)
            with ExitStack() as reading:
                each = [store.each_trial(op=name, hardware=hardware, statuses=wanted, without=without) for name in ops]
                _print_trials(chain.from_iterable(map(reading.enter_context, each)), json=json)
        else:
            winners = [one for name in ops for one in store.winners(op=name, hardware=hardware)]
            _print_winners(winners, [why_out(winner, store) for winner in winners], json=json)


def _statuses(given: list[str] | None, *, trials: bool) -> frozenset[str]:
    wanted = frozenset(split("--status", given))
    if wanted and not trials:
        raise RegistryError("--status without --trials: winners have no status", hint="add --trials")
    for name in sorted(wanted - STATUSES):
        raise UnknownNameError("status", name, STATUSES)
    return wanted


def why_out(winner: Decision, store: Store) -> str:
    """Why the previously stored winner did not enter the finals; "" where it did, or where there was none.

    The reason is the status of its last trial if that failed, else that its source or space has changed.
    """
    if winner.verdict != "new" or winner.previous is None:
        return ""
    history = store.history(winner.problem, winner.environment.hardware)
    before = next((one for one in history if one.uid == winner.previous), None)
    if before is None:
        return ""  # its decision was not imported
    last = store.last_status(winner.problem, winner.environment, before.candidate, until=winner.created)
    why = "source or space changed, or gone" if last in {None, "ok"} else last
    return f"the stored winner {before.candidate.implementation} was out: {why}"


def _print_winners(winners: Sequence[Decision], out: Sequence[str], *, json: bool) -> None:
    if json:
        text.print_json([winner_data(winner) | {"reason": why} for winner, why in zip(winners, out, strict=True)])
        return
    if not winners:
        text.say("no winner; `registry results --trials` lists what was tried")
        return
    baselines = baselines_of(winner.problem.op for winner in winners)
    rows = (_winner_row(winner, why, baselines[winner.problem.op]) for winner, why in zip(winners, out, strict=True))
    print_problems(_COLUMNS, zip((winner.problem for winner in winners), rows, strict=True))


def _winner_row(winner: Decision, out: str, baseline: str) -> list[str]:
    return [
        _name(winner),
        winner.candidate.implementation,
        text.pairs(winner.candidate.config),
        *figures(winner, baseline),
        with_reason(verdict(winner.verdict, winner.candidate.implementation, winner.ties), out),
        f"{winner.created:%Y-%m-%d}",
    ]


def figures(winner: Decision, baseline: str) -> list[str]:
    """The cells of ``FIGURES``."""
    return [
        text.microseconds(winner.median_us),
        text.of_floor(winner.fraction_of_floor),
        text.interval(winner.default_ratio),
        *(text.ratio_unless(winner.is_noise, winner.time_over(name)) for name in (baseline, COMPILED)),
    ]


def winner_data(winner: Decision) -> dict[str, object]:
    """A winner as plain data."""
    default = winner.default_ratio
    return {
        **_data(winner),
        "software": winner.environment.software,
        "floor_us": winner.floor_us,
        "fraction_of_floor": winner.fraction_of_floor,
        "speedup": winner.baselines,
        "ratio": winner.ratio,
        "interval": [winner.lo, winner.hi],
        "default_ratio": None if default is None else default.value,
        "default_interval": None if default is None else [default.low, default.high],
        "noise": winner.aa,
        "ties": winner.ties,
        "verdict": winner.verdict,
    }


def _data(record: Decision | Trial) -> dict[str, object]:
    """The facts that a winner and a trial have alike."""
    return {
        "op": record.problem.op,
        "dims": record.problem.dims,
        "hardware": record.environment.hardware,
        "implementation": record.candidate.implementation,
        "config": record.candidate.config,
        "median_us": record.median_us,
        "protocol": {"regime": record.protocol.regime, **record.protocol.details},
        "created": record.created.isoformat(),
    }


def _print_trials(trials: Iterable[Trial], *, json: bool) -> None:
    if json:
        text.print_json_list(map(_trial_data, trials))
        return
    if text.width() is None:
        names = ["problem", "hardware", "implementation", "config", "status", "µs", "message"]
        named = cache(text.named)
        print_long_table(names, ([named(one.problem), _name(one), *_trial_row(one)] for one in trials), ["µs"])
        return
    for (problem, hardware), found in groupby(trials, lambda one: (text.named(one.problem), _name(one))):
        text.say(f"{problem}  on {hardware}", hang=4)
        for trial in found:
            implementation, config, status, median_us, message = _trial_row(trial)
            text.say(f"  {status:<12} {median_us:>7} µs  {implementation} {config}  {message}".rstrip(), hang=27)


def _trial_row(trial: Trial) -> list[str]:
    return [
        trial.candidate.implementation,
        _config(trial.candidate),
        trial.status,
        text.microseconds(trial.median_us),
        "; ".join(part for part in (" ".join(trial.message.split())[:120], *_disturbances(trial)) if part),
    ]


@lru_cache(maxsize=4096)
def _config(candidate: CandidateKey) -> str:
    return text.pairs(candidate.config)


def _disturbances(trial: Trial) -> Iterator[str]:
    """The disturbances that the trial's samples suffered (contention, throttling)."""
    clocks = trial.details.get("clocks")
    if isinstance(clocks, Mapping) and (reasons := clocks.get("throttled")):
        yield f"throttled ({', '.join(map(str, reasons))})"
    if trial.details.get("contended"):
        yield "contended"


def _trial_data(trial: Trial) -> dict[str, object]:
    names = ("status", "message", "samples", "censored", "stop_reason", "details")
    return {**_data(trial), **{name: getattr(trial, name) for name in names}}


def _name(record: Decision | Trial) -> str:
    return str(record.environment.hardware.get("name", "-"))
