"""``registry export`` and ``registry import``: results from one database to another, as JSON lines."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuning_db import ExchangeError

from ..errors import RegistryError, UnknownNameError
from ..paths import expanded, resolved, whole_file
from ..untrusted.file_kinds import opened
from .collecting import seldom_collecting
from .display import text
from .options import Database, OneOp, check_stored_op

if TYPE_CHECKING:
    from tuning_db import Store

_CHECKED_FIRST = 1000
"""The number of lines that are checked before a new database is made."""

_BUFFER_BYTES = 2**20


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write; - is stdout.")],
    op: OneOp = None,
    hardware: Annotated[
        str | None,
        typer.Option("--hardware", metavar="NAME", help="Only what was measured on this, e.g. 'NVIDIA H200'."),
    ] = None,
    winners_only: Annotated[
        bool,
        typer.Option(
            "--winners-only", help="Only what dispatch needs: winners, and the best candidates that they beat. Small."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there, once all is written.")] = False,
    db: Database = None,
) -> None:
    """Write results as JSON lines.

    Runs, trials, decisions and winners, for `registry import` on another machine. FILE is written completely or not at
    all. A file that is there is replaced only with --force: else nothing is written, and the exit code is 2.
    """
    from tuning_db import Store
    from tuning_db.database.location import locate

    if str(file) != "-":
        check_new(file, force=force)
        if file.exists() and (own := locate(db).path) is not None and own.exists() and own.samefile(file):
            raise RegistryError(f"{file} is the database itself", hint="nothing was written; name another file")
    with Store.open(db, create=False, migrate=False) as store, seldom_collecting():
        check_stored_op(op, store)
        chosen = None if hardware is None else hardware_named(hardware, store)
        if str(file) == "-":
            store.export(sys.stdout, op=op, hardware=chosen, winners_only=winners_only)
            return
        with new_file(file, force=force) as part, part.open("w", _BUFFER_BYTES, encoding="utf-8") as stream:
            count = store.export(stream, op=op, hardware=chosen, winners_only=winners_only)
    text.say(f"{text.plural(count, 'record')} written to {file}")


def check_new(file: Path, *, force: bool = False) -> None:
    """Raise RegistryError if a file is there that a command must not replace. ``force``: it may replace a file."""
    if file.is_dir():
        raise RegistryError(f"{file} is a folder", hint=f"nothing was written; name a file, e.g. {file / 'out.jsonl'}")
    if not (file.exists() or file.is_symlink()):
        return
    if not force:
        raise _is_there(file)
    if not file.is_file():
        raise RegistryError(f"{file} is no regular file", hint="nothing was written; use - for stdout")


@contextmanager
def new_file(file: Path, *, force: bool = False) -> Iterator[Path]:
    """A path at which to make a file, which becomes ``file`` when it is whole; see ``check_new``.

    Raises RegistryError where it cannot be made; what is there then stays.
    """
    try:
        with whole_file(resolved(file) if force else expanded(file), replace=force) as part:
            yield part
    except FileExistsError:
        raise _is_there(file) from None
    except OSError as fault:
        raise RegistryError(f"{file}: {fault.strerror}", hint="expected a file that can be made") from None


def _is_there(file: Path) -> RegistryError:
    return RegistryError(f"{file} is there already", hint="nothing was written; name another file, or give --force")


def hardware_named(name: str, store: Store) -> list[Mapping[str, Any]]:
    """Every stored hardware identity of that name: a GPU may be stored whole and as MIG instances."""
    there = store.hardware()
    found = [identity for identity in there if str(identity.get("name", "")).casefold() == name.casefold()]
    if not found:
        raise UnknownNameError("hardware", name, {str(identity.get("name", "")) for identity in there})
    return found


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `registry export` wrote.")],
    db: Database = None,
) -> None:
    """Add exported results to the database.

    A bad line leaves it as it was; importing twice changes nothing.
    """
    from tuning_db import Store
    from tuning_db.exchange import lines

    try:
        with io.TextIOWrapper(opened(file), encoding="utf-8") as stream, seldom_collecting():
            checked = lines(stream)
            first = list(itertools.islice(checked, _CHECKED_FIRST))
            with Store.open(db) as store:
                count, where = store.add_lines(itertools.chain(first, checked)), store.url
    except ExchangeError as fault:
        raise RegistryError(f"{file}, {fault.message}", hint=fault.hint) from None
    except OSError as fault:
        raise RegistryError(f"{file}: {fault.strerror}", hint="expected a file of `registry export`") from None
    except UnicodeDecodeError:
        raise RegistryError(f"{file}: not UTF-8 text", hint="expected a file of `registry export`") from None
    text.say(f"{text.plural(count, 'new record')} in {where}")
