"""Version 6: a decision says which kernels its candidate compiled, so that dispatch can compare."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Adds the column ``artifact_hash``, which is empty in earlier decisions: their trials' covers comments, too."""
    op.add_column("decision", sa.Column("artifact_hash", sa.String(255), nullable=False, server_default=""))
