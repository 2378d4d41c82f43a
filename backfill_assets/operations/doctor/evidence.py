"""Looks at the evidence of runs: bundles, records and their links, and the diffs kept of publications.

Put here what is missing of it, changed, or behind the ledger. Damages of the chain itself, and what the ledger's journal
cannot explain, are `journal`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial

from backfill_assets.evidence.events import MOVED
from backfill_assets.evidence.record_damage import harmed, harmed_of
from backfill_assets.evidence.record_order import name_of, planted
from backfill_assets.evidence.record_writing import catch_up, is_behind, untold
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement, outcome
from backfill_assets.operations.doctor.views import legible_runs
from backfill_assets.publication.recording import tell_again
from backfill_assets.review.kept_diffs import due, keep_diff
from manifests.errors import EnvironmentRefused, LedgerLocked, Refused, StoreRefused
from manifests.lifecycle import WAS_PUBLISHED
from manifests.text import visible
from resources.files.kept_files import open_kept
from resources.files.places import ObjectPlace, found_in
from resources.lakehouse.facade import EVIDENCE_PROPERTY
from resources.lakehouse.metadata import UnreadableMetadata
from resources.ledger.facade import BEFORE, RunRecord

COMPARING = timedelta(minutes=15)
"""How long after a publication its diff is not missed: a process may be at it."""


def untold_changes(platform: Platform, record: RunRecord) -> Iterator[Disagreement]:
    """Find a run with a change that is recorded, and of which the evidence does not know."""
    recorded = platform.ledger.landed(record.run_id)
    if record.state not in WAS_PUBLISHED or not recorded:
        return
    last, number = recorded[-1].action, len(recorded)
    folder = platform.evidence.records(record.run_id)
    missing = [(place, said["action"]) for place, said in untold(platform, record)]
    place, action = missing[0] if missing else (number, last)
    names = sorted({name_of(action, place), f"{action}-{place}"}, key=len)
    if last in BEFORE and (missing or not any((folder / f"{name}.json").is_file() for name in names)):
        if _is_harmed(platform, record.run_id, names):
            return  # it was told: the record that is missing is found by `damaged_records`
        yield Disagreement(
            "evidence-not-told",
            record.run_id,
            f"its {action} is recorded in the ledger, and {folder / names[0]}.json is missing",
            Confidence.CERTAIN,
            f"`backfill {last} {record.run_id}` writes it, and tells the sinks that were not told",
            partial(_tell_again, platform, record.run_id, last, number),
        )


def records_behind(platform: Platform, record: RunRecord) -> Iterator[Disagreement]:
    """Find what came after the last record of a run: a link, or what another run's change did to its rows."""
    try:
        what = is_behind(platform, record)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, EnvironmentRefused):
        return  # damaged: found as such by `damaged_bundles`
    if what and not _is_harmed(platform, record.run_id):
        yield Disagreement(
            "evidence-behind",
            record.run_id,
            what,
            Confidence.CERTAIN,
            "complete its records and their links in the chain",
            partial(_complete, platform, record.run_id),
        )


def _is_harmed(platform: Platform, run_id: str, names: Sequence[str] = ()) -> bool:
    """Whether records of a run (of these names, if any are given) are missing or changed: what they say is not known then."""
    try:
        found = harmed_of(platform, run_id)
    except EnvironmentRefused:
        return True  # the chain cannot be read: found as such by `journal`
    return any(not names or one.name in names for one in found)


def _complete(platform: Platform, run_id: str) -> str:
    done = platform.ledger.landed(run_id)
    tell_again(platform, run_id, done[-1].action, len(done))
    catch_up(platform, run_id, MOVED, {"completedBy": "doctor"})
    return "completed the records and their links"


def _tell_again(platform: Platform, run_id: str, action: str, number: int) -> str:
    told = tell_again(platform, run_id, action, number)
    return outcome(told is not None, f"told the evidence and the sinks of the {action}")


