"""Releases: named sets of winners with their evidence, which never change and are known by a hash of their content.

The content of a release is text in the exchange format: the winners' decisions with all their finals, the runs of
these, and the latest runs, whose rules for defaults dispatch reads. Its ``id`` is the SHA-256 of that text. Databases
of the same winners and runs make the same text.
"""

from __future__ import annotations

import hashlib
import io
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .database.bad_rows import readable
from .errors import CorruptedDatabaseError, ExchangeError, InvalidRecordError
from .records import now
from .schema import RELEASES, STAMPS

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from .database.answering import AnsweredRow, Ask

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ID = re.compile(r"[0-9a-f]{64}")
FILE_SUFFIX = ".jsonl"
"""How the names of files of releases end, by which they are told from names of releases."""

_SHOWN = 12
"""Characters of an id that are shown."""


@dataclass(frozen=True)
class Release:
    """A release without its content. ``winners``: their number."""

    name: str
    id: str
    created: datetime
    winners: int

    def __str__(self) -> str:
        return f"{self.name} ({shown_id(self.id)})"


def shown_id(release_id: str) -> str:
    """The first characters of a release's id."""
    return release_id[:_SHOWN]


def is_id(text: str) -> bool:
    """True for the id of a release."""
    return _ID.fullmatch(text) is not None


def id_of(content: bytes) -> str:
    """The id of a release with this content."""
    return hashlib.sha256(content).hexdigest()


def check_name(name: str) -> None:
    """Raise InvalidRecordError for a text that cannot name a release."""
    if _NAME.fullmatch(name) is None or is_id(name) or name.endswith(FILE_SUFFIX):
        raise InvalidRecordError(
            f"a release cannot be called {name!r:.120}",
            hint="expected letters, digits, '.', '_' and '-', e.g. 2026-11-llama; no id, and no name of a file",
        )


def winners_in(content: bytes) -> int:
    """The number of winners in the content of a release. Raises ExchangeError for a bad line, or if there is none."""
    from .exchange import WinnerLine, lines

    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ExchangeError("not UTF-8 text", hint="expected a file of `registry release export`") from None
    found = sum(isinstance(line, WinnerLine) for _, line in lines(io.StringIO(text)))
    if not found:
        raise ExchangeError("no winner is in it", hint="expected a file of `registry release export`")
    return found


def add(session: Session, name: str, content: bytes) -> Release:
    """Store a release of this content; one that is there already is left as it is.

    Raises InvalidRecordError for a bad name, and where other winners have the name; ExchangeError for bad content.
    """
    from sqlalchemy import select

    from .models import ReleaseRow
    from .rows import insert_new

    check_name(name)
    made = Release(name, id_of(content), now(), winners_in(content))
    # of two that make it at once the second waits for the first, and finds its row
    new = insert_new(session, ReleaseRow).values(**vars(made), content=zlib.compress(content))
    if session.execute(new.returning(ReleaseRow.name)).first() is not None:
        return made
    known = session.execute(select(ReleaseRow).where(ReleaseRow.name == name)).scalar_one()
    if known.id != made.id:
        raise InvalidRecordError(
            f"the release {name} is there, with other winners or rules ({shown_id(known.id)}, not {shown_id(made.id)})",
            hint="a release never changes: choose another name",
        )
    return _release(known)


def every(session: Session) -> list[Release]:
    """All releases, newest first."""
    from sqlalchemy import select
    from sqlalchemy.orm import defer

    from .models import ReleaseRow

    query = select(ReleaseRow).options(defer(ReleaseRow.content, raiseload=True))
    found = session.scalars(query.order_by(ReleaseRow.created.desc(), ReleaseRow.name))
    return list(readable(session, "release", found, _release))


def find_id(database: str | Path | None, name: str, seconds: float) -> str | None:
    """The id of the release called ``name`` in a database, see ``Store.open``; None if there is none.

    Raises MissingDatabaseError where there is no database, UnreachableDatabaseError where it does not answer in time.
    """
    found = _answered(database, seconds, "SELECT id FROM release_set WHERE name = :wanted", name)
    return found[0][0] if found else None


def find_names(database: str | Path | None, release_id: str, seconds: float) -> list[str]:
    """The names of the releases with that id in a database, in order. Raises as :func:`find_id`."""
    query = "SELECT name FROM release_set WHERE id = :wanted ORDER BY name"
    return [str(name) for (name,) in _answered(database, seconds, query, release_id)]


def find_content(database: str | Path | None, release_id: str, seconds: float) -> bytes | None:
    """The content of the release with that id; None if there is none. Raises as :func:`find_id`.

    Raises CorruptedDatabaseError for content of another id.
    """
    query = "SELECT content FROM release_set WHERE id = :wanted ORDER BY name LIMIT 1"
    found = _answered(database, seconds, query, release_id)
    return unpacked(found[0][0], release_id) if found else None


def unpacked(stored: bytes, release_id: str) -> bytes:
    """The content in a column. Raises CorruptedDatabaseError unless it has this id."""
    try:
        content = zlib.decompress(stored)
    except zlib.error:
        content = b""
    if id_of(content) != release_id:
        raise CorruptedDatabaseError(
            f"the content of release {shown_id(release_id)} is damaged",
            hint="import its file again, under another name",
        )
    return content


def joined(lines: Iterable[str]) -> bytes:
    """The content that lines of the exchange format make."""
    return "".join(lines).encode()


def _answered(database: str | Path | None, seconds: float, query: str, wanted: str) -> list[AnsweredRow]:
    from .database.answering import answered

    def question(ask: Ask) -> list[AnsweredRow]:
        # an older schema has no releases
        return ask(query, {"wanted": wanted}) if int(ask(STAMPS, {})[0][0]) >= RELEASES else []

    return answered(database, seconds, question)


def _release(row: object) -> Release:
    if getattr(row, "created", None) is None or not isinstance(getattr(row, "name", None), str):
        raise TypeError("release.created is no instant, or release.name no text")
    return Release(**{name: getattr(row, name) for name in ("name", "id", "created", "winners")})
