"""What each link of the chain may be about, and the links that are about nothing this project appends.

Put here what is known of a link's form. What it vouches for is held against it by `verification`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping
from typing import Any

from manifests.canonical import sha256_of
from manifests.errors import EnvironmentRefused
from resources import journal
from resources.chain import Link
from resources.evidence import KEPT, SEALED, EvidenceStore
from resources.journal import Unexplained
from resources.kept_files import read_kept

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


def strange_links(store: EvidenceStore, links: Iterable[Link], known: Container[str]) -> list[Unexplained]:
    """Return the links that this project has not appended so: of no known form, about nothing, or once too often.

    A link of a record that changes no rows may be there twice, identical but for its place: of two processes that completed
    the record at the same time, each appended it once. It says nothing new, and no link is ever taken out of the chain.
    So may one of a bundle, before its run changes rows: of a process that died while it sealed the bundle and the next one,
    each appended it, in homes that an earlier version of this project has written.
    Of known runs, whoever looks at their records says which are missing or changed.
    """
    wrong = []
    seen: dict[tuple[str, ...], Mapping[str, Any]] = {}
    cited: set[tuple[str, str]] = set()
    for link in links:
        what = _strange(store, link.content, seen, cited, known)
        if what:
            wrong.append(Unexplained(f"chain link {link.number}", what, found=json.dumps(dict(link.content))))
    return wrong


def _strange(
    store: EvidenceStore,
    said: Mapping[str, Any],
    seen: dict[tuple[str, ...], Mapping[str, Any]],
    cited: set[tuple[str, str]],
    known: Container[str],
) -> str:
    event, run_id = said.get("event"), said.get("run")
    if not isinstance(event, str) or not isinstance(run_id, str):
        return "is about nothing"
    if said.keys() - _ALWAYS != _FORMS.get(event, _RECORD):
        return f"says other things than a link about '{event}' does"
    if event == SEALED and not (isinstance(said["bundle"], str) and isinstance(said["root"], str)):
        return "vouches for a bundle that has no name or no root"
    if event == journal.EVENT:
        return "" if run_id == journal.INSTALLATION else "vouches for the journal in the name of a run"
    about = (run_id, str(said.get("record", said.get("bundle"))), str(said.get("root")) if event == SEALED else "")
    told = {name: value for name, value in said.items() if name not in _PLACE}
    lawful = (run_id, about[2]) not in cited if event == SEALED else event == KEPT and seen.get(about) == told
    if about in seen and not lawful:
        return f"vouches for {run_id}/{about[1]} once more"
    seen.setdefault(about, told)
    if event == SEALED:
        return ""
    if event != KEPT:
        cited.add((run_id, str(said["root"])))
    file = store.records(run_id) / f"{said['record']}.json"
    try:
        raw = read_kept(file)
    except (FileNotFoundError, EnvironmentRefused, ValueError):
        return "" if run_id in known else f"vouches for {run_id}/records/{said['record']}.json, which is not there"
    if event == KEPT:
        same = run_id in known or hashlib.sha256(raw).hexdigest() == said["recordHash"]
        return "" if same else f"has the hash of another {run_id}/{said['record']}"
    return _other_than_its_record(said, raw)


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
