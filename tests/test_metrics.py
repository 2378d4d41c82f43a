"""Metrics say what the ledger says, in Prometheus' format; dashboard and alerts use names and labels that exist."""

from __future__ import annotations

import json
import re
import stat
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
import yaml
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from backfill_assets.cli.command import cli
from backfill_assets.declarations import finding
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.installation import Platform
from backfill_assets.operations import metrics
from backfill_assets.operations.metrics import (
    MOST_RULES,
    OTHER,
    address,
    families,
    is_loopback,
    registry,
    serve,
    text,
    write,
)
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.run_context import RunContext
from backfill_assets.staging import executor
from backfill_assets.worker.chunk_rules import rule_name
from benchmarks import small_table
from benchmarks.small_table import (
    HISTORY,
    METERS,
    READINGS,
    SCOPE,
    SOURCE,
    TARGET,
    closed,
    compute,
    declared,
    initialise,
    manifest,
    opened,
    planned,
    serves,
    staged,
)
from manifests.errors import EnvironmentRefused, InputRefused
from resources.lakehouse.facade import Lakehouse, PinnedRead
from resources.ledger.tables import attempts, leases, publications, verdicts, watermarks
from resources.ledger.transactions import system_clock as now

ROOT = Path(__file__).resolve().parent.parent
MONITORING = ROOT / "docs" / "monitoring"
REPLACE = "REPLACE_PARTITIONS"
LABELS = {"table": READINGS, "mode": "BACKFILL"}


def misplaced(*arguments: Any) -> Any:
    right = small_table.rows_of

    def wrong(*days: Any) -> list[dict[str, Any]]:
        return [row | {"day": row["day"] + timedelta(days=70)} for row in right(*days)]

    with mock.patch.object(small_table, "rows_of", wrong):
        return compute(*arguments)


