"""Alembic's entry: migrates the connection that `Ledger.migrate` hands over."""

from alembic import context

from resources.ledger.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
