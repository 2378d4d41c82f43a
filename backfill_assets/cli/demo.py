"""The demo: a time zone bug in published history, restated in front of you. It uses what every command uses."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.rule import Rule

from backfill_assets import decisions
from backfill_assets.cli import columns, console
from backfill_assets.cli.base import EXIT_FAILED, opened_platform, tell
from backfill_assets.cli.launching import execute
from backfill_assets.cli.terminal import make_console
from backfill_assets.defs.launch import announce_approval, initialise_instance, instance_at, report_inputs
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.installation import Platform, open_platform
from backfill_assets.operations.columns import differences
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.resolve import plan_run
from backfill_assets.products.enforcement import loading as enforcement
from backfill_assets.publication.modes import stages_of
from manifests.canonical import plain
from manifests.chunks import CHUNK_GATE, Chunking, aligned
from manifests.errors import InputRefused, Problem, Refused
from manifests.estimates import ZONE_MARGIN
from manifests.lifecycle import RunState
from manifests.model import RunManifest
from manifests.reading import load_manifest, manifest_from
from resources.ledger.facade import RunRecord
from resources.settings import Settings, load_settings

if TYPE_CHECKING:
    from dagster import DagsterInstance

_SERVED = "BACKFILL_PRODUCTS"
MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
OF_CASE_AGE = Path(enforcement.__file__).parent
"""Where the manifest lies whose version only the product with the column has."""
HISTORY, RESTATEMENT, ASKS_FOR_WEBHOOK = "history-2-4-1", "restate-utc-dates", "refused-webhook"
_APPROVER = "data owner on duty"
_TARGET = "silver.case_sla_daily"
_WITH_CASE_AGE, _COLUMN, FILL = (
    "backfill_assets.products.enforcement.case_age:PRODUCT",
    "case_age_days",
    "fill-case-age",
)


def show(events: Path | None, cases: int, seed: int, *, column: bool = False) -> None:
    """Run the demo on a log, or on generated cases where none is given; with `column`, go on with a column that comes later."""
    settings = _settings(column=column)
    load = enforcement.from_file(events) if events else enforcement.generated(cases, seed)
    out = make_console()
    initialise(Platform.of(settings))
    initialise_instance(settings)
    with opened_platform() as platform, instance_at(settings) as instance:
        with _chapter("1. Raw events"):
            done = load_delivery(platform, enforcement.EVENTS, load, settings.quarantine_limit)
            report_inputs(platform, instance)
            if events is None:
                tell("no log was given: the events are generated (the real log's totals are not checked here)")
            tell(
                f"{load.source_file}: {done.counted.events:,} events, {done.counted.quarantined:,} quarantined with a reason"
            )
        scope = _months_of_source(platform)
        for title, name in (
            ("2. History, published by transform 2.4.1, which takes UTC dates for local ones", HISTORY),
            (
                "3. The restatement: transform 3.1.0, local dates; planned, approved, computed, gated, published",
                RESTATEMENT,
            ),
        ):
            with _chapter(title):
                _published(platform, instance, name, scope)
        with _chapter("4. What the restatement changed"):
            runs = [platform.ledger.run(_run_id(name, scope)) for name in (HISTORY, RESTATEMENT)]
            out.print(console.by_year(*(_by_year(platform, record) for record in runs)))
        with _chapter("5. A refusal: a backfill that asks for the webhook"):
            try:
                plan_run(platform, _manifest(platform, ASKS_FOR_WEBHOOK, scope))
            except Refused as refusal:
                out.print(console.refusal(refusal))
            else:
                raise click.ClickException("the webhook was granted to a backfill")
        if column:
            _new_column(settings, instance, scope)
        with _chapter("Where to go on"):
            restated = runs[1]
            first, second = (_snapshot(platform, record) for record in runs)
            tell(f"evidence      {platform.evidence.path(restated.run_id)}")
            tell(f"report        {platform.evidence.report(restated.run_id)}")
            tell(f"snapshots     {first} (history), {second} (restated)")
            tell(f"look          backfill status {restated.run_id}; backfill diff {restated.run_id}")
            tell(f"prove         backfill verify {restated.run_id} --data")
            tell("Dagster       backfill ui")
            tell(f"undo          backfill rollback {restated.run_id}")
            tell("any engine    backfill config --json   # what pyiceberg.catalog.load_catalog takes")


def _settings(*, column: bool) -> Settings:
    """Return the settings of the installation; where a demo of before has added the column, with the product that declares it."""
    settings = load_settings()
    _require_shipped(settings)
    platform = Platform.of(settings)
    if not (column and settings.home.is_dir() and platform.lakehouse.exists(_TARGET)):
        return settings
    if _COLUMN in platform.lakehouse.table(_TARGET).schema().column_names:
        os.environ[_SERVED] = json.dumps([_WITH_CASE_AGE])
    return load_settings()


def _published(platform: Platform, instance: DagsterInstance, name: str, scope: tuple[date, date]) -> RunRecord:
    """Plan a shipped manifest, have it approved, computed, gated and published, and show all of it."""
    out = make_console()
    record = plan_run(platform, _manifest(platform, name, scope))
    out.print(console.plan(record.plan, record.state.value, stages_of(platform.products, record.plan)))
    if record.state is RunState.PLANNED:
        decisions.approve(platform, record.run_id, by=_APPROVER, comment="demo")
        announce_approval(platform, instance, record)
    if not execute(platform, instance, record.run_id, (), progress=True):
        _failed(platform, record.run_id)
    out.print(console.gates(platform.ledger.verdicts(record.run_id), CHUNK_GATE))
    _show_publication(platform, record.run_id)
    return record


def _new_column(settings: Settings, instance: DagsterInstance, scope: tuple[date, date]) -> None:
    """Serve the product with a column more: add it, show that readers see NULL, fill it by a run, undo and reinstate that.

    The same steps by hand: docs/adding-a-table.md, "A new column".
    """
    later = settings.model_copy(update={"products": [_WITH_CASE_AGE]})
    with open_platform(later) as platform:
        with _chapter(f"6. A new column: {_COLUMN}; `backfill init --preview`, then `backfill init`"):
            columns.show_differences(differences(platform))
            initialise(platform)
            _say_filled(platform, "the column is there, and no file was rewritten")
        with _chapter("7. Its history: a run of 3.2.0, which changes nothing else"):
            record = _published(platform, instance, FILL, scope)
            _say_filled(platform, "published")
        with _chapter("8. Undone, and done again"):
            decisions.rollback(platform, record.run_id, by=_APPROVER, comment="to show that it can be undone")
            _say_filled(platform, "rolled back")
            decisions.reinstate(platform, record.run_id, by=_APPROVER, comment="and done again")
            _say_filled(platform, "reinstated")
        tell("from now on this home is served with the column:")
        tell(f"export {_SERVED}='{json.dumps([_WITH_CASE_AGE])}'   # or `products` in backfill.toml")


def _say_filled(platform: Platform, when: str) -> None:
    """Say in how many rows readers see a value of the new column."""
    found = platform.lakehouse.table(_TARGET).scan(selected_fields=(_COLUMN,)).to_arrow()[_COLUMN]
    tell(f"{when}: {len(found) - found.null_count:,} of {len(found):,} rows have a {_COLUMN}")


def _require_shipped(settings: Settings) -> None:
    """Refuse to show the demo in an installation that does not serve the product it is about."""
    product = Platform.of(settings).products.of_table(enforcement.EVENTS)
    if product is None:
        raise InputRefused(
            Problem(
                f"no product that is served here declares {enforcement.EVENTS}",
                "the demo restates the table of the product `enforcement`, which ships with this package",
                'serve it: add "enforcement" to `products` in backfill.toml, or set BACKFILL_HOME to a home for the demo',
            )
        )


@contextmanager
def _chapter(title: str) -> Iterator[None]:
    out = make_console()
    out.print(Rule(title, align="left", style="bold blue"))
    yield
    out.print()


def _months_of_source(platform: Platform) -> tuple[date, date]:
    source = platform.lakehouse.source_state(enforcement.EVENTS, "event_at", None)
    # the first UTC day may be the local day before: the log begins on the next one
    first = min(file.first_day for file in source.files) + ZONE_MARGIN
    return aligned(Chunking.MONTH, first, max(file.last_day for file in source.files))


def _run_id(name: str, scope: tuple[date, date]) -> str:
    return f"{name}-{scope[0]:%Y%m}-{scope[1]:%Y%m}"


def _manifest(platform: Platform, name: str, scope: tuple[date, date]) -> RunManifest:
    """Return a shipped manifest for the range that the loaded log covers.

    The demo may run on uncommitted code; it is then marked as development, and the record says so.
    """
    shipped = load_manifest((OF_CASE_AGE if name == FILL else MANIFESTS) / f"{name}.yaml")
    text: dict[str, Any] = plain(shipped.as_data())
    text["runId"] = _run_id(name, scope)
    text["target"]["publishRange"] = {"start": scope[0], "end": scope[1]}
    recorded = platform.ledger.find(text["runId"])
    text["development"] = recorded.manifest.development if recorded else platform.code_of(shipped.target.table).is_dirty
    return manifest_from(text)


def _by_year(platform: Platform, record: RunRecord) -> dict[str, dict[str, int]]:
    years: dict[str, dict[str, int]] = defaultdict(lambda: {"rows": 0, "breaches": 0})
    for chunk in platform.ledger.chunks(record.run_id):
        for row in chunk.measures.get("slices", []):
            year = years[chunk.chunk[:4]]
            year["rows"] += row["rows"]
            year["breaches"] += row["rows"] if row["sla_state"] == "BREACHED" else 0
    return dict(years)


def _snapshot(platform: Platform, record: RunRecord) -> int | None:
    return next((one.snapshot_id for one in platform.ledger.publications(record.run_id) if one.has_landed), None)


def _show_publication(platform: Platform, run_id: str) -> None:
    for one in platform.ledger.publications(run_id):
        tell(
            f"{one.action} {one.state.lower()}: snapshot {one.base_snapshot_id or 'none'} -> {one.snapshot_id}, "
            f"{one.files_added} files added, {one.files_removed} removed, evidence {one.evidence_root[:12]}"
        )


def _failed(platform: Platform, run_id: str) -> None:
    record = platform.ledger.run(run_id)
    tell(f"{run_id} is {record.state}: {record.state_reason}", err=True)
    sys.exit(EXIT_FAILED)
