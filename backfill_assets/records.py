"""What the evidence says of a run: the bundle that is sealed, and a record with a link for whatever happens afterwards.

Put here what goes into a bundle and a record, and when a record is due. Every record brings the kept rows of the ledger
up to date: what a run's rows are to be today is its bundle's rows, changed by its records, one after the other. Only
changes that an event can bring about are taken over (`resources.rows`); a cell that was changed by hand stays what the
evidence says it is. Everything is safe to repeat: what is recorded is not recorded again, what a crash left out is
made up for by the next call.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from backfill_assets import faults
from backfill_assets.chunk_changes import CHANGES_FILE, VISIBLE, changes_of_run
from backfill_assets.platform import Platform, target_named
from backfill_assets.seals import (
    BESIDE_FILE,
    COMMITTED,
    INPUTS_FILE,
    SCHEMA_FILE,
    adopted_commits,
    commits_of,
    sealed_beside,
    sealed_inputs,
    sealed_schema,
)
from manifests.canonical import sha256_of
from manifests.errors import EnvironmentRefused, Problem, PublicationRefused
from manifests.lifecycle import RunState
from manifests.text import visible
from resources import approvals
from resources.chain import Link
from resources.journal import explain, explain_run, first_of, unexplained
from resources.kept_files import json_of, not_a_file, read_json, read_kept
from resources.ledger import RunRecord
from resources.locks import lock_target
from resources.rows import MOVING, Difference, Rows, changes_of, differences, fold, hashes_of, rows_of
from resources.tables import accepted_versions, publications, runs, watermarks

_LOG = logging.getLogger(__name__)
WAS_PUBLISHED = frozenset({RunState.PUBLISHED, RunState.SUPERSEDED, RunState.ROLLED_BACK})
DIFF = "diff"
"""The record of a run's diff, if one was made: it is sealed with the bundle."""
_DIFFS = re.compile(rf"{DIFF}(?:-(\d+))?")
SUPERSEDED, RESTORED = "superseded", "restored"
"""Events that another run brings about: it took chunks over, or its rollback gave them back."""
TOLD, REFUSED, MOVED, ADOPTED = "told", "refused", "moved", "adopted"
"""Events beside a change of rows: sinks were told; a rollback or acceptance was refused; something else moved on; a run that was published by an earlier version
of this project came under the chain."""
_RUN_FILE, _MANIFEST_FILE, _PLAN_FILE = "run.json", "manifest.json", "plan.json"
_FILES = {"sink_attempts": "sink_requests"}
_FILED_APART = {"manifest": _MANIFEST_FILE, "plan": _PLAN_FILE}
_ALWAYS = frozenset({"chunks", "attempts", "verdicts", "approvals", "amendments", "transitions", "sink_attempts"})
"""Tables that a bundle has a file of even where there is no row: nobody is to wonder."""
_SHOWN = 10
_UNNUMBERED = 2
"""How many changes of a run are recorded under the action's name alone."""


@dataclass(frozen=True)
class Record:
    """One record of a run: its file's name and hash, and what it says.

    Where something else lies in the file's place, or it cannot be read, `hash` says what, and the record says nothing.
    """

    name: str
    hash: str
    content: Mapping[str, Any]
    is_readable: bool = True

    @property
    def number(self) -> int:
        """Its place among the records of its run that change rows; 0 for others."""
        number = self.content.get("number")
        if type(number) is not int or not isinstance(self.content.get("follows"), int):
            return 0
        return number if {"event", "follows", "rows"} <= self.content.keys() else 0


# --- the bundle -------------------------------------------------------------------------------------------------------


def bundle_files(platform: Platform, record: RunRecord) -> dict[str, Any]:
    """Return the content of a run's bundle: a file for each of the ledger's tables, and what people look for."""
    run_id = record.run_id
    with platform.ledger.engine.begin() as connection:
        lock_target(connection, record.target)
        rows = rows_of(connection, run_id)
    (run,) = rows["runs"].values()
    before = accepted_before(platform, record)
    files: dict[str, Any] = {
        _RUN_FILE: {name: cell for name, cell in run.items() if name not in _FILED_APART},
        "hashes.json": {"manifest": record.manifest_hash, "plan": record.plan_hash},
        "code.json": record.plan.code,
        "policy.json": approvals.policy_text(platform.ledger, record.plan.policy),
        "reconciliation.json": _reconciliation(rows, record),
        "accepted_before.json": before,
        CHANGES_FILE: changes_of_run(platform, record, before),
        SCHEMA_FILE: sealed_schema(platform, record),
        INPUTS_FILE: sealed_inputs(platform, record),
        BESIDE_FILE: sealed_beside(platform, record),
        **{name: run[cell] for cell, name in _FILED_APART.items()},
        **{
            _file_of(table): list(found.values())
            for table, found in rows.items()
            if table != "runs" and (found or table in _ALWAYS)
        },
    }
    diff = last_diff(platform, run_id)
    return files if diff is None else files | {f"{DIFF}.json": diff}