def reading(*arguments: Any) -> Any:
    """Compute as ever, and say what was given to be read."""
    *_, on_read = arguments
    schema: Any = None
    on_read("range", PinnedRead(SOURCE, 1, schema, ("a", "b"), 40, 400))
    on_read("look_back", PinnedRead(SOURCE, 1, schema, ("c",), 5, 50))
    return compute(*arguments)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A history, a merge, a run that its gate has stopped, one that was taken back, one that is only planned."""
    with declared():
        platform = opened(tmp_path_factory.mktemp("metrics") / "home")
        initialise(platform)
        with mock.patch.object(executor, "compute_batch", reading):
            planned(platform, manifest("history", REPLACE, HISTORY, computed_by="1"))
            staged(platform, "history")
        publish(platform, "history")
        planned(platform, manifest("merge", "MERGE_BY_KEY", SCOPE, merge={"entities": [METERS[1], METERS[4], "m9"]}))
        staged(platform, "merge")
        publish(platform, "merge")
        planned(platform, manifest("stopped", REPLACE, SCOPE))
        for _ in range(2):
            with mock.patch.object(executor, "compute_batch", misplaced):
                staged(platform, "stopped")
        planned(platform, manifest("taken-back", REPLACE, ("2020-05-01", "2020-05-31")))
        staged(platform, "taken-back")
        publish(platform, "taken-back")
        rollback(platform, "taken-back")
        plan_run(platform, manifest("planned", REPLACE, SCOPE))
        yield platform
        closed(platform)


@pytest.fixture(scope="module")
def exposed(platform: Platform) -> str:
    return text(registry(platform))


Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def values(exposed: str) -> Values:
    found = [one for family in text_string_to_metric_families(exposed) for one in family.samples]
    made = {(one.name, frozenset(one.labels.items())): one.value for one in found}
    assert len(made) == len(found), "a series is there once"
    return made


def of(values: Values, name: str, **labels: str) -> float | None:
    return values.get((name, frozenset(labels.items())))


def of_run(values: Values, name: str, run: str, **labels: str) -> float | None:
    return of(values, name, run=run, **LABELS, **labels)


# --- values -----------------------------------------------------------------------------------------------------------


def test_runs_and_chunks_are_those_of_the_ledger(platform: Platform, values: Values) -> None:
    for record in platform.ledger.runs():
        assert of_run(values, "backfill_run_state", record.run_id, state=record.state.value) == 1
        since = platform.ledger.history(record.run_id)[-1].at.timestamp()
        assert of_run(values, "backfill_run_state_since_timestamp_seconds", record.run_id) == pytest.approx(since)
        chunks = platform.ledger.chunks(record.run_id)
        for state in ("PLANNED", "STAGED", "PASSED", "FAILED"):
            held = sum(one.state == state for one in chunks)
            assert of_run(values, "backfill_chunks", record.run_id, state=state) == held
        done = [one for one in chunks if one.state in {"STAGED", "PASSED"}]
        rows = sum(one.rows or 0 for one in done) if done else None
        size = sum(one.bytes or 0 for one in done) if done else None
        assert of_run(values, "backfill_output_rows", record.run_id) == rows
        assert of_run(values, "backfill_output_bytes", record.run_id) == size
        reads = record.plan.reads
        assert of_run(values, "backfill_planned_input_rows", record.run_id, part="range") == reads.rows
        assert of_run(values, "backfill_planned_input_bytes", record.run_id, part="range") == reads.bytes
    assert of(values, "backfill_runs", state="PUBLISHED", **LABELS) == 2
    assert of(values, "backfill_runs_left_out") == 0
    assert sum(value for (name, _), value in values.items() if name == "backfill_run_state") == 5


def test_durations_are_those_of_the_ledger(platform: Platform, values: Values) -> None:
    (attempt,) = platform.ledger.attempts("history")
    seconds = (attempt.ended_at - attempt.started_at).total_seconds()
    assert of_run(values, "backfill_staging_seconds_sum", "history") == pytest.approx(seconds)
    assert of_run(values, "backfill_staging_seconds_count", "history") == 1
    assert of_run(values, "backfill_chunk_duration_seconds_count", "history") == 4
    assert of_run(values, "backfill_chunk_duration_seconds_sum", "history") == pytest.approx(4 * seconds)
    assert of_run(values, "backfill_chunk_duration_seconds_bucket", "history", le="+Inf") == 4
    assert of_run(values, "backfill_chunk_duration_seconds_bucket", "history", le="3600.0") == 4
    for one in platform.ledger.publications("taken-back"):
        took = (one.ended_at - one.started_at).total_seconds()
        name = "backfill_publication_seconds_sum"
        assert of_run(values, name, "taken-back", action=one.action) == pytest.approx(took)


def test_the_watermark_is_the_end_of_the_last_complete_day(platform: Platform, values: Values) -> None:
    with platform.ledger.engine.connect() as connection:
        rows = connection.execute(sa.select(watermarks).where(watermarks.c.ended_at.is_(None))).all()
    newest = max(row.complete_until for row in rows)
    until = of(values, "backfill_watermark_timestamp_seconds", table=READINGS)
    assert until is not None
    assert until % 86400 == 0
    assert until / 86400 == (newest - small_table.date(1970, 1, 1)).days + 1
    committed = platform.ledger.run("history").plan.source_committed_at.timestamp()
    assert of(values, "backfill_watermark_source_timestamp_seconds", table=READINGS) == pytest.approx(committed)


def test_what_a_gate_stops_is_counted_by_rule_without_what_differs_by_chunk(platform: Platform, values: Values) -> None:
    rule = "day: in its chunk"
    with platform.ledger.engine.connect() as connection:
        failed = connection.execute(
            sa.select(verdicts).where(verdicts.c.run_id == "stopped", verdicts.c.passed.is_(False))
        ).all()
    assert len(failed) == 4, "two chunks, twice"
    counted = of_run(values, "backfill_gate_failures_total", "stopped", gate="chunk_rules", rule=rule)
    assert counted == 4
    newest = [one for one in platform.ledger.verdicts("stopped") if one.chunk]
    rows = sum(broken["count"] for one in newest for broken in one.details["violations"])
    assert of_run(values, "backfill_rejected_rows", "stopped", rule=rule) == rows > 0
    assert {dict(labels)["run"] for name, labels in values if name == "backfill_rejected_rows"} == {"stopped"}


def test_what_was_read_is_shown_only_where_it_is_on_record(values: Values) -> None:
    assert of_run(values, "backfill_input_rows", "history", part="range") == 40
    assert of_run(values, "backfill_input_bytes", "history", part="range") == 400
    assert of_run(values, "backfill_input_rows", "history", part="look_back") == 5
    told = {dict(labels)["run"] for name, labels in values if name == "backfill_input_rows"}
    assert told == {"history"}, "the others did not say what they read: nothing is shown of them, not 0"


def test_what_happened_to_the_rows_of_a_merge(platform: Platform, values: Values) -> None:
    happened = [one.measures["happened"] for one in platform.ledger.chunks("merge")]
    for change in ("replaced", "inserted", "deleted", "kept_newer"):
        expected = sum(one[change] for one in happened)
        assert of_run(values, "backfill_changed_rows", "merge", change=change) == expected
    assert sum(sum(one.values()) for one in happened) > 0
    assert {dict(labels)["run"] for name, labels in values if name == "backfill_changed_rows"} == {"merge"}


def test_a_chunk_that_two_launches_compute_is_a_duplicate_of_the_second(platform: Platform) -> None:
    record = planned(platform, manifest("raced", REPLACE, ("2020-06-01", "2020-07-31")))
    keys = [chunk.key for chunk in record.plan.chunks]

    def overtaken(*arguments: Any) -> Any:
        with mock.patch.object(executor, "compute_batch", compute):
            executor._stage_batch(  # what another launch does meanwhile
                RunContext(platform, TARGET, record.plan),
                executor._Launch(executor.Staged(), edition=0, dagster_run_id="", tell=executor.ignore_progress),
                record.plan.chunks[:1],
            )
        return compute(*arguments)

    with mock.patch.object(executor, "compute_batch", overtaken):
        executor.stage_chunks(platform, "raced", keys)
    (found,) = [one for one in platform.ledger.figures(at=now(), days=1, most=50).runs if one.run_id == "raced"]
    first = next(one for one in platform.ledger.chunks("raced") if one.chunk == keys[0])
    assert (found.suppressed_chunks, found.suppressed_rows) == (1, first.rows)
    assert sorted((one.chunks, one.holds) for one in found.staged) == [(1, 1), (2, 1)]
    with platform.ledger.engine.begin() as connection:  # as attempts from before this was recorded
        connection.execute(attempts.update().where(attempts.c.run_id == "raced").values(measures="{}"))
    (found,) = [one for one in platform.ledger.figures(at=now(), days=1, most=50).runs if one.run_id == "raced"]
    assert (found.suppressed_chunks, found.suppressed_rows, found.read_rows) == (None, None, None)


def test_a_publication_that_was_recorded_late_has_no_duration(platform: Platform) -> None:
    def seconds() -> Any:
        found = {one.run_id: one for one in platform.ledger.figures(at=now(), days=1, most=50).runs}
        return found["merge"].publications.get("publish")

    (entry,) = platform.ledger.publications("merge")
    assert len(seconds()) == 1
    p = publications.c
    with platform.ledger.engine.begin() as connection:
        late = entry.ended_at + timedelta(hours=1)
        connection.execute(publications.update().where(p.id == entry.id).values(ended_at=late))
    assert seconds() is None
    with platform.ledger.engine.begin() as connection:
        connection.execute(publications.update().where(p.id == entry.id).values(ended_at=entry.ended_at))
        connection.execute(leases.update().where(leases.c.id == entry.token).values(ended_how="FENCED"))
    assert seconds() is None


# --- input tables -----------------------------------------------------------------------------------------------------


@pytest.fixture
def with_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare the source, and its quarantine: a table of the same installation stands for it."""
    inputs = (
        InputTable(SOURCE, "events", small_table.Reading, ("team:a",)),
        InputTable(READINGS, "quarantine", small_table.Reading, ("team:a",), quarantine_of=SOURCE),
        InputTable("bronze.never_made", "nothing yet", small_table.Reading, ("team:a",)),
    )
    monkeypatch.setattr(finding, "find_products", serves(Product("readings", inputs, (TARGET,))))


