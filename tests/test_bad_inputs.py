"""Whatever is wrong with a manifest, a command, a file or the environment: a clear refusal, exit code 2, nothing written.

Put here what an operator can get wrong from outside. Each case runs the command as it is installed, in this process, on
one prepared installation; what is below the home folder and beside it is compared before and after, databases by rows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backfill_assets.cli.command import main

REQUESTER, APPROVER = "ada", "grace"
PLANNED, APPROVED, REJECTED, SPARE = "planned-run", "approved-run", "rejected-run", "spare-run"
START, END = "2011-01-01", "2011-03-31"
REFUSED = 2
CSV_HEADER = "case:concept:name,concept:name,time:timestamp,amount,_event_seq\n"
"""The columns of a raw log; see `products.enforcement.raw`."""

Content = str | bytes | Callable[["Installation"], str | bytes]


# --- one installation, with a run in each state that needs no Spark ---------------------------------------------------


@dataclass(frozen=True)
class Installation:
    home: Path


def base_manifest(run_id: str = "bad-run", **changes: Any) -> dict[str, Any]:
    """Return a manifest that is planned without complaint; `changes` replace whole top-level fields."""
    return {
        "runId": run_id,
        "kind": "RESTATEMENT",
        "requestedBy": REQUESTER,
        "reason": "days were counted in the wrong time zone",
        "source": {"table": "bronze.case_events"},
        "transform": {"name": "case_sla_daily", "version": "3.1.0"},
        "target": publishing(START, END),
        # the checkout that runs the tests may have uncommitted changes
        "development": True,
        **changes,
    }


def publishing(start: str, end: str, table: str = "silver.case_sla_daily") -> dict[str, Any]:
    return {"table": table, "publishRange": {"start": start, "end": end}}


def own_environment(patch: pytest.MonkeyPatch, home: Path, cwd: Path, **variables: str) -> None:
    """Leave the command no setting but those given here."""
    for name in [name for name in os.environ if name.startswith("BACKFILL_")]:
        patch.delenv(name)
    for name, value in ({"BACKFILL_HOME": str(home)} | variables).items():
        patch.setenv(name, value)
    patch.chdir(cwd)


def run_command(*arguments: str) -> int | str | None:
    """Run the installed command in this process; return its exit code. Anything else it raises would be a traceback."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["backfill", *arguments])
        try:
            main()
        except SystemExit as end:
            return end.code
    return 0


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An initialised installation with 300 cases, two planned runs, one approved and one rejected."""
    folder = tmp_path_factory.mktemp("bad-inputs")
    home = folder / "home"
    with pytest.MonkeyPatch.context() as patch:
        own_environment(patch, home, folder)
        assert run_command("init") == 0
        assert run_command("load", "case-events", "--cases", "300") == 0
        for run_id in (PLANNED, APPROVED, REJECTED, SPARE):
            manifest = folder / f"{run_id}.json"
            manifest.write_text(json.dumps(base_manifest(run_id)))
            assert run_command("plan", str(manifest)) == 0
        assert run_command("approve", APPROVED, "--by", APPROVER) == 0
        assert run_command("reject", REJECTED, "--by", APPROVER, "--reason", "not now") == 0
    return Installation(home)


# --- what is written --------------------------------------------------------------------------------------------------


def written(folder: Path) -> dict[str, object]:
    """Return everything below a folder: databases by their rows, other files by size and time of writing.

    The catalog's rows name each table's metadata file, which is never rewritten: equal rows are equal snapshots. Requests
    for sinks are left out, because a refused one is meant to be on record.
    """
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            found[name] = "folder"
        elif not name.endswith(("-wal", "-shm", "-journal")):
            found[name] = rows_of(path) if is_database(path) else (path.stat().st_size, path.stat().st_mtime_ns)
    return found


def is_database(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(16) == b"SQLite format 3\0"


def open_read_only(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{database}?mode=ro", uri=True)


def rows_of(database: Path, *, leave_out: tuple[str, ...] = ("sink_attempts",)) -> dict[str, list[str]]:
    with closing(open_read_only(database)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: sorted(map(repr, connection.execute(f'SELECT * FROM "{name}"')))
            for name in names
            if name not in leave_out
        }


def difference(before: dict[str, object], after: dict[str, object]) -> list[str]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def squeezed(text: str) -> str:
    """Return a text without blanks and panel borders: where a line was broken does not matter then."""
    return re.sub(r"[\s│╭╮╰╯─]", "", text)


# --- cases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A command that must be refused.

    Attributes:
        name: what is wrong; the test's id.
        arguments: the command line; `{files}` is the folder of the case's own files, `{home}` the installation's.
        says: what the refusal must name: the thing, its value, the rule.
        files: files of the case by name; their content, or what makes it from the installation.
        variables: environment variables, with the same placeholders.
        usage: whether Click answers (it says how the command is used) and not a refusal panel.
        on_record: whether the refusal itself is a link of the chain, as that of a request for a sink.
    """

    name: str
    arguments: tuple[str, ...]
    says: tuple[str, ...]
    files: dict[str, Content] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    usage: bool = False
    on_record: bool = False


def manifest(name: str, *says: str, **changes: Any) -> Case:
    """A manifest with some fields changed."""
    return manifest_text(name, json.dumps(base_manifest(**changes)), *says)


def refused_sink(name: str, sink: str, *says: str) -> Case:
    return replace(manifest(name, f"'{sink}'", *says, safety={"sinks": [sink]}), on_record=True)


