"""A site's database on this machine: a copy of its winners, renewed beside the processes that read it.

A process reads the copy that is there, in milliseconds, and that one as long as it runs: copies are named by their
content and never change; a small file names the present one. One that is older than ``KERNEL_REGISTRY_SITE_AGE``
seconds is renewed in the background, for processes to come and for ``registry.reload()``.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tuning_db.database.answering import within
from tuning_db.schema import LATEST

from ..errors import RegistryError
from ..paths import cache_folder, write_whole
from .copies import make_database
from .pinning import place_of

AGE_VARIABLE = "KERNEL_REGISTRY_SITE_AGE"

SECONDS = 20.0
"""The longest wait for a copy by those who ask for one; a call waits less, and goes on without."""

_LATER = "a copy of its winners is made as soon as it answers, for the next process and for registry.reload()"

SITES = "sites"
"""The folder of copies within the cache."""

PRESENT = ".present"
"""How the name of a file ends that names the present copy of a site; it was written when the copy was made or found
to be up to date."""

_AGE_S = 600.0
_KEPT_S = 86_400.0
"""How long a copy stays that another has replaced: processes read an op's winners at the op's first call."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SiteCopy:
    """A copy of a site's winners: a database that never changes. ``made``: when the site had these, in s since 1970."""

    path: Path
    made: float

    def __str__(self) -> str:
        return f"copy of {datetime.fromtimestamp(self.made, UTC):%Y-%m-%d %H:%M} UTC"


def site_copy(database: str | None, *, anew: bool = False, seconds: float = SECONDS) -> SiteCopy:
    """The copy of a server's database; None is the default place.

    Made first if there is none, or if it is to be made ``anew``. Raises TuningDBError for a database that cannot be
    read; UnreachableDatabaseError if it takes longer than ``seconds``, and the copy is made nevertheless.
    """
    url = place_of(database)
    # the URL may hold a password
    present = (
        cache_folder(SITES) / f"{hashlib.sha256(url.encode(errors='surrogatepass')).hexdigest()}.{LATEST}{PRESENT}"
    )
    found = _named_by(present)
    if anew or found is None:
        from tuning_db import Store  # noqa: F401  not on the clock

        return within(seconds, "the site's database", lambda: _renew(url, present), _LATER)
    if time.time() - max(found.made, asked_at(present)) > _age():
        with suppress(OSError):  # of a cache that cannot be written: the copy that is there serves
            _marker(present).touch()  # so that other processes do not renew it too
        threading.Thread(
            target=_renew_later, args=(url, present), daemon=True, name="kernel-registry: site copy"
        ).start()
    return found


def remove_replaced(forgotten: Collection[Path] = (), *, dry: bool = False) -> list[Path]:
    """Remove the copies that no site has now, and that were replaced a day ago; returns them.

    ``forgotten``: files that name the present copy of a site, which counts as replaced. ``dry``: leave the copies, and
    tell which these are.
    """
    folder = cache_folder(SITES)
    naming = set(folder.glob(f"*{PRESENT}")) - set(forgotten)
    present = {found.path for each in naming if (found := _named_by(each)) is not None}
    gone = []
    for path in set(folder.glob("*.db")) - present:
        with suppress(OSError):  # another process has removed it
            if time.time() - path.stat().st_mtime > _KEPT_S:
                if not dry:
                    path.unlink()
                gone.append(path)
    return gone


def asked_at(present: Path) -> float:
    """When the copy that a file names was last to be renewed, in seconds since 1970; 0 if never."""
    try:
        return _marker(present).stat().st_mtime
    except OSError:
        return 0.0


def _marker(present: Path) -> Path:
    return present.with_suffix(".asked")


def _named_by(present: Path) -> SiteCopy | None:
    try:
        path, made = present.with_name(present.read_text(encoding="utf-8")), present.stat().st_mtime
    except (OSError, ValueError):
        return None
    return SiteCopy(path, made) if path.exists() else None


def _age() -> float:
    told = os.environ.get(AGE_VARIABLE, "")
    try:
        return float(told) if told else _AGE_S
    except ValueError:
        raise RegistryError(f"{AGE_VARIABLE}={told!r:.40}", hint="expected seconds, e.g. 600") from None


def _renew(url: str, present: Path) -> SiteCopy:
    from tuning_db import Store

    with Store.open(url, create=False, migrate=False) as store:
        content = store.winners_content(brief=True)
    path = present.with_name(f"{hashlib.sha256(content).hexdigest()}.{LATEST}.db")
    before = _named_by(present)
    if not path.exists():
        make_database(path, content)
    write_whole(present, path.name.encode())
    if before is not None and before.path != path:
        with suppress(OSError):
            os.utime(before.path)  # it was replaced now
    remove_replaced()
    return SiteCopy(path, time.time())


def _renew_later(url: str, present: Path) -> None:
    try:
        _renew(url, present)
    except Exception as fault:  # a server, driver or file system may raise anything; the copy that is there serves
        _log.debug("the copy of the site's database was not renewed: %s", fault)
