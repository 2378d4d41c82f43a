"""Looks at what is around the stores: this machine's clock, and the file that proposes a policy.

Put here what can mislead people or processes although ledger, tables and evidence agree.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement
from resources.ledger.instants import CLOCK_TOLERANCE


def clock_behind(platform: Platform) -> Iterator[Disagreement]:
    """Find that the ledger has records of a time that has not come yet by this machine's clock."""
    here = platform.ledger.now()
    ahead = {name: at for name, at in platform.ledger.repairs.newest_instants().items() if at > here + CLOCK_TOLERANCE}
    if ahead:
        name, at = max(ahead.items(), key=lambda item: item[1])
        yield Disagreement(
            "clock-behind",
            socket.gethostname(),
            f"the ledger has records of {at.isoformat(timespec='seconds')} ({name}); this machine's clock says "
            f"{here.isoformat(timespec='seconds')}",
            Confidence.CERTAIN,
            "correct this machine's clock, or find the machine whose clock was ahead; leases and retention depend on it",
        )


def policy_file_that_differs(platform: Platform) -> Iterator[Disagreement]:
    """A file that proposes another policy than is in force: somebody may take it for what counts."""
    if said := platform.ledger.policies.disagreement(platform.settings):
        fix = "`backfill policy propose --by NAME`, and somebody else adopts it; or make the file say what is in force"
        yield Disagreement("policy-file", "policy", said, Confidence.CERTAIN, fix)
