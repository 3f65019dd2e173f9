"""``registry db``: the database itself."""

from __future__ import annotations

from .display import text
from .options import Database


def upgrade(db: Database = None) -> None:
    """Bring an older database up to date, with all it holds.

    One transaction: a fault leaves the database unchanged. A database of the latest version is left as it is. tune and
    import upgrade an older database themselves; commands that only read never change one.
    """
    from tuning_db import Store

    before, now = Store.upgrade(db)
    with Store.open(db, create=False, migrate=False) as store:
        where = store.url
    if before == now:
        text.say(f"{where} has schema version {now}, the latest: nothing to do")
    else:
        text.say(f"{where} upgraded from schema version {before} to {now}")
