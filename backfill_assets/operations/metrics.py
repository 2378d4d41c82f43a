"""Metrics for Prometheus: what the ledger and the input tables say, in its text format, as a file or over HTTP.

Put here names, units and texts. What a figure means and how it is read is `resources.ledger.figures`'. Nothing is counted in
this process: every collection reads the ledger anew, so that the numbers survive crashes, and several processes may
expose them. What is not on record is left out, never 0.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.metrics_core import HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy.exc import SQLAlchemyError

from backfill_assets.declarations.product import InputTable
from backfill_assets.installation import Platform
from backfill_assets.operations import cost_metrics
from backfill_assets.planning.quarantine_cases import Cases, cases_of
from backfill_assets.worker.chunk_rules import rule_name
from manifests.errors import EnvironmentRefused, InputRefused, Problem, Refused
from resources import logs
from resources.files.whole_files import write_whole
from resources.ledger.facade import ChunkState
from resources.ledger.figures import RunFigures
from resources.ledger.imports import FeedFigures
from resources.ledger.migration_steps import MigrationSteps

_log = logging.getLogger(__name__)
DAYS, MOST = 30, 100
"""Runs shown one by one: those that are not over or ended within so many days, and of these the newest so many."""
MOST_RULES = 20
"""Rules shown of one run; the rest is added up as `other`."""
OTHER = "other"
BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
"""Upper bounds of the buckets of a chunk's duration, seconds."""
_RUN = ("run", "table", "mode")


