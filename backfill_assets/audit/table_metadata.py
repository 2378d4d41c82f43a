"""What a table's metadata says beside its snapshots: its log, where new files go, and how long names are kept.

Put here what of it the records can prove. The log decides what a reader gets who asks for an instant; a moved location or
another default spec decides where the next writer's files lie; an age on a name lets the next expiry take away what it
holds. What other programs may lawfully have set is in `verification.NOT_COVERED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType

from backfill_assets.publication.modes import strategy_in
from manifests.lifecycle import ACCEPT, PUBLISH
from resources.lakehouse.fences import is_fence
from resources.lakehouse.lineage import amended_base_tag, base_tag, is_past, withdrawn
from resources.lakehouse.snapshots import Seen, redirected_access, writing_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from backfill_assets.audit.findings import Report
    from backfill_assets.evidence.seals import Sealed

_SKEW_MS = 60_000
"""How far apart the clocks of writers may stand: Iceberg allows its log as much."""


def check_writing(seen: Seen, facts: Mapping[str, Any], add: Callable[[str, str, Any, Any], None]) -> None:
    """Hold what says where and how the next files are written against what was sealed, where it was."""
    now, sealed = writing_facts(seen.table), facts.get("writing", {})
    of_access = {f"property {name}" for name in redirected_access(seen.table)}
    for name in [*sealed, *sorted(of_access - sealed.keys())]:
        then = sealed.get(name)
        if now.get(name) != then:
            follows = "other programs open its files by it" if name in of_access else "who writes next follows it"
            what = f"is not the one that was sealed: {follows}"
            add(f"{seen.name} {name}", what, "nothing" if then is None else then, now.get(name) or "nothing")
    if (version := seen.table.format_version) < facts.get("formatVersion", 0):
        what = "is older than the one that was sealed: who reads by it knows nothing of deleted rows"
        add(f"{seen.name} format-version", what, f"{facts['formatVersion']} or later", version)


def check_numbers(seen: Seen, report: Report) -> None:
    """Require that what is added to a table next gets a number that nothing of it has: Iceberg's own rule."""
    metadata = seen.table.metadata
    for name, last, taken in (
        ("last-column-id", metadata.last_column_id, [max(one.field_ids, default=0) for one in metadata.schemas]),
        (
            "last-partition-id",
            metadata.last_partition_id,
            [field.field_id for spec in metadata.partition_specs for field in spec.fields],
        ),
        (
            "last-sequence-number",
            getattr(metadata, "last_sequence_number", None),  # the first version of the format has none
            [one.sequence_number or 0 for one in metadata.snapshots],
        ),
    ):
        if last is not None and last < max(taken, default=0):
            what = "is less than a number that is taken: the next one is given twice"
            report.add(f"{seen.name} {name}", what, f"{max(taken)} or more", last)


def check_log(seen: Seen, sealed: Sealed, report: Report) -> None:
    """Require that the log of main is in order, ends at main, and has the run's changes at the times on record."""
    log = [(one.snapshot_id, one.timestamp_ms) for one in seen.table.metadata.snapshot_log]
    where, direct = f"{seen.name} snapshot log", _committed_to_main(sealed)
    for (_, before), (snapshot_id, at) in pairwise(log):
        if at < before - _SKEW_MS:
            report.add(f"{where} {snapshot_id}", "is not in the order of time", f"after {before}", at)
    for snapshot_id, at in log:
        snapshot = seen.by_id.get(snapshot_id)
        if snapshot is None:
            report.add(f"{where} {snapshot_id}", "names a snapshot that the metadata does not have", "nothing", at)
        elif at < snapshot.timestamp_ms - (0 if snapshot_id in direct else _SKEW_MS):
            what = "says that readers had it before it was made"
            report.add(f"{where} {snapshot_id}", what, f"{snapshot.timestamp_ms} or later", at)
    main = None if seen.main is None else seen.main.snapshot_id
    if log and log[-1][0] != main:
        report.add(where, "does not end at the snapshot that main shows", main, log[-1][0])
    _run_in_log(seen, sealed, log, report)


def _run_in_log(seen: Seen, sealed: Sealed, log: list[tuple[int, int]], report: Report) -> None:
    """Require that the log has the run's changes, at the times on record."""
    where, first = f"{seen.name} snapshot log", dict(reversed(log))
    _follow_their_parents(seen, sealed, log, report)
    for entry in _on_main(sealed):
        snapshot = seen.by_id.get(entry["snapshot_id"])
        if snapshot is None or snapshot.snapshot_id not in seen.lineage:
            continue  # it has expired, or main does not have it: said as such
        shown, latest = first.get(snapshot.snapshot_id), _ms(entry["ended_at"]) + _SKEW_MS
        if snapshot.timestamp_ms > latest:
            report.notes.append(
                f"{where} {snapshot.snapshot_id}: by the clock of whoever recorded the {entry['action']} of "
                f"'{sealed.run_id}', {entry['ended_at']}, it ended before it was made: that time says nothing of the log"
            )
        if shown is None:
            if not _is_cut(seen, log, snapshot.timestamp_ms):
                what = (
                    f"does not have the {entry['action']} of '{sealed.run_id}': who asks for a time gets another state"
                )
                report.add(where, what, snapshot.snapshot_id, "nothing")
        elif shown > latest >= snapshot.timestamp_ms:
            what = f"says that readers got the {entry['action']} of '{sealed.run_id}' later than they did"
            report.add(f"{where} {snapshot.snapshot_id}", what, f"{latest} at the latest", shown)


