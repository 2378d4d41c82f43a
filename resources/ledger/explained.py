"""Rows of no run that decide something: refused where no transaction of this project has written them.

Put here the one question that is asked before such rows are believed. What the journal knows of rows is `journal`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from manifests.errors import EnvironmentRefused, Problem
from resources.ledger.journal import INSTALLATION, damages, explain_run, newest_link, unexplained

_SHOWN = 3
_FIX = "`backfill verify --all` names what was changed; restore the ledger from its backup"


def require_explained(engine: sa.Engine, tables: Sequence[str], *, journal: str, rows: str, rule: str) -> None:
    """Refuse to decide by rows of some tables that were written, changed or removed by hand.

    `journal` and `rows` say, in words, what of the two was changed; `rule` what they decide.

    Raises:
        EnvironmentRefused: naming the rows, or the entries of the journal.
    """
    links = newest_link(engine)
    with engine.connect() as connection:
        found = unexplained(connection, explain_run(connection, INSTALLATION), INSTALLATION, list(tables))
        entries = damages(connection, links)
    for what, wrong in ((journal, entries), (rows, found)):
        if wrong:
            said = "; ".join(f"{one.where} {one.what}" for one in wrong[:_SHOWN])
            raise EnvironmentRefused(Problem(f"{what}: {said}", rule, _FIX))
