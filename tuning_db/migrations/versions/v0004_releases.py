"""Version 4: releases, sets of winners that never change."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Adds the table of releases."""
    op.create_table(
        "release_set",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("winners", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_release_set"),
    )
    op.create_index("ix_release_set_id", "release_set", ["id"])
