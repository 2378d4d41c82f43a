"""What a run changed, in its report: by chunk, by column, and the rows that moved furthest.

Put here what is said of rows before and after, from what was sealed and from a recorded diff. What the measures changed by is
`report_measures`'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from backfill_assets.audit.report_values import cell, instant, number
from backfill_assets.gates.chunk_changes import CHANGES_FILE, changes_of_run
from backfill_assets.installation import Platform
from backfill_assets.worker.sums import difference, total_of
from manifests.canonical import plain
from manifests.lifecycle import RunState
from manifests.model import Mode
from resources.evidence.store import INDEX
from resources.files.kept_files import read_json
from resources.files.places import Place, is_there
from resources.ledger.facade import RunRecord

_LARGEST, _LARGEST_OF_EACH = 40, 3
"""The most rows of the largest changes, and of one column and kind of change."""
_KINDS = ("added", "removed", "changed", "unchanged")
DONE_BY = {"publish": "published", "rollback": "rolled back", "reinstate": "reinstated", "accept": "accepted"}


def sealed_file(damaged: Sequence[str], bundle: Place, name: str) -> Any:
    """Return what a file of a bundle says; None if it is not there, or not as it was sealed."""
    at = f"{bundle.parent.name}/{bundle.name}/"
    is_wrong = not {f"{at}{name}", f"{at}{INDEX}"}.isdisjoint(damaged)
    return None if is_wrong or not is_there(bundle / name) else read_json(bundle / name)


def changes_by_chunk(
    platform: Platform,
    record: RunRecord,
    bundle: Place | None,
    facts: Mapping[str, Any],
    before: Mapping[str, Any],
    damaged: Sequence[str],
) -> Mapping[str, Any]:
    """Return rows and sums by chunk: as they were sealed, or of a run that has no bundle as they would be."""
    if bundle is None:
        return plain(changes_of_run(platform, record, platform.ledger.chunks(record.run_id), before))  # type: ignore[no-any-return]
    if (sealed := sealed_file(damaged, bundle, CHANGES_FILE)) is not None:
        return sealed  # type: ignore[no-any-return]
    rows = [{"chunk": one["chunk"], "rows": [one["before"], one["rows"]], "sums": {}} for one in facts["chunks"]]
    return {"diff_id": "", "chunks": rows, "unknown": ""}


def what_changed(facts: Mapping[str, Any], changes: Mapping[str, Any], recorded: Any) -> dict[str, Any]:
    """Return what the section says: by chunk, by column, and the rows that moved furthest where a diff is on record."""
    diff = recorded if isinstance(recorded, dict) else {}
    if changes["diff_id"] and diff.get("diff_id", changes["diff_id"]) != changes["diff_id"]:
        diff = {}  # of rows that were computed anew since
    by_chunk = {one["chunk"]: one for one in diff.get("chunks", ())}
    chunks = [
        {"chunk": one["chunk"], "before": one["rows"][0], "after": one["rows"][1]}
        | {name: by_chunk.get(one["chunk"], {}).get(name) for name in _KINDS}
        for one in changes["chunks"]
    ]
    if facts["plan"]["mode"] == Mode.RECONCILIATION:
        chunks = []
    compares = facts["plan"]["mode"] == Mode.RECONCILIATION  # which would change nothing either
    published = compares or any(one["action"] == "publish" for one in facts["committed"])
    columns = diff.get("columns") or _summed(changes["chunks"] if chunks else [])
    return {
        "heading": change_heading(facts["run"]["state"], published=published),
        "lead": _lead(facts["run"], facts["plan"], facts["committed"], diff),
        "unknown": changes["unknown"],
        "diff": diff or None,
        "why_no_diff": _why_no_diff(facts, changes) if chunks else "",
        "chunks": chunks,
        "rows": [_sum(one["before"] for one in chunks), _sum(one["after"] for one in chunks)],
        "columns": [one for one in columns if one.get("before") is not None or one.get("after") or one.get("changed")],
        "largest": [_moved(row) for row in _first_of_each(diff.get("largest") or [])][:_LARGEST],
    }


def _summed(chunks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add up the sums of all chunks by column; None where one of them is not known."""
    found = []
    for name in dict.fromkeys(name for chunk in chunks for name in chunk["sums"]):
        sides = [[chunk["sums"].get(name, (None, None))[side] for chunk in chunks] for side in (0, 1)]
        before, after = (None if None in side else str(total_of(side)) for side in sides)
        delta = None if before is None or after is None else difference(before, after)
        found.append({"column": name, "changed": None, "before": before, "after": after, "delta": delta})
    return found


