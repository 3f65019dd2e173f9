"""The exchange format: JSON lines that carry results from one database to another. They are data, never code.

The first line is a header. Each other line is a run, a trial, a decision with its finals, or the statement that a
decision is the winner, and is complete by itself. Records keep their uid, so importing a file twice, or two files in
either order, ends in the same database. Of two winners for one problem, environment and regime the later one stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from functools import partial
from typing import IO, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..errors import ExchangeError
from ..identities import Environment, ProblemKey
from ..keys import canonical_json
from ..records import Decision, Final, PlainTrial, StoredRun, Trial
from .quick_lines import KnownIdentities

FORMAT = "kernel-registry tuning results"
VERSION = 1

MOST_CHARACTERS = 2**24
"""The most characters of a line: a device such as /dev/zero never ends one."""
_MOST_TOLD = 200
"""The most characters of a message that may quote a line."""


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class HeaderLine(_Line):
    """The first line of a file: its format and the format's version."""

    kind: Literal["header"] = "header"
    format: Literal["kernel-registry tuning results"] = "kernel-registry tuning results"
    version: int = VERSION


class RunLine(_Line):
    """A tuning run."""

    kind: Literal["run"] = "run"
    run: StoredRun


class TrialLine(_Line):
    """A trial and the uid of its run."""

    kind: Literal["trial"] = "trial"
    run: str
    trial: Trial


class DecisionLine(_Line):
    """A decision, the uid of its run and the finals it rests on."""

    kind: Literal["decision"] = "decision"
    run: str
    decision: Decision
    finals: tuple[Final, ...] = ()


class WinnerLine(_Line):
    """The uid of a decision that is the winner."""

    kind: Literal["winner"] = "winner"
    decision: str


Written = HeaderLine | RunLine | TrialLine | DecisionLine | WinnerLine
ExchangeLine = Written | PlainTrial
"""A line as it is read; a trial in the usual form is a PlainTrial."""

_LINES: TypeAdapter[Written] = TypeAdapter(Annotated[Written, Field(discriminator="kind")])


def line(content: Written) -> str:
    """One line of the format, with its line feed."""
    return canonical_json(dict(content), _plain) + "\n"


def lines(stream: IO[str]) -> Iterator[tuple[int, ExchangeLine]]:
    """(number, content) of each line behind the header, as it is read.

    Raises ExchangeError with the number and the fault of the first bad line.
    """
    found = _numbered(stream)
    first = next(found, (1, None))[1]
    if not isinstance(first, HeaderLine):
        raise ExchangeError("line 1: expected the header of an export", hint="make the file with `registry export`")
    if first.version != VERSION:
        hint = "upgrade kernel-registry, or export from a version that writes it"
        raise ExchangeError(f"line 1: format version {first.version}, this installation reads {VERSION}", hint=hint)
    for number, content in found:
        if isinstance(content, HeaderLine):
            raise ExchangeError(f"line {number}: a second header", hint="import the files one after another")
        yield number, content


def _numbered(stream: IO[str]) -> Iterator[tuple[int, ExchangeLine]]:
    number, known = 0, KnownIdentities()
    try:
        for number, text in enumerate(iter(partial(stream.readline, MOST_CHARACTERS + 1), ""), 1):
            if len(text) > MOST_CHARACTERS:
                hint = "expected a file of `registry export`; nothing was imported"
                raise ExchangeError(f"line {number}: longer than {MOST_CHARACTERS} characters", hint=hint)
            if not text.isspace():
                yield number, known.trial(text) or _thoroughly(number, text, known)
    except ValidationError as invalid:
        raise ExchangeError(f"line {number}: {_fault(invalid)}", hint="nothing was imported") from invalid
    except UnicodeDecodeError as invalid:
        raise ExchangeError(
            f"line {number + 1}: not UTF-8 text ({invalid.reason})", hint="nothing was imported"
        ) from invalid


def _thoroughly(number: int, text: str, known: KnownIdentities) -> ExchangeLine:
    split = known.without_finals(text) if '"finals":[{' in text else None
    content = _LINES.validate_json(text if split is None else split[0], strict=True)
    if fault := next(_faults(content), ""):
        raise ExchangeError(f"line {number}: {fault}", hint="nothing was imported")
    if isinstance(content, TrialLine):
        known.learn(text, content.trial)
        return known.trial(text) or content  # whose identities are those of other lines
    if isinstance(content, DecisionLine):
        if split is None:
            known.learn_finals(text, content.finals)
        else:
            content = content.model_copy(update={"finals": split[1]})
    return content


def _faults(content: Written) -> Iterator[str]:
    """Faults that a record can have but no tuner writes: ``decision.median_us is 0.0, expected more than 0``."""
    match content:
        case RunLine(run=run):
            yield from _text_faults({"run.uid": (run.uid, 64)})
            yield from _time_faults({"run.started": run.started, "run.ended": run.ended})
            yield from _environment_faults("run", run.environment)
        case TrialLine(trial=trial):
            yield from _measured_faults("trial", trial)
            yield from _text_faults({"run": (content.run, 64), "trial.status": (trial.status, 64)})
            yield from _text_faults({"trial.artifact_hash": (trial.artifact_hash, 255)}, empty=True)
        case DecisionLine(decision=decision):
            yield from _measured_faults("decision", decision)
            yield from _text_faults({"run": (content.run, 64)})
            yield from _decision_faults(decision, content.finals)
        case WinnerLine():
            yield from _text_faults({"decision": (content.decision, 64)})


