"""Whom the policy has erased by today, as the rows say that an explanation would show: those of a target, of a source, of corrections.

Put here by which columns a row that is kept tells its subject, whatever it is called today and wherever it came from. Who is erased
is `planning.old_data`'s, and what is shown instead `explain`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any

from pyiceberg.table import Table

from backfill_assets.audit.key_history import under_todays_name
from backfill_assets.declarations.target import ColumnOrigin, TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.old_data import erased_subjects

Erased = dict[str, dict[str, date]]
"""Since when subjects are erased, by the column that says whose a row is."""


def erased_of_target(platform: Platform, target: TargetTable) -> Erased:
    """Return who is erased of a target: by the lists of its sources, and of what these, and states that it starts from, are computed from.

    A column counts whether the target has it today or once had it. What a target that is read tells its subjects by, this one tells
    them by in the columns that are made of that one, or have its name and are declared to be made of nothing.
    """
    found: Erased = {}
    for source in target.every_source:
        rule = platform.policy.source_rule(source, target.name)
        if rule is not None and rule.erasure is not None:
            subjects, _ = erased_subjects(platform, rule.erasure, platform.ledger.latest().date())
            columns = {rule.erasure.target_column or rule.erasure.column}
            _add(found, columns | ({rule.erasure.column} & {target.entity}), subjects)
    for source in (*target.every_source, *([] if target.starts_from is None else [target.starts_from.table])):
        for column, of_column in _erased_upstream(platform, source).items():
            _add(found, _made_of(target, source, column), of_column)
    return found


def erased_of_source(platform: Platform, source: str, target: TargetTable) -> Erased:
    """Return who is erased of a source as a target reads it; of one that is a target itself, who is erased of that, too."""
    found = _erased_upstream(platform, source)
    rule = platform.policy.source_rule(source, target.name)
    if rule is not None and rule.erasure is not None:
        subjects, _ = erased_subjects(platform, rule.erasure, platform.ledger.latest().date())
        _add(found, [rule.erasure.column], subjects)
    return found


def said_by_corrections(table: Table, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows that corrections of a table say were, and are to be, under the names that its columns have now.

    A correction has the names that columns had when it was issued: it may be of each schema that has all of them.
    """
    for row in rows:
        for text in (row["old_values"], row["new_values"]):
            said = {} if text is None else json.loads(text)
            yield said
            for then in table.schemas().values():
                if said.keys() <= set(then.column_names):
                    yield {under_todays_name(table, then, name): value for name, value in said.items()}


def _erased_upstream(platform: Platform, source: str) -> Erased:
    upstream = platform.products.find_target(source)
    return {} if upstream is None else erased_of_target(platform, upstream)


def _made_of(target: TargetTable, source: str, column: str) -> set[str]:
    origins = target.column_origins
    made = {name for name, several in origins.items() if ColumnOrigin(source, column) in several}
    return made if column in origins else made | {column}


def _add(found: Erased, columns: Iterable[str], subjects: Mapping[str, date]) -> None:
    for column in columns:
        of_column = found.setdefault(column, {})
        of_column |= {key: min(day, of_column.get(key, day)) for key, day in subjects.items()}