def _sum(values: Iterable[int | None]) -> int | None:
    found = list(values)
    return None if None in found else sum(one for one in found if one is not None)


def change_heading(state: str, *, published: bool) -> str:
    """Head what a run has changed; of one that was never published, what it would change, or, where it is over, would have."""
    if published:
        return "What changed"
    return "What it would have changed" if state in {RunState.REJECTED, RunState.CANCELLED} else "What it would change"


def _lead(
    run: Mapping[str, Any], plan: Mapping[str, Any], committed: Sequence[Mapping[str, Any]], diff: Mapping[str, Any]
) -> str:
    """Say whether readers have what is shown, or had it, or would have."""
    if plan["mode"] == Mode.RECONCILIATION:
        return "Nothing: it compares what readers have with what they should have, and is never published."
    if plan["mode"] == Mode.DRY_RUN:
        return "Nothing: it is a dry run, which is never published. As a run of another mode it would change this."
    undone = [one for one in committed if one["action"] in {"rollback", "reinstate"}]
    if not any(one["action"] == "publish" for one in committed):
        over = run["state"] in {RunState.REJECTED, RunState.CANCELLED}
        return f"Readers have seen nothing of it. {'This is what it would have changed' if over else 'Published, it would change this'}."
    if not undone:
        return "What the publication changed, before and after."
    said = "; ".join(f"{DONE_BY[one['action']]} {instant(one['ended_at'])}" for one in undone)
    if undone[-1]["action"] == "reinstate":
        return f"It was {said}: readers have what is shown as “after” again."
    back = "what is shown as “before”"
    if diff:
        names = ("added", "removed", "changed")
        gone, there, changed = (number(diff.get(name, 0)) for name in names)
        back += (
            f": the {gone} added rows are gone, the {there} removed are back, the {changed} changed say what they said"
        )
    return f"It was {said}. The rollback changed everything below back, so that readers have {back}."


def _why_no_diff(facts: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    run_id = facts["run"]["run_id"]
    if not facts["committed"]:
        return f"Its rows were not compared by key: `backfill diff {run_id}` does that, once all of it is staged."
    if not facts["manifest"].get("evidence", {}).get("diff", True):
        return "Its rows were not compared by key: the manifest says so (evidence.diff)."
    if not changes["diff_id"]:
        return f"No diff is on record of this run: `backfill diff {run_id}` makes one, while the rows before are there."
    return "Its rows are not compared by key yet: `backfill doctor --repair` completes that."


def _first_of_each(rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the first few rows of each column and kind of change."""
    seen: dict[tuple[Any, Any], int] = defaultdict(int)
    for row in rows:
        place = (row.get("column"), row.get("kind"))
        seen[place] += 1
        if seen[place] <= _LARGEST_OF_EACH:
            yield row


def _moved(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row of the largest changes, each cell as text, old before new."""
    old, new = ((row.get(side) or {}).get(row.get("column")) for side in ("old", "new"))
    return {
        "column": cell(row.get("column")),
        "kind": cell(row.get("kind")).lower(),
        "chunk": cell(row.get("chunk")),
        "key": ", ".join(f"{name} {cell(value)}" for name, value in sorted((row.get("key") or {}).items())),
        "before": cell(old),
        "after": cell(new),
        "by": f"{cell(row.get('by'))} {row.get('unit') or ''}".rstrip(),
    }
