"""One case with everything that is on record of it: the raw row, its decisions, other cases of the same row, and who has read it.

Put here what a person looks at before deciding. What a case is is `planning.quarantine_cases`'.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.quarantine import WITHHELD
from backfill_assets.ingestion.case_export import is_withheld
from backfill_assets.ingestion.case_names import case_meant
from backfill_assets.installation import Platform
from backfill_assets.planning.pinned_loads import runs_reading
from backfill_assets.planning.quarantine_cases import Case, cases_of, raw_rows
from resources.ledger.quarantine_decisions import Decision


@dataclass(frozen=True)
class CaseView:
    """A case: its raw row, every decision about it (oldest first), the other cases of its row, and the runs that read it once released."""

    case: Case
    record: str
    decisions: tuple[Decision, ...]
    siblings: tuple[Case, ...]
    runs: dict[str, str]
    withheld: bool


def view_of(platform: Platform, table: InputTable, text: str) -> CaseView:
    """Return the case that a text names; without values where the policy protects them.

    Raises:
        InputRefused: if it names none of the table's cases, or several.
    """
    cases = cases_of(platform, table)
    case = case_meant(cases, text)
    withheld = is_withheld(platform, table)
    record = WITHHELD if withheld else raw_rows(platform, table, [case.case_id])[0].record
    decisions = [one for one in platform.ledger.quarantine.decisions(table.name) if one.case_id == case.case_id]
    siblings = [one for one in cases.all.values() if one.row_id == case.row_id and one.case_id != case.case_id]
    runs = runs_reading(platform, table.name, case.released_by) if case.released_by else {}
    shown = [replace(one, detail=WITHHELD) if withheld else one for one in (case, *siblings)]
    return CaseView(shown[0], record, tuple(decisions), tuple(shown[1:]), runs, withheld)
