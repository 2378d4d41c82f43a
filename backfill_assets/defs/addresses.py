"""Addresses of the pages beside Dagster's, which Dagster's pages lead to.

Put here where a page is. What is on it is `ui.pages`'s.
"""

from __future__ import annotations

from urllib.parse import quote

PREFIX = "/backfill"
QUARANTINE = f"{PREFIX}/quarantine/tables"
"""Of quarantined rows: of two parts, as one is a run's."""


def run_path(run_id: str) -> str:
    """Return the address of a run's page, on whatever host the UI is served."""
    return f"{PREFIX}/{quote(run_id, safe='')}"
