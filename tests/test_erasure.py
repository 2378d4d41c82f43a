"""Nobody erased comes back, in whatever way a publication changes its tables: real plans, commits and ledger, no Spark.

Every test publishes rows of `ann`, forgets her, and tries to show her again. The installation is that of `table_world`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from typing import Any
from unittest import mock

import pandera.polars as pandera
import pyarrow as arrow
import pytest
from click.testing import CliRunner
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.types import DateType, NestedField, StringType
from support import put_in_force
from table_model import File, Row, Run
from table_world import DAYS, MONTHS, SOURCE, TARGET, Installation, day_of, only_this_table

from backfill_assets import faults
from backfill_assets.audit.erased_rows import erased_of_source, erased_of_target
from backfill_assets.audit.explain import explain
from backfill_assets.audit.key_history import names_then
from backfill_assets.cli.command import cli
from backfill_assets.declarations import finding
from backfill_assets.declarations.products import Product
from backfill_assets.declarations.source_tables import StartsFrom
from backfill_assets.declarations.target import ColumnOrigin
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.planning.old_data import require_nobody_erased
from backfill_assets.publication import accepting, requirements, undoing
from backfill_assets.publication import publisher as publication
from benchmarks.small_table import closed, serves
from benchmarks.stopped_actors import Died, bury, no_lease_ends
from manifests.errors import PublicationRefused, Refused
from manifests.lifecycle import RunState
from manifests.model import Corrections, OlderVersion, PublishMode
from manifests.policy import shown

pytestmark = pytest.mark.matrix

MONTH = MONTHS[0]
MODES = {
    "replace": Run("", PublishMode.REPLACE_PARTITIONS, (MONTH,)),
    "shadow": Run("", PublishMode.SHADOW_SWAP, (MONTH,)),
    "version": Run("", PublishMode.VERSIONED, (MONTH,), version="v1"),
    "merge": Run("", PublishMode.MERGE_BY_KEY, (MONTH,), entities=frozenset({"ann"}), older=OlderVersion.OVERWRITE),
    "beside": Run("", PublishMode.CORRECTION_EVENTS, (MONTH,), corrections=Corrections.BESIDE),
}
ACTIONS = {
    "publish": publication.publish,
    "reinstate": undoing.reinstate,
    "accept": accepting.accept,
    "rollback": undoing.rollback,
}


@pytest.fixture
def it() -> Iterator[Installation]:
    with only_this_table():
        installation = Installation()
        yield installation
        closed(installation.platform)


def forget(it: Installation, *names: str, **erasure: str) -> None:
    """Put a policy in force under which these are erased."""
    home = it.platform.settings.home
    (home / "erased.csv").write_text("subject,erased_on\n" + "".join(f"{name},2020-01-01\n" for name in names))
    says = {"column": "id", "targetColumn": "name", "file": "erased.csv"} | erasure
    if not says["targetColumn"]:
        del says["targetColumn"]
    put_in_force(it.platform, {"name": "t", "sources": [{"table": SOURCE, "erasure": says}]})


def a_run(it: Installation, run_id: str, like: Run, *names: str, value: int = 1) -> str:
    """Plan, approve, stage and gate a run that says this of the month."""
    run = Run(
        run_id,
        like.mode,
        like.months,
        version=like.version,
        later=like.later,
        corrections=like.corrections,
        entities=like.entities,
        older=like.older,
    )
    it.plan(run)
    rows = frozenset(Row(name, day_of(MONTH, 3), value, value, run_id) for name in names)
    it.stage(run, {MONTH: [File(rows)] if rows else []}, passes=True)
    return run_id


def published(it: Installation, run_id: str, like: Run, *names: str, value: int = 1) -> str:
    publication.publish(it.platform, a_run(it, run_id, like, *names, value=value))
    return run_id


def names_of(it: Installation) -> set[str]:
    return {row.name for row in it.rows()}


def state(it: Installation, run_id: str) -> RunState:
    return it.platform.ledger.run(run_id).state


def test_a_row_of_somebody_erased_is_explained_to_nobody(it: Installation, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backfill_assets.cli.differences.opened_platform", lambda: nullcontext(it.platform))
    published(it, "first", MODES["replace"], "ann", "bob", value=4711)
    key, other = (f"name={name},day={day_of(MONTH, 3)}" for name in ("ann", "bob"))
    assert (explain(it.platform, DAYS, [key]).row or {})["value"] == 4711
    forget(it, "ann")
    found = explain(it.platform, DAYS, [key])
    assert (found.row, found.versions, found.producer, found.source, found.corrections) == (None, [], None, None, [])
    assert (found.erased_since, found.chunk) == (date(2020, 1, 1), MONTH)
    assert (explain(it.platform, DAYS, [other]).row or {})["value"] == 4711
    said = CliRunner().invoke(cli, ["explain", DAYS, "--key", key], catch_exceptions=False).stdout
    words = " ".join(said.split())
    assert "it is not shown, whether there is such a row or not" in words
    assert "the policy has its subject erased since 2020-01-01: nothing that was ever said of it is shown" in words
    assert "4711" not in said
    published(it, "second", MODES["replace"], "bob", value=4712)
    assert explain(it.platform, DAYS, [key]).versions == []  # nor what it was, once its row is gone


def test_what_a_correction_says_of_somebody_erased_is_not_explained(it: Installation):
    published(it, "first", MODES["replace"], "ann", "bob", value=1)
    instead = Run("", PublishMode.CORRECTION_EVENTS, (MONTH,), corrections=Corrections.INSTEAD)
    published(it, "corrected", instead, "ann", "bob", value=4711)
    key = f"name=ann,day={day_of(MONTH, 3)}"
    before = explain(it.platform, DAYS, [key])
    assert '"4711"' in before.corrections[0]["new_values"]
    assert "4711" not in str(before.row)
    forget(it, "4711", targetColumn="value")  # the subject is no part of the key, and stands in the correction alone
    found = explain(it.platform, DAYS, [key])
    assert (found.erased_since, found.row, found.corrections) == (date(2020, 1, 1), None, [])
    assert "4711" not in str(found)
    forget(it, "4712", targetColumn="value")
    assert explain(it.platform, DAYS, [key]).corrections == before.corrections


def _is_explained_until_erased(it: Installation, column: str) -> None:
    key = f"name=ann,day={day_of(MONTH, 3)}"
    assert "4711" in str(explain(it.platform, DAYS, [key]))
    forget(it, "4711", targetColumn=column)
    found = explain(it.platform, DAYS, [key])
    assert found.erased_since == date(2020, 1, 1)
    assert "4711" not in str(found)


def test_what_a_correction_says_of_somebody_erased_is_not_explained_once_its_column_is_renamed(it: Installation):
    published(it, "first", MODES["replace"], "ann", value=1)
    instead = Run("", PublishMode.CORRECTION_EVENTS, (MONTH,), corrections=Corrections.INSTEAD)
    published(it, "corrected", instead, "ann", value=4711)
    with it.platform.lakehouse.table(DAYS).update_schema() as change:
        change.rename_column("value", "number")
    _is_explained_until_erased(it, "number")


def test_a_subject_whose_column_the_table_has_no_more_is_explained_to_nobody(it: Installation):
    published(it, "first", MODES["replace"], "ann", value=4711)
    with it.platform.lakehouse.table(DAYS).update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("value")
    _is_explained_until_erased(it, "value")


def test_a_column_that_was_dropped_and_added_anew_is_read_as_the_one_that_it_was(it: Installation):
    published(it, "first", MODES["replace"], "ann", value=4711)
    table = it.platform.lakehouse.table(DAYS)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    with table.update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("value")
    with table.update_schema() as change:
        change.add_column("value", StringType())
        change.rename_column("name", "who")
    assert names_then(table, snapshot, ("who", "value", "day", "unknown")) == ("name", "value", "day")


@pytest.mark.parametrize(
    ("named", "origins", "is_shown"),
    [
        ("name", {}, False),
        ("who", {"who": (ColumnOrigin(DAYS, "name"),)}, False),
        ("who", {}, True),  # nothing says whose its rows are
        ("name", {"name": (ColumnOrigin("bronze.others", "name"),)}, True),
    ],
    ids=["same name", "made of it", "unknown", "made of another"],
)
def test_a_row_that_is_made_of_a_row_of_somebody_erased_is_explained_to_nobody(
    it: Installation, named: str, origins: dict[str, tuple[ColumnOrigin, ...]], is_shown: bool
):
    model = type("Gold", (pandera.DataFrameModel,), {"__annotations__": {named: str, "day": date}})
    gold = replace(
        TARGET, name="gold.days", model=model, key=(named, "day"), source=DAYS, column_origins=origins, entity=None
    )
    gold = replace(gold, corrections=None, version_column="")
    schema = Schema(NestedField(1, named, StringType()), NestedField(2, "day", DateType()))
    it.platform.lakehouse.ensure("gold.days", schema, UNPARTITIONED_PARTITION_SPEC, {})
    table = it.platform.lakehouse.table("gold.days")
    rows = [{named: name, "day": day_of(MONTH, 3)} for name in ("ann", "bob")]
    table.append(arrow.Table.from_pylist(rows, schema=schema_to_pyarrow(schema)))
    with mock.patch.object(finding, "find_products", serves(Product("days", (), (TARGET, gold)))):
        keys = {name: f"{named}={name},day={day_of(MONTH, 3)}" for name in ("ann", "bob")}
        assert explain(it.platform, "gold.days", [keys["ann"]]).row is not None
        forget(it, "ann")
        found = explain(it.platform, "gold.days", [keys["ann"]])
        assert (found.row is not None, found.erased_since is None) == (is_shown, is_shown)
        assert explain(it.platform, "gold.days", [keys["bob"]]).row is not None
        assert erased_of_source(it.platform, DAYS, gold) == {
            "name": {"ann": date(2020, 1, 1)}
        }  # of the rows that it reads


def test_a_row_that_may_go_on_from_a_state_of_somebody_erased_is_explained_to_nobody(it: Installation):
    later = replace(
        TARGET,
        name="gold.later",
        source="bronze.others",
        starts_from=StartsFrom(DAYS, "day", fits={}),
        column_origins={},
    )
    with mock.patch.object(finding, "find_products", serves(Product("days", (), (TARGET, later)))):
        assert erased_of_target(it.platform, later) == {}
        forget(it, "ann")
        assert erased_of_target(it.platform, later) == {"name": {"ann": date(2020, 1, 1)}}


@pytest.mark.parametrize("way", MODES)
def test_a_publication_shows_nobody_who_is_erased_by_then(it: Installation, way: str):
    published(it, "first", MODES["replace"], "bob")
    run_id = a_run(it, "late", MODES[way], "ann", value=2)
    forget(it, "ann")
    with pytest.raises(PublicationRefused, match="would show 1 erased subject"):
        publication.publish(it.platform, run_id)
    assert state(it, run_id) is RunState.REJECTED
    assert names_of(it) == {"bob"}
    assert it.corrections() == []


def test_a_candidate_with_somebody_erased_is_on_no_branch(it: Installation):
    run_id = a_run(it, "late", MODES["shadow"], "ann")
    forget(it, "ann")
    with pytest.raises(PublicationRefused, match="erased"):
        publication.prepare(it.platform, run_id)
    assert f"candidate-{run_id}" not in it.platform.lakehouse.refs("silver.days")


def test_a_correction_does_not_write_down_once_more_whom_it_removes(it: Installation):
    published(it, "first", MODES["replace"], "ann", "bob")
    forget(it, "ann")
    instead = Run("", PublishMode.CORRECTION_EVENTS, (MONTH,), corrections=Corrections.INSTEAD)
    run_id = a_run(
        it, "correct", instead, "bob"
    )  # the source has forgotten ann: her row would be REMOVED, with old values
    with pytest.raises(PublicationRefused, match="remove them first"):
        publication.publish(it.platform, run_id)
    assert it.corrections() == []


@pytest.mark.parametrize("way", MODES)
def test_a_rollback_puts_nobody_erased_back(it: Installation, way: str):
    published(it, "first", MODES["replace"], "ann", "bob")
    left = () if way == "merge" else ("bob",)
    published(it, "without-ann", MODES[way], *left, value=2)
    assert names_of(it) == {"bob"}
    snapshot = it.platform.lakehouse.snapshot_of("silver.days", MAIN_BRANCH)
    forget(it, "ann")
    with pytest.raises(PublicationRefused, match="the rollback of 'without-ann' would show 1 erased subject"):
        undoing.rollback(it.platform, "without-ann")
    assert state(it, "without-ann") is RunState.PUBLISHED
    assert it.platform.lakehouse.snapshot_of("silver.days", MAIN_BRANCH) == snapshot


@pytest.mark.parametrize("way", MODES)
def test_a_reinstatement_puts_nobody_erased_back(it: Installation, way: str):
    published(it, "first", MODES["replace"], "bob")
    others = () if way == "merge" else ("bob",)
    published(it, "with-ann", MODES[way], "ann", *others)
    undoing.rollback(it.platform, "with-ann")
    forget(it, "ann")
    with pytest.raises(PublicationRefused, match="the reinstate of 'with-ann' would show 1 erased subject"):
        undoing.reinstate(it.platform, "with-ann")
    assert state(it, "with-ann") is RunState.ROLLED_BACK
    assert names_of(it) == {"bob"}


@pytest.mark.parametrize("action", ["publish", "reinstate"])
def test_corrections_that_come_late_show_nobody_who_is_erased_by_then(it: Installation, action: str):
    """The process died once the target had changed: what is left of the change is completed, and without her."""
    published(it, "first", MODES["replace"], "ann", "bob")
    if action == "publish":
        a_run(it, "corrects", MODES["beside"], "bob", value=2)
    else:
        published(it, "corrects", MODES["beside"], "bob", value=2)
        undoing.rollback(it.platform, "corrects")
    point = f"{'publishing' if action == 'publish' else 'undoing'}.halfway"

    def reach(name: str) -> None:
        if name == point:
            raise Died

    with pytest.raises(Died), mock.patch.object(faults, "reach", reach), no_lease_ends():
        ACTIONS[action](it.platform, "corrects")
    bury(it.platform)
    assert (names_of(it), it.corrections()) == ({"bob"}, [])
    forget(it, "ann")
    ACTIONS[action](it.platform, "corrects")
    assert state(it, "corrects") is RunState.PUBLISHED
    assert (names_of(it), it.corrections()) == ({"bob"}, [])
    assert [one.kind for one in examine(it.platform)] == ["corrections-missing"]


def test_a_version_with_somebody_erased_is_not_accepted_nor_reinstated(it: Installation):
    published(it, "first", MODES["replace"], "bob")
    later = Run("", PublishMode.VERSIONED, (MONTH,), version="v2", later=True)
    published(it, "candidate", later, "ann", "bob")
    forget(it, "ann")
    with pytest.raises(PublicationRefused, match="erased"):
        accepting.accept(it.platform, "candidate")
    assert names_of(it) == {"bob"}
    undoing.rollback(it.platform, "candidate")  # it takes her away: nothing stands against it
    with pytest.raises(PublicationRefused, match="erased"):
        undoing.reinstate(it.platform, "candidate")


def test_where_rows_do_not_say_whose_they_are_a_longer_list_stops_the_run(it: Installation):
    published(it, "first", MODES["replace"], "bob")
    forget(it, "2020-01", targetColumn="")
    same = a_run(it, "same", MODES["replace"], "bob", value=2)
    publication.publish(it.platform, same)
    longer = a_run(it, "longer", MODES["replace"], "cem", value=3)
    forget(it, "2020-01", "2020-02", targetColumn="")
    with pytest.raises(PublicationRefused, match="does not say whose a row is"):
        publication.publish(it.platform, longer)
    with pytest.raises(PublicationRefused, match="does not say whose a row is"):
        undoing.rollback(it.platform, same)
    assert names_of(it) == {"bob"}


def test_a_publication_that_has_landed_is_put_on_record_whatever_the_policy_says_by_then(
    it: Installation, monkeypatch: pytest.MonkeyPatch
):
    run_id = a_run(it, "landed", MODES["replace"], "ann")

    class Died(BaseException):
        pass

    def die(point: str) -> None:
        if point == "publishing.committed":
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(publication.faults, "reach", die)
        with pytest.raises(Died):
            publication.publish(it.platform, run_id)
    forget(it, "ann")
    rules = [{"publishers": ["nobody-here"], "maxAgeDays": {"sincePlanning": 0.0000001}}]
    put_in_force(it.platform, shown(it.platform.policy) | {"rules": rules})
    assert publication.publish(it.platform, run_id).new
    assert state(it, run_id) is RunState.PUBLISHED


@pytest.mark.parametrize("action", list(ACTIONS))
def test_a_policy_that_is_adopted_while_an_action_looks_counts_for_it(
    it: Installation, monkeypatch: pytest.MonkeyPatch, action: str
):
    """It has asked for erased subjects, and is about to commit: somebody is erased."""
    published(it, "first", MODES["replace"], "ann" if action == "rollback" else "bob")
    later = Run("", PublishMode.VERSIONED, (MONTH,), version="v1", later=True)
    if action == "rollback":
        published(it, "run", MODES["replace"], "bob", value=2)
    elif action == "reinstate":
        published(it, "run", MODES["replace"], "ann", value=2)
        undoing.rollback(it.platform, "run")
    else:
        a_run(it, "run", later if action == "accept" else MODES["replace"], "ann", value=2)
    if action == "accept":
        publication.publish(it.platform, "run")
    adopted_after_the_look(it, monkeypatch)
    with pytest.raises(Refused):
        ACTIONS[action](it.platform, "run")
    assert names_of(it) == {"bob"}


def test_a_rollback_that_shows_nobody_erased_is_not_held_up_by_a_policy_that_is_adopted_meanwhile(
    it: Installation, monkeypatch: pytest.MonkeyPatch
):
    published(it, "first", MODES["replace"], "bob")
    published(it, "run", MODES["replace"], "ann", value=2)
    adopted_after_the_look(it, monkeypatch)
    undoing.rollback(it.platform, "run")
    assert (names_of(it), state(it, "run")) == ({"bob"}, RunState.ROLLED_BACK)


def adopted_after_the_look(it: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a policy that erases ann put in force right after the next look for erased subjects."""
    real, asking = require_nobody_erased, (requirements, undoing)

    def look(*arguments: Any) -> None:
        real(*arguments)
        for module in asking:
            monkeypatch.setattr(module, "require_nobody_erased", real)
        forget(it, "ann")

    for module in asking:
        monkeypatch.setattr(module, "require_nobody_erased", look)