def test_rows_of_input_tables_and_quarantine(platform: Platform, with_inputs: None) -> None:
    found = {(one["name"], *one["labels"].values()): one["value"] for one in metrics.samples(registry(platform))}
    assert found["backfill_source_rows", SOURCE] == 12
    assert found["backfill_quarantined_rows", SOURCE] == len(small_table.rows(platform))
    assert ("backfill_source_rows", "bronze.never_made") not in found
    assert found["backfill_catalog_up",] == 1


def test_a_catalog_that_does_not_answer_hides_nothing_of_the_ledger(
    platform: Platform, with_inputs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: Any) -> None:
        raise ConnectionError("refused")

    monkeypatch.setattr(Lakehouse, "total_rows", down)
    found = metrics.samples(registry(platform))
    names = {one["name"] for one in found}
    assert {one["value"] for one in found if one["name"] == "backfill_catalog_up"} == {0}
    assert "backfill_source_rows" not in names
    assert "backfill_chunks" in names


# --- names and bounds -------------------------------------------------------------------------------------------------


def test_names_and_texts_follow_the_conventions(exposed: str) -> None:
    for name, metric in families().items():
        assert re.fullmatch(r"backfill_[a-z]+(_[a-z]+)*", name), name
        assert metric.documentation.endswith("."), name
        assert not name.endswith("_total"), "the format adds it to counters"
        if any(word in name for word in ("age", "since", "duration", "timestamp")):
            assert name.endswith("_seconds"), name
    parsed = {family.name: family for family in text_string_to_metric_families(exposed)}
    assert set(parsed) <= set(families())
    assert all(family.documentation for family in parsed.values())
    assert parsed["backfill_gate_failures"].type == "counter"
    assert parsed["backfill_chunk_duration_seconds"].type == "histogram"
    assert parsed["backfill_publication_seconds"].type == "summary"
    assert parsed["backfill_chunks"].type == "gauge"


