"""alembic's environment: it runs inside the transaction of the connection that ``schema.migrate`` hands over."""

from __future__ import annotations

from alembic import context

from tuning_db.models import StoredRow
from tuning_db.queue import tables  # noqa: F401  (they belong to it)
from tuning_db.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=StoredRow.metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
context.run_migrations()