def last_diff(platform: Platform, run_id: str) -> Any:
    """Return the last diff that was put on record of a run (`diff`, `diff-2`, ...), or None."""
    named = ((file, _DIFFS.fullmatch(file.stem)) for file in platform.evidence.records(run_id).glob(f"{DIFF}*.json"))
    numbered = [(int(name[1] or 1), file) for file, name in named if name]
    return read_json(max(numbered)[1]) if numbered else None


def _file_of(table: str) -> str:
    return f"{_FILES.get(table, table)}.json"


def _reconciliation(rows: Rows, record: RunRecord) -> list[dict[str, Any]]:
    """Return what the run-level gates found, at which level: the newest verdict of each."""
    levels = {item.name: item.level.value for item in target_named(record.target).reconciliations}
    newest = {row["gate"]: row for row in rows["verdicts"].values() if not row["chunk"]}
    shown = ("gate", "passed", "summary", "details", "at")
    return [
        {"level": levels.get(gate, "platform")} | {name: newest[gate][name] for name in shown}
        for gate in record.plan.gates
        if gate in newest
    ]


def accepted_before(platform: Platform, record: RunRecord) -> dict[str, Any]:
    """Return what readers saw of each chunk just before: whose it was, its digest, and what its gate measured and added up."""
    holders = platform.ledger.accepted(record.target, [chunk.key for chunk in record.plan.chunks])
    found = {}
    for run_id in sorted(set(holders.values()) - {record.run_id}):
        for chunk in platform.ledger.chunks(run_id):
            if holders.get(chunk.chunk) == run_id:
                facts = {"run": run_id, "digest": chunk.digest, "rows": chunk.rows}
                facts |= {VISIBLE: chunk.measures[VISIBLE]} if VISIBLE in chunk.measures else {}
                found[chunk.chunk] = facts | {"slices": chunk.measures.get("slices", [])}
    return found


def sealed_rows(bundle: Path, tables: Sequence[str] | None = None) -> Rows | None:
    """Return the ledger's rows as a bundle has them; None if an earlier version sealed it, without them.

    Raises:
        EnvironmentRefused: if something else lies in the place of a file of the bundle, or it cannot be read.
        ValueError: if a file of the bundle is no JSON any more.
    """
    if not os.path.lexists(bundle / _RUN_FILE):
        return None
    rows: Rows = {}
    keys = {"chunks": "chunk"}
    for file in sorted(bundle.glob("*.json")):
        table = next((name for name, other in _FILES.items() if other == file.stem), file.stem)
        if file.name == _RUN_FILE and (tables is None or "runs" in tables):
            run = read_json(file)
            apart = {cell: read_json(bundle / name) for cell, name in _FILED_APART.items()}
            rows["runs"] = {run["run_id"]: run | apart}
        elif table in _TABLES and (tables is None or table in tables):
            rows[table] = {str(row[keys.get(table, "id")]): row for row in read_json(file)}
    return rows


_TABLES = frozenset(name for name, table in runs.metadata.tables.items() if "run_id" in table.c) - {"runs"}


# --- records ----------------------------------------------------------------------------------------------------------


def records_of(platform: Platform, run_id: str) -> list[Record]:
    """Return the records of a run: those that changed rows in their order, then the others."""
    found = []
    for file in sorted(platform.evidence.records(run_id).glob("*.json")):
        try:
            raw = read_kept(file)
        except FileNotFoundError:
            continue
        except EnvironmentRefused:
            what = not_a_file(file) or "a file that cannot be read"
            found.append(Record(visible(file.stem), what, {}, is_readable=False))
            continue
        try:
            content = json_of(raw)
        except ValueError:
            content = {}
        found.append(
            Record(visible(file.stem), hashlib.sha256(raw).hexdigest(), content if isinstance(content, dict) else {})
        )
    return sorted(found, key=lambda one: (one.number == 0, one.number, one.name))


def kept_rows(bundle: Path, records: Sequence[Record], tables: Sequence[str] | None = None) -> Rows | None:
    """Return what the ledger's rows of a run are to be today; None if nothing of the evidence says so."""
    numbered = [one for one in records if one.number]
    rows = sealed_rows(bundle, tables)
    if rows is None:
        if not numbered or numbered[0].content.get("event") != ADOPTED:
            return None
        rows = {}
    for record in numbered:
        changes = record.content.get("rows", {})
        fold(rows, {name: changed for name, changed in changes.items() if tables is None or name in tables})
    return rows


