"""The `backfill` command: one module a family of commands, and what the terminal shows."""
