"""Version 2: a decision's comparison with the default and its ties get columns of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tuning_db import older_versions

revision = "0002"
down_revision = "0001"

DECISION = sa.table(
    "decision",
    sa.column("id", sa.BigInteger),
    sa.column("baselines", sa.JSON),
    *(sa.column(name, sa.Double) for name in ("default_ratio", "default_lo", "default_hi")),
    sa.column("ties", sa.JSON),
)


def upgrade() -> None:
    """Adds the columns and moves into them what version 1 keeps in the JSON of ``baselines``."""
    for name in ("default_ratio", "default_lo", "default_hi"):
        op.add_column("decision", sa.Column(name, sa.Double(), nullable=True))
    op.add_column("decision", sa.Column("ties", sa.JSON, nullable=False, server_default="[]"))
    connection = op.get_bind()
    stored = connection.execute(sa.select(DECISION.c.id, DECISION.c.baselines)).all()
    moved = [
        {"row": number, **values}
        for number, baselines in stored
        if (values := older_versions.second_of_first(baselines))["baselines"] != baselines
    ]
    if moved:
        connection.execute(sa.update(DECISION).where(DECISION.c.id == sa.bindparam("row")), moved)