def _follow_their_parents(seen: Seen, sealed: Sealed, log: list[tuple[int, int]], report: Report) -> None:
    """Require of each commit of the run to main that main had shown the snapshot that it follows just before."""
    own = _committed_to_main(sealed)
    said: set[int] = set()
    for (before, _), (number, at) in pairwise(log):
        snapshot = seen.by_id.get(number)
        if snapshot is None or number not in own or number == before or at > snapshot.timestamp_ms + _SKEW_MS:
            continue  # not of the run, or shown again later
        parent = snapshot.parent_snapshot_id
        if number not in said and parent in seen.by_id and parent != before:
            said.add(number)
            what = f"says that readers got another state just before that of '{sealed.run_id}', which followed upon its parent"
            report.add(f"{seen.name} snapshot log {number}", what, parent, before)


def _on_main(sealed: Sealed) -> list[Mapping[str, Any]]:
    """Return the changes of a run by which main came to show something else, and each in a snapshot of its own."""
    if strategy_in(sealed.plan).accepted_later:
        return []
    return [one for one in sealed.changes if one["snapshot_id"] and one["action"] != ACCEPT and one["ended_at"]]


def _committed_to_main(sealed: Sealed) -> set[int]:
    """Return the snapshots of a run that main has shown since they were made: their log has the very same instant.

    What was made on a branch was made by another clock than main was moved by.
    """
    if strategy_in(sealed.plan).waits_on_branch:
        return set()
    return {one["snapshotId"] for one in sealed.commits} | {one["snapshot_id"] for one in sealed.changes}


def _is_cut(seen: Seen, log: list[tuple[int, int]], made: int) -> bool:
    """Whether an expiry may have taken an entry: an engine may cut the log before the newest snapshot that it removes."""
    oldest = next(reversed(seen.lineage.values()), None)
    is_shortened = oldest is not None and (oldest.parent_snapshot_id is not None or (oldest.sequence_number or 0) > 1)
    return is_shortened and bool(log) and made < log[0][1]


def check_refs(seen: Seen, sealed: Sealed, report: Report) -> None:
    """Require that the names of what was there before a run, and of its candidate, name it, and that no expiry would take a name.

    A name is a branch or a tag, as it was made: what is written to a branch moves it, and a tag stays where it is.
    """
    _kept_by_name(seen, sealed, report)
    version = sealed.plan.get("version")
    branches = {MAIN_BRANCH, f"candidate-{sealed.run_id}"}
    own = {base_tag(sealed.run_id), *branches}
    own |= {version, withdrawn(version)} if version else set()
    for name, ref in seen.table.refs().items():
        is_base = name == amended_base_tag(sealed.run_id, ref.snapshot_id)
        if name not in own and not is_base and not is_fence(name) and not is_past(name, ref.snapshot_id):
            continue
        kind = SnapshotRefType.BRANCH if name in branches else SnapshotRefType.TAG
        if ref.snapshot_ref_type is not kind:
            said = f"was made a {ref.snapshot_ref_type} by somebody: writers move a branch, and a tag lets nobody write to it"
            report.add(f"{seen.name} ref {name} type", said, str(kind), str(ref.snapshot_ref_type))
        if name == MAIN_BRANCH:
            continue  # how long its history is kept is for whoever owns the table to say
        for what, age in (("max-ref-age-ms", ref.max_ref_age_ms), ("max-snapshot-age-ms", ref.max_snapshot_age_ms)):
            if age is not None:
                said = "was set by somebody: an expiry takes the name away, and then what it holds"
                report.add(f"{seen.name} ref {name} {what}", said, "nothing", age)


def _kept_by_name(seen: Seen, sealed: Sealed, report: Report) -> None:
    """Require that the base of the run, and its candidate, are what their names say; the base has its name while a chunk is held."""
    if seen.name != sealed.target.name or not sealed.changes:
        return
    refs = {name: ref.snapshot_id for name, ref in seen.table.refs().items()}
    base, name = sealed.plan.get("base_snapshot_id"), f"before-{sealed.run_id}"
    if base is not None and (name in refs or (sealed.accepted and base in seen.by_id)) and refs.get(name) != base:
        what = f"does not name what was there before '{sealed.run_id}': nothing keeps what a rollback needs"
        report.add(f"{seen.name} ref {name}", what, base, refs.get(name, "nothing"))
    shown = next((one["snapshot_id"] for one in sealed.changes if one["action"] == PUBLISH), None)
    candidate = f"candidate-{sealed.run_id}"
    if strategy_in(sealed.plan).waits_on_branch and refs.get(candidate, shown) != shown:
        what = f"does not name what '{sealed.run_id}' has published from it"
        report.add(f"{seen.name} ref {candidate}", what, shown, refs[candidate])


def _ms(instant: Any) -> int:
    return round(datetime.fromisoformat(str(instant)).timestamp() * 1000)