class LedgerCollector(Collector):
    """Reads everything anew at each collection; see the module. Names are those of `families`."""

    def __init__(self, platform: Platform, *, days: int = DAYS, most: int = MOST) -> None:
        self._platform, self._days, self._most = platform, days, most
        self._cases: dict[str, Cases] = {}
        """Of each input table as it was read last: its quarantine is read again only after a load."""

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, so that registering the collector reads nothing."""
        return iter(families().values())

    def collect(self) -> Iterator[Metric]:
        """Yield every metric that has a value."""
        at = self._platform.ledger.now()
        found = self._platform.ledger.figures(at=at, days=self._days, most=self._most)
        made = families()
        for (table, mode, state), number in sorted(found.counts.items()):
            made["backfill_runs"].add_metric((table, mode, state), number)
        made["backfill_runs_left_out"].add_metric((), found.left_out)
        waiting = self._platform.ledger.launches.all_waiting()
        for run in found.runs:
            _add_run(made, run)
            if (launch := waiting.get(run.run_id)) is not None:
                labels = (run.run_id, run.table, run.mode, "true" if launch.stop else "false")
                made["backfill_run_launch_chunks"].add_metric(labels, len(launch.chunks))
        cost_metrics.add_costs(made, self._platform.ledger, found.runs)
        for one in found.complete:
            made["backfill_watermark_timestamp_seconds"].add_metric((one.table,), one.until.timestamp())
            made["backfill_watermark_source_timestamp_seconds"].add_metric((one.table,), one.source_at.timestamp())
        _add_imports(made, self._platform.ledger.imports.figures())
        _add_migrations(made, self._platform.ledger.migrations)
        made["backfill_catalog_up"].add_metric((), self._add_inputs(made))
        made["backfill_collected_timestamp_seconds"].add_metric((), at.timestamp())
        return (metric for metric in made.values() if metric.samples)

    def _add_inputs(self, made: Mapping[str, Any]) -> int:
        """Add the rows of the input tables, from their metadata; return 0 if the catalog does not answer, else 1."""
        for table in self._platform.products.inputs:
            if table.is_reference:
                continue
            name = "backfill_quarantined_rows" if table.quarantine_of else "backfill_source_rows"
            try:
                rows = self._platform.lakehouse.total_rows(table.name)
            except (InputRefused, NoSuchTableError):
                continue  # declared, and not made yet
            except (Refused, SQLAlchemyError, OSError) as error:
                text = f"the catalog does not answer: {type(error).__name__}; rows of input tables are left out"
                logs.event(_log, logging.WARNING, "catalog_down", text)
                return 0
            if rows is not None:
                made[name].add_metric((table.quarantine_of or table.name,), rows)
            if not (table.quarantine_of or self._add_cases(made, table)):
                return 0
        return 1

    def _add_cases(self, made: Mapping[str, Any], table: InputTable) -> bool:
        """Add the cases of a quarantine; return whether the catalog and its files answer."""
        try:
            found = self._cases[table.name] = cases_of(self._platform, table, self._cases.get(table.name))
        except (InputRefused, NoSuchTableError):
            return True  # declared, and not made yet
        except (Refused, SQLAlchemyError, OSError) as error:
            text = f"the quarantine of {table.name} cannot be read: {type(error).__name__}; its cases are left out"
            logs.event(_log, logging.WARNING, "catalog_down", text)
            return False
        counts = Counter((case.state.value, case.rule) for case in found.all.values())
        for (state, rule), number in _bounded(counts):
            made["backfill_quarantine_cases"].add_metric((table.name, rule, state), number)
        oldest = found.oldest_waiting()
        if oldest is not None:
            made["backfill_quarantine_waiting_since_timestamp_seconds"].add_metric((table.name,), oldest.timestamp())
        return True


def families() -> dict[str, Any]:
    """Return every metric there is, by name, without values."""
    costs = cost_metrics.families(_RUN)
    made = [*_of_runs(), *_of_rows(), *_of_durations(), *costs, *_of_imports(), *_of_migrations(), *_of_tables()]
    return {metric.name: metric for metric in made}


def _of_runs() -> list[Metric]:
    """Return the metrics of where runs stand."""
    return [
        GaugeMetricFamily("backfill_runs", "Runs of the ledger, all of them.", labels=("table", "mode", "state")),
        GaugeMetricFamily("backfill_runs_left_out", "Runs that are counted in backfill_runs and not shown one by one."),
        GaugeMetricFamily(
            "backfill_run_state", "1 for the state a run is in; other states are absent.", labels=(*_RUN, "state")
        ),
        GaugeMetricFamily(
            "backfill_run_state_since_timestamp_seconds",
            "When the run got into its state, Unix time.",
            labels=_RUN,
        ),
        GaugeMetricFamily(
            "backfill_run_waiting_since_timestamp_seconds",
            "Since when a validated LIVE run waits for the end of a freeze, or a launch for a limit, Unix time; absent if it does not wait.",
            labels=_RUN,
        ),
        GaugeMetricFamily(
            "backfill_run_launch_chunks",
            "Chunks that a run waits for a launch of, and nobody computes (0: only its gates or its publication are left); "
            "absent if it does not wait. stopped: whether somebody has stopped it.",
            labels=(*_RUN, "stopped"),
        ),
        GaugeMetricFamily("backfill_chunks", "Chunks of a run by state.", labels=(*_RUN, "state")),
    ]


def _of_rows() -> list[Metric]:
    """Return the metrics of what a run reads, computes and rejects."""
    return [
        GaugeMetricFamily(
            "backfill_planned_input_rows",
            "Source rows that the plan estimated to read, from metadata; part: range (with warm-up) or look_back.",
            labels=(*_RUN, "part"),
        ),
        GaugeMetricFamily(
            "backfill_planned_input_bytes",
            "Bytes of the source files that the plan estimated to read.",
            labels=(*_RUN, "part"),
        ),
        GaugeMetricFamily(
            "backfill_input_rows",
            "Source rows in the files that staged attempts were given to read; a file counts once for each batch that "
            "was given it. Absent if not on record for every staged attempt.",
            labels=(*_RUN, "part"),
        ),
        GaugeMetricFamily(
            "backfill_input_bytes",
            "Bytes of the source files that staged attempts were given to read, counted like backfill_input_rows.",
            labels=(*_RUN, "part"),
        ),
        GaugeMetricFamily("backfill_output_rows", "Rows computed in the staged chunks of a run.", labels=_RUN),
        GaugeMetricFamily(
            "backfill_output_bytes", "Bytes of the files computed for the staged chunks of a run.", labels=_RUN
        ),
        GaugeMetricFamily(
            "backfill_changed_rows",
            "Rows of a merge or of corrections by what happened to them; absent for other publish modes.",
            labels=(*_RUN, "change"),
        ),
        GaugeMetricFamily(
            "backfill_rejected_rows",
            "Rows that break a rule of their chunk's gate, by its newest verdict; one that breaks two counts in both.",
            labels=(*_RUN, "rule"),
        ),
        CounterMetricFamily(
            "backfill_gate_failures",
            "Verdicts of a run that did not pass, by gate and rule; the rule is empty for a gate of the whole run.",
            labels=(*_RUN, "gate", "rule"),
        ),
        GaugeMetricFamily(
            "backfill_duplicate_chunks_suppressed",
            "Chunks computed by two launches at once whose second result was dropped. Absent if not on record.",
            labels=_RUN,
        ),
        GaugeMetricFamily(
            "backfill_duplicate_rows_suppressed",
            "Rows of the chunks in backfill_duplicate_chunks_suppressed. Absent if not on record.",
            labels=_RUN,
        ),
    ]


def _of_durations() -> list[Metric]:
    """Return the metrics of attempts and publications, and how long they took."""
    return [
        GaugeMetricFamily(
            "backfill_attempts", "Attempts at computing batches of chunks, by state.", labels=(*_RUN, "state")
        ),
        SummaryMetricFamily(
            "backfill_staging_seconds",
            "Duration of the attempts that staged their chunks, from their start to their record.",
            labels=_RUN,
        ),
        HistogramMetricFamily(
            "backfill_chunk_duration_seconds",
            "For each staged chunk, the duration of the attempt that it is of: chunks of a batch are computed in one job.",
            labels=_RUN,
        ),
        SummaryMetricFamily(
            "backfill_publication_seconds",
            "Duration of publications and their undoing, from recorded intent to recorded outcome; without those whose "
            "outcome was recorded later by somebody else.",
            labels=(*_RUN, "action"),
        ),
    ]


def _of_imports() -> list[Metric]:
    """Return the metrics of files that are published again."""
    return [
        GaugeMetricFamily(
            "backfill_import_files",
            "Files of a feed that are on record in the import ledger, by what became of them.",
            labels=("feed", "status"),
        ),
        GaugeMetricFamily(
            "backfill_import_refused_since_timestamp_seconds",
            "When the oldest file came that was refused (QUARANTINED, REJECTED) and of whose path nothing was taken since, Unix time; "
            "absent if there is none.",
            labels=("feed", "status"),
        ),
        GaugeMetricFamily(
            "backfill_import_last_business_date_timestamp_seconds",
            "Beginning, in UTC, of the latest business date of which a file was taken, Unix time.",
            labels=("feed",),
        ),
    ]


def _of_migrations() -> list[Metric]:
    """Return the metrics of read models that move from one table to another."""
    return [
        GaugeMetricFamily(
            "backfill_migration_step",
            "1 for the step that a migration stands at; other steps are absent.",
            labels=("migration", "step"),
        ),
        GaugeMetricFamily(
            "backfill_migration_disagreeing_share",
            "Share of the keys compared by the newest dual read of a migration that disagree.",
            labels=("migration",),
        ),
        GaugeMetricFamily(
            "backfill_migration_compared_timestamp_seconds",
            "When the newest dual read of a migration was made, Unix time.",
            labels=("migration",),
        ),
    ]


def _of_tables() -> list[Metric]:
    """Return the metrics of tables, and of the collection itself."""
    return [
        GaugeMetricFamily(
            "backfill_watermark_timestamp_seconds",
            "End of the last day up to which a table is complete, Unix time; its age is time() minus this.",
            labels=("table",),
        ),
        GaugeMetricFamily(
            "backfill_watermark_source_timestamp_seconds",
            "When the source snapshot was committed that a table is complete with, Unix time.",
            labels=("table",),
        ),
        GaugeMetricFamily(
            "backfill_source_rows", "Rows of an input table, from its snapshot's summary.", labels=("table",)
        ),
        GaugeMetricFamily(
            "backfill_quarantined_rows",
            "Rows of loads of an input table that no rule could classify, kept in its quarantine.",
            labels=("table",),
        ),
        GaugeMetricFamily(
            "backfill_quarantine_cases",
            "Cases of an input table's quarantine by rule and state (WAITING, RELEASED, REJECTED): a raw row counts once, "
            "however often it was delivered.",
            labels=("table", "rule", "state"),
        ),
        GaugeMetricFamily(
            "backfill_quarantine_waiting_since_timestamp_seconds",
            "Since when the oldest case waits that nobody has decided about, Unix time; absent if none does.",
            labels=("table",),
        ),
        GaugeMetricFamily(
            "backfill_catalog_up", "Whether the catalog answered; if 0, rows of input tables are absent."
        ),
        GaugeMetricFamily(
            "backfill_collected_timestamp_seconds", "When these figures were read from the ledger, Unix time."
        ),
    ]


def _add_migrations(made: Mapping[str, Any], migrations: MigrationSteps) -> None:
    for step in migrations.all():
        made["backfill_migration_step"].add_metric((step.migration, step.step.value), 1)
        for reading in migrations.readings(step.migration, last=1):
            made["backfill_migration_disagreeing_share"].add_metric((step.migration,), reading.share)
            made["backfill_migration_compared_timestamp_seconds"].add_metric((step.migration,), reading.at.timestamp())


def _add_imports(made: Mapping[str, Any], figures: Mapping[str, FeedFigures]) -> None:
    for feed, found in figures.items():
        for status, number in sorted(found.files.items()):
            made["backfill_import_files"].add_metric((feed, status.value), number)
        for status, since in sorted(found.refused_since.items()):
            made["backfill_import_refused_since_timestamp_seconds"].add_metric((feed, status.value), since.timestamp())
        if (day := found.last_business_date) is not None:
            begins = datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
            made["backfill_import_last_business_date_timestamp_seconds"].add_metric((feed,), begins)


def _add_run(made: Mapping[str, Any], run: RunFigures) -> None:
    labels = (run.run_id, run.table, run.mode)
    made["backfill_run_state"].add_metric((*labels, run.state.value), 1)
    known = {
        "backfill_run_state_since_timestamp_seconds": run.since and run.since.timestamp(),
        "backfill_run_waiting_since_timestamp_seconds": run.waiting_since and run.waiting_since.timestamp(),
        "backfill_duplicate_chunks_suppressed": run.suppressed_chunks,
        "backfill_duplicate_rows_suppressed": run.suppressed_rows,
    }
    if run.chunks[ChunkState.STAGED] or run.chunks[ChunkState.PASSED]:
        known |= {"backfill_output_rows": run.output_rows, "backfill_output_bytes": run.output_bytes}
    for name, value in known.items():
        if value is not None:
            made[name].add_metric(labels, value)
    for name, last, number in _split(run):
        made[name].add_metric((*labels, *last), number)
    if run.staged:
        total = sum(one.seconds for one in run.staged)
        made["backfill_staging_seconds"].add_metric(labels, count_value=len(run.staged), sum_value=total)
        _add_histogram(made["backfill_chunk_duration_seconds"], labels, run)
    for action, seconds in sorted(run.publications.items()):
        made["backfill_publication_seconds"].add_metric(
            (*labels, action), count_value=len(seconds), sum_value=sum(seconds)
        )


def _split(run: RunFigures) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Yield what is told by state, part, change, gate or rule: the metric, the values of those labels, the value."""
    for state in ChunkState:
        yield "backfill_chunks", (state.value,), run.chunks[state]
    for part, estimate in run.planned.items():
        yield "backfill_planned_input_rows", (part,), estimate.rows
        yield "backfill_planned_input_bytes", (part,), estimate.bytes
    for part, number in (run.read_rows or {}).items():
        yield "backfill_input_rows", (part,), number
    for part, number in (run.read_bytes or {}).items():
        yield "backfill_input_bytes", (part,), number
    for change, number in sorted(run.changed_rows.items()):
        yield "backfill_changed_rows", (change,), number
    for outcome, number in sorted(run.attempts.items()):
        yield "backfill_attempts", (outcome,), number
    for broken, number in _bounded({(rule,): count for rule, count in run.rejected.items()}):
        yield "backfill_rejected_rows", broken, number
    for gate_and_rule, number in _bounded(run.broken):
        yield "backfill_gate_failures", gate_and_rule, number


