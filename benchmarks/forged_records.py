"""Changes of ledger, journal, evidence and chain that are more than a byte: rows and links that agree with what is around them.

Put here one function a forgery; each changes an installation of `small_table`, published runs and others, and returns what it
did and where `backfill verify` must name it. What is made of them is `tampering`'s.

Not here, because nothing on one machine shows it: a decision made in this project's way (row, journal entry and link), and
everything rebuilt at once; the second is found by a head that is kept elsewhere.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from backfill_assets.evidence.records import records_of
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication.undoing import rollback
from benchmarks.forgeries import Forged
from manifests.canonical import canonical_json, sha256_of
from manifests.errors import Refused
from resources.evidence.store import INDEX, KEPT, SEALED, EvidenceStore
from resources.files.kept_files import create
from resources.files.places import local
from resources.ledger.rows import tables_of_runs


class Hand:
    """Somebody who may write the ledger's file and the evidence folder; `random` decides what and where."""

    def __init__(self, platform: Platform, seed: random.Random) -> None:
        self.platform, self.random = platform, seed
        self.store, self.chain = platform.evidence, platform.evidence.chain
        self.database = Path(platform.ledger.url.removeprefix("sqlite:///"))
        platform.ledger.engine.dispose()

    def sql(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Run a statement past everything that the project does."""
        with closing(sqlite3.connect(self.database)) as connection:
            rows = connection.execute(statement, values).fetchall()
            connection.commit()
            return rows

    def row(self) -> tuple[str, int, str]:
        """Draw a row of a run: table, number, run."""
        while True:
            table = self.random.choice(tables_of_runs())
            found = self.sql(f"SELECT rowid, run_id FROM {table}")
            if found:
                number, run_id = self.random.choice(found)
                return table, int(str(number)), str(run_id)

    def run(self) -> str:
        """Draw a run of the ledger."""
        return str(self.random.choice(self.sql("SELECT run_id FROM runs"))[0])

    def sealed(self) -> str:
        """Draw a run that has a bundle."""
        return self.random.choice(self.store.run_ids())


def a_row_deleted(hand: Hand) -> Forged:
    """Delete a row of any run."""
    table, number, run_id = hand.row()
    hand.sql(f"DELETE FROM {table} WHERE rowid = ?", number)
    return Forged(f"{table} row {number} of {run_id} deleted", (f"ledger {table} ",))


def a_row_added(hand: Hand) -> Forged:
    """Add a copy of a row of any run under the next number, dated as it was."""
    while (drawn := hand.row())[0] in {"runs", "chunks"}:
        pass
    table, number, run_id = drawn
    names = [str(row[1]) for row in hand.sql(f"PRAGMA table_info({table})")]
    others = ", ".join(name for name in names if name not in {"id", "number"})
    more = ", number" if "number" in names else ""
    last = f", (SELECT max(number) + 1 FROM {table})" if more else ""
    hand.sql(f"INSERT INTO {table} ({others}{more}) SELECT {others}{last} FROM {table} WHERE rowid = ?", number)
    return Forged(f"{table} row {number} of {run_id} added once more", (f"ledger {table} ",))


def a_row_of_nobody(hand: Hand) -> Forged:
    """Add a copy of a row under the name of a run that nobody has planned, or under what is no name at all."""
    while (drawn := hand.row())[0] == "runs":
        pass
    table, number, _ = drawn
    names = [str(row[1]) for row in hand.sql(f"PRAGMA table_info({table})") if row[1] != "id"]
    run_id = hand.random.choice(["'ghost'", "CAST(run_id AS BLOB)", "CAST(X'ff6869' AS TEXT)", "''", "'../' || run_id"])
    cells = ", ".join(run_id if name == "run_id" else name for name in names)
    hand.sql(f"INSERT INTO {table} ({', '.join(names)}) SELECT {cells} FROM {table} WHERE rowid = ?", number)
    return Forged(f"{table} row {number} added for {run_id}", (f"ledger {table} ",))


def another_decider(hand: Hand) -> Forged:
    """Give a decision another name."""
    hand.sql(
        "UPDATE approvals SET decided_by = 'eve' WHERE run_id = (SELECT run_id FROM approvals ORDER BY random() LIMIT 1)"
    )
    return Forged("approvals decided by eve", ("ledger approvals ",))


def a_verdict_turned(hand: Hand) -> Forged:
    """Turn what a gate said of a run or a chunk."""
    number = hand.random.choice(hand.sql("SELECT id FROM verdicts"))[0]
    hand.sql("UPDATE verdicts SET passed = 1 - passed, summary = 'fine' WHERE id = ?", number)
    return Forged(f"verdict {number} turned", ("ledger verdicts ",))


def a_run_deleted(hand: Hand) -> Forged:
    """Delete a run from every table but the journal."""
    run_id = hand.run()
    for table in [name for name in tables_of_runs() if name != "runs"] + ["runs"]:
        hand.sql(f"DELETE FROM {table} WHERE run_id = ?", run_id)
    return Forged(f"run {run_id} deleted", ("ledger runs ", f"ledger runs {run_id}"))


def a_run_deleted_with_its_entries(hand: Hand) -> Forged:
    """Delete a run from every table and the journal."""
    run_id = hand.run()
    a_run = [name for name in tables_of_runs() if name != "runs"] + ["runs", "journal"]
    for table in a_run:
        hand.sql(f"DELETE FROM {table} WHERE run_id = ?", run_id)
    return Forged(f"run {run_id} and its entries deleted", ("ledger journal ",))


def an_entry_rewritten(hand: Hand) -> Forged:
    """Give an entry of the journal other text and the hash of it."""
    number, said = hand.random.choice(hand.sql("SELECT number, said FROM journal"))
    text = str(said).replace('"at":"2', '"at":"1')
    hand.sql(
        "UPDATE journal SET said = ?, hash = ? WHERE number = ?",
        text,
        hashlib.sha256(text.encode()).hexdigest(),
        number,
    )
    return Forged(f"entry {number} rewritten", ("ledger journal ",))


def entries_cut_off(hand: Hand) -> Forged:
    """Cut entries off the journal's end."""
    ((length,),) = hand.sql("SELECT max(number) FROM journal")
    first = hand.random.randint(2, int(str(length)))
    hand.sql("DELETE FROM journal WHERE number >= ?", first)
    return Forged(f"entries from {first} on cut off", ("ledger journal ",))


def links_cut_off(hand: Hand) -> Forged:
    """Cut links off the chain's end."""
    first = hand.random.randint(2, hand.chain.length())
    for file in local(hand.chain.folder).glob("*.json"):
        if int(file.stem) >= first:
            file.unlink()
    return Forged(f"links from {first} on cut off", ("ledger journal ", "/records/", "/bundle", "chain "))


def a_link_removed(hand: Hand) -> Forged:
    """Remove a link from the middle."""
    number = hand.random.randint(1, hand.chain.length() - 1)
    local(hand.chain.folder / f"{number:08}.json").unlink()
    return Forged(f"link {number} removed", (f"chain {number:08}.json",))


def a_link_added(hand: Hand) -> Forged:
    """Append a link that is consistent with the chain, about a run or about none."""
    told = hand.random.choice(hand.chain.read().links).content
    said = {name: value for name, value in told.items() if name not in {"number", "previous", "hash"}}
    sealed = {"event": SEALED, "bundle": "bundle", "root": str(told.get("root", ""))}
    said = hand.random.choice(
        [
            said,
            {"event": "told", "run": hand.random.choice(["", hand.run()])},
            sealed | {"run": hand.random.choice(["nobody-planned-it", "", ".", f"./{hand.run()}", "x" * 300])},
            {"event": KEPT, "run": hand.run(), "record": "../plan", "recordHash": sha256_of("")},
        ]
    )
    length = hand.chain.length()
    hand.chain.append(said, since=length, same=lambda _: False)
    return Forged(f"link {length + 1} added: {said}", (f"chain link {length + 1}",))


def a_bundle_planted(hand: Hand) -> Forged:
    """Put a second bundle beside the real one, right in itself, with another approver."""
    run_id = hand.sealed()
    elsewhere = EvidenceStore(hand.platform.settings.home / "elsewhere")
    edition = len(hand.store.bundles(run_id))
    elsewhere.seal(run_id, {"approvals.json": [{"decided_by": "eve"}]}, edition=edition)
    planted = local(elsewhere.path(run_id, edition))
    shutil.copytree(planted, local(hand.store.folder) / run_id / planted.name)
    shutil.rmtree(local(elsewhere.folder))
    return Forged(f"{run_id}/{planted.name} planted", (f"{run_id}/{planted.name}",))


def a_bundle_removed(hand: Hand) -> Forged:
    """Remove a bundle."""
    run_id = hand.sealed()
    shutil.rmtree(local(hand.random.choice(hand.store.bundles(run_id))))
    return Forged(f"a bundle of {run_id} removed", (f"{run_id}/bundle",))


def a_bundle_hidden(hand: Hand) -> Forged:
    """Have a bundle of a published run look like one that a process could not put in its place."""
    run_id = hand.random.choice([run for run in hand.store.run_ids() if hand.platform.ledger.publications(run)])
    bundle = local(hand.random.choice(hand.store.bundles(run_id)))
    hidden = bundle.with_name(f"{bundle.name}.partial-{hand.random.choice(['1', '0' * 32])}")
    if hand.random.random() < 0.5:
        bundle.rename(hidden)
    else:
        hidden.mkdir()
        shutil.copy(bundle / INDEX, hidden)
        shutil.rmtree(bundle)
    return Forged(f"{run_id}/{bundle.name} is {hidden.name}", (f"{run_id}/bundle",))


def a_file_planted(hand: Hand) -> Forged:
    """Put a file into the evidence folder that is neither of a bundle nor a record."""
    run_id = hand.random.choice([hand.sealed(), hand.run(), "nobody"])
    name = hand.random.choice(
        ["approved.html", "bundle-x/approvals.json", "records/approval.txt", "records/deep/publish.json", ".approved"]
    )
    file = local(hand.store.folder) / run_id / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("approved")
    return Forged(f"{run_id}/{name} planted", (f"{run_id}/{name}",))


def a_record_planted_before_an_event(hand: Hand) -> Forged:
    """Put a record beside a bundle, and have this project go on: roll the run back, or repair what the doctor finds."""
    run_id = "run-4"
    said: dict[str, object] = {"approved": "by the board"}
    if hand.random.random() < 0.7:
        told = [one.content for one in records_of(hand.platform, run_id) if one.number]
        more = {"number": len(told) + hand.random.choice([1, 5]), "rows": hand.random.choice([{}, told[-1]["rows"]])}
        said = {**hand.random.choice(told), **more, "follows": hand.chain.length()}
    name = hand.random.choice(["note", "told-9", "diff", "rollback", f"told-{said.get('number', 3)}"])
    create(hand.store.records(run_id) / f"{name}.json", canonical_json(said).encode())
    go_on: Callable[[], object] = hand.random.choice(
        [lambda: rollback(hand.platform, run_id), lambda: mend(hand.platform)]
    )
    with suppress(Refused):  # a name that is taken is one of the ways out
        go_on()
    return Forged(f"{name}.json planted beside {run_id}", (f"{run_id}/records/{name}.json",))


def a_record_planted(hand: Hand) -> Forged:
    """Put a record beside a bundle: a diff, or one that changes rows."""
    run_id, name = hand.sealed(), hand.random.choice(["diff.json", "diff-9.json", "note.json", "told-9.json"])
    file = local(hand.store.records(run_id)) / name
    if file.exists():
        file.unlink()
    text = '{"number":9,"event":"told","follows":0,"rows":{}}' if name.startswith("told") else '{"rows":0}'
    create(file, text.encode())
    return Forged(f"{file.name} planted beside {run_id}", (f"{run_id}/records/{name}",))


def a_record_removed(hand: Hand) -> Forged:
    """Remove a record."""
    folders = [local(hand.store.records(run)) for run in hand.store.run_ids()]
    file = hand.random.choice([file for folder in folders for file in folder.glob("*.json")])
    file.unlink()
    return Forged(f"{file} removed", (f"{file.parent.parent.name}/records/{file.name}",))


FORGED_RECORDS: tuple[Callable[[Hand], Forged], ...] = (
    a_row_deleted,
    a_row_added,
    a_row_of_nobody,
    another_decider,
    a_verdict_turned,
    a_run_deleted,
    a_run_deleted_with_its_entries,
    an_entry_rewritten,
    entries_cut_off,
    links_cut_off,
    a_link_removed,
    a_link_added,
    a_bundle_planted,
    a_bundle_removed,
    a_bundle_hidden,
    a_file_planted,
    a_record_planted,
    a_record_planted_before_an_event,
    a_record_removed,
)
"""Every kind, in turn."""
