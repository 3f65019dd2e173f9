"""A site's database on this machine: a copy of its winners, renewed beside the processes that read it.

A process reads the copy that is there, in milliseconds. One that is older than ``KERNEL_REGISTRY_SITE_AGE`` seconds is
renewed in the background, for processes to come and for ``registry.reload()``.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from tuning_db.database.answering import within
from tuning_db.schema import LATEST

from ..errors import RegistryError
from ..paths import cache_folder
from .copies import make_database
from .pinning import place_of

AGE_VARIABLE = "KERNEL_REGISTRY_SITE_AGE"

SECONDS = 20.0
"""The longest wait for a first copy: once on each machine."""

_AGE_S = 600.0
_log = logging.getLogger(__name__)


def site_copy(database: str | None, *, anew: bool = False) -> Path:
    """The copy of a server's database; None is the default place.

    Made first if there is none, or if it is to be made ``anew``. Raises TuningDBError for a database that cannot be
    read; UnreachableDatabaseError if it takes longer than ``SECONDS``, and the copy is there for the next process.
    """
    url = place_of(database)
    # the URL may hold a password
    path = cache_folder("sites") / f"{hashlib.sha256(url.encode()).hexdigest()}.{LATEST}.db"
    if anew or not path.exists():
        within(SECONDS, "the site's database", lambda: _renew(url, path))
    elif time.time() - max(path.stat().st_mtime, _asked(path)) > _age():
        with suppress(OSError):  # of a cache that cannot be written: the copy that is there serves
            _marker(path).touch()  # so that other processes do not renew it too
        threading.Thread(target=_renew_later, args=(url, path), daemon=True, name="kernel-registry: site copy").start()
    return path


def _marker(path: Path) -> Path:
    """The file whose date says when a copy was last to be renewed."""
    return path.with_suffix(".asked")


def _asked(path: Path) -> float:
    try:
        return _marker(path).stat().st_mtime
    except OSError:
        return 0.0


def told_age(path: Path) -> str:
    """When a copy was made, for messages."""
    return f"copy of {datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d %H:%M} UTC"


def _age() -> float:
    told = os.environ.get(AGE_VARIABLE, "")
    try:
        return float(told) if told else _AGE_S
    except ValueError:
        raise RegistryError(f"{AGE_VARIABLE}={told!r:.40}", hint="expected seconds, e.g. 600") from None


def _renew(url: str, path: Path) -> None:
    from tuning_db import Store

    with Store.open(url, create=False, migrate=False) as store:
        content = store.winners_content(brief=True)
    make_database(path, content)


def _renew_later(url: str, path: Path) -> None:
    try:
        _renew(url, path)
    except Exception as fault:  # a server, driver or file system may raise anything; the copy that is there serves
        _log.debug("the copy of the site's database was not renewed: %s", fault)