def _bounded(counts: Mapping[Any, int]) -> list[tuple[tuple[str, ...], int]]:
    """Return counts by names without what differs from run to run: the greatest, and the others added up."""
    named: Counter[tuple[str, ...]] = Counter()
    for (*before, rule), number in counts.items():
        named[*before, rule_name(rule)] += number
    found = sorted(named.items(), key=lambda item: (-item[1], item[0]))
    rest: Counter[tuple[str, ...]] = Counter()
    for (*before, _), number in found[MOST_RULES:]:
        rest[*before, OTHER] += number
    return [*found[:MOST_RULES], *sorted(rest.items())]


def _add_histogram(metric: Any, labels: Sequence[str], run: RunFigures) -> None:
    held = [(one.seconds, one.holds) for one in run.staged if one.holds]
    if not held:
        return
    buckets = [(str(bound), sum(chunks for took, chunks in held if took <= bound)) for bound in BUCKETS]
    buckets.append(("+Inf", sum(chunks for _, chunks in held)))
    metric.add_metric(labels, buckets=buckets, sum_value=sum(took * chunks for took, chunks in held))


# --- exposing ---------------------------------------------------------------------------------------------------------


def registry(platform: Platform, *, days: int = DAYS, most: int = MOST) -> CollectorRegistry:
    """Return a registry that has the collector, and nothing of this process."""
    made = CollectorRegistry(auto_describe=False)
    made.register(LedgerCollector(platform, days=days, most=most))
    return made


