"""Looks at the ledger's journal and the chain: what neither explains was changed by hand.

Put here damages of the chain, rows that no entry explains, and entries without a link. Records and bundles that the chain
vouches for are `evidence`'s.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement, outcome
from backfill_assets.operations.doctor.settling import AGAIN_SECONDS
from resources.evidence.chain import Link
from resources.ledger import journal as journals
from resources.ledger.journal import INSTALLATION


def unexplained_changes(platform: Platform) -> Iterator[Disagreement]:
    """Find what the ledger's journal cannot explain. No repair takes it over: who has changed it, and why, is for people."""
    chain = platform.evidence.chain.read()
    links = chain.links
    for damage in chain.damages:
        yield Disagreement(
            "chain-damaged",
            f"chain {damage.name}",
            f"{damage.what}: {damage.found}",
            Confidence.CERTAIN,
            f"find out who has changed it; put back what belongs there, from a backup of {platform.evidence.chain.folder}",
        )
    with platform.ledger.reading() as moment:  # one moment of journal and rows
        journal = moment.explain(links)
        wrong = [("journal-damaged", one) for one in journal.damages]
        for run_id in sorted({*journal.runs, *moment.run_ids(), INSTALLATION}):
            wrong += [("changed-by-hand", one) for one in moment.unexplained(journal, run_id)]
        wrong += [("changed-by-hand", one) for one in moment.of_nobody(journal)]
    for kind, one in wrong:
        yield Disagreement(
            kind,
            one.where,
            one.what,
            Confidence.CERTAIN,
            "find out who has changed it; put back what `backfill verify` says was there, or the ledger from its backup",
        )
    if platform.ledger.journal.links_gone():
        return  # a chain that is elsewhere, or lost, is told as such: a link here would begin a second one
    if journal.length > journal.linked and not _is_linked_soon(platform, journal.length, links):
        yield Disagreement(
            "journal-unlinked",
            f"ledger journal {journal.linked + 1}",
            "has no link in the chain: a process ended before it could append it",
            Confidence.CERTAIN,
            "append it: what the journal explains is vouched for, nothing else",
            lambda: outcome(platform.ledger.journal.catch_up(), "appended the link"),
        )


def _is_linked_soon(platform: Platform, entry: int, links: Sequence[Link]) -> bool:
    """Whether a link of an entry comes within a moment: it is appended once the transaction is over."""
    time.sleep(AGAIN_SECONDS)
    since = links[-1].number if links else 0
    said = [one for one in platform.evidence.chain.contents(since=since) if one.get("event") == journals.EVENT]
    return any(isinstance(told := one.get("entry"), int) and told >= entry for one in said)
