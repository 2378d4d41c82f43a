"""`backfill migration` at a terminal and for scripts, what a migration cannot be declared as, and what nobody believes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from migration_world import Moving
from movers import live_once
from test_migration_kills import compared

import backfill_assets as ba
from backfill_assets.audit.verification import verify
from backfill_assets.cli.command import cli
from backfill_assets.decisions import rollback
from backfill_assets.declarations import finding
from backfill_assets.migration.reading import where_to_read
from backfill_assets.migration.steps import advance, planned, standing, undo
from backfill_assets.operations import metrics
from benchmarks.points import MIGRATION, NEW, OLD, opened, product
from benchmarks.small_table import serves
from manifests.errors import DecisionRefused, DeclarationRefused, EnvironmentRefused, Refused
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.ledger.tables import dual_reads, migration_steps


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Moving:
    return compared(tmp_path_factory.mktemp("command") / "home")


@pytest.fixture
def call(world: Moving, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    monkeypatch.setattr(finding, "find_products", serves(product()))

    def called(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["migration", *arguments], standalone_mode=False)

    return called


def test_the_way_over_and_back_at_a_terminal(call: Any, world: Moving) -> None:
    said = call("status", "points")
    assert said.exit_code == 0, said.exception
    assert "COMPARED, silver.points -> silver.points_v2 (DUAL_WRITES)" in said.output
    assert "0 of" in said.output
    went = call("advance", "points", "--consumer", "billing", "--by", "bob")
    assert went.exit_code == 0, went.exception
    assert "consumer billing reads silver.points_v2" in went.output
    (where,) = json.loads(call("where", "points", "--consumer", "billing", "--json").output)["parts"]
    assert (where["table"], where["columns"]) == (NEW, {"region": "area"})
    assert call("where", "points").output.startswith("silver.points at snapshot ")
    assert "step 6" in call("advance", "points", "--by", "bob").output
    back = call("undo", "points", "--by", "bob", "--reason", "other totals than before", "--json")
    data = json.loads(back.output)
    assert (data["moved"], data["step"], data["readers"]["everybody"]) == (True, "COMPARED", "OLD")
    assert data["readers"]["consumers"] == {}  # undone for everybody
    (shown,) = json.loads(call("status", "--json").output)
    assert [one["action"] for one in shown["steps"]][-3:] == ["SWITCH", "ADVANCE", "UNDO"]
    assert len(shown["readings"]) == 2
    figures = metrics.text(metrics.registry(world.platform))
    assert 'backfill_migration_step{migration="points",step="COMPARED"} 1.0' in figures
    assert 'backfill_migration_disagreeing_share{migration="points"} 0.0' in figures


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("advance", "other"), "no product declares the migration 'other'"),
        (("advance", "points", "--consumer", "nobody"), "'nobody' is no consumer of points"),
        (("advance", "points", "--by", "ana"), "'ana' has planned migration points"),
        (("undo", "points", "--by", "bob", "--reason", "no"), "the reason 'no' is too short"),
        (("undo", "points", "--by", " ", "--reason", "a reason as it should be"), "no name is given"),
        (("where", "points", "--consumer", "nobody"), "'nobody' is no consumer of points"),
        (("undo", "points", "--by", "bob", "--reason", "a\x1breason that hides"), "the reason is not text"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call: Any, world: Moving, arguments: tuple[str, ...], said: str) -> None:
    before = len(world.platform.ledger.migrations.steps("points"))
    with mock.patch("backfill_assets.cli.migration.sys.exit"):
        found = call(*arguments)
    assert isinstance(found.exception, Refused), found.output
    assert said in str(found.exception)
    assert len(world.platform.ledger.migrations.steps("points")) == before


def test_a_step_or_a_dual_read_that_was_written_by_hand_is_not_believed(tmp_path: Path) -> None:
    world = compared(tmp_path / "home")
    platform = world.platform
    with platform.ledger.engine.connect() as connection:
        row = connection.execute(sa.select(migration_steps).order_by(migration_steps.c.id.desc()).limit(1)).one()
    raw = sa.create_engine(platform.settings.ledger_url)
    forged = dict(row._mapping) | {"id": row.id + 1, "number": row.number + 1, "step": "CUT_OVER"}
    with raw.begin() as connection:
        connection.execute(migration_steps.insert().values(**forged | {"readers": row.readers.replace("OLD", "NEW")}))
    for act in (advance, undo):
        with pytest.raises(EnvironmentRefused, match="changed by hand"):
            act(platform, MIGRATION, by="bob", reason="a reason as it should be")
    with pytest.raises(EnvironmentRefused, match="changed by hand"):
        where_to_read(platform, "points")
    assert any("migration_steps" in f"{one}" for one in verify(platform).everything)
    with raw.begin() as connection:
        connection.execute(migration_steps.delete().where(migration_steps.c.number == row.number + 1))
        connection.execute(dual_reads.update().values(disagreeing=7))
    with pytest.raises(EnvironmentRefused, match="changed by hand"):
        advance(platform, MIGRATION, by="bob", reason="")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "Points"}, "a read model is named by small letters"),
        ({"old": NEW}, "old and new are both silver.points_v2"),
        ({"new": "silver.nothing"}, "new is silver.nothing"),
        ({"transform_version": "7"}, "transform_version is '7'"),
        ({"columns": {"region": "zone"}}, "columns has 'zone'"),
        ({"columns": {}}, "the key of silver.points is point, region, day, that of silver.points_v2"),
        ({"columns": {"region": "area", "point": "area"}}, "the key of silver.points is point, region, day"),
        ({"columns": {"region": "area", "n": "point"}}, "n of silver.points is Int64"),
        ({"slice_column": "day"}, "slice_column day is Date"),
        ({"tolerances": {"region": 1.0}}, "tolerances has region"),
        ({"tolerances": {"n": -1.0}}, "tolerances is"),
        ({"not_compared": ("day",)}, "not_compared has day"),
        ({"not_compared": "n"}, "not_compared is"),
        ({"consumers": ("", "maps")}, "consumers has"),
        ({"cut_over": "HARD"}, "cut_over is"),
        ({"readings": 0}, "readings is 0"),
        ({"most_disagreeing": 1.0}, "most_disagreeing is 1.0"),
        ({"rewind_days": -1}, "rewind_days is -1"),
        ({"requested_by": "a\nb"}, "requested_by is"),
        ({"slice_column": "run_id"}, "slice_column run_id is not compared"),
        ({"tolerances": {"n": 10**400}}, "tolerances is"),
        ({"development": "yes"}, "development is"),
        ({"purpose": 5}, "purpose is"),
    ],
)
def test_what_a_migration_cannot_be_is_said_when_it_is_declared(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationRefused) as refused:
        finding.check_products([product(replace(MIGRATION, **changes))])
    assert said in str(refused.value)


def test_tables_that_cannot_move_are_refused_when_they_are_declared() -> None:
    with pytest.raises(DeclarationRefused, match=r"declares `live`, and silver\.points_v2 does not"):
        finding.check_products([product(live=None)])
    finding.check_products([product(replace(MIGRATION, cut_over=ba.CutOver.HARD, consumers=()), live=None)])
    live = product().targets[1].live
    assert live is not None
    with pytest.raises(DeclarationRefused, match=r"LIVE of silver\.points_v2 computes with '0'"):
        finding.check_products([product(live=replace(live, transform_version="0"))])
    twice = replace(product(), migrations=(MIGRATION, replace(MIGRATION, name="again")))
    with pytest.raises(DeclarationRefused, match=f"{OLD} is declared 2 times as old table of a migration"):
        finding.check_products([twice])


def _reading(world: Moving, **found: Any) -> None:
    platform = world.platform
    snapshots = tuple(platform.lakehouse.snapshot_id(table) or 0 for table in (OLD, NEW))
    platform.ledger.migrations.record_reading(
        "points",
        standing(platform, MIGRATION).number,
        snapshots=(snapshots[0], snapshots[1]),
        compared=100,
        disagreeing=0,
        found=found,
        by="ana",
    )


def _lacking(world: Moving) -> list[str]:
    done = advance(world.platform, MIGRATION, by="bob", reason="")
    assert not done.moved
    return [check.name for check in done.checks if not check.passed]


def test_a_dual_read_counts_until_something_else_than_live_changes_a_table(tmp_path: Path) -> None:
    world = compared(tmp_path / "home")
    platform = world.platform
    world.load(date(2024, 2, 11), date(2024, 2, 11), n=2)
    assert [live_once(platform, table) for table in (OLD, NEW)] == [True, True]
    assert advance(
        platform, MIGRATION, by="bob", reason=""
    ).moved  # what LIVE published of the same source does not matter
    assert undo(platform, MIGRATION, by="bob", reason="a reason as it should be").moved
    _reading(world)
    newest = {table: max(platform.ledger.accepted(table).items())[1] for table in (OLD, NEW)}
    for table in (OLD, NEW):
        rollback(platform, newest[table], by="bob", comment="what was there before comes back")
    assert _lacking(world) == ["fresh"]
    _reading(world, left_out=["2024-02-11 to 2024-02-11"])  # days that nobody compared
    assert _lacking(world) == ["fresh"]
    _reading(world)
    rows = platform.lakehouse.table(NEW).scan(limit=1).to_arrow()
    platform.lakehouse.append(NEW, [rows], {LOAD_PROPERTY: "another program"})
    assert _lacking(world) == ["fresh"]
    _reading(world)
    assert advance(platform, MIGRATION, by="bob", reason="").moved


def test_a_migration_is_about_the_tables_it_was_planned_with_and_no_other_has_them(tmp_path: Path) -> None:
    world = compared(tmp_path / "home")
    other = replace(MIGRATION, slice_column="")
    changed = opened(world.home, other)
    for ask in (
        lambda: where_to_read(changed, "points"),
        lambda: advance(changed, other, by="bob", reason=""),
        lambda: planned(changed, other, by="ana", reason="a reason as it should be"),
    ):
        with pytest.raises(DecisionRefused, match="is another one than it was planned with"):
            ask()
    renamed = replace(MIGRATION, name="renamed")
    with pytest.raises(DecisionRefused, match="is a table of migration points, which is COMPARED"):
        planned(opened(world.home, renamed), renamed, by="ana", reason="a reason as it should be")
    for name in ("policy:migration", "group:publishers"):
        with pytest.raises(DecisionRefused, match=re.escape(name)):
            undo(world.platform, MIGRATION, by=name, reason="a reason as it should be")
