"""Which computed rows a merge takes where history meets LIVE, key by key, under the target's merge policy.

Put here what is decided of a key and what it is counted as; what is written is `chunk_merge`'s. The words are
`manifests.merge_policy`'s. Imports neither Dagster nor PySpark's SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import polars as pl

from manifests.merge_policy import MergePolicy, OnAmbiguous, OnCollision, OnRepeated, OnStale
from manifests.model import Mode

TAKEN, STALE, REPEATED = "taken", "left_out_stale", "ignored_repeated"
KEPT_LIVE, AMBIGUOUS = "kept_live", "ambiguous"
HELD = (STALE, REPEATED, KEPT_LIVE, AMBIGUOUS)
"""Decisions by which the row of today stays as it is, or none comes, in the order in which they are asked for."""
LIVE_RULE = "rows that LIVE wrote are left alone"
WRITTEN_BY = "processing_mode"
"""The lineage column that says which mode wrote a row."""


@dataclass(frozen=True)
class Terms:
    """Under which policy a merge decides, and the first day that is LIVE's (None: there is none), by `day_column`."""

    policy: MergePolicy
    cut_line: date | None
    day_column: str


def decided(
    terms: Terms,
    key: Sequence[str],
    version_column: str,
    lineage: Sequence[str],
    today: pl.DataFrame,
    computed: pl.DataFrame | None,
) -> pl.DataFrame:
    """Return each key of either side with `decision`, and whether LIVE's row would be lost (`overrides_live`).

    Args:
        terms: the policy.
        key: the columns that identify a row.
        version_column: which of two rows is newer.
        lineage: columns that say whose a row is, and nothing of what it says.
        today: rows of the merged entities as readers see them.
        computed: what was computed in their place; None: nothing.
    """
    new = today.clear() if computed is None else computed
    names = [name for name in today.columns if name not in key]
    both = today.with_columns(_old=pl.lit(value=True)).join(
        new.select(today.columns).with_columns(_new=pl.lit(value=True)),
        on=list(key),
        how="full",
        coalesce=True,
        suffix="__new",
        nulls_equal=True,
    )
    is_old, is_new = pl.col("_old").fill_null(value=False), pl.col("_new").fill_null(value=False)
    values = [name for name in names if name not in lineage]
    same = pl.all_horizontal(pl.lit(value=True), *(pl.col(name).eq_missing(pl.col(f"{name}__new")) for name in values))
    by_live = is_old & (pl.col(WRITTEN_BY) == Mode.LIVE.value).fill_null(value=False)
    tie = is_old & is_new & (pl.col(version_column) == pl.col(f"{version_column}__new")).fill_null(value=False)
    policy = terms.policy
    asked = (
        (STALE, policy.stale is not OnStale.TAKE, _after_cut_line(terms, key)),
        (REPEATED, policy.repeated is OnRepeated.IGNORE, is_old & is_new & same),
        (KEPT_LIVE, policy.collision is OnCollision.KEEP_LIVE, by_live & ~(is_new & same)),
        (AMBIGUOUS, policy.ambiguous is OnAmbiguous.RECONCILE, tie & ~same),
    )
    decision = pl.coalesce(
        *(pl.when(holds).then(pl.lit(name)) for name, applies, holds in asked if applies), pl.lit(TAKEN)
    )
    lost = (decision == TAKEN) & by_live & ~(is_new & same) & pl.lit(policy.collision is OnCollision.REFUSE)
    return both.with_columns(decision=decision, overrides_live=lost)


def _after_cut_line(terms: Terms, key: Sequence[str]) -> pl.Expr:
    if terms.cut_line is None:
        return pl.lit(value=False)
    day = pl.col(terms.day_column)
    if terms.day_column not in key:
        # of a row that would be written, or else of the one that would be removed
        day = pl.coalesce(pl.col(f"{terms.day_column}__new"), day)
    return (day.cast(pl.Date) >= terms.cut_line).fill_null(value=False)


def held(decisions: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Return the keys of which nothing is taken: the row of today stays, if there is one."""
    return decisions.filter(pl.col("decision") != TAKEN).select(key)


def counts_of(decisions: pl.DataFrame) -> dict[str, int]:
    """Return how many keys were decided otherwise than as a merge without a policy does, by what was decided."""
    found = dict(decisions.group_by("decision").len().iter_rows())
    return {name: int(found.get(name, 0)) for name in HELD}


def ambiguous_rows(
    decisions: pl.DataFrame, key: Sequence[str], lineage: Sequence[str], most: int
) -> list[dict[str, Any]]:
    """Return up to so many ambiguous keys, each with the values on both sides that differ, as dictionaries of text."""
    found = []
    rows = decisions.filter(pl.col("decision") == AMBIGUOUS).sort(key)
    names = [name for name in rows.columns if f"{name}__new" in rows.columns and name not in lineage]
    for row in rows.head(most).iter_rows(named=True):
        differ = [name for name in names if row[name] != row[f"{name}__new"]]
        found.append(
            {
                "key": {name: str(row[name]) for name in key},
                "today": {name: str(row[name]) for name in differ},
                "computed": {name: str(row[f"{name}__new"]) for name in differ},
            }
        )
    return found
