"""Manifests that the platform writes itself: LIVE's, and restatements that are proposed because a source has a newer version.

Put here what is written, when, and who approves it. When Dagster asks for it is `defs`'; what a team declares of it `declarations.schedules`'.
"""