def _measured_faults(name: str, record: Trial | Decision) -> Iterator[str]:
    problem, candidate = record.problem, record.candidate
    texts = {
        f"{name}.uid": (record.uid, 64),
        f"{name}.problem.op": (problem.op, 255),
        f"{name}.protocol.regime": (record.protocol.regime, 64),
        f"{name}.candidate.implementation": (candidate.implementation, 255),
    }
    yield from _text_faults(texts)
    yield from _text_faults({f"{name}.candidate.fingerprint": (candidate.fingerprint, 255)}, empty=True)
    yield from _dimension_faults(f"{name}.problem.dims", problem)
    yield from _config_faults(f"{name}.candidate.config", candidate.config)
    yield from _environment_faults(name, record.environment)
    yield from _figure_faults({f"{name}.median_us": record.median_us})
    yield from _time_faults({f"{name}.created": record.created})


def _dimension_faults(where: str, problem: ProblemKey) -> Iterator[str]:
    """Faults of dimensions: a number of an op in the box is a size; a stranger's op may have other integers."""
    of_stranger = "::" in problem.op
    for dim, value in problem.dims.items():
        if dim not in problem.static and not isinstance(value, int | float):
            yield f"{where}[{dim!r}] is {value!r:.80}, expected a number: it is not in static"
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and float(value) < 1 and not of_stranger:
            yield f"{where}[{dim!r}] is {value!r:.80}, expected a size of at least 1"


def _environment_faults(name: str, environment: Environment) -> Iterator[str]:
    """Faults of what every device has; a version may tell of others, in any form."""
    hardware = environment.hardware
    for part in ("multiprocessors", "memory_bytes"):
        value = hardware.get(part, 1)
        if type(value) is not int or value < 1:
            yield f"{name}.environment.hardware[{part!r}] is {value!r:.80}, expected an integer of at least 1"
    for part in ("type", "name", "architecture"):
        if not isinstance(value := hardware.get(part, ""), str):
            yield f"{name}.environment.hardware[{part!r}] is {value!r:.80}, expected text"
    for part, version in environment.software.items():
        if not isinstance(version, int | float | str):
            yield f"{name}.environment.software[{part!r:.80}] is {version!r:.80}, expected text"


def _config_faults(where: str, config: Mapping[str, Any]) -> Iterator[str]:
    for name, value in config.items():
        if not isinstance(value, int | float | str):
            yield f"{where}[{name!r:.80}] is {value!r:.80}, expected a number, text or boolean"


def _decision_faults(decision: Decision, finals: Iterable[Final]) -> Iterator[str]:
    ratios = {f"decision.{name}": getattr(decision, name) for name in ("ratio", "lo", "hi")}
    if (default := decision.default_ratio) is not None:
        ratios |= {"decision.default_ratio": min(default.value, default.low, default.high)}
    for name, ratio in decision.baselines.items():
        yield from _text_faults({"decision.baselines: the name": (name, 255)})
        ratios[f"decision.baselines[{name!r}]"] = ratio
    yield from _figure_faults(ratios)
    links = {"decision.trial_uid": decision.trial_uid, "decision.previous": decision.previous}
    yield from _text_faults({name: (uid, 64) for name, uid in links.items() if uid is not None})
    yield from _text_faults({"decision.artifact_hash": (decision.artifact_hash, 255)}, empty=True)
    for final in finals:
        if final.candidate is not None:
            yield from _config_faults("finals.candidate.config", final.candidate.config)
        for name in ("block", "round", "position"):
            if not 0 <= getattr(final, name) < 2**31:
                yield f"finals.{name} is {getattr(final, name)!r:.80}, expected 0 to {2**31 - 1}"


def _text_faults(texts: Mapping[str, tuple[str, int]], *, empty: bool = False) -> Iterator[str]:
    """Faults of texts, given with the most characters that their columns hold; a server's text holds no NUL."""
    for name, (value, most) in texts.items():
        if not (value or empty) or len(value) > most or "\0" in value:
            yield f"{name} is {value!r:.80}, expected {'at most' if empty else '1 to'} {most} characters without NUL"


def _figure_faults(figures: Mapping[str, float | None]) -> Iterator[str]:
    for name, value in figures.items():
        if value is not None and value <= 0:
            yield f"{name} is {value!r}, expected more than 0"


def _time_faults(times: Mapping[str, datetime | None]) -> Iterator[str]:
    for name, value in times.items():
        if value is not None and not 1970 <= value.year <= 9998:
            yield f"{name} is {value.isoformat()}, expected a time from 1970 to 9998"


def _fault(fault: ValidationError) -> str:
    """The place and the message of the first fault: ``trial.candidate.config: Field required``."""
    first = fault.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"][1:])[:_MOST_TOLD]
    what = first["msg"].removeprefix("Value error, ").splitlines()[0][:_MOST_TOLD]
    return f"{where}: {what}" if where else what


def _plain(value: Any) -> Any:
    """A value as JSON has it: an instant as text, a record as its fields.

    A decision that does not tell its kernels is written as versions before it could be, which read no other fields.
    """
    if isinstance(value, datetime):
        return value.isoformat()
    known = {entry.name: getattr(value, entry.name) for entry in fields(value)}
    if isinstance(value, Decision) and not value.artifact_hash:
        del known["artifact_hash"]
    return known
