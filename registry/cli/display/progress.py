"""The progress of a run: live in a terminal, lines in a pipe, JSON for programs."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ...folding import Place
from ...problem import Problem, Value
from ...tuner import events
from ...untrusted.visible import visible
from . import changes, text, winners_table
from .table import shared_dims

SECONDS_BETWEEN_LINES = 10.0
SHOWN_AT_ONCE = 8


class Display(ABC):
    """Observer of a run's events. A context manager that leaves the terminal as it found it."""

    def __init__(self) -> None:
        self.ended: events.RunEnded | None = None
        self.keeps = True
        """Whether the run's database is there afterwards; without it, its name is not told."""
        self.skipped: list[events.ProblemSkipped] = []
        self._reasons: Counter[tuple[str, str]] = Counter()
        """How many problems of an op were skipped for a reason."""
        self.failed: list[tuple[Place, str]] = []
        """Candidate and problem, and status and message, of every trial that failed with a message."""

    def __call__(self, event: events.Event) -> None:
        """The observer that the tuner calls."""
        if isinstance(event, events.RunStarted) and not self.keeps:
            event = replace(event, database="")
        if isinstance(event, events.RunEnded):
            self.ended = event
        elif isinstance(event, events.ProblemSkipped):
            self.skipped.append(event)
            self._reasons[event.problem.op, event.reason] += 1
        elif isinstance(event, events.TrialDone) and event.status != "ok" and event.message:
            name = event.implementation
            message = " ".join(event.message.split()).removeprefix(f"{name}: ")  # the line begins with it
            place = Place(name, text.named(event.problem), text.pairs(event.config), f"{event.problem.op} {name}")
            self.failed.append((place, f"{event.status}: {message}"))
        self.show(event)

    def was_told(self, event: events.Event) -> bool:
        """Whether another problem of the op was skipped for the reason of this one: its line stands for all."""
        if not isinstance(event, events.ProblemSkipped):
            return False
        return self._reasons[event.problem.op, event.reason] > 1

    @abstractmethod
    def show(self, event: events.Event) -> None:
        """Display one event."""

    def conclude(self, results: Sequence[events.Result]) -> None:
        """Print the results when the run has ended, after the display is left."""
        if results:
            text.say()
            winners_table.print_results(results)
            text.say()
        for (op, reason), count in self._reasons.items():
            if count > 1:
                text.say(f"{text.plural(count, 'problem')} of {op} skipped: {reason}")
        for line in winners_table.failure_lines(self.failed):
            text.say(line)
        if self.ended is not None:
            for line in changes.run_lines(self.ended, len(results), len(self.skipped), keeps=self.keeps):
                text.say(line)

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *fault: object) -> None:  # noqa: B027  (only a live display changes the terminal)
        """Leave the terminal as it was."""


class JsonLines(Display):
    """One JSON object a line: ``event`` names its kind, the other keys are the event's fields."""

    def show(self, event: events.Event) -> None:
        text.write(json.dumps(as_json(event), default=_plain))

    def conclude(self, results: Sequence[events.Result]) -> None:
        say_results(results)


def say_results(results: Iterable[events.Result]) -> None:
    """Prints the last JSON line: all results, with those of problems that were tuned before."""
    text.write(json.dumps({"event": "results", "results": list(results)}, default=_plain))


def as_json(event: events.Event) -> dict[str, object]:
    """An event's name and its fields."""
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in type(event).__name__)
    return {"event": name.lstrip("_"), **vars(event)}


def _plain(value: object) -> object:
    """:func:`text.plain`, with a problem as its op and dimensions, and a result with its fraction of the floor."""
    match value:
        case Problem():
            return {"op": value.op, "dims": value.dims}
        case events.Result():
            return {**vars(value), "fraction_of_floor": value.fraction_of_floor}
        case _:
            return text.plain(value)


class PlainLines(Display):
    """Prints a line for each important event, and one every few seconds while a problem is searched."""

    def __init__(self, say: Callable[[str], None] = text.say) -> None:
        super().__init__()
        self._say = say
        self._last = time.monotonic()
        self._left = ""

    def show(self, event: events.Event) -> None:
        if isinstance(event, events.SecondsLeft):
            self._left = f"; {_run_left(event)}"
            return
        if isinstance(event, events.TrialDone):
            if time.monotonic() - self._last < SECONDS_BETWEEN_LINES:
                return
            self._say(_trial_line(event) + self._left)
        elif not self.was_told(event) and (line := _line(event)):
            self._say(line)
        self._last = time.monotonic()


