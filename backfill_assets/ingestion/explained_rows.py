"""Whether the ledger's journal explains the rows that something is about to be loaded because of.

Put here what is asked of the journal before rows of a table follow from rows of the ledger. What else is wrong with a ledger the
doctor and `backfill verify` say.
"""

from __future__ import annotations

from backfill_assets.installation import Platform
from manifests.errors import EnvironmentRefused, Problem
from resources.ledger.journal import INSTALLATION

_SHOWN = 5


def require_explained(platform: Platform, table: str) -> None:
    """Refuse to go by rows of a table of the ledger, of no run, if the journal does not explain every one of them.

    Raises:
        EnvironmentRefused: naming rows that somebody has written or changed past this project, and damages of the journal.
    """
    links = platform.evidence.chain.read().links
    with platform.ledger.reading() as moment:
        journal = moment.explain(links)
        wrong = [*journal.damages, *moment.unexplained(journal, INSTALLATION, [table])]
    if wrong:
        more = f", and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise EnvironmentRefused(
            Problem(
                f"{one.where} {one.what}",
                "rows are loaded because of what this project has put on record, and the journal vouches for each entry",
                f"find out who has changed it; `backfill doctor` and `backfill verify --all` say more{more}",
            )
            for one in wrong[:_SHOWN]
        )
