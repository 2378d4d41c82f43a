"""How a team declares that a table moves house: the old table and the new one of a read model, side by side.

Put here what a product writes down. The steps are `manifests.migration_steps`', what each of them asks `backfill_assets.migration`'s.
Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from backfill_assets.declarations.arguments import said_at_once
from backfill_assets.declarations.schema import dtypes, lineage_columns
from backfill_assets.declarations.target import TargetTable
from manifests.canonical import sha256_of
from manifests.migration_steps import CutOver, Side


@said_at_once
@dataclass(frozen=True)
class Migration:
    """A read model that moves from one target to another; both are declared, filled and published like any target.

    Attributes:
        name: what its consumers ask for, whichever table answers.
        old: the target that they read today, and `new` the one that they are to read.
        transform_version: the version that the history of the new table is computed with.
        columns: columns of the old table by which the new one calls them; those of the same name on both sides need no word.
        not_compared: columns of the old table that the new one says otherwise, or not at all, on purpose.
        tolerances: by column of the old table, up to which difference two numbers are the same.
        slice_column: a text of both tables, by its name in the old one: drift is told by it, and, if it is part of the key, readers may go
            over slice by slice.
        consumers: who may go over alone.
        cut_over: how LIVE goes over.
        readings: how many dual reads in a row must agree before anybody goes over.
        most_disagreeing: the share of compared keys (0 to 1) that may disagree in each of them.
        rewind_days: how many days before what is missing are computed once more when the new table catches up.
        requested_by: who asks for the runs that fill it; `purpose` what they use the source for, where the policy asks; `development` whether
            they may run uncommitted code, on record.
    """

    name: str
    old: str
    new: str
    transform_version: str
    columns: Mapping[str, str] = field(default_factory=dict)
    not_compared: tuple[str, ...] = ()
    tolerances: Mapping[str, float] = field(default_factory=dict)
    slice_column: str = ""
    consumers: tuple[str, ...] = ()
    cut_over: CutOver = CutOver.DUAL_WRITES
    readings: int = 2
    most_disagreeing: float = 0.0
    rewind_days: int = 0
    requested_by: str = "migration"
    purpose: str | None = None
    development: bool = False

    def table(self, side: Side) -> str:
        """Return the target on one side."""
        return self.old if side is Side.OLD else self.new

    def compared(self, old: TargetTable) -> tuple[str, ...]:
        """Return the columns of the old table that are held against those of the new one, by their old names: the key's first."""
        left_out = {*lineage_columns(old.model), *self.not_compared}
        others = [name for name in dtypes(old.model) if name not in left_out and name not in old.key]
        return (*old.key, *others)

    @property
    def hash(self) -> str:
        """What names the declaration: another one asks for another migration."""
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        mappings = {
            "columns": dict(self.columns),
            "tolerances": {name: float(one) for name, one in self.tolerances.items()},
        }
        return sha256_of(
            said | mappings | {"cut_over": self.cut_over.value, "most_disagreeing": float(self.most_disagreeing)}
        )
