"""Lists of erased subjects, each kept under its hash: whom a plan leaves out.

Put here hashes of keys only; how a list is read and applied is `backfill_assets.planning.old_data`'s.
"""

from __future__ import annotations

import json
from collections.abc import Collection

import sqlalchemy as sa

from manifests.errors import Problem, TransitionRefused
from resources.ledger.cells import parsed
from resources.ledger.part import Part
from resources.ledger.tables import erasure_lists


class ErasureLists(Part):
    """The lists of erased subjects in a ledger."""

    def keep(self, list_hash: str, hashes: Collection[str]) -> None:
        """Keep a list of erased subjects, as hashes of their keys, under its hash; safe to repeat."""
        self._keep(erasure_lists, list_hash, {"subjects": json.dumps(sorted(hashes))})

    def subjects(self, list_hash: str) -> frozenset[str]:
        """Return the hashes of the keys of a list.

        Raises:
            TransitionRefused: if it was not kept: without it nobody knows whom the plan leaves out.
        """
        query = sa.select(erasure_lists.c.subjects).where(erasure_lists.c.hash == list_hash)
        with self.engine.connect() as connection:
            text = connection.execute(query).scalar()
        if text is None:
            raise TransitionRefused(
                Problem(
                    f"the list of erased subjects {list_hash} is not in the ledger",
                    "a run leaves out whom its plan names",
                    "plan the change again, under a new run id",
                )
            )
        return frozenset(parsed(erasure_lists.c.subjects, text, list))
