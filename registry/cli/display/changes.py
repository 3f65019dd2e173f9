"""The changes of a run against the incumbents, and its time by activity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tuning_db import is_noise

from . import text

if TYPE_CHECKING:
    from ...tuner.events import DeviceUse, Result, RunEnded, Saving

TORCH_COMPILE = "inductor"
"""The backend whose compile time is shown separately: it is spent in torch.compile."""

NOTHING_KEPT = "no trial is kept, and the same command begins anew (--db FILE keeps them)"
"""What becomes of a run that was given no database to keep."""

_CALLED = {"new": "new", "replaced": "replaced", "kept": "kept", "tie": "tied"}


def interval(result: Result) -> str:
    """``1.40 (1.36 to 1.44)``: the incumbent's time over the winner's with its interval; a dash if unknown.

    If the upper end is more than four times the lower one, the ratio is not shown: ``noise (0.80 to 282.00)``.
    """
    if result.ratio is None:
        return "-"
    if result.low is None or result.high is None:
        return text.ratio(result.ratio)
    between = f"{text.ratio(result.low)} to {text.ratio(result.high)}"
    return f"noise ({between})" if is_noise(result.low, result.high) else f"{text.ratio(result.ratio)} ({between})"


def stays(result: Result) -> bool:
    """True if the incumbent is the winner."""
    met = result.incumbent
    return met is not None and (met.implementation, dict(met.config)) == (result.implementation, dict(result.config))


def summary(decided: Sequence[Result]) -> str:
    """The counts of verdicts: ``3 new, 1 tied; 3 of 4 incumbents replaced, 1.03 to 2.70 times as fast``."""
    counts = Counter(_CALLED.get(result.verdict, result.verdict) for result in decided)
    told = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    beaten = [result for result in decided if not stays(result) and result.ratio is not None]
    if not beaten:
        return f"{told}; every incumbent stays"
    gains = sorted(result.ratio or 0.0 for result in beaten if not is_noise(result.low, result.high))
    told += f"; {len(beaten)} of {text.plural(len(decided), 'incumbent')} beaten"
    if not gains:
        return f"{told}, by how much is noise"
    times = text.ratio(gains[0]) if len(gains) == 1 else f"{text.ratio(gains[0])} to {text.ratio(gains[-1])}"
    unknown = f" ({len(beaten) - len(gains)} of them noise)" if len(gains) < len(beaten) else ""
    return f"{told}, {times} times as fast{unknown}"


def run_lines(ended: RunEnded, problems: int, skipped: int, *, keeps: bool = True) -> Iterable[str]:
    """The totals of a run, a line each: problems, trials, the worker's share of the time, compile time by backend.

    ``keeps``: whether trials and winners are in a database that is there after the run.
    """
    out = f", {skipped} skipped" if skipped else ""
    workers = "the worker" if len(ended.devices) < 2 else f"{len(ended.devices)} workers"
    yield (
        f"{text.plural(problems, 'problem')}{out}, {text.plural(ended.trials, 'trial')} "
        f"in {text.duration(ended.seconds)}; {workers} had a job for {text.duration(ended.worker_seconds)}"
    )
    if ended.worker_share is not None:
        kernels = "" if ended.kernel_share is None else f", and a kernel ran {ended.kernel_share:.0%}"
        yield f"from {ended.warming_up_s:g} s on it had one {ended.worker_share:.0%} of the time{kernels}"
    for device in ended.devices if len(ended.devices) > 1 else ():
        yield f"  {_use(device)}"
    ours = {name: seconds for name, seconds in ended.compile_seconds.items() if name != TORCH_COMPILE}
    if ours:
        each = ", ".join(f"{name} {text.duration(seconds)}" for name, seconds in sorted(ours.items()))
        yield f"compiled meanwhile, summed over the processes: {each}"
    if TORCH_COMPILE in ended.compile_seconds:
        yield f"torch.compile's own compilation: {text.duration(ended.compile_seconds[TORCH_COMPILE])}"
    if ended.saving is not None:
        yield saving_line(ended.saving)
    after = "the same command goes on from here" if keeps else NOTHING_KEPT
    if ended.timed_out:
        stored = "what was decided is stored, " if keeps else ""
        yield f"the time limit is reached: {stored}{text.plural(ended.undecided, 'problem')} left out; {after}"
    if ended.interrupted:
        kept = "every finished trial is kept, " if keeps else ""
        yield f"interrupted: {kept}{text.plural(ended.undecided, 'problem')} undecided; {after}"


def _use(device: DeviceUse) -> str:
    told = f"{device.device}: {text.plural(device.trials, 'trial')}, a job for {text.duration(device.worker_seconds)}"
    share = "" if device.worker_share is None else f", {device.worker_share:.0%} of the time"
    return told + share + ("" if device.kernel_share is None else f", a kernel ran {device.kernel_share:.0%}")


def saving_line(saving: Saving) -> str:
    """The time that the winners save the program whose calls the shapes file counts."""
    told = f"with winners for {saving.share:.0%} of the counted calls' time, as estimated"
    if not saving.default_us:
        return told
    saved = saving.default_us - saving.winner_us
    interval = f"({text.duration_us(saving.low_us)} to {text.duration_us(saving.high_us)})"
    return (
        f"{told}: {text.duration_us(saving.default_us)} {interval} by defaults, "
        f"{text.duration_us(saving.winner_us)} by winners, {saved / saving.default_us:.0%} less"
    )