def damaged_bundles(platform: Platform) -> Iterator[Disagreement]:
    """Find published runs whose sealed evidence is missing, changed, or another than the one they were published with."""
    for record in legible_runs(platform):
        if record.state not in WAS_PUBLISHED:
            continue
        recorded = {
            entry.evidence_root
            for entry in platform.ledger.publications(record.run_id)
            if entry.has_landed and entry.evidence_root
        }
        try:
            root, strange = platform.evidence.verify(record.run_id), planted(platform, record)
        except (UnreadableMetadata, LedgerLocked):
            continue  # of a table, found as such; or somebody writes the ledger, and may be about to link a record
        except StoreRefused:
            raise  # nothing is known of it just now
        except Refused as refusal:
            yield Disagreement(
                "evidence-damaged", record.run_id, refusal.problems[0].what, Confidence.CERTAIN, refusal.problems[0].fix
            )
            continue
        except OSError as error:
            yield Disagreement(
                "evidence-damaged",
                record.run_id,
                f"its evidence cannot be read: {error}",
                Confidence.CERTAIN,
                "make the evidence folder readable, or restore it",
            )
            continue
        for name in sorted(one for one in strange if not _is_harmed(platform, record.run_id, [one])):
            yield Disagreement(
                "record-planted",
                record.run_id,
                f"record {name} has no link in the chain, and says other things than the ledger's rows do",
                Confidence.CERTAIN,
                f"move {platform.evidence.records(record.run_id) / name}.json out of the folder, keep it, and find out who has "
                "put it there",
            )
        if recorded and root not in recorded:
            yield Disagreement(
                "evidence-replaced",
                record.run_id,
                f"its bundle has the root {root}; the ledger has {', '.join(sorted(recorded))}",
                Confidence.CERTAIN,
                f"the bundle was made anew by somebody: compare with {EVIDENCE_PROPERTY} in the target's history",
            )


def damaged_records(platform: Platform) -> Iterator[Disagreement]:
    """Find records of any run that are missing, or are not as the chain vouches for them. Nothing can make them again."""
    chain = platform.evidence.chain.read()
    damaged = {one.name for one in chain.damages}
    links = (link.content for link in chain.links if f"{link.number:08}.json" not in damaged)
    found = harmed(platform, links)
    for one in found:
        where = f"{one.run_id} record {one.name}"
        yield Disagreement("record-damaged", where, one.what, Confidence.CERTAIN, one.fix)
    named = {one.file for one in found}
    for record in legible_runs(platform):
        for file in found_in(platform.evidence.records(record.run_id), "*.json"):
            if file in named or isinstance(file, ObjectPlace):
                continue  # nothing else can lie in an object's place
            try:
                open_kept(file).close()
            except FileNotFoundError:
                continue
            except EnvironmentRefused as refusal:
                where = f"{record.run_id} record {visible(file.stem)}"
                yield Disagreement("record-damaged", where, refusal.problems[0].what, Confidence.CERTAIN, _UNREADABLE)


_UNREADABLE = (
    "nothing is recorded of the run past it: find out who has put it there, move it out of the folder if no link of the chain "
    "vouches for it, and put back the file that belongs there"
)


def missing_diffs(platform: Platform) -> Iterator[Disagreement]:
    """Find publications whose diff is to be kept and is not: their process ended before it was made, or could not make it."""
    for record in legible_runs(platform):
        try:
            missing = due(platform, record) and not _just_published(platform, record.run_id)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, EnvironmentRefused):
            continue  # damaged evidence: found as such
        if missing and not _is_harmed(platform, record.run_id):
            yield Disagreement(
                "diff-missing",
                record.run_id,
                "it is published, and the diff that is kept of each publication is not on record",
                Confidence.CERTAIN,
                "have its rows compared; nothing is published again, and readers see what they see",
                partial(_keep_diff, platform, record.run_id),
            )


def _just_published(platform: Platform, run_id: str) -> bool:
    """Whether the process that has published a run may be comparing its rows."""
    done = [one.landed_at for one in platform.ledger.landed(run_id)]
    return bool(done) and platform.ledger.now() - max(done) < COMPARING


def _keep_diff(platform: Platform, run_id: str) -> str:
    return outcome(keep_diff(platform, run_id) is not None, "made its diff and put it on record")