def manifest_text(name: str, text: Content, *says: str) -> Case:
    return Case(name, ("plan", "{files}/manifest.yaml"), says, {"manifest.yaml": text})


def command(name: str, line: str, *says: str) -> Case:
    return Case(name, tuple(line.split()), says)


def usage(name: str, line: str, *says: str) -> Case:
    return Case(name, tuple(line.split()), says, usage=True)


def raw_log(name: str, file: str, content: Content, *says: str) -> Case:
    return Case(name, ("load", "case-events", f"{{files}}/{file}"), says, {file: content})


def environment(name: str, line: str, *says: str, files: dict[str, Content] | None = None, **variables: str) -> Case:
    return Case(name, tuple(line.split()), says, files or {}, variables)


def reference(name: str = "reference.sla_rules", **fields: Any) -> dict[str, Any]:
    return {"referenceData": [{"name": name, **fields}]}


def valid_yaml(**fields: Any) -> str:
    """The base manifest as YAML, a field a line."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in base_manifest(**fields).items())


BAD_MANIFESTS = [
    manifest_text("broken-yaml", "runId: [a\nkind: RESTATEMENT\n", "manifest.yaml", "line 2", "YAML or JSON"),
    manifest_text("key-twice", valid_yaml() + "kind: REPAIR\n", "the key 'kind' stands twice"),
    manifest_text("key-twice-in-json", '{"runId": "a-run", "runId": "b-run"}', "the key 'runId' stands twice"),
    manifest_text("key-that-is-no-text", valid_yaml() + "2012: x\n", "the key 2012 is not text"),
    manifest_text("anchor", "source: &a {table: bronze.case_events}\ntarget: *a\n", "anchors and aliases are refused"),
    manifest_text("python-tag", "runId: !!python/name:os.system\n", "python/name:os.system"),
    *(
        manifest_text(f"tag-{number}", valid_yaml() + f"x: {text}\n", "manifest.yaml", "the tag '")
        for number, text in enumerate(("!!bool x", "!!int ''", "!!timestamp x", "!!null x", "!!binary YQ==", "! 5"))
    ),
    *(
        manifest_text(
            f"escape-{code}", valid_yaml() + f'x: "\\U{code}"\n', "manifest.yaml", "an escape of no character"
        )
        for code in ("00110000", "FFFFFFFF")
    ),
    manifest_text("two-documents", valid_yaml() + "---\nrunId: other\n", "a single document"),
    manifest_text("day-that-does-not-exist", valid_yaml() + "x: 2012-02-30\n", "manifest.yaml", "day is out of range"),
    manifest_text(
        "day-that-does-not-exist-somewhere",
        "a: 1\nb:\n  end: 2025-02-30\n",
        "'2025-02-30': day is out",
        "line 3, column 8",
    ),
    manifest_text("month-that-does-not-exist", "b: [2025-13-01]\n", "'2025-13-01': month must be", "line 1, column 5"),
    manifest_text(
        "hour-that-does-not-exist", "# c\nat: 2025-01-01T25:00:00Z\n", "'2025-01-01T25:00:00Z': hour", "line 2"
    ),
    manifest_text("number-without-end", "a: " + "9" * 5000 + "\n", "'9999999999", "...': Exceeds the limit", "line 1"),
    manifest_text("nested-without-end", "[" * 20_000, "manifest.yaml", "cannot be read"),
    manifest_text("binary-file", b"\x89PNG\r\n\x1a\n\xff\xfe", "manifest.yaml", "not UTF-8 text", "byte 0"),
    manifest_text("empty-file", "", "manifest.yaml", "not a mapping of fields"),
    manifest_text("too-large", valid_yaml() + "#" * 300_000, "bytes", "at most 262,144"),
    Case("a-device-without-end", ("plan", "/dev/zero"), ("/dev/zero", "is not a regular file")),
    manifest_text("directive-after-a-comment", "# c\n%YAML 1.1\n---\n" + valid_yaml(), "directives are refused"),
    manifest_text("tag-after-an-empty-line", "\n%TAG ! tag:yaml.org,2002:\n---\n" + valid_yaml(), "directives are"),
    manifest_text("directive-of-no-name", "\n%NOBODY knows\n---\n" + valid_yaml(), "directives are refused"),
    manifest_text("directive-before-it", "%PDF-1.4\n---\n" + valid_yaml(), "begins with %PDF-1.4"),
    manifest_text(
        "control-character-in-a-comment", valid_yaml() + "# \x1b[2J\n", "manifest.yaml", "is not text: U+001B"
    ),
    manifest_text("private-use-in-a-comment", valid_yaml() + "# \ue000\n", "is not text: U+E000"),
    manifest_text("text-turned-round", valid_yaml() + "# \u202eetad\n", "is not text: U+202E"),
    manifest("control-character-by-an-escape", "reason", "is not text: U+0000", reason="because of \0 in the rows"),
    manifest_text("list-of-manifests", json.dumps([base_manifest()]), "holds a list, not a mapping"),
    Case("missing-file", ("plan", "{files}/absent.yaml"), ("absent.yaml", "No such file")),
    Case("a-folder", ("plan", "{files}"), ("{files}", "Is a directory")),
    manifest("unknown-key", "colour: is an unknown key", colour="red"),
    manifest("unknown-nested-key", "limits.maxMemory: is an unknown key", limits={"maxMemory": 1}),
    manifest("missing-field", "target.publishRange is missing", target={"table": "silver.case_sla_daily"}),
    manifest("unknown-kind", "'FIX'", "one of BACKFILL, REPROCESSING, RESTATEMENT", kind="FIX"),
    manifest("mode-of-another-kind", "RESTATEMENT", "BACKFILL or DRY_RUN, not LIVE", mode="LIVE"),
    manifest("run-id-with-blank", "runId", "'Bad Run'", "a-z, 0-9", run_id="Bad Run"),
    manifest("run-id-that-climbs", "'../etc/passwd'", "a-z, 0-9", run_id="../etc/passwd"),
    manifest("run-id-too-long", "a" * 65, "3 to 64 characters", run_id="a" * 65),
    manifest("reason-too-short", "reason", "'because'", "text of 10 to 4,000 visible characters", reason="because"),
    manifest(
        "range-reversed",
        "publishRange",
        "ends (2011-01-01) before it starts (2011-03-31)",
        target=publishing(END, START),
    ),
    manifest(
        "range-not-in-whole-months",
        "2011-01-05 to 2011-03-31",
        "whole months",
        "use 2011-01-01 to 2011-03-31",
        target=publishing("2011-01-05", END),
    ),
    manifest(
        "range-outside-the-source",
        "2035-01-01 to 2035-03-31",
        "bronze.case_events holds",
        target=publishing("2035-01-01", "2035-03-31"),
    ),
    manifest(
        "range-to-the-end-of-the-calendar",
        "9999-12-31",
        "a day lies between",
        target=publishing(START, "9999-12-31"),
    ),
    manifest(
        "range-from-the-start-of-the-calendar",
        "0001-01-01",
        "a day lies between",
        target=publishing("0001-01-01", END),
    ),
    manifest("range-with-an-instant", "a day is written YYYY-MM-DD", target=publishing("2011-01-01T00:00:00Z", END)),
    manifest(
        "unknown-transform-version",
        "transform.version is 9.9.9",
        "2.4.1",
        "3.1.0",
        transform={"name": "case_sla_daily", "version": "9.9.9"},
    ),
    manifest(
        "other-transform",
        "transform.name is fine_totals",
        "case_sla_daily",
        transform={"name": "fine_totals", "version": "3.1.0"},
    ),
    manifest(
        "unknown-target", "silver.nothing", "silver.case_sla_daily", target=publishing(START, END, "silver.nothing")
    ),
    manifest("target-that-is-no-table-name", "'sla'", "<namespace>.<table>", target=publishing(START, END, "sla")),
    manifest(
        "wrong-source",
        "source.table is reference.sla_rules",
        "bronze.case_events",
        source={"table": "reference.sla_rules"},
    ),
    manifest("unknown-gate", "gates names looks_good", "all_chunks_staged", validation={"gates": ["looks_good"]}),
    manifest(
        "unknown-tolerance", "tolerances names mood", "row_change_percent", validation={"tolerances": {"mood": 1}}
    ),
    manifest("negative-tolerance", "row_change_percent", "-1", validation={"tolerances": {"row_change_percent": -1}}),
    manifest("unknown-reference", "silver.weather", "reference.sla_rules", **reference("silver.weather")),
    manifest(
        "reference-twice",
        "a reference table is named once",
        referenceData=[{"name": "reference.sla_rules"}, {"name": "reference.sla_rules"}],
    ),
    manifest("value-twice", "a value is named once", target=publishing(START, END) | {"values": ["CA", "CA"]}),
    manifest(
        "unknown-reference-version",
        "reference.sla_rules version 1999",
        "known versions are rules-",
        **reference(semantics="AS_DECIDED", version="1999"),
    ),
    manifest(
        "unknown-reference-snapshot",
        "reference.sla_rules has no snapshot 5",
        "in the table's history",
        **reference(semantics="AS_DECIDED", snapshotId=5),
    ),
    manifest(
        "as-decided-without-a-pin",
        "AS_DECIDED needs the version or the snapshotId",
        **reference(semantics="AS_DECIDED"),
    ),
    manifest(
        "as-recorded-then-without-a-run",
        "reference.sla_rules was recorded with 0 snapshots",
        "exactly one",
        **reference(semantics="AS_RECORDED_THEN"),
    ),
    manifest(
        "newest-and-a-version",
        "CORRECTED_TRUTH says itself which snapshot it means",
        **reference(semantics="CORRECTED_TRUTH", version="2024"),
    ),
    manifest(
        "unknown-source-snapshot",
        "bronze.case_events has no snapshot 5",
        source={"table": "bronze.case_events", "snapshotId": 5},
    ),
    manifest("warm-up-too-small", "warmUp.days is 1", "needs at least", warmUp={"days": 1}),
    manifest(
        "source-range-too-narrow",
        "source.range is 2011-02-01 to 2011-03-31",
        "with its warm-up needs",
        source={"table": "bronze.case_events", "range": {"start": "2011-02-01", "end": END}},
    ),
    manifest("more-rows-than-expected", "safety.maxRowsExpected is 1", "would read", safety={"maxRowsExpected": 1}),
    manifest(
        "side-effects-in-a-backfill",
        "sideEffectsAllowed is for LIVE only",
        "BACKFILL",
        safety={"sideEffectsAllowed": True},
    ),
    refused_sink("webhook-in-a-backfill", "breach_notifications", "NOTIFICATION", "only LIVE"),
    refused_sink("unknown-sink", "carrier_pigeon", "declared are", "run_audit"),
    manifest(
        "changed-text-of-an-approved-run",
        f"run '{APPROVED}' is APPROVED",
        "after approval a manifest cannot change",
        run_id=APPROVED,
        reason="something else altogether",
    ),
    manifest(
        "changed-text-of-a-rejected-run",
        f"run '{REJECTED}' is REJECTED",
        "a run id of its own",
        run_id=REJECTED,
        reason="something else altogether",
    ),
]

BAD_COMMANDS = [
    command(
        "approved-by-the-requester", f"approve {PLANNED} --by {REQUESTER}", f"'{REQUESTER}' requested run '{PLANNED}'"
    ),
    Case(
        "approved-by-the-requester-in-other-letters",
        ("approve", PLANNED, "--by", " ADA "),
        ("requested run", "the approver differs from the requester"),
    ),
    Case("approved-by-nobody", ("approve", PLANNED, "--by", " "), ("no name is given", "give --by")),
    command("approved-twice", f"approve {APPROVED} --by {APPROVER}", f"'{APPROVED}' is APPROVED already"),
    command(
        "approve-after-rejection", f"approve {REJECTED} --by {APPROVER}", f"'{REJECTED}' is REJECTED", "it is final"
    ),
    command("approve-unknown", f"approve no-such-run --by {APPROVER}", "run 'no-such-run' is unknown"),
    command(
        "approve-another-plan",
        f"approve {PLANNED} --by {APPROVER} --plan-hash {'0' * 64}",
        f"the plan of '{PLANNED}' is",
        f"not {'0' * 64}",
    ),
    command("rejected-twice", f"reject {REJECTED} --by {APPROVER}", f"'{REJECTED}' is REJECTED already"),
    command("reject-unknown", f"reject no-such-run --by {APPROVER}", "run 'no-such-run' is unknown"),
    command("cancel-after-rejection", f"cancel {REJECTED} --by {APPROVER}", f"'{REJECTED}' is REJECTED", "it is final"),
    command("cancel-unknown", f"cancel no-such-run --by {APPROVER}", "run 'no-such-run' is unknown"),
    Case("cancelled-by-nobody", ("cancel", SPARE, "--by", " "), ("no name is given", "give --by")),
    command("run-before-approval", f"run {PLANNED}", f"'{PLANNED}' is PLANNED", "approve it first"),
    command(
        "run-after-rejection", f"run {REJECTED}", f"'{REJECTED}' is REJECTED", "chunks are computed for runs that are"
    ),
    command("run-unknown", "run no-such-run", "run 'no-such-run' is unknown"),
    command("chunks-outside-the-plan", f"run {APPROVED} --chunks 2012-01", "--chunks 2012-01", "2011-01 to 2011-03"),
    command("chunks-half-outside-the-plan", f"run {APPROVED} --chunks 2011-02..2011-06", "2011-02..2011-06"),
    command("chunks-reversed", f"run {APPROVED} --chunks 2011-03..2011-01", "2011-03..2011-01"),
    command("chunks-malformed", f"run {APPROVED} --chunks january", "'january' is not a chunk", "written like 2012-03"),
    command("chunks-of-thirteen-months", f"run {APPROVED} --chunks 2011-13", "'2011-13' is not a chunk"),
    command("publish-before-validation", f"publish {APPROVED}", f"'{APPROVED}' is APPROVED", "only a VALIDATED run"),
    command("publish-before-approval", f"publish {PLANNED}", "no approval of plan", "only a VALIDATED run"),
    command("publish-unknown", "publish no-such-run", "run 'no-such-run' is unknown"),
    command("rollback-before-publication", f"rollback {APPROVED}", f"'{APPROVED}' is APPROVED", "only a PUBLISHED run"),
    command("rollback-unknown", "rollback no-such-run", "run 'no-such-run' is unknown"),
    command("status-unknown", "status no-such-run", "run 'no-such-run' is unknown"),
    command("load-nothing", "load case-events", "FILE or --cases"),
    command("load-two-things", "load case-events {files}/log.csv --cases 5", "FILE or --cases"),
    command("argument-not-utf-8", "status run-\udcff", "argument 2 is not text", "U+DCFF", "\\udcff"),
    command("file-name-not-utf-8", "plan caf\udce9.yaml", "argument 2 is not text", "caf\\udce9.yaml"),
    command("argument-with-a-control-character", "approve a-run --by \x1b[2J", "argument 4 is not text", "U+001B"),
    command("report-of-a-name-too-long", f"report {'a' * 300}", "is unknown"),
    command("verify-of-a-name-too-long", f"verify {'a' * 300}", "is unknown"),
    command("report-to-a-device", f"report {PLANNED} --output /dev/full", "/dev/full", "is not a regular file"),
    command("report-into-a-file", f"report {PLANNED} --output /dev/null/page.html", "cannot be written"),
    command("metrics-to-a-device", "metrics --output /dev/full", "/dev/full", "is not a regular file"),
    command("behind-no-address", "ui --behind http://[", "--behind http://[", "scheme and host"),
    command("behind-a-port-that-is-none", "ui --behind https://x:99999", "--behind https://x:99999", "the port"),
    command("behind-a-port-in-letters", "ui --behind https://x:http", "--behind https://x:http", "the port"),
    usage("days-past-any-calendar", "metrics --days 999999999999", "'--days'", "is not in the range"),
    usage("tick-too-long", "live --once --every 99999999999", "'--every'", "is not in the range"),
    usage(
        "snapshot-larger-than-any", f"reconcile --source-snapshot {2**70}", "'--source-snapshot'", "is not in the range"
    ),
    usage("no-command", "", "Usage", "publish"),
    usage("unknown-command", "erase everything", "'erase'"),
    usage("unknown-option", f"publish {APPROVED} --force", "--force"),
    command("unknown-load", "load penalties", "'penalties'"),
    usage("missing-argument", "plan", "'MANIFEST'"),
    usage("no-cases", "load case-events --cases 0", "'--cases'", "0 is not in the range"),
    usage("seed-that-is-no-number", "load case-events --cases 5 --seed blue", "'--seed'", "'blue'"),
    usage("port-zero", "ui --port 0", "'--port'", "0 is not in the range"),
    usage("port-too-high", "ui --port 70000", "'--port'", "70000 is not in the range"),
]


def parquet(*, drop: str | None = None, rows: int = 5_000) -> bytes:
    frame = pl.DataFrame(
        {
            "case:concept:name": [f"case-{number}" for number in range(rows)],
            "concept:name": ["Create Fine"] * rows,
            "time:timestamp": ["2011-01-01T10:00:00Z"] * rows,
            "amount": [35.0] * rows,
            "_event_seq": [0] * rows,
        }
    )
    buffer = BytesIO()
    (frame.drop(drop) if drop else frame).write_parquet(buffer)
    return buffer.getvalue()


def truncated_parquet(_: Installation) -> bytes:
    whole = parquet()
    return whole[: len(whole) // 2]


def damaged_parquet(_: Installation) -> bytes:
    whole = bytearray(parquet())
    third = len(whole) // 3
    whole[100:third] = bytes(third - 100)
    return bytes(whole)


def wide_decimals(_: Installation) -> bytes:
    table = pq.read_table(BytesIO(parquet(rows=3)))
    amounts = pa.array([Decimal(35)] * 3, pa.decimal256(60, 2))
    return written_parquet(table.set_column(table.schema.get_field_index("amount"), "amount", amounts))


def a_name_that_is_not_utf_8(_: Installation) -> bytes:
    table = pq.read_table(BytesIO(parquet(rows=3)))
    return written_parquet(table.append_column("caf_", pa.array([1, 2, 3]))).replace(b"caf_", b"caf\xe9")


def written_parquet(table: pa.Table) -> bytes:
    buffer = BytesIO()
    pq.write_table(table, buffer, store_schema=False)
    return buffer.getvalue()


A_FINE = "case-1,Create Fine,2011-01-01T10:00:00Z,35.0,0\n"
BAD_DATA = [
    Case("log-missing", ("load", "case-events", "{files}/absent.csv"), ("absent.csv", "does not exist")),
    Case("log-is-a-folder", ("load", "case-events", "{files}"), ("{files}", "is not a file")),
    raw_log("log-of-unknown-kind", "log.xlsx", "x", "log.xlsx", "'.xlsx'", ".parquet or .csv"),
    raw_log("parquet-that-is-text", "log.parquet", CSV_HEADER + A_FINE, "log.parquet", "not readable as Parquet"),
    raw_log("parquet-truncated", "log.parquet", truncated_parquet, "log.parquet", "not readable as Parquet"),
    raw_log("parquet-damaged-inside", "log.parquet", damaged_parquet, "log.parquet", "breaks off"),
    raw_log("parquet-lacks-a-column", "log.parquet", lambda _: parquet(drop="amount"), "lacks the column(s) amount"),
    raw_log("parquet-with-wide-decimals", "log.parquet", wide_decimals, "decimal256(60, 2)", "at most 38 digits"),
    raw_log("parquet-with-a-name-not-utf-8", "log.parquet", a_name_that_is_not_utf_8, "log.parquet", "not UTF-8"),
    raw_log("parquet-without-rows", "log.parquet", lambda _: parquet(rows=0), "log.parquet", "has no rows"),
    raw_log("csv-empty", "log.csv", "", "log.csv", "has no rows"),
    raw_log("csv-with-a-header-only", "log.csv", CSV_HEADER, "log.csv", "has no rows"),
    raw_log(
        "csv-lacks-a-column",
        "log.csv",
        CSV_HEADER.replace("amount,", "") + "case-1,Create Fine,x,0\n",
        "lacks the column(s) amount",
    ),
    raw_log(
        "csv-with-a-column-twice",
        "log.csv",
        CSV_HEADER.replace("amount", "amount,amount") + A_FINE,
        "column(s) amount more than once",
    ),
    raw_log(
        "csv-with-a-short-line",
        "log.csv",
        CSV_HEADER + A_FINE + "case-2,Create Fine\n",
        "log.csv",
        "breaks off",
        "case-2",
    ),
    raw_log(
        "csv-in-another-encoding", "log.csv", CSV_HEADER.encode() + b"case-\xe8,Create Fine,x,1,0\n", "log.csv", "UTF-8"
    ),
    raw_log(
        "log-mostly-unclassifiable",
        "log.csv",
        CSV_HEADER + A_FINE + A_FINE.replace("Create Fine", "Dance") * 9,
        "9 of 10 rows (90.0%)",
        "UNKNOWN_ACTIVITY (9, first in row 1: ",
        "at most 5.0%",
        "quarantine_limit",
    ),
]


def ledger_of_another_schema(installation: Installation) -> bytes:
    with closing(open_read_only(installation.home / "ledger.db")) as ledger:
        whole = ledger.serialize()
    with closing(sqlite3.connect(":memory:")) as changed:
        # bytes 18 and 19 say that there is a write-ahead log; a database in memory has none
        changed.deserialize(whole[:18] + b"\x01\x01" + whole[20:])
        changed.execute("UPDATE alembic_version SET version_num = '9999'")
        changed.commit()
        return changed.serialize()


NO_DATABASE = "a text where a database should be\n" * 100
BAD_ENVIRONMENTS = [
    environment("no-home", "status", "absent", "does not exist", "backfill init", BACKFILL_HOME="{files}/absent"),
    environment(
        "no-home-for-a-load",
        "load case-events --cases 5",
        "absent",
        "does not exist",
        "backfill init",
        BACKFILL_HOME="{files}/absent",
    ),
    environment(
        "home-never-initialised", "status", "ledger.db", "schema none", "backfill init", BACKFILL_HOME="{files}"
    ),
    environment("home-is-a-file", "status", "a-file", "folder", files={"a-file": "x"}, BACKFILL_HOME="{files}/a-file"),
    environment("init-where-a-file-is", "init", "a-file", files={"a-file": "x"}, BACKFILL_HOME="{files}/a-file"),
    environment(
        "no-dagster-home", f"run {APPROVED}", "dagster", "no DAGSTER_HOME", "backfill init", BACKFILL_HOME="{part}"
    ),
    environment("ledger-url-malformed", "status", "ledger_url", "SQLAlchemy URL", BACKFILL_LEDGER_URL="no url"),
    environment("ledger-of-unknown-database", "status", "nosuchdb", BACKFILL_LEDGER_URL="nosuchdb://host/name"),
    environment(
        "ledger-driver-not-installed",
        "status",
        "psycopg2cffi",
        BACKFILL_LEDGER_URL="postgresql+psycopg2cffi://host/name",
    ),
    environment(
        "ledger-is-no-database",
        "status",
        "ledger.db",
        "not a database",
        "BACKFILL_LEDGER_URL",
        files={"ledger.db": NO_DATABASE},
        BACKFILL_LEDGER_URL="sqlite:///{files}/ledger.db",
    ),
    environment(
        "init-over-a-ledger-that-is-no-database",
        "init",
        "ledger.db",
        "not a database",
        files={"ledger.db": NO_DATABASE},
        BACKFILL_LEDGER_URL="sqlite:///{files}/ledger.db",
    ),
    environment(
        "ledger-of-another-schema",
        "status",
        "ledger.db",
        "schema 9999",
        "newer code",
        files={"ledger.db": ledger_of_another_schema},
        BACKFILL_LEDGER_URL="sqlite:///{files}/ledger.db",
    ),
    environment(
        "init-over-a-newer-ledger",
        "init",
        "ledger.db",
        "9999",
        files={"ledger.db": ledger_of_another_schema},
        BACKFILL_LEDGER_URL="sqlite:///{files}/ledger.db",
    ),
    environment("config-missing", "status", "absent.toml", "BACKFILL_CONFIG", BACKFILL_CONFIG="{files}/absent.toml"),
    environment(
        "config-broken",
        "status",
        "broken.toml",
        "TOML",
        files={"broken.toml": "spark = ["},
        BACKFILL_CONFIG="{files}/broken.toml",
    ),
    environment(
        "config-with-an-unknown-key",
        "status",
        "colour",
        "unknown keys of the file are refused",
        files={"odd.toml": 'colour = "red"'},
        BACKFILL_CONFIG="{files}/odd.toml",
    ),
    environment(
        "config-nested-without-end",
        "status",
        "deep.toml",
        "TOML",
        files={"deep.toml": "spark = " + "[" * 20_000},
        BACKFILL_CONFIG="{files}/deep.toml",
    ),
    environment("config-name-too-long", "status", "BACKFILL_CONFIG", BACKFILL_CONFIG="{files}/" + "a" * 300),
    environment("variable-not-utf-8", "status", "BACKFILL_OPERATOR", "not text", BACKFILL_OPERATOR="caf\udce9"),
    environment(
        "home-of-somebody-unknown", "status", "home is ~nosuchuser/x", "whole path", BACKFILL_HOME="~nosuchuser/x"
    ),
    environment("home-with-a-name-too-long", "status", "File name too long", BACKFILL_HOME="{files}/" + "a" * 300),
    environment(
        "keeping-past-any-calendar",
        "gc",
        "keep_superseded_days",
        "less than or equal to",
        BACKFILL_KEEP_SUPERSEDED_DAYS="9999999999999",
    ),
    environment(
        "lease-past-any-calendar",
        "status",
        "lease_seconds",
        "less than or equal to",
        BACKFILL_LEASE_SECONDS="9" * 30,
    ),
    environment(
        "limit-out-of-range", "config", "quarantine_limit", "less than or equal to 1", BACKFILL_QUARANTINE_LIMIT="2"
    ),
    environment("switch-that-is-no-switch", "status", "self_approval", "boolean", BACKFILL_SELF_APPROVAL="perhaps"),
    environment("spark-settings-that-are-no-json", "status", '"spark"', "BACKFILL_", BACKFILL_SPARK="local[2]"),
    environment(
        "spark-settings-of-an-unknown-mode", "status", "FAST", "'BACKFILL'", BACKFILL_SPARK_BY_MODE='{{"FAST": {{}}}}'
    ),
    environment(
        "catalog-cannot-be-opened",
        "plan {files}/manifest.yaml",
        "'lake'",
        "/nonexistent/folder/catalog.db does not exist",
        files={"manifest.yaml": valid_yaml()},
        BACKFILL_CATALOG="sqlite:////nonexistent/folder/catalog.db",
    ),
    environment(
        "catalog-is-no-database",
        "plan {files}/manifest.yaml",
        "'lake'",
        "not a database",
        files={"manifest.yaml": valid_yaml(), "catalog.db": NO_DATABASE},
        BACKFILL_CATALOG="sqlite:///{files}/catalog.db",
    ),
    environment(
        "catalog-without-the-tables",
        "plan {files}/manifest.yaml",
        "the catalog 'lake' cannot be used",
        "backfill init",
        files={"manifest.yaml": valid_yaml()},
        BACKFILL_CATALOG="sqlite:///{files}/fresh.db",
    ),
    environment(
        "catalog-not-answering",
        "load case-events --cases 5",
        "'lake'",
        "Connection refused",
        BACKFILL_CATALOG="http://127.0.0.1:1",
    ),
    environment(
        "demo-of-a-missing-log",
        "demo --events {files}/absent.csv",
        "absent.csv",
        "does not exist",
        BACKFILL_HOME="{files}/absent",
    ),
]

CASES = BAD_MANIFESTS + BAD_COMMANDS + BAD_DATA + BAD_ENVIRONMENTS


# --- tests ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """A case laid out in folders of its own: what it reads, and where it runs."""

    arguments: list[str]
    files: Path
    cwd: Path
    variables: dict[str, str]
    says: list[str]


def prepare(case: Case, installation: Installation, folder: Path) -> Prepared:
    files, cwd, part = folder / "files", folder / "cwd", folder / "part"
    files.mkdir()
    cwd.mkdir()
    for name, content in case.files.items():
        made = content(installation) if callable(content) else content
        (files / name).write_bytes(made.encode() if isinstance(made, str) else made)
    if "{part}" in case.variables.values():
        shutil.copytree(installation.home, part, ignore=shutil.ignore_patterns("dagster", "warehouse"))

    def filled(text: str) -> str:
        return text.format(files=files, home=installation.home, part=part)

    variables = {name: filled(value) for name, value in case.variables.items()}
    if uri := variables.get("BACKFILL_CATALOG"):
        kind = "rest" if uri.startswith("http") else "sql"
        variables["BACKFILL_CATALOG"] = json.dumps({"type": kind, "uri": uri, "warehouse": (files / "data").as_uri()})
    return Prepared(
        [filled(part) for part in case.arguments], files, cwd, variables, [filled(text) for text in case.says]
    )


def everything(installation: Installation, folder: Path) -> dict[str, object]:
    return {f"home/{name}": value for name, value in written(installation.home).items()} | written(folder)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_input_is_refused_with_its_reason_and_nothing_is_written(
    case: Case,
    installation: Installation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepared = prepare(case, installation, tmp_path)
    own_environment(monkeypatch, installation.home, prepared.cwd, **prepared.variables)
    before = everything(installation, tmp_path)
    capsys.readouterr()

    code = run_command(*prepared.arguments)

    out, err = capsys.readouterr()
    assert code == REFUSED
    assert out == ""
    assert "Traceback" not in err
    for text in prepared.says:
        assert squeezed(text) in squeezed(err), f"{text!r} is not said:\n{err}"
    for part in ("Usage",) if case.usage else ("rule", "what to do"):
        assert part in err
    changed = difference(before, everything(installation, tmp_path))
    if case.on_record:
        link, ledger = changed
        assert ledger == "home/ledger.db"
        assert link.startswith("home/evidence/_chain/")
    else:
        assert changed == []


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 45


def test_what_an_accepted_command_writes_is_seen_by_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installation: Installation
) -> None:
    copy = tmp_path / "home"
    shutil.copytree(installation.home, copy)
    own_environment(monkeypatch, copy, tmp_path)
    before = written(copy)
    assert run_command("approve", PLANNED, "--by", APPROVER) == 0
    changed = difference(before, written(copy))
    assert "ledger.db" in changed
    assert any(name.startswith("dagster/") for name in changed)


@pytest.mark.parametrize(("sink", "sink_class"), [("breach_notifications", "NOTIFICATION"), ("carrier_pigeon", "")])
def test_a_refused_request_for_a_sink_is_on_record(
    sink: str, sink_class: str, installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = f"asks-for-{sink.replace('_', '-')}"
    own_environment(monkeypatch, installation.home, tmp_path)
    text = tmp_path / "manifest.json"
    text.write_text(json.dumps(base_manifest(run_id, safety={"sinks": [sink]})))
    assert run_command("plan", str(text)) == REFUSED
    with closing(open_read_only(installation.home / "ledger.db")) as ledger:
        recorded = ledger.execute(
            "SELECT sink, sink_class, mode, action, decision FROM sink_attempts WHERE run_id = ?", (run_id,)
        ).fetchall()
    assert recorded == [(sink, sink_class, "BACKFILL", "plan", "REFUSED")]


def refusal_of(
    manifest: dict[str, Any], home: Path, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Return, without its white space, what `plan` says of a manifest that it refuses."""
    own_environment(patch, home, folder)
    text = folder / "manifest.json"
    text.write_text(json.dumps(manifest))
    capsys.readouterr()
    assert run_command("plan", str(text)) == REFUSED
    return squeezed(capsys.readouterr().err)


