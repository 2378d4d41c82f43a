"""Looks at what holds parts of a target: leases that cannot be right or were not given back, freezes that are over.

Put here what holds others up, or did. What a run has committed under its lease is `publications`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial

from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement, outcome
from resources.processes import is_busy

_CLOCKS_APART = timedelta(days=1)
"""By how much a lease may seem to last longer than leases last: clocks differ, and so may the setting elsewhere."""


def wrong_leases(platform: Platform) -> Iterator[Disagreement]:
    """Find leases that cannot be read, that last longer than leases last, or that were not given back."""
    for number, (what, is_open) in platform.ledger.repairs.illegible_leases().items():
        yield Disagreement(
            "lease-damaged",
            f"lease {number}",
            what,
            Confidence.CERTAIN,
            f"find out who has changed it; {_END_LEASE}"
            if is_open
            else "find out who has changed it, and restore what was there; the lease has ended and delays no run",
            partial(_lose_lease, platform, number) if is_open else None,
        )
    longest = platform.ledger.now() + timedelta(seconds=platform.settings.lease_seconds) + _CLOCKS_APART
    for held in platform.ledger.repairs.open_leases():
        if held.expires_at > longest:
            yield Disagreement(
                "lease-too-long",
                f"{held.target} lease {held.id}",
                f"run {held.run_id} holds {held.start_day} to {held.end_day} until "
                f"{held.expires_at.isoformat(timespec='seconds')} ({held.host}, process {held.pid}); a lease lasts "
                f"{platform.settings.lease_seconds} s, unless its holder asks for more",
                Confidence.LIKELY,
                "its process lives, and ends it; where a clock was ahead and was put right, leases last until then"
                if is_busy(held)
                else f"find out who has written it, and that no such process lives; {_END_LEASE}",
                None if is_busy(held) else partial(_lose_lease, platform, held.id),
            )
        if held.expires_at < platform.ledger.now():
            yield Disagreement(
                "lease-expired",
                f"{held.target} lease {held.id}",
                f"run {held.run_id} held {held.start_day} to {held.end_day} until "
                f"{held.expires_at.isoformat(timespec='seconds')} ({held.host}, process {held.pid}) "
                "and did not give it back",
                Confidence.LIKELY,
                f"nothing: it no longer holds anybody up; see what became of run {held.run_id}",
            )


_END_LEASE = "ending it is harmless: the next run to take its days fences it, and nothing can land under it any more"


def _lose_lease(platform: Platform, token: int) -> str:
    return outcome(platform.ledger.repairs.lose_lease(token), "ended as lost: the next run to take its days fences it")


def freezes_over(platform: Platform) -> Iterator[Disagreement]:
    """Find freezes whose time is over and that nobody has ended."""
    for freeze in platform.ledger.repairs.open_freezes():
        if freeze.until_at < platform.ledger.now():
            yield Disagreement(
                "freeze-over",
                f"{freeze.target} freeze {freeze.id}",
                f"run {freeze.run_id} froze {freeze.start_day} to {freeze.end_day} until "
                f"{freeze.until_at.isoformat(timespec='seconds')}, and it is not ended",
                Confidence.CERTAIN,
                "end it",
                partial(_end_freeze, platform, freeze.id),
            )


def _end_freeze(platform: Platform, freeze: int) -> str:
    return outcome(platform.ledger.repairs.end_freeze(freeze, platform.ledger.now()), "ended")