def tell(platform: Platform, record: RunRecord, action: str, facts: Mapping[str, Any], number: int) -> None:
    """Record a change that a run made of its tables, and what that did to the records of other runs.

    `number` counts the run's changes. Nothing is recorded twice.
    """
    name = name_of(action, number)
    said = {"action": action, **facts}
    if not (platform.evidence.records(record.run_id) / f"{name}.json").exists():  # before anybody waits for the ledger
        said[COMMITTED] = commits_of(platform, record, action, number, int(facts["snapshot_id"]))
    with platform.ledger.engine.begin() as connection:
        lock_target(connection, record.target)
        _record(platform, connection, record.run_id, action, said, name)
        for run_id in _moved_by(connection, record):
            try:
                _record(platform, connection, run_id, MOVED, {"by": record.run_id, "action": action})
            except (
                OSError,
                ValueError,
                KeyError,
                EnvironmentRefused,
            ) as damage:  # of another run: it must not stop this one
                _LOG.warning(
                    "the evidence of %s cannot be continued: %s; see `backfill verify %s`", run_id, damage, run_id
                )


def catch_up(platform: Platform, run_id: str, event: str, facts: Mapping[str, Any]) -> bool:
    """Record what the rows of a published run say by now and no record does; return whether there was anything."""
    record = platform.ledger.run(run_id)
    if record.state not in WAS_PUBLISHED:
        return False
    with platform.ledger.engine.begin() as connection:
        lock_target(connection, record.target)
        return _record(platform, connection, run_id, event, facts)


def is_behind(platform: Platform, record: RunRecord) -> str:
    """Say what the evidence of a published run does not know yet; empty if it knows everything."""
    if record.state not in WAS_PUBLISHED or not platform.evidence.bundles(record.run_id):
        return ""  # without a bundle there is more to be said than that
    records = records_of(platform, record.run_id)
    unlinked = [one.name for one in records if one.number and not _is_linked(platform, one)]
    if unlinked:
        return f"record {unlinked[0]} has no link in the chain"
    with platform.ledger.engine.begin() as connection:
        kept = kept_rows(platform.evidence.path(record.run_id), records, sorted(MOVING))
        if kept is None:
            if any(one.number for one in records):
                return ""  # it had rows once: whoever looks at the bundle finds more wrong with it than that
            return "it was published before the evidence kept rows and had a chain"
        new = _moved_on(connection, record.run_id, kept)
    return f"{new[0].where} has moved on since the last record" if new else ""


def require_explained(platform: Platform, run_id: str) -> None:
    """Refuse to publish a run whose rows are not what its transactions have written and the chain's links vouch for.

    Raises:
        PublicationRefused: naming each row.
    """
    with platform.ledger.engine.begin() as connection:
        first, follows = first_of(connection, run_id)
        journal = explain(connection, platform.evidence.chain.links(since=follows), first=first)
        wrong = [*journal.damages, *unexplained(connection, journal, run_id)]
    if wrong:
        shown = [f"{one.where}: {one.what}" for one in wrong[:_SHOWN]]
        more = f"\n      and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise PublicationRefused(
            Problem(
                f"the ledger was changed by hand since '{run_id}' was planned:\n      " + "\n      ".join(shown) + more,
                "what is published is what was decided and judged, as the chain's links vouch for it",
                f"`backfill verify {run_id}`; find out who has changed it, and cancel the run, or put back what was there",
            )
        )


def name_of(action: str, number: int) -> str:
    """Return the name of the record of a run's change; the first two go by the action's name alone."""
    return action if number <= _UNNUMBERED else f"{action}-{number}"