class LiveDisplay(Display):
    """Redraws the problems being searched in place; lines of decided problems stand above them."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or text.console()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("problems decided", total=None)
        self._left = ""
        self._statuses: Counter[str] = Counter()
        self._searched: dict[Problem, events.TrialDone] = {}
        self._devices: set[str] = set()
        self._problems = 0
        self._shared: dict[str, dict[str, Value]] = {}
        self._live = Live(console=self._console, refresh_per_second=8, get_renderable=self._render)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._searched.clear()
        self._left = ""
        self._live.stop()

    def show(self, event: events.Event) -> None:
        match event:
            case events.TrialDone():
                before = self._searched.pop(event.problem, event)  # the latest stands last
                on = event.device or before.device
                self._searched[event.problem] = replace(event, device=on)
                self._devices |= {on} - {""}
                self._statuses[event.status] += 1
                return
            case events.SecondsLeft():
                self._left = _run_left(event)
            case events.RunStarted():
                self._shared = {
                    op: shared_dims(one for one in event.problems if one.op == op)
                    for op in {one.op for one in event.problems}
                }
                # on several kinds of hardware, each begins a run
                self._problems += len(event.problems) - len(event.known)
                self._bar.update(self._task, total=self._problems)
            case events.ProblemDecided():
                self._searched.pop(event.result.problem, None)
                self._bar.advance(self._task)
            case events.ProblemSkipped():
                self._bar.advance(self._task)
        if not self.was_told(event) and (line := visible(_line(event))):
            self._console.print("\n".join(text.wrapped(line, self._console.width, hang=4)), soft_wrap=True)

    def _named(self, problem: Problem) -> str:
        """The problem without the dimensions that all problems of its op share."""
        shared = self._shared.get(problem.op, {})
        own = [f"{name}={value}" for name, value in problem.dims.items() if name not in shared]
        return " ".join([problem.op, *own])

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        several = len(self._devices) > 1
        for name in (*(["on"] if several else []), "problem", "tried", "best µs", "of floor", "left"):
            table.add_column(name, justify="left" if name in {"on", "problem"} else "right", no_wrap=True)
        for trial in list(self._searched.values())[-SHOWN_AT_ONCE:]:
            on = [trial.device] if several else []
            table.add_row(*map(visible, (*on, self._named(trial.problem), *_standing(trial))))
        hidden = len(self._searched) - SHOWN_AT_ONCE
        more = [Text(f"and {text.plural(hidden, 'problem')} more", style="dim")] if hidden > 0 else []
        told = "; ".join(filter(None, [self._left, _tried(self._statuses) if self._statuses else ""]))
        return Group(*([table] if self._searched else []), *more, self._bar, *([Text(told)] if told else []))


def _standing(trial: events.TrialDone) -> tuple[str, str, str, str]:
    """The state of a search: trials, best time so far in µs, fraction of the floor, seconds left."""
    fraction = trial.floor_us / trial.best_us if trial.floor_us and trial.best_us else None
    return (
        f"{trial.done}/{trial.candidates}",
        text.microseconds(trial.best_us),
        text.of_floor(fraction),
        text.duration(trial.seconds_left),
    )


def _tried(statuses: Counter[str]) -> str:
    """``412 trials, 3 wrong_result``: the number of trials, and of those of each status other than ok."""
    failed = [f"{count} {status}" for status, count in statuses.most_common() if status != "ok"]
    return ", ".join([text.plural(statuses.total(), "trial"), *failed])


def _trial_line(trial: events.TrialDone) -> str:
    tried, best, fraction, left = _standing(trial)
    return f"{text.named(trial.problem)}: {tried} tried, best {best} µs, {fraction} of floor, {left} left"


def _line(event: events.Event) -> str:  # noqa: PLR0911  (one return an event)
    """The line printed for an event; "" for an event that is only shown live."""
    match event:
        case events.RunStarted():
            return _started(event)
        case events.ProblemSkipped():
            return f"{text.named(event.problem)}: skipped: {event.reason}"
        case events.ProblemStarted():
            return f"{text.named(event.problem)}: {text.plural(event.candidates, 'candidate')}"
        case events.FinalsStarted():
            return f"finals: {text.plural(event.problems, 'problem')}, each in up to {event.blocks} fresh processes"
        case events.BlockStarted():
            return f"finals: block {event.number} of {event.blocks}, {text.plural(event.problems, 'problem')}"
        case events.ProbesStarted():
            asked = text.plural(event.candidates, "candidate")
            return f"finals: {asked} verified at other sizes and layouts, in which dispatch may run them"
        case events.TransfersStarted():
            verified = f"{text.plural(event.checks, 'check')} of {text.plural(event.winners, 'winner')}"
            return f"finals: {verified} at other sizes, for which they may answer"
        case events.ProblemDecided():
            return _decided(event.result)
        case events.Note():
            return f"note: {event.message}"
        case _:
            return ""


def _run_left(event: events.SecondsLeft) -> str:
    return f"about {text.duration(event.seconds)} of the run left"


def _started(event: events.RunStarted) -> str:
    known = f", {len(event.known)} of them tuned before (--retune measures them again)" if event.known else ""
    problems = text.plural(len(event.problems), "problem")
    where = f"results go to {event.database}" if event.database else "results are not kept"
    return f"tuning {problems} on {event.device}{known}; {where}"


def _decided(result: events.Result) -> str:
    problem = text.named(result.problem)
    if result.verdict == "none":
        return f"{problem}: {winners_table.why_none(result)} ({winners_table.statuses(result)})"
    verdict = ": ".join(part for part in (result.verdict, result.reason) if part)
    against = f", incumbent / winner {changes.interval(result)}" if result.ratio is not None else ""
    return (
        f"{problem}: {text.candidate(result.implementation, result.config)}: {text.microseconds(result.median_us)} µs, "
        f"{text.of_floor(result.fraction_of_floor)} of floor{against}, {verdict} ({winners_table.statuses(result)})"
    )
