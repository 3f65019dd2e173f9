"""The place of a database: a SQLite file or a PostgreSQL server, given as a path or as an SQLAlchemy URL."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from ..errors import MissingDatabaseError, UnreachableDatabaseError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

VARIABLE = "KERNEL_REGISTRY_DB"
"""Environment variable that names the database in place of the default file: a path or a URL."""

_EXPECTED = "give a path, sqlite:///path/to/file.db or postgresql://user@host/database"
_SECRETS = frozenset({"password", "sslpassword"})


@dataclass(frozen=True)
class Location:
    """Either a SQLite file (``path``) or a server (``server``). ``shown`` is its URL with passwords hidden."""

    shown: str
    path: Path | None = None
    server: URL | None = None
    read_only: bool = False


def default_path() -> Path:
    """The default database: ``tuning.db`` in the user's data folder.

    Raises MissingDatabaseError where the user has no home folder, as a container's user may not.
    """
    try:
        folder = platformdirs.user_data_path("kernel-registry")
    except RuntimeError:
        folder = Path("~")
    if folder.parts[:1] == ("~",):  # older releases of platformdirs leave it so
        raise MissingDatabaseError(
            "there is no folder for the tuning database: this user has no home folder",
            hint=f"set {VARIABLE} (or --db) to a file, or HOME",
        )
    return folder / "tuning.db"


def locate(given: str | Path | None = None) -> Location:
    """The location that ``given`` names, else ``KERNEL_REGISTRY_DB``, else the default file.

    Raises UnreachableDatabaseError for a URL that cannot be read or names another kind of database.
    """
    given = given or os.environ.get(VARIABLE) or default_path()
    if isinstance(given, Path) or "://" not in given:
        return _file(Path(given))
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    scheme = given.partition("://")[0]
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):  # the text may hold a password, so only its scheme is repeated
        raise UnreachableDatabaseError(f"cannot read the database URL {scheme}://...", hint=_EXPECTED) from None
    if url.get_backend_name() == "sqlite":
        return _sqlite(url)
    if url.get_backend_name() == "postgresql":
        return _postgresql(url)
    raise UnreachableDatabaseError(f"{scheme} is not a database this store can use", hint=_EXPECTED)


def _file(path: Path, read_only: bool = False) -> Location:
    if str(path) == ":memory:":
        raise UnreachableDatabaseError("a database in memory would be forgotten with the process", hint=_EXPECTED)
    # resolve() would follow links, and show another path; pathlib's expanduser() raises for a user that is not known
    path = Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111
    return Location(f"sqlite:///{path}", path=path, read_only=read_only)


def _sqlite(url: URL) -> Location:
    if not url.database:
        return _file(Path(":memory:"))
    query = dict(url.query)
    read_only = query.pop("mode", "") == "ro"
    if query.keys() - {"uri"} or url.database.startswith("file:"):
        raise UnreachableDatabaseError(
            f"{url.render_as_string()}: a SQLite URL takes a path and at most mode=ro", hint=_EXPECTED
        )
    return _file(Path(url.database), read_only)


def _postgresql(url: URL) -> Location:
    # bare "postgresql" means psycopg2 to SQLAlchemy 2.0 and psycopg to 2.1
    if "+" not in url.drivername:
        url = url.set(drivername="postgresql+psycopg")
    hidden = {name: "***" for name in url.query if name in _SECRETS}
    shown = url.set(drivername="postgresql").update_query_dict(hidden).render_as_string(hide_password=True)
    return Location(shown.replace("%2A%2A%2A", "***"), server=url)
