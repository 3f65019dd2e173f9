"""``registry db``: the database itself."""

from __future__ import annotations

from tuning_db import Store

from .display import text
from .options import Database


def upgrade(db: Database = None) -> None:
    """Bring an older database up to date, with all it holds.

    In one transaction: a fault on the way leaves it as it was. Where nothing is to be done, nothing is. Commands that
    only read never do this; tune and import do where it is needed.
    """
    before, now = Store.upgrade(db)
    with Store.open(db, create=False, migrate=False) as store:
        where = store.url
    if before == now:
        text.say(f"{where} has schema version {now}, the latest: nothing to do")
    else:
        text.say(f"{where} upgraded from schema version {before} to {now}")