def _record(
    platform: Platform,
    connection: sa.Connection,
    run_id: str,
    event: str,
    facts: Mapping[str, Any],
    name: str | None = None,
) -> bool:
    """Write a record of what has changed of a run's rows, and its link; return whether anything was missing."""
    store = platform.evidence
    if not store.bundles(run_id):
        return False
    records = records_of(platform, run_id)
    for one in records:
        if not one.is_readable:
            raise EnvironmentRefused(
                Problem(
                    f"{store.records(run_id) / one.name}.json is {one.hash}",
                    "it may say what has happened before: nothing is recorded past a record that cannot be read",
                    f"`backfill verify {run_id}`; find out who has put it there, and put back the file that belongs there",
                )
            )
    numbered = [one for one in records if one.number]
    made_up = [_link(platform, run_id, one) for one in numbered if not _is_linked(platform, one)]
    bundle = store.path(run_id)
    if name is not None and (store.records(run_id) / f"{name}.json").exists():
        event, facts, name = MOVED, {}, None  # told before: what is left is what came after it
    # the first record has the hash of every table; only those that may move are read again
    kept = kept_rows(bundle, records, sorted(MOVING) if numbered else None)
    if kept is None and numbered:
        return False  # the bundle that they go on from is not there any more: nothing is to stand in for it
    if kept is None:
        found = rows_of(connection, run_id)
        kept, changes, event = {}, {table: dict(rows) for table, rows in found.items()}, ADOPTED
        facts = {**facts, COMMITTED: adopted_commits(platform, found)}
    else:
        moving = {table: rows for table, rows in kept.items() if table in MOVING}
        changes = changes_of(_moved_on(connection, run_id, moving))
    if event == MOVED:
        event = _what_moved(changes)
    if name is None and not changes:
        return bool(made_up)
    fold(kept, changes)
    number = len(numbered) + 1
    content = {
        **facts,
        "event": event,
        "run_id": run_id,
        "number": number,
        "bundle": bundle.name,
        "evidence_root": _root_of(bundle),
        "follows": store.chain.length(),
        "at": _newest(changes) or _newest(kept),
        "rows": changes,
        "tables": (dict(numbered[-1].content.get("tables", {})) if numbered else {}) | hashes_of(kept),
        "beside": {one.name: one.hash for one in records if not one.number},
    }
    file = store.append(run_id, name or f"{event}-{number}", content)
    faults.reach("recording.written")
    raw = read_kept(file)
    _link(platform, run_id, Record(file.stem, hashlib.sha256(raw).hexdigest(), json_of(raw)))
    return True


def _moved_on(connection: sa.Connection, run_id: str, kept: Rows) -> list[Difference]:
    """Return what has lawfully changed since rows were kept, and was changed by a transaction that the journal has.

    What was changed by hand is never taken over, however possible it looks: `verify` and `doctor` name it.
    """
    by_hand = {(one.table, one.key) for one in unexplained(connection, explain_run(connection, run_id), run_id, MOVING)}
    found = {
        table: {key: row for key, row in rows.items() if (table, key) not in by_hand or key in kept.get(table, {})}
        for table, rows in rows_of(connection, run_id, sorted(MOVING)).items()
    }
    return [one for one in differences(kept, found) if one.lawful and (one.table, one.key) not in by_hand]


def _what_moved(changes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return what another run's change did to a run: took chunks over, or gave them back."""
    held = changes.get("accepted_versions", {}).values()
    if any("accepted_at" in row and row.get("ended_at") is None for row in held):
        return RESTORED
    return SUPERSEDED if any(row.get("ended_how") == "SUPERSEDED" for row in held) else MOVED


def _root_of(bundle: Path) -> str:
    """Return the root hash that a bundle's index gives: whether it is right is for whoever verifies."""
    return str(read_json(bundle / "index.json")["root"])


def _newest(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the newest instant in rows: when what they say happened."""
    names = ("at", "updated_at", "started_at", "ended_at", "accepted_at")
    cells = (row.get(name) for found in rows.values() for row in found.values() for name in names)
    return max((cell for cell in cells if isinstance(cell, str)), default="")


def _link(platform: Platform, run_id: str, record: Record) -> Link:
    """Append the link of a record, if it has none."""
    said = record.content
    content = {
        "event": said.get("event"),
        "run": run_id,
        "record": record.name,
        "recordHash": record.hash,
        "root": said.get("evidence_root"),
        "rows": sha256_of(said.get("tables")),
        "at": said.get("at"),
    }

    def same(link: Mapping[str, Any]) -> bool:
        return (link.get("run"), link.get("record")) == (run_id, record.name)

    return platform.evidence.chain.append(content, since=int(said.get("follows", 0)), same=same)


def _is_linked(platform: Platform, record: Record) -> bool:
    """Look for the link of a record: it came after those that there were when the record was written."""
    chain, run_id = platform.evidence.chain, record.content.get("run_id")
    return any(
        (link.get("run"), link.get("record")) == (run_id, record.name)
        for link in chain.contents(since=int(record.content.get("follows", 0)))
    )


def _moved_by(connection: sa.Connection, record: RunRecord) -> Iterator[str]:
    """Return the other runs whose rows a run's publication or rollback may have moved on."""
    held = sa.select(accepted_versions.c.run_id).where(
        accepted_versions.c.target == record.target, accepted_versions.c.ended_by == record.run_id
    )
    since = (
        sa.select(sa.func.max(publications.c.started_at))
        .where(publications.c.run_id == record.run_id)
        .scalar_subquery()
    )
    withdrawn = sa.select(watermarks.c.run_id).where(
        watermarks.c.target == record.target, watermarks.c.ended_at >= since
    )
    found = {row.run_id for query in (held, withdrawn) for row in connection.execute(query)}
    yield from sorted(found - {record.run_id})