def text(held: CollectorRegistry) -> str:
    """Return everything in Prometheus' text format."""
    return generate_latest(held).decode()


def samples(held: CollectorRegistry) -> list[dict[str, Any]]:
    """Return everything as JSON-ready data: a name, labels and a value a sample."""
    return [
        {"name": one.name, "labels": one.labels, "value": one.value}
        for metric in held.collect()
        for one in metric.samples
    ]


def write(held: CollectorRegistry, file: Path) -> None:
    """Write everything to a file as a whole or not at all: a collector of text files never reads half of it.

    Raises:
        EnvironmentRefused: if the file cannot be written.
    """
    write_whole(file, text(held))


def address(listen: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `[HOST]:PORT`, `:PORT` or `PORT`; without a host, the loopback interface.

    Raises:
        InputRefused: if it is none of these.
    """
    host, _, port = listen.rpartition(":")
    if not port.isdigit() or not 0 <= int(port) < 1 << 16 or (":" in host and not host.startswith("[")):
        raise InputRefused(
            Problem(f"--listen {listen}", "an address is HOST:PORT, or PORT on this machine only", "correct it")
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host's address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def serve(held: CollectorRegistry, host: str, port: int) -> tuple[int, Any, threading.Thread]:
    """Serve everything over HTTP from another thread; return the port, the server and the thread.

    Raises:
        EnvironmentRefused: if the address cannot be listened on.
    """
    try:
        server, thread = start_http_server(port, addr=host, registry=held)
    except OSError as error:
        raise EnvironmentRefused(
            Problem(
                f"nothing can listen on {host}:{port}: {error.strerror or error}",
                "the address is one of this machine's, and no other process listens on it",
                "give another --listen",
            )
        ) from error
    return server.server_port, server, thread
