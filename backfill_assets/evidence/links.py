"""What each link of the chain may be about, and the links that are about nothing this project appends.

Put here what is known of a link's form. What it vouches for is held against it by `audit.sealed_bundles` and
`audit.linked_records`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backfill_assets.evidence.events import ACTIONS, EVENTS, events_named
from manifests.canonical import sha256_of
from manifests.errors import EnvironmentRefused
from resources.evidence.chain import Link
from resources.evidence.store import KEPT, SEALED, EvidenceStore
from resources.files.kept_files import read_kept
from resources.ledger import journal
from resources.ledger.journal import Unexplained
from resources.ledger.rows import is_id

_PLACE = {"number", "previous", "hash"}
"""What a link says of where it stands in the chain."""
_ALWAYS = _PLACE | {"event", "run"}
_FORMS: Mapping[str, set[str]] = {
    journal.EVENT: {"entry", "entryHash", "at"},
    SEALED: {"bundle", "root"},
    KEPT: {"record", "recordHash"},
}
_RECORD = {"record", "recordHash", "root", "rows", "at"}
"""What a link of a record that changes rows says besides; its event is the record's."""


def strange_links(
    store: EvidenceStore, links: Iterable[Link], *, runs: Container[str], known: Container[str], adopted: Container[str]
) -> list[Unexplained]:
    """Return the links that this project has not appended so: of no known form, about nothing, or once too often.

    A link of a record that changes no rows may be there twice, identical but for its place: of two processes that completed
    the record at the same time, each appended it once. It says nothing new, and no link is ever taken out of the chain.
    So may one of a bundle, in homes that an earlier version of this project has written: before its run is published, of a
    process that died while it sealed the bundle and the next one each appended it; of a run that was `adopted`, each `init`.
    A bundle is one of the `runs` of ledger and journal. Of `known` runs, whoever looks at their records says which are
    missing or changed.
    """
    looked = _Looked(store, runs, known, adopted)
    found = ((link, looked.strange(link.content)) for link in links)
    return [
        Unexplained(f"chain link {link.number}", what, found=json.dumps(dict(link.content)))
        for link, what in found
        if what
    ]


@dataclass
class _Looked:
    """What the links that were looked at have vouched for."""

    store: EvidenceStore
    runs: Container[str]
    known: Container[str]
    adopted: Container[str]
    told: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """By run and record: what the first link about it says."""
    sealed: set[tuple[str, str]] = field(default_factory=set)
    """Runs, each with the roots of its bundles."""
    changed: set[str] = field(default_factory=set)
    """Runs that were published: a record of a change of theirs has a link."""

    def strange(self, said: Mapping[str, Any]) -> str:
        if wrong := of_no_form(said):
            return wrong
        event, run_id = said["event"], said["run"]
        if event == journal.EVENT:
            return "" if run_id == journal.INSTALLATION else "vouches for the journal in the name of a run"
        if event == SEALED:
            wrong = self._of_its_bundle(said)
            self.sealed |= set() if wrong else {(run_id, said["root"])}
            return wrong
        if wrong := self._of_no_record(said):
            return wrong  # it takes nothing from the one that is right
        self.changed |= set() if event == KEPT else {run_id}
        return "" if self._is_new(said) else f"vouches for {run_id}/{said['record']} once more"

    def _is_new(self, said: Mapping[str, Any]) -> bool:
        """Whether a link vouches for a record that none before it has, or may lawfully repeat one."""
        content = {name: value for name, value in said.items() if name not in _PLACE}
        first = self.told.setdefault((said["run"], said["record"]), content)
        return first is content or (said["event"] == KEPT and first == content)

    def _of_its_bundle(self, said: Mapping[str, Any]) -> str:
        run_id = said["run"]
        if run_id not in self.runs:
            return f"vouches for a bundle of {run_id}, which is no run"
        if run_id in self.changed and run_id not in self.adopted:
            return (
                f"vouches for {run_id}/{said['bundle']}, and a link before it says that the run was published by then"
            )
        return ""

    def _of_no_record(self, said: Mapping[str, Any]) -> str:
        """Say why a link is about no record, or about one that has nothing to go on from; empty if it can be right."""
        run_id, is_adopted = said["run"], said["run"] in self.adopted
        wrong = misnamed(said, is_adopted=is_adopted) or self._of_its_record(said)
        if wrong or said["event"] == KEPT or is_adopted or (run_id, said["root"]) in self.sealed:
            return wrong
        return f"vouches for {run_id}/{said['record']} with the root of a bundle that no link before it vouches for"

    def _of_its_record(self, said: Mapping[str, Any]) -> str:
        run_id, name = said["run"], said["record"]
        try:
            raw = read_kept(self.store.records(run_id) / f"{name}.json")
        except (FileNotFoundError, EnvironmentRefused, ValueError):
            return "" if run_id in self.known else f"vouches for {run_id}/records/{name}.json, which is not there"
        if said["event"] == KEPT:
            if says_it_changes_rows(raw):
                return f"vouches for {run_id}/{name} as for a record that changes no rows"
            same = run_id in self.known or hashlib.sha256(raw).hexdigest() == said["recordHash"]
            return "" if same else f"has the hash of another {run_id}/{name}"
        return _other_than_its_record(said, raw)


def of_no_form(said: Mapping[str, Any]) -> str:
    """Return what keeps a link from being one of this project's, whatever it is about."""
    event, run_id = said.get("event"), said.get("run")
    if not isinstance(event, str) or not (is_id(run_id) or (event == journal.EVENT and isinstance(run_id, str))):
        return "is about nothing"
    if said.keys() - _ALWAYS != _FORMS.get(event, _RECORD):
        return f"says other things than a link about '{event}' does"
    if event == SEALED and not (is_id(said["bundle"]) and isinstance(said["root"], str)):
        return "vouches for a bundle that has no name or no root"
    if "record" in said and not is_id(said["record"]):
        return "vouches for a record that has no name"
    return ""


def misnamed(said: Mapping[str, Any], *, is_adopted: bool) -> str:
    """Return why a link vouches for nothing by the name of its record; empty if it may.

    What changes rows has a name of its own event. Of a run that was adopted, an earlier version has given such a name to
    records that say nothing of rows.
    """
    name, event = said.get("record"), said.get("event")
    named = events_named(name) if isinstance(name, str) else frozenset()
    if not named or event in named or (event == KEPT and is_adopted):
        return ""
    is_known = event == KEPT or (isinstance(event, str) and event in ACTIONS | EVENTS)
    return f"vouches for {said.get('run')}/{name}, which is the name of a record of another event" if is_known else ""


def says_it_changes_rows(raw: bytes) -> bool:
    """Whether a record says what it follows, as those do that change rows."""
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and "follows" in record


def _other_than_its_record(said: Mapping[str, Any], raw: bytes) -> str:
    try:
        record = json.loads(raw)
        told = (record.get("event"), record.get("evidence_root"), sha256_of(record.get("tables")), record.get("at"))
    except (ValueError, AttributeError, RecursionError):
        return ""  # damaged: named as a file that was changed
    if hashlib.sha256(raw).hexdigest() != said["recordHash"]:
        return ""
    if told != (said["event"], said["root"], said["rows"], said["at"]):
        return "says other things than its record"
    nothing = not record.get("rows") and "action" not in record
    return "is about a record that changes nothing" if nothing else ""
