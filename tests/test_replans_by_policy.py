"""A run that is planned anew reads its sources again: what the policy says of them today, and what its own limits say, counts."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support import put_in_force
from worlds import SPARK, World

from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.publication.publisher import publish
from benchmarks import accounts
from benchmarks.accounts import ENTRIES, FEES, LIMITS, manifest
from manifests.errors import PlanRefused, PublicationDeferred
from manifests.lifecycle import RunState
from resources.ledger.tables import freezes

JANUARY = date(2024, 1, 1), date(2024, 1, 31)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An installation with a run that waits to be published, and another that has come before it."""
    platform = accounts.opened(tmp_path / "home", spark=SPARK)
    initialise(platform)
    for table, rows in ((ENTRIES, accounts.entries()), (LIMITS, accounts.limits()), (FEES, accounts.fees())):
        accounts.load(platform, table, rows, "all")
    return World(platform, tmp_path / "home")


def erasing(platform: Platform, *accounts_: str, table: str = ENTRIES) -> dict[str, Any]:
    """Return a policy by which rows of some accounts are not used."""
    listed = "subject,erased_on\n" + "".join(f"{one},2020-01-01\n" for one in accounts_)
    (platform.settings.home / "erased.csv").write_text(listed)
    erasure = {"column": "account", "file": "erased.csv", "keyColumn": "subject", "dateColumn": "erased_on"}
    return of(table, erasure=erasure | {"onErased": "FILTER"})


def of(table: str, **rule: Any) -> dict[str, Any]:
    return {"name": "later", "sources": [{"table": table, **rule}]}


def test_a_run_is_not_planned_anew_under_a_policy_that_came_after_its_plan(world: World) -> None:
    platform = world.platform
    world.validated(manifest("waiting", conflict={"onConflict": "REPLAN", "maxReplans": 2}, freeze={"hours": 2}))
    world.published(manifest("between", *JANUARY))
    refused = {
        "purpose is not given": of(ENTRIES, purposes=["billing"]),
        r"lets bronze\.limits be used by REPAIR": of(LIMITS, kinds=["REPAIR"]),
        r"rows of bronze\.entries from before": of(ENTRIES, retention={"days": 1, "onExpired": "REFUSE"}),
        r"rows of bronze\.fees from before": of(FEES, retention={"days": 1, "onExpired": "REFUSE"}),
        r"the policy says of bronze\.entries has changed since the plan: whose rows": erasing(platform, "a1"),
        r"the policy says of bronze\.limits has changed since the plan: whose rows": erasing(
            platform, "a1", table=LIMITS
        ),
    }
    for said, policy in refused.items():
        put_in_force(platform, policy)
        with pytest.raises(PlanRefused, match=said):
            publish(platform, "waiting")
        assert platform.ledger.run("waiting").state is RunState.VALIDATED
        assert platform.ledger.amendments("waiting") == []
    put_in_force(platform, {"name": "as before"})
    with pytest.raises(PublicationDeferred, match="planned anew"):
        publish(platform, "waiting")
    assert platform.ledger.run("waiting").state is RunState.RUNNING
    # LIVE is held back from its days until it is published, planned anew or not
    with platform.ledger.engine.connect() as connection:
        frozen = connection.execute(sa.select(freezes.c.run_id).where(freezes.c.ended_at.is_(None)))
        assert [row.run_id for row in frozen] == ["waiting"]
    world.stage(platform.ledger.run("waiting"))
    publish(platform, "waiting")
    assert {row["run_id"] for row in accounts.rows_of(platform)} == {"waiting"}
    assert verify(platform, data=True).everything == []


def test_the_same_terms_hold_for_what_is_planned_anew_and_nobody_who_is_left_out_comes_back(world: World) -> None:
    platform = world.platform
    put_in_force(platform, erasing(platform, "a1"))
    world.validated(manifest("waiting", conflict={"onConflict": "REPLAN"}, safety={"maxRowsExpected": 130}))
    world.published(manifest("between", *JANUARY))
    more = [one | {"cents": 1} for one in accounts.entries(*JANUARY)[:3]]
    accounts.load(platform, ENTRIES, more, "more")
    with pytest.raises(PublicationDeferred, match="planned anew"):
        publish(platform, "waiting")
    world.stage(platform.ledger.run("waiting"))
    publish(platform, "waiting")
    rows = accounts.rows_of(platform)
    booked = [row for row in [*accounts.entries(), *more] if row["account"] != "a1"]
    assert accounts.values_of(rows) == accounts.expected(booked, accounts.limits(), accounts.fees())
    assert verify(platform, data=True).everything == []


def test_a_limit_of_rows_holds_for_the_newest_source_too(world: World) -> None:
    platform = world.platform
    world.validated(manifest("waiting", conflict={"onConflict": "REPLAN"}, safety={"maxRowsExpected": 120}))
    world.published(manifest("between", *JANUARY))
    accounts.load(platform, ENTRIES, accounts.entries(*JANUARY), "twice")
    with pytest.raises(PlanRefused, match="planned anew, the run would read 182 rows"):
        publish(platform, "waiting")
    assert platform.ledger.run("waiting").state is RunState.VALIDATED
