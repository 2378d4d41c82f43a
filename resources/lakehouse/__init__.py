"""Iceberg tables: pinned reads, commits, history, and what a table's metadata says. PyIceberg's private names are used here only."""