def test_runs_shown_one_by_one_are_bounded(platform: Platform) -> None:
    ledger, later = platform.ledger, now() + timedelta(days=31)
    shown = {one.run_id for one in ledger.figures(at=later, days=30, most=50).runs}
    assert {"stopped", "planned"} <= shown, "what is not over is shown whatever its age"
    assert not {"history", "merge", "taken-back"} & shown
    first = ledger.figures(at=now(), days=30, most=2)
    assert all(one.state.value not in {"PUBLISHED", "ROLLED_BACK"} for one in first.runs)
    assert first.left_out == len(ledger.runs()) - 2
    assert sum(first.counts.values()) == len(ledger.runs()), "all of them are counted"
    assert ledger.figures(at=now(), days=30, most=0).runs == []


def test_rules_shown_of_a_run_are_bounded(platform: Platform) -> None:
    run = next(one for one in platform.ledger.figures(at=now(), days=30, most=50).runs if one.run_id == "stopped")
    many = replace(
        run, rejected=type(run.rejected)({f"column_{number:02}: rule": 100 - number for number in range(50)})
    )
    made = families()
    metrics._add_run(made, many)
    samples = made["backfill_rejected_rows"].samples
    assert len(samples) == MOST_RULES + 1
    assert sum(one.value for one in samples) == sum(many.rejected.values())
    assert [one.labels["rule"] for one in samples][-1] == OTHER


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("day: in its chunk, 2020-02-01 to 2020-02-29", "day: in its chunk"),
        ("produced_at: constant 2024-05-01T12:00:00+00:00", "produced_at: constant"),
        ("unique key", "unique key"),
        ("value: greater_than(0)", "value: greater_than(0)"),
        ("x" * 300, "x" * 100),
    ],
)
def test_the_name_of_a_rule_is_the_same_for_every_chunk(rule: str, name: str) -> None:
    assert rule_name(rule) == name


# --- ways out ---------------------------------------------------------------------------------------------------------


def test_a_file_is_written_whole_or_not_at_all(platform: Platform, tmp_path: Path) -> None:
    file = tmp_path / "backfill.prom"
    write(registry(platform), file)
    before = file.read_text()
    assert "backfill_chunks{" in before
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    gone = mock.patch.object(metrics, "generate_latest", side_effect=RuntimeError("the ledger is gone"))
    full = mock.patch.object(Path, "replace", side_effect=OSError(28, "No space left on device"))
    with gone, pytest.raises(RuntimeError):
        write(registry(platform), file)
    with full, pytest.raises(EnvironmentRefused, match="No space left"):
        write(registry(platform), file)
    assert file.read_text() == before
    assert [one.name for one in tmp_path.iterdir()] == [file.name]
    with pytest.raises(EnvironmentRefused, match="cannot be written"):
        write(registry(platform), tmp_path / "absent" / "backfill.prom")


def test_served_is_what_the_ledger_says_when_it_is_asked(platform: Platform) -> None:
    port, server, thread = serve(registry(platform), "127.0.0.1", 0)
    try:

        def ask() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain")
                return answer.read().decode()

        assert 'run="asked-later"' not in ask()
        plan_run(platform, manifest("asked-later", REPLACE, SCOPE))
        assert 'backfill_run_state{mode="BACKFILL",run="asked-later",state="PLANNED"' in ask()
        with pytest.raises(EnvironmentRefused, match="nothing can listen"):
            serve(registry(platform), "192.0.2.1", 9464)
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def test_an_address_without_a_host_is_this_machine_only() -> None:
    assert address("9464") == address(":9464") == ("127.0.0.1", 9464)
    assert address("0.0.0.0:9464") == ("0.0.0.0", 9464)
    assert address("[::1]:9464") == ("::1", 9464)
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "host.example.com")))
    for wrong in ("", "host", "host:", "host:x", "host:70000", "::1:9464"):
        with pytest.raises(InputRefused):
            address(wrong)


