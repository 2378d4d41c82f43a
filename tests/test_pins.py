"""What a run has read, and what it left beside its tables: a change of it is found and named."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from click.testing import CliRunner
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.types import LongType
from small_worlds import copy_of
from worlds import SPARK

from backfill_assets import decisions
from backfill_assets.audit.report import report, report_beside
from backfill_assets.audit.verification import COVERED, NOT_COVERED, verify
from backfill_assets.cli.command import cli
from backfill_assets.declarations.exception_texts import exception_rows
from backfill_assets.declarations.target import EXCEPTION_COLUMNS, Finding, Level, Reconciliation, ReconciliationContext
from backfill_assets.evidence.events import GC
from backfill_assets.gates.exception_table import EXCEPTIONS_TABLE
from backfill_assets.installation import Platform
from backfill_assets.operations.garbage import collect, find
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from backfill_assets.ui.pages import make_pages
from benchmarks import small_table
from benchmarks.small_table import HISTORY, SOURCE, manifest_data, planned, staged
from manifests.reading import manifest_from
from resources.lakehouse.facade import local_path
from resources.lakehouse.snapshots import Seen
from resources.ledger.transactions import system_clock as now


@pytest.fixture
def platform() -> Iterator[Platform]:
    """A published run that has told the audit table."""
    with small_table.declared():
        found = copy_of(with_a_run_that_told)
        yield found
        small_table.closed(found)


def with_a_run_that_told(platform: Platform) -> None:
    _published(platform, safety={"sinks": ["run_audit"]})


def with_a_run(platform: Platform) -> None:
    _published(platform)


def _published(platform: Platform, **more: Any) -> None:
    small_table.initialise(platform)
    planned(platform, manifest_from(manifest_data("one", "REPLACE_PARTITIONS", HISTORY) | more))
    staged(platform, "one")
    publish(platform, "one")


@pytest.fixture
def outlined() -> Iterator[Platform]:
    """A published run that has left an outline of each chunk beside its table."""
    with small_table.declared(small_table.OUTLINED):
        found = copy_of(with_a_run, keep_snapshots_days=365)
        yield found
        small_table.closed(found)


def outlines(platform: Platform) -> list[Path]:
    return [Path(local_path(chunk.measures["outline"])) for chunk in platform.ledger.chunks("one")]


def said(platform: Platform, *, data: bool = True) -> list[tuple[str, str]]:
    return [(one.where, one.what) for one in verify(platform, data=data).everything]


def a_file(platform: Platform, table: str) -> Path:
    return Path(min(Seen(platform.lakehouse.table(table)).entries))


def test_a_changed_byte_of_a_file_that_was_read_is_found_by_the_hash_of_its_load(platform: Platform) -> None:
    assert said(platform) == []
    file = a_file(platform, SOURCE)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    assert said(platform, data=False) == []
    assert said(platform) == [(f"{SOURCE} {file}", "was read by it, and was changed")]
    file.unlink()
    assert said(platform) == [(f"{SOURCE} {file}", "was read by it, and is missing")]


def test_the_metadata_of_what_was_read_is_held_against_its_hashes(platform: Platform) -> None:
    seen = Seen(platform.lakehouse.table(SOURCE))
    manifest = Path(local_path(seen.manifests[0].manifest_path))
    raw = bytearray(manifest.read_bytes())
    raw[len(raw) // 2] ^= 1
    manifest.write_bytes(raw)
    assert (f"{SOURCE} metadata file://{manifest}", "was changed after it was read") in said(platform, data=False)


def test_what_is_loaded_later_and_by_others_is_no_alarm(platform: Platform) -> None:
    table = platform.lakehouse.table(SOURCE)
    table.append(
        arrow.Table.from_pylist(
            [{"id": "x", "at": datetime(2020, 3, 1, tzinfo=UTC)}], schema=schema_to_pyarrow(table.schema())
        )
    )
    assert said(platform) == []
    planned(platform, manifest_from(manifest_data("two", "REPLACE_PARTITIONS", small_table.EMPTY)))
    staged(platform, "two")
    publish(platform, "two")
    done = verify(platform, data=True)
    assert done.everything == []
    assert "brought by no load on record" in done.runs[1].notes[0]
    assert done.runs[0].notes == ()


def test_what_the_owner_of_a_source_does_to_it_later_is_no_alarm(platform: Platform) -> None:
    table = platform.lakehouse.table(SOURCE)
    with table.update_schema() as schema:
        schema.rename_column("id", "event")
        schema.add_column("more", LongType())
    with platform.lakehouse.table(SOURCE).update_spec() as spec:
        spec.add_field("event", "identity", "by_event")
    assert said(platform) == []


def test_the_text_of_the_policy_that_decided_is_in_the_evidence(platform: Platform) -> None:
    with closing(sqlite3.connect(platform.settings.home / "ledger.db")) as connection:
        connection.execute('UPDATE policies SET text = \'{"name":"mine"}\'')
        connection.commit()
    hashed = platform.ledger.run("one").plan.policy
    assert (f"ledger policies {hashed}", "is not the text of the policy that decided") in said(platform, data=False)


def test_a_row_of_the_audit_table_that_says_something_else_is_found(platform: Platform) -> None:
    table = platform.lakehouse.table("audit.run_audit")
    (row,) = table.scan().to_arrow().to_pylist()
    changed = row | {"details": row["details"].replace('"files_added":8', '"files_added":9')}
    assert changed != row
    table.overwrite(arrow.Table.from_pylist([changed], schema=schema_to_pyarrow(table.schema())))
    assert said(platform) == [("audit.run_audit one publish", "says something else than was committed")]


@pytest.mark.parametrize("details", ["nope", "[1]", "[" * 100_000, None])
def test_details_in_the_audit_table_that_are_no_object_are_found_of_their_own_run_alone(
    platform: Platform, details: str | None
) -> None:
    table = platform.lakehouse.table("audit.run_audit")
    (row,) = table.scan().to_arrow().to_pylist()
    schema = schema_to_pyarrow(table.schema())
    table.append(arrow.Table.from_pylist([row | {"run_id": "another", "details": details}], schema=schema))
    assert said(platform) == []
    table.overwrite(arrow.Table.from_pylist([row | {"details": details}], schema=schema))
    assert said(platform) == [("audit.run_audit one publish", "says something else than was committed")]


def test_an_altered_report_is_not_served_as_ours(platform: Platform) -> None:
    file = report_beside(platform, "one")
    assert file is not None
    file.write_text("<h1>everything was fine</h1>")
    pages = make_pages(platform.ledger, platform.evidence, lambda run_id: report(platform, run_id))

    async def asked(run_id: str) -> tuple[int, str]:
        said: list[MutableMapping[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: MutableMapping[str, Any]) -> None:
            said.append(message)

        path = f"/backfill/{run_id}/evidence/report.html"
        await pages({"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}, receive, send)
        return said[0]["status"], b"".join(one.get("body", b"") for one in said[1:]).decode()

    assert asyncio.run(asked("one")) == (200, report(platform, "one"))
    assert asyncio.run(asked("other"))[0] == 404


def test_what_is_checked_and_what_is_not_is_said_by_name(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    done = CliRunner().invoke(cli, ["verify", "one"])
    assert done.exit_code == 0, done.output
    left = [line.rstrip() for line in done.stdout.partition("not checked:\n")[2].splitlines()]
    assert all(f"  - {text}" in left for text in NOT_COVERED)
    assert any("triggers and views in the ledger's database" in text for text in NOT_COVERED)
    assert any(text.startswith("archive/: the bytes of received files") for text in NOT_COVERED)
    assert all((f"  - {what} (--{how})" in left) is (how != "always") for what, how in COVERED.items())


def test_what_was_read_and_is_gone_stops_no_publication_and_is_on_record(platform: Platform) -> None:
    planned(platform, manifest_from(manifest_data("two", "REPLACE_PARTITIONS", small_table.EMPTY)))
    staged(platform, "two")
    seen = Seen(platform.lakehouse.table(SOURCE))
    Path(local_path(seen.manifests[0].manifest_path)).unlink()
    publish(platform, "two")
    (facts,) = json.loads((platform.evidence.path("two") / "inputs.json").read_text())
    assert facts["expired"] is True
    assert verify(platform, ["two"], data=True).everything == []
    assert [where.split(" file")[0] for where, _ in said(platform, data=False)] == [
        f"{SOURCE} metadata"
    ]  # of the run before


def test_an_outline_that_was_changed_or_is_missing_is_named(outlined: Platform) -> None:
    assert said(outlined) == []
    changed, gone, *others = outlines(outlined)
    assert others
    raw = bytearray(changed.read_bytes())
    raw[len(raw) // 2] ^= 1
    changed.write_bytes(raw)
    gone.unlink()
    assert said(outlined, data=False) == []
    assert said(outlined) == [
        (f"outline {changed}", "was changed after it was sealed"),
        (f"outline {gone}", "is missing, and no collection of garbage on record has removed it"),
    ]


def test_an_outline_that_a_collection_has_removed_is_no_alarm_and_one_that_it_left_is(outlined: Platform) -> None:
    rollback(outlined, "one")
    left, *_ = outlines(outlined)
    at = now() + timedelta(days=outlined.settings.keep_dead_runs_days + 1)
    found = [
        replace(one, files=tuple(item for item in one.files if item.file.path != str(left)))
        for one in find(outlined, at=at)
    ]
    collect(outlined, found, by="ops", at=at)
    assert [file for file in outlines(outlined) if file.exists()] == [left]
    assert said(outlined) == []
    (run,) = verify(outlined, data=True).runs
    assert any("3 of its outlines were collected" in note for note in run.notes)
    reinstate(outlined, "one")  # its rows are there: a snapshot has them still
    assert said(outlined) == []
    left.unlink()
    missing = (f"outline {left}", "is missing, and no collection of garbage on record has removed it")
    assert said(outlined) == [missing]
    for listed in outlined.evidence.records(GC).glob("*-listed.json"):
        listed.write_text(listed.read_text().replace(str(outlines(outlined)[1]), str(left)))
    assert set(said(outlined)) >= {missing}, "a listing that was altered explains nothing"


def differs(context: ReconciliationContext) -> Finding:
    """Stand for a gate that lists a row, and asks an owner."""
    row = dict.fromkeys(EXCEPTION_COLUMNS, "{}") | {"what": "one differs"}
    return Finding(
        False, "one differs", exceptions=lambda: exception_rows(context.source.sparkSession, [row]), asks=True
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1] + b"X"), "was changed after it was sealed"),
        (lambda file: file.unlink(), "is missing, and no collection of garbage on record has removed it"),
    ],
    ids=["changed", "missing"],
)
def test_a_kept_exception_that_was_changed_or_is_missing_is_named(
    tmp_path: Path, change: Callable[[Path], Any], what: str
) -> None:
    gate = Reconciliation("they_agree", Level.RECORD, "They agree.", differs)
    with small_table.declared(replace(small_table.TARGET, reconciliations=(gate,), owners=("olga@example.org",))):
        platform = small_table.opened(tmp_path / "home", spark=SPARK)
        small_table.initialise(platform)
        planned(platform, manifest_from(manifest_data("one", "REPLACE_PARTITIONS", HISTORY)))
        staged(platform, "one")
        decisions.accept_change(platform, "one", gate.name, by="olga@example.org", reason="it is as it should be")
        publish(platform, "one")
        assert said(platform) == []
        file = a_file(platform, EXCEPTIONS_TABLE)
        change(file)
        assert said(platform, data=False) == []
        assert said(platform) == [(f"exceptions file://{file}", what)]
        small_table.closed(platform)
