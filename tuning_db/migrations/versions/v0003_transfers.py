"""Version 3: a decision says at which other sizes of a static dimension its candidate may run, too."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Adds the column ``transfers``, which is empty in earlier decisions."""
    op.add_column("decision", sa.Column("transfers", sa.JSON, nullable=False, server_default="{}"))
