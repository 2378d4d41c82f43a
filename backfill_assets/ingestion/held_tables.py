"""An input table held while rows are loaded or taken back: one who loads, releases or takes back at a time.

Put here how somebody who brings rows waits for the table, and keeps it for as long as rows are written. What a lease and a
fence are is `publication.leasing`'s.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from backfill_assets.installation import Platform
from backfill_assets.publication.leasing import input_lease, leases_of
from resources.ledger.leases import Lease, Leases

_WAIT_SECONDS = 60.0
"""How long who brings rows waits for somebody else who holds the table: as long as for a commit that others come before."""
_RENEWED_EACH = 3
"""Into how many parts a lease is divided: it is renewed once each of them."""

_Batch = TypeVar("_Batch")


@dataclass
class HeldTable:
    """An input table that this process holds; commits to it carry the `token`."""

    lease: Lease
    leases: Leases
    seconds: float
    renewed: float = field(default_factory=time.monotonic)

    @property
    def token(self) -> int:
        """What is fenced once the lease is lost."""
        return self.lease.token

    def keep(self) -> None:
        """Let the lease last on, where some of it has gone by; called while work goes on, as often as one likes.

        Raises:
            LeaseLost: if this process stood still for so long that somebody else has taken the table over.
        """
        at = time.monotonic()
        if at - self.renewed >= self.seconds / _RENEWED_EACH:
            self.leases.renew(self.lease)
            self.renewed = at

    def keeping(self, batches: Iterable[_Batch]) -> Iterator[_Batch]:
        """Yield batches, and keep the table meanwhile."""
        for batch in batches:
            self.keep()
            yield batch


@contextmanager
def held_to_load(platform: Platform, table: str, action: str = "load") -> Iterator[HeldTable]:
    """Hold an input table while rows are brought in: nobody releases rows, or takes any back, meanwhile.

    Raises:
        LeaseHeld: if somebody else holds it for longer than a minute.
    """
    with input_lease(platform, table, action, wait=_WAIT_SECONDS) as lease:
        yield HeldTable(lease, leases_of(platform), platform.settings.lease_seconds)
