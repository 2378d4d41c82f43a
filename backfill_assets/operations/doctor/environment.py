"""Looks at what is around the stores: this machine's clock, the bucket of the evidence, and the file that proposes a policy.

Put here what can mislead people or processes although ledger, tables and evidence agree.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement
from manifests.errors import EnvironmentRefused
from resources.evidence.probing import require_fit, require_one_chain
from resources.ledger.instants import CLOCK_TOLERANCE
from resources.ledger.transactions import system_clock


def clock_behind(platform: Platform) -> Iterator[Disagreement]:
    """Find that this machine's clock is not that of the ledger's server; or that there are records of a time that has not come yet."""
    own, server, here = system_clock(), platform.ledger.server_clock(), platform.ledger.now()
    whose = "this machine's clock"
    if server is not None:
        whose = "its server's clock"
        if abs(server - own) > CLOCK_TOLERANCE:
            yield Disagreement(
                "clock-wrong",
                socket.gethostname(),
                f"this machine's clock says {own.isoformat(timespec='seconds')}, the ledger's server {server.isoformat(timespec='seconds')}",
                Confidence.CERTAIN,
                "set the one that is wrong: Dagster's storage, logs and the age of files that arrive are by this machine's",
            )
    ahead = {name: at for name, at in platform.ledger.repairs.newest_instants().items() if at > here + CLOCK_TOLERANCE}
    if ahead:
        name, at = max(ahead.items(), key=lambda item: item[1])
        yield Disagreement(
            "clock-behind",
            socket.gethostname(),
            f"the ledger has records of {at.isoformat(timespec='seconds')} ({name}); {whose} says "
            f"{here.isoformat(timespec='seconds')}",
            Confidence.CERTAIN,
            f"correct {whose}, or find the machine whose clock was ahead; leases and retention depend on it",
        )


def evidence_store_unfit(platform: Platform) -> Iterator[Disagreement]:
    """The bucket of the evidence gives a name away twice, or its place has not the chain that ledger or home folder know of."""
    try:
        require_fit(platform.evidence, platform.settings.evidence_folder)
        require_one_chain(platform.evidence)
    except EnvironmentRefused as refusal:
        problem = refusal.problems[0]
        yield Disagreement(
            "evidence-store",
            str(platform.evidence.folder),
            problem.what,
            Confidence.CERTAIN,
            f"{problem.rule}: {problem.fix}",
        )
        return
    if elsewhere := chain_elsewhere(platform):
        yield Disagreement("evidence-store", str(platform.evidence.folder), *elsewhere)


def chain_elsewhere(platform: Platform) -> tuple[str, Confidence, str] | None:
    """Say what is wrong, how sure, and what to do, where the ledger knows a chain and the place of the evidence has none."""
    seen = platform.ledger.journal.links_gone()
    if not seen:
        return None
    what = f"has no chain, and the ledger knows one of {seen} link(s) at least: it lies elsewhere, or is lost"
    fix = (
        "set `evidence` (BACKFILL_EVIDENCE) to where it was when the ledger was last written, in every process and on every "
        "host; if it is lost, put it back from a backup. What is done before begins a second chain"
    )
    return what, Confidence.CERTAIN, fix


def policy_file_that_differs(platform: Platform) -> Iterator[Disagreement]:
    """A file that proposes another policy than is in force: somebody may take it for what counts."""
    if said := platform.ledger.policies.disagreement(platform.settings):
        fix = "`backfill policy propose --by NAME`, and somebody else adopts it; or make the file say what is in force"
        yield Disagreement("policy-file", "policy", said, Confidence.CERTAIN, fix)
