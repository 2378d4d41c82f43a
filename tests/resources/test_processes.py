"""Several processes at once on one ledger and one catalog: of those who want the same thing, exactly one gets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from typing import Any

import pytest
from contenders import live_through, migrate, processes, publish_month
from servers import Postgres
from support import BY_MONTH, DAYS, DAYS_SCHEMA, TARGET, day_rows, stage_file

from manifests.lifecycle import RunState
from resources.lakehouse.facade import LOAD_PROPERTY, Lakehouse
from resources.ledger.facade import Ledger

NAMES = ("bob", "eve", "grace", "mia")
SHARED = ("shared-1", "shared-2", "shared-3")
AtOnce = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], list[Any]]


@pytest.fixture(scope="module")
def at_once() -> Iterator[AtOnce]:
    with processes(4) as four:
        yield four


def test_four_processes_share_runs_and_have_runs_of_their_own(ledger: Ledger, at_once: AtOnce) -> None:
    url = ledger.engine.url.render_as_string(hide_password=False)
    outcomes = at_once(live_through, [(url, name, SHARED, f"of-{name}") for name in NAMES])
    wanted = {*SHARED, *(f"of-{name}" for name in NAMES)}

    for what in ("approved", "validated", "published"):
        winners = [run_id for outcome in outcomes for run_id in outcome[what]]
        if what == "published":  # to accept what is accepted already changes nothing, and is no refusal
            assert set(winners) == wanted
        else:
            assert sorted(winners) == sorted(wanted), f"each run is {what} by one process"
    attempts = [attempt for outcome in outcomes for attempt in outcome["attempts"]]
    for run_id in SHARED:
        assert sorted(number for name, number, _ in attempts if name == run_id) == [1, 2, 3, 4]
    assert len({prefix for _, _, prefix in attempts}) == len(attempts)
    for run_id in wanted:
        assert [one.decision for one in ledger.approvals(run_id)] == ["APPROVED"]
        moves = [one.to_state for one in ledger.history(run_id)]
        assert moves[:6] == ["PLANNED", "APPROVED", "RUNNING", "STAGED", "VALIDATED", "PUBLISHED"]
        assert moves[6:] in ([], ["SUPERSEDED"])
        assert len({(chunk.attempt, chunk.state) for chunk in ledger.chunks(run_id)}) == 1
    # the last four were accepted at the same moment: one of them holds every chunk, and all before it gave way
    (holder,) = set(ledger.accepted(TARGET).values())
    states = {run_id: ledger.run(run_id).state for run_id in wanted}
    assert holder.startswith("of-")
    assert states == dict.fromkeys(wanted, RunState.SUPERSEDED) | {holder: RunState.PUBLISHED}


def test_of_four_publishing_processes_the_disjoint_ones_land_and_one_of_those_in_one_scope(
    lakehouse: Lakehouse, catalog: dict[str, str], at_once: AtOnce
) -> None:
    table = lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, {"write.delete.isolation-level": "serializable"})
    days = ("2012-01-05", "2012-02-05", "2012-03-05")
    lakehouse.append(DAYS, [day_rows(*days)], {LOAD_PROPERTY: "first"})
    base = lakehouse.snapshot_id(DAYS)
    months = [(date(2012, month, 1), date(2012, month, 28)) for month in (1, 2, 3, 3)]
    files = [
        stage_file(table, f"{number}.parquet", day_rows(f"{start:%Y-%m}-05", value=number))
        for number, (start, _) in enumerate(months, start=1)
    ]
    landed = at_once(
        publish_month,
        [
            (catalog, DAYS, f"run-{number}", base, month, file)
            for number, (month, file) in enumerate(zip(months, files, strict=True), start=1)
        ],
    )

    assert None not in landed[:2], "nobody else was in January or February"
    assert landed[2:].count(None) == 1, "of two in March one wins"
    found = lakehouse.table(DAYS).scan().to_arrow().to_pylist()
    march = 3 if landed[2] is not None else 4
    assert {str(row["day"]): row["value"] for row in found} == dict(zip(days, (1, 2, march), strict=True))
    assert len(found) == len(days)
    assert len(lakehouse.table(DAYS).snapshots()) == 4


def test_a_ledger_is_migrated_by_four_processes_at_once(postgres_server: Postgres, at_once: AtOnce) -> None:
    url = postgres_server.database()
    assert at_once(migrate, [(url,)] * 4) == [""] * 4
    postgres_server.drop(url)
