"""A typed row has every cell of its table's row: what is written down from it is what the ledger holds."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import fields
from typing import Any

import pytest
import sqlalchemy as sa
from support import APPROVER, approved

from manifests.canonical import canonical_json
from resources.ledger.acceptances import AcceptanceRecord
from resources.ledger.amendments import AmendmentRecord
from resources.ledger.approvals import ApprovalRecord
from resources.ledger.attempts import AttemptRecord
from resources.ledger.cells import IllegibleRow
from resources.ledger.chunks import chunks_in
from resources.ledger.extractions import ExtractionRecord, ResponseRecord
from resources.ledger.facade import Ledger
from resources.ledger.freezes import FreezeRecord
from resources.ledger.leases import LeaseRecord
from resources.ledger.part import Stored
from resources.ledger.publications import PublicationRecord
from resources.ledger.runs import TransitionRecord
from resources.ledger.sink_requests import SinkRequest
from resources.ledger.tables import approvals, attempts, publications, transitions
from resources.ledger.watermarks import WatermarkRecord

RUN = "restate-2012"
KINDS = (
    AcceptanceRecord,
    AmendmentRecord,
    ApprovalRecord,
    AttemptRecord,
    ExtractionRecord,
    FreezeRecord,
    LeaseRecord,
    PublicationRecord,
    ResponseRecord,
    SinkRequest,
    TransitionRecord,
    WatermarkRecord,
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_typed_row_has_a_field_for_each_column_in_the_tables_order(kind: type[Stored]) -> None:
    assert [field.name for field in fields(kind)] == kind.table.columns.keys()


def test_what_is_written_down_of_a_typed_row_is_the_row(ledger: Ledger) -> None:
    approved(ledger, RUN)
    keys = [chunk.chunk for chunk in ledger.chunks(RUN)]
    assert ledger.start_attempt(RUN, keys, edition=0, actor=APPROVER, location="/lake") is not None
    ledger.open_publication(RUN, "publish", 7, "root", APPROVER)

    def cells(table: sa.Table) -> list[dict[str, Any]]:
        with ledger.engine.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(sa.select(table).order_by(table.c.id))]

    for table, typed in (
        (approvals, ledger.approvals(RUN)),
        (attempts, ledger.attempts(RUN)),
        (publications, ledger.publications(RUN)),
        (transitions, ledger.history(RUN)),
    ):
        written = [one.as_record() for one in typed]
        assert written == cells(table) != []
        assert [list(map(type, one.values())) for one in written] == [
            list(map(type, one.values())) for one in cells(table)
        ]
        assert canonical_json(list(typed)) == canonical_json(cells(table))


def test_a_state_that_there_is_not_is_refused_where_it_is_read(ledger: Ledger) -> None:
    approved(ledger, RUN)
    ledger.open_publication(RUN, "publish", 7, "root", APPROVER)
    with ledger.engine.begin() as connection:
        connection.execute(publications.update().values(state="LANDED"))
    with pytest.raises(IllegibleRow, match="ledger publications has cells that cannot be read"):
        ledger.publications(RUN)


@pytest.mark.parametrize("column", ["idx", "attempt", "rows", "bytes"])
@pytest.mark.parametrize("cell", ["x", "[1]", 2.5, b"5"])
def test_chunks_that_are_read_cell_by_cell_are_held_to_the_same(
    ledger: Ledger, backend: str, column: str, cell: Any
) -> None:
    """What is sealed of chunks is read so: a cell that was changed since they were gated is no number there, either."""
    if backend != "sqlite":
        pytest.skip("a server keeps nothing but numbers in a column of numbers")
    approved(ledger, RUN)
    with ledger.holding() as moment:
        assert chunks_in(moment.rows_of(RUN)["chunks"], RUN) == ledger.chunks(RUN)
    with closing(sqlite3.connect(str(ledger.engine.url.database))) as by_hand:
        by_hand.execute(f"UPDATE chunks SET {column} = ?", [cell])
        by_hand.commit()
    with pytest.raises(IllegibleRow, match="ledger chunks"):
        ledger.chunks(RUN)
    with ledger.holding() as moment, pytest.raises(IllegibleRow, match=f"ledger chunks of {RUN} .*{column} is"):
        chunks_in(moment.rows_of(RUN)["chunks"], RUN)
