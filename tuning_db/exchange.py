"""The exchange format: JSON lines that carry results from one database to another. They are data, never code.

The first line is a header. Each other line is a run, a trial, a decision with its finals, or the statement that a
decision is the winner, and is complete by itself. Records keep their uid, so importing a file twice, or two files in
either order, ends in the same database. Of two winners for one problem, environment and regime the later one stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from .errors import ExchangeError
from .keys import canonical_json
from .records import Decision, Final, Run, Trial

FORMAT = "kernel-registry tuning results"
VERSION = 1


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
    run: Run


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


Line = HeaderLine | RunLine | TrialLine | DecisionLine | WinnerLine
_LINES: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


@dataclass
class Parsed:
    """A file whose lines are all valid; trials, decisions and winners stand beside their line numbers."""

    runs: list[RunLine] = field(default_factory=list)
    trials: list[tuple[int, TrialLine]] = field(default_factory=list)
    decisions: list[tuple[int, DecisionLine]] = field(default_factory=list)
    winners: list[tuple[int, WinnerLine]] = field(default_factory=list)


def line(content: Line) -> str:
    """One line of the format, with its line feed."""
    values = {name: _plain(getattr(content, name)) for name in type(content).model_fields}
    return canonical_json(values) + "\n"


def parse(stream: Iterable[str]) -> Parsed:
    """Parses all lines of a file. Raises ExchangeError with the number and the fault of the first bad line."""
    parsed = Parsed()
    lines = _numbered(stream)
    first = next(lines, (1, None))[1]
    if not isinstance(first, HeaderLine):
        raise ExchangeError("line 1: expected the header of an export", hint="make the file with `registry export`")
    if first.version != VERSION:
        hint = "upgrade kernel-registry, or export from a version that writes it"
        raise ExchangeError(f"line 1: format version {first.version}, this installation reads {VERSION}", hint=hint)
    for number, content in lines:
        match content:
            case RunLine():
                parsed.runs.append(content)
            case TrialLine():
                parsed.trials.append((number, content))
            case DecisionLine():
                parsed.decisions.append((number, content))
            case WinnerLine():
                parsed.winners.append((number, content))
            case HeaderLine():
                raise ExchangeError(f"line {number}: a second header", hint="import the files one after another")
    return parsed


def _numbered(stream: Iterable[str]) -> Iterator[tuple[int, Line]]:
    number = 0
    try:
        for number, text in enumerate(stream, 1):
            if text.strip():
                yield number, _LINES.validate_json(text, strict=True)
    except ValidationError as fault:
        raise ExchangeError(f"line {number}: {_fault(fault)}", hint="nothing was imported") from fault
    except UnicodeDecodeError as fault:
        raise ExchangeError(
            f"line {number + 1}: not UTF-8 text ({fault.reason})", hint="nothing was imported"
        ) from fault


def _fault(fault: ValidationError) -> str:
    """The place and the message of the first fault: ``trial.candidate.config: Field required``."""
    first = fault.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    what = first["msg"].removeprefix("Value error, ").splitlines()[0]
    return f"{where}: {what}" if where else what


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
