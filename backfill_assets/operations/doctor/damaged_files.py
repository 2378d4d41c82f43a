"""Looks at data files: whether what is staged, and what snapshots reference, is there and whole.

Put here files that are missing, changed or unreadable. Whether a table has the files that it should have is
`accepted_files`'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pyarrow import ArrowException

from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement, data_loss, outcome, some
from backfill_assets.operations.doctor.views import TableView
from manifests.lifecycle import RunState
from manifests.staged_file import StagedFile
from resources.lakehouse.history import referenced
from resources.lakehouse.metadata import UnreadableMetadata
from resources.lakehouse.storage import Storage, place_of
from resources.ledger.facade import STAGED, ChunkRecord, RunRecord, operator

_READERS = 8


def damaged_staged_files(view: TableView, record: RunRecord) -> Iterator[Disagreement]:
    """Find staged chunks of a run that is not published whose files are not what was staged."""
    chunks = [chunk for chunk in view.platform.ledger.chunks(record.run_id) if chunk.state in STAGED]
    expected = {place_of(f.path): (f.bytes, f.rows) for chunk in chunks for f in _files(chunk)}
    wrong, unread = _wrong(view.storage, expected)
    yield from _unread(record.run_id, unread)
    for chunk in chunks:
        why = [wrong[place] for file in _files(chunk) if (place := place_of(file.path)) in wrong]
        if not why:
            continue
        again = record.state is not RunState.VALIDATED
        yield Disagreement(
            "staged-file-damaged",
            f"{record.run_id} chunk {chunk.chunk}",
            f"{chunk.state} in the ledger; {some(why)}",
            Confidence.CERTAIN,
            f"plan the chunk again; `backfill run {record.run_id}` computes it"
            if again
            else f"the run was judged with these files: `backfill cancel {record.run_id}`, and plan it under a new run id",
            partial(_compute_again, view, record, chunk, some(why)) if again else None,
        )


def _files(chunk: ChunkRecord) -> tuple[StagedFile, ...]:
    """Return the computed and the derived files of a chunk."""
    return (*chunk.files, *chunk.derived)


def _compute_again(view: TableView, record: RunRecord, chunk: ChunkRecord, why: str) -> str:
    changed = view.platform.ledger.repairs.plan_again(record.run_id, chunk, f"doctor: {why}", operator())
    return outcome(changed, f"chunk {chunk.chunk} is PLANNED again")


def lost_files(view: TableView) -> Iterator[Disagreement]:
    """Find files that snapshots of the table reference and that are not there any more, or not readable."""
    damages: list[UnreadableMetadata] = []
    current = view.table.current_snapshot()
    now_seen = referenced(view.table, {current.snapshot_id}, damages=damages) if current else None
    everything = referenced(view.table, damages=damages)
    by_file: dict[str, UnreadableMetadata] = {}
    for damage in damages:  # of main and of every snapshot: each file once
        by_file.setdefault(damage.problems[0].fix, damage)
    yield from (data_loss(view.name, damage) for damage in by_file.values())
    visible = now_seen.files if now_seen else {}
    wrong, unread = _wrong(view.storage, visible)
    yield from _unread(view.name, unread)
    earlier = {path: size for path, size in everything.files.items() if path not in visible}
    older, _ = _wrong(view.storage, earlier, footers=False)
    holders = view.platform.ledger.accepted(view.target.name)
    owners = _owners(view, frozenset(holders.values()))
    by_run: dict[str, list[str]] = defaultdict(list)
    for path, why in sorted(wrong.items()):
        run_id, chunk = owners.get(path, ("", ""))
        by_run[run_id].append(f"{why} (chunk {chunk})" if chunk else why)
    for run_id, whys in by_run.items():
        yield Disagreement(
            "DATA-LOSS",
            f"{view.name} {f'run {run_id}' if run_id else 'files of no accepted run'}",
            f"DATA LOSS: readers of main meet {len(whys)} damaged file(s): {some(whys)}",
            Confidence.CERTAIN,
            "restore the files from a backup, byte by byte; if there is none, restate the chunks with a new run",
        )
    if older:
        yield Disagreement(
            "DATA-LOSS",
            f"{view.name} older snapshots",
            f"DATA LOSS: {len(older)} file(s) that only older snapshots reference are damaged: {some(older.values())}",
            Confidence.CERTAIN,
            "restore the files from a backup: without them a rollback, and queries of the past, fail",
        )


def _owners(view: TableView, run_ids: frozenset[str]) -> dict[str, tuple[str, str]]:
    """Return run and chunk of each staged file of runs, by place."""
    return {
        place_of(file.path): (run_id, chunk.chunk)
        for run_id in sorted(run_ids)
        for chunk in view.platform.ledger.chunks(run_id)
        for file in _files(chunk)
    }


def _wrong(
    storage: Storage, expected: Mapping[str, tuple[int, int]], *, footers: bool = True
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what is wrong with files of known bytes and rows, by place; and what could not be read just now."""
    found = storage.look(expected)
    wrong: dict[str, str] = {}
    unread: dict[str, str] = {}
    whole = []
    for path, (size, _) in expected.items():
        if storage.through_link(path):
            wrong[path] = f"{path} is reached by a link, and links below a table's location are not followed"
        elif path not in found:
            wrong[path] = f"{path} is missing"
        elif found[path].bytes != size:
            wrong[path] = f"{path} has {found[path].bytes:,} bytes, not {size:,}"
        elif footers:
            whole.append(path)

    def judge(path: str) -> str | None:
        try:
            rows = storage.rows(path)
        except FileNotFoundError:
            return f"{path} is missing"
        except ArrowException as error:  # of what was read: an error of reading is the system's
            return f"{path} cannot be read: {type(error).__name__}: {error}"
        except OSError as error:
            unread[path] = f"{path} could not be read just now: {type(error).__name__}: {error}"
            return None
        return None if rows == expected[path][1] else f"{path} has {rows:,} rows, not {expected[path][1]:,}"

    with ThreadPoolExecutor(_READERS) as pool:
        wrong |= {path: why for path, why in zip(whole, pool.map(judge, whole), strict=True) if why is not None}
    return wrong, unread


def _unread(where: str, whys: Mapping[str, str]) -> Iterator[Disagreement]:
    """Report files of which nothing is known: no proof of damage, and no repair."""
    if whys:
        yield Disagreement(
            "file-unreadable",
            where,
            f"{len(whys)} file(s): {some(whys.values())}",
            Confidence.POSSIBLE,
            "look again when the storage can be read; if it stays so, find out why it cannot",
        )
