"""Fences: tags that keep the holder of a lost lease from committing to a table.

Put here the name of a fence and the conditions it makes: that it is not there when a commit is prepared, and that it is not
there when the catalog takes the commit. Who holds a lease is the ledger's to say; the commit that sets a fence is in `refs`.
"""

from __future__ import annotations

import re

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertRefSnapshotId, TableRequirement

from manifests.errors import LeaseLost
from resources.ledger.locks import lost


def fence_of(token: int) -> str:
    """Return the name of the tag that fences a lease."""
    return f"fence-{token}"


def is_fence(ref: str) -> bool:
    """Tell whether a ref has the name of a fence."""
    return re.fullmatch(r"fence-[0-9]{1,19}", ref) is not None


def fenced_in(table: Table) -> set[int]:
    """Return the tokens that a table has fences of."""
    return {int(ref.removeprefix("fence-")) for ref in table.refs() if is_fence(ref)}


def require_unfenced(table: Table, token: int | None) -> None:
    """Refuse if a lease was taken over by somebody else.

    Raises:
        LeaseLost: if the table has the fence of its token.
    """
    if token is not None and fence_of(token) in table.refs():
        raise LeaseLost(lost(".".join(table.name()), token))


def not_fenced(token: int | None) -> tuple[TableRequirement, ...]:
    """Return what a commit under a lease requires of the catalog; nothing without a lease."""
    return () if token is None else (_NotFenced(ref=fence_of(token), snapshot_id=None),)


class _NotFenced(AssertRefSnapshotId):
    """Iceberg's requirement that a ref does not exist, by the rule of the specification.

    PyIceberg's own refuses any ref but main in a table without snapshots; the first publication carries a token, too.
    """

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as in PyIceberg
        if base_metadata is None or base_metadata.snapshots:
            super().validate(base_metadata)