def test_whatever_else_is_wrong_all_that_can_be_known_of_a_manifest_is_said_at_once(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = base_manifest(
        safety={"sinks": ["run_audti", "breach_notifications"]},
        requestedBy="policy: somebody",
        source={"table": "bronze.case_event", "snapshotId": 7},
        transform={"name": "case_sla_daily", "version": "9"},
        target=publishing("1999-01-01", END),
        referenceData=[{"name": "reference.sla_rules", "semantics": "AS_DECIDED", "version": "no-such"}],
        validation={"gates": ["guesswork"]},
    )
    said = refusal_of(manifest, installation.home, tmp_path, monkeypatch, capsys)
    for text in (
        "asks for the sink 'run_audti'",
        "declared are breach_notifications, run_audit",
        "did you mean 'run_audit'?",
        "what a correction must tell the world is LIVE's to say",
        "source.table is bronze.case_event",
        "has no snapshot 7",
        "transform.version is 9",
        "target.publishRange is 1999-01-01",
        "version no-such is unknown",
        "validation.gates names guesswork",
    ):
        assert squeezed(text) in said, text
    assert said.count(squeezed("LIVE's to say")) == 1, "that is no answer to a misspelt name"
    assert said.count(squeezed("version no-such is unknown")) == 1


def test_of_a_manifest_whose_target_nobody_declares_the_rest_is_judged_all_the_same(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = base_manifest(
        safety={"sinks": ["carrier_pigeon"]},
        source={"table": "bronze.case_event"},
        transform={"name": "case_sla", "version": "9"},
        target=publishing(START, END, table="silver.case_sla"),
        progressive={"chunksPerStep": 1},
    )
    said = refusal_of(manifest, installation.home, tmp_path, monkeypatch, capsys)
    for text in (
        "asks for the sink 'carrier_pigeon'",
        "correct the name, or remove it from safety.sinks",
        "target silver.case_sla is not declared",
        "source.table is bronze.case_event",
        "transform.name is case_sla",
    ):
        assert squeezed(text) in said, text


def test_of_a_manifest_that_is_not_valid_the_rest_is_judged_all_the_same(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = base_manifest(
        requestedBy=7,
        reason="short",
        warmUp={"days": "90"},
        colour="red",
        safety={"sinks": ["run_audti", "breach_notifications"], "maxRowsExpected": 0},
        source={"table": "bronze.case_event", "snapshotId": 7},
        transform={"name": "case_sla_daily", "version": "9"},
        target=publishing("1999-01-01", END) | {"publishMode": "APPEND"},
        referenceData=[{"name": "silver.no_such"}],
        validation={"gates": ["guesswork"]},
    )
    said = refusal_of(manifest, installation.home, tmp_path, monkeypatch, capsys)
    for text in (
        "requestedBy: is 7",
        "reason: is 'short'",
        "warmUp.days: is '90'",
        "colour: is an unknown key",
        "safety.maxRowsExpected: is 0",
        "target.publishMode: is 'APPEND'",
        "safety.sinks names 'run_audti'",
        "did you mean 'run_audit'?",
        "a sink of class NOTIFICATION has side effects",
        "source.table is bronze.case_event",
        "has no snapshot 7",
        "transform.version is 9",
        "target.publishRange is 1999-01-01",
        "validation.gates names guesswork",
        "referenceData names silver.no_such",
    ):
        assert squeezed(text) in said, text
    del manifest["source"]
    manifest["target"]["table"] = "silver.no_such"
    said = refusal_of(manifest, installation.home, tmp_path, monkeypatch, capsys)
    assert squeezed("target silver.no_such is not declared") in said
    manifest["target"]["table"] = "silver.case_sla_daily"
    said = refusal_of(manifest, installation.home, tmp_path, monkeypatch, capsys)
    assert squeezed("source: is missing") in said
    assert squeezed("target.publishRange is 1999-01-01") in said
    assert squeezed("source.table is") not in said, "that is not what the manifest says"
    said = refusal_of(manifest, tmp_path / "nowhere", tmp_path, monkeypatch, capsys)
    assert squeezed("requestedBy: is 7") in said, "also where nothing is installed"


def test_a_process_of_its_own_ends_with_the_refusal_and_no_traceback(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the settings are also read when Dagster's definitions are imported: here no earlier test has done that
    own_environment(monkeypatch, installation.home, tmp_path, BACKFILL_LEDGER_URL="no url")
    before = everything(installation, tmp_path)
    arguments = [sys.executable, "-m", "backfill_assets.cli.command", "init"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == REFUSED
    assert squeezed("not an SQLAlchemy URL") in squeezed(done.stderr)
    assert "what to do" in done.stderr
    assert "Traceback" not in done.stderr
    assert difference(before, everything(installation, tmp_path)) == []


def of_its_own(*arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, in a folder."""
    words = [sys.executable, "-m", "backfill_assets.cli.command", *arguments]
    return subprocess.run(words, cwd=cwd, text=True, timeout=60, check=False, **options)


def test_a_working_folder_that_is_gone_is_a_refusal_in_words(installation: Installation, tmp_path: Path) -> None:
    begin = (
        "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); sys.argv = ['backfill', 'status']; "
    )
    environment = {**os.environ, "BACKFILL_HOME": str(installation.home)}
    done = subprocess.run(
        [sys.executable, "-c", "from backfill_assets.cli.command import main; " + begin + "main()"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == REFUSED, done.stderr
    assert squeezed("the working folder cannot be found") in squeezed(done.stderr)
    assert "nothing was prepared for" not in done.stderr


@pytest.mark.parametrize("arguments", [("status", "nosuch"), ("status", "--nosuch"), ("approve",)])
def test_a_refusal_that_nobody_can_be_told_ends_as_one(
    installation: Installation, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    environment = {**os.environ, "BACKFILL_HOME": str(installation.home)}
    with Path("/dev/full").open("w") as full:
        assert of_its_own(*arguments, cwd=tmp_path, env=environment, stderr=full).returncode == REFUSED