def test_the_command(platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))

    def said(*words: str) -> str:
        found = CliRunner().invoke(cli, ["metrics", *words], catch_exceptions=False)
        assert found.exit_code == 0
        return found.stdout

    printed = {family.name for family in text_string_to_metric_families(said())}
    assert {"backfill_chunks", "backfill_gate_failures"} <= printed
    told = json.loads(said("--json"))
    assert {"name", "labels", "value"} == set(told[0])
    assert {one["labels"]["run"] for one in json.loads(said("--json", "--runs", "1")) if "run" in one["labels"]}
    said("--output", str(tmp_path / "backfill.prom"))
    assert (tmp_path / "backfill.prom").read_text().startswith("# HELP backfill_runs ")
    with pytest.raises(InputRefused):
        said("--json", "--listen", "9464")


# --- what is made of them ---------------------------------------------------------------------------------------------

_NAME = re.compile(r"\bbackfill_[a-z_]+")
_SELECTED = re.compile(r"\b(backfill_[a-z_]+)(?:\{([^}]*)\})?")


def sample_names() -> dict[str, set[str]]:
    """Return every sample name there is, and its labels."""
    suffixes = {"counter": ("_total",), "summary": ("_sum", "_count"), "histogram": ("_sum", "_count", "_bucket")}
    found = {}
    for name, metric in families().items():
        for suffix in suffixes.get(metric.type, ("",)):
            found[name + suffix] = set(metric._labelnames) | ({"le"} if suffix == "_bucket" else set())
    return found


def expressions() -> list[tuple[str, str]]:
    board = json.loads((MONITORING / "grafana.json").read_text())
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    shown = [(panel["title"], one["expr"]) for panel in board["panels"] for one in panel.get("targets", [])]
    variables = [
        (f"variable {one['name']}", re.sub(r"label_values\((\w+), (\w+)\)", r"sum by (\2) (\1)", one["definition"]))
        for one in board["templating"]["list"]
        if one["type"] == "query"
    ]
    alerts = [
        (rule.get("alert") or rule["record"], rule["expr"]) for group in rules["groups"] for rule in group["rules"]
    ]
    return shown + variables + alerts


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_dashboard_and_alerts_use_metrics_and_labels_that_exist(title: str, expression: str) -> None:
    known = sample_names()
    used = _SELECTED.findall(expression)
    assert used
    for name, selected in used:
        assert name in known, f"{title}: {name}"
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selected)) <= known[name], f"{title}: {name}{{{selected}}}"
    grouped = {label for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in group.split(", ")}
    assert grouped <= set.union(*(known[name] for name, _ in used)), title
    assert expression.count("(") == expression.count(")")


def test_a_backfill_that_waits_for_its_hours_is_not_told_as_live_that_waits() -> None:
    since = "time() - backfill_run_waiting_since_timestamp_seconds"
    asked = {name: expression for name, expression in expressions() if expression.startswith(since)}
    assert asked["BackfillLiveWaits"].startswith(f'{since}{{mode="LIVE"}} >')
    assert asked["BackfillLimitWaits"].startswith(f'{since}{{mode!="LIVE"}} >')


def test_the_dashboard_shows_every_metric() -> None:
    used = {name for _, expression in expressions() for name in _NAME.findall(expression)}
    shown = {name for name in families() if any(one in used for one in sample_names() if one.startswith(name))}
    assert shown == set(families())


def test_the_dashboard_can_be_imported() -> None:
    board = json.loads((MONITORING / "grafana.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    assert all(panel["title"] and (panel["type"] == "row" or panel["description"]) for panel in panels)


def test_an_alert_says_what_and_what_to_do() -> None:
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) >= 8
    for rule in alerts:
        assert set(rule["annotations"]) == {"summary", "action"}
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        for command in re.findall(r"backfill ([a-z]+)", rule["annotations"]["action"]):
            assert command in cli.commands
