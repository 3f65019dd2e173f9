"""alembic's environment: it runs inside the transaction of the connection that ``schema.migrate`` hands over."""

from __future__ import annotations

from alembic import context

from tuning_db.queue.tables import ALL
from tuning_db.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=ALL,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
context.run_migrations()
