"""`report.html`: one page about one run that stands by itself, for whoever asks later and has nothing but the page.

Put here what the page says and where it is taken from: the sealed bundle and the records, so that the page says what is
proved; the ledger only for runs that have no bundle yet. What changed is `report_changes`' to say, sums by slice are
`report_measures`', how a value looks is `report_values`'; which charts there are is `report_charts`', how they are drawn
`charts`'s, and how the page looks the template's. The page is a view and no evidence: it is made anew whenever somebody wants
it, the same from the same evidence.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from backfill_assets.audit.dry_run_links import link_of
from backfill_assets.audit.report_changes import DONE_BY, changes_by_chunk, sealed_file, what_changed
from backfill_assets.audit.report_charts import charts_of
from backfill_assets.audit.report_measures import slices_of, totals_of
from backfill_assets.audit.report_values import cell, figure, instant, number, percent, prose, signed
from backfill_assets.evidence.bundle_contents import accepted_before
from backfill_assets.evidence.bundles import bundle_in_use
from backfill_assets.evidence.links import of_no_form
from backfill_assets.evidence.record_damage import chain_about, damaged_files, unharmed_rows
from backfill_assets.evidence.records import Record, last_diff, records_of
from backfill_assets.evidence.refusals import in_words, refused
from backfill_assets.installation import Platform
from backfill_assets.publication.modes import strategy_in
from manifests.canonical import completed, plain, sha256_of
from manifests.chunks import CHUNK_GATE, EVER
from manifests.lifecycle import ENDED, DecisionKind, PublicationState, RunState
from manifests.plan import Plan, logs_of
from manifests.stages import in_commits
from resources.evidence.store import INDEX
from resources.files.places import ObjectPlace, Place, names_in
from resources.files.whole_files import write_whole
from resources.ledger.acceptances import accepted_in_words, numbers_in
from resources.ledger.cells import illegible, legible
from resources.ledger.rows import Rows
from resources.ledger.tables import runs

_LOG = logging.getLogger(__name__)
_DECISIONS = {
    DecisionKind.APPROVED: "approved",
    DecisionKind.REJECTED: "rejected",
    DecisionKind.REVIEWED: "reviewed",
    DecisionKind.PUBLISH: "decided to publish",
    DecisionKind.ROLLBACK: "decided to roll back",
    DecisionKind.REINSTATE: "decided to reinstate",
    DecisionKind.ACCEPT: "decided to accept the version",
}


def report(platform: Platform, run_id: str) -> str:
    """Return the page about a run.

    Raises:
        InputRefused: if the ledger holds no such run.
        IllegibleRow: if nothing is sealed, and the ledger's manifest or plan is not as this project writes it.
    """
    record = platform.ledger.run(run_id)
    store, records = platform.evidence, records_of(platform, run_id)
    bundle = bundle_in_use(platform, run_id) if store.bundles(run_id) else None
    damaged = damaged_files(platform, run_id)
    rows = unharmed_rows(platform, run_id, bundle, records, damaged) if bundle is not None else None
    if bundle is None or rows is None:
        with platform.ledger.holding() as moment:
            rows = moment.rows_of(run_id)
        before = plain(accepted_before(platform, record))
    else:
        before = sealed_file(damaged, bundle, "accepted_before.json") or {}
    _require_legible(rows, run_id)
    vouched = [one for one in records if f"{run_id}/records/{one.name}.json" not in damaged]
    tables = defaultdict(dict, rows)  # a table without a row has no file in a bundle
    facts = _facts(platform, tables, run_id, before, vouched)
    facts |= {
        "change": what_changed(
            facts, changes_by_chunk(platform, record, bundle, facts, before, damaged), last_diff(platform, run_id)
        )
    }
    facts |= {
        "evidence": _evidence(platform, run_id, bundle, records, damaged),
        "charts": charts_of(facts),
        "merges": _merged_by(platform, rows),
        "damaged": damaged,
    }
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "signed": signed,
        "percent": percent,
        "figure": figure,
        "prose": prose,
        "instant": instant,
        "cell": cell,
    }
    return environment.get_template("report.html.j2").render(**facts)


def write_report(platform: Platform, run_id: str, file: Path | None = None) -> Place:
    """Write the page about a run beside its bundle, or to a file, whole or not at all; return where."""
    page = report(platform, run_id)  # of a run that is not there, nothing is made
    if file is not None:
        write_whole(file, page)
        return file
    place = platform.evidence.report(run_id)
    if isinstance(place, ObjectPlace):
        place.bucket.put(place.key, page.encode())
    else:
        write_whole(place, page, make_folder=True)
    return place


def report_beside(platform: Platform, run_id: str) -> Place | None:
    """Write the page after a publication, which is done and on record: whatever is wrong here is said and stops nothing."""
    try:
        return write_report(platform, run_id)
    except Exception as error:  # noqa: BLE001 - a page that cannot be drawn must not fail what has landed
        what = f"{type(error).__name__}: {error}"
        _LOG.warning(
            "the report of %s could not be written: %s; `backfill report %s` tries again", run_id, what, run_id
        )
        return None


def _merged_by(platform: Platform, rows: Rows) -> list[str]:
    """Return the runs that hold, or have held, chunks after a run, and have replaced the rows of some entities there only."""
    held = rows.get("accepted_versions", {}).values()
    by = {str(one["ended_by"]) for one in held if one["ended_how"] == RunState.SUPERSEDED}
    later = (platform.ledger.find(run_id) for run_id in sorted(by))
    return [one.run_id for one in later if one is not None and platform.ledger.with_plan(one).plan.merge is not None]


def _require_legible(rows: Rows, run_id: str) -> None:
    """Refuse to show a manifest or a plan whose text somebody has rewritten: it is data only as this project writes it.

    Raises:
        IllegibleRow: naming the column.
    """
    for column in ("manifest", "plan"):
        if not isinstance(rows["runs"][run_id][column], dict):
            raise illegible(f"run '{run_id}'", f"runs.{column} is not the canonical text of an object")


def _completed(rows: Rows) -> Rows:
    """Return rows with every column of their tables: None in those that a bundle of an earlier version lacks."""
    found: Rows = defaultdict(dict)
    for name, own in rows.items():
        lacking = dict.fromkeys(runs.metadata.tables[name].c.keys())
        found[name] = {key: lacking | row for key, row in own.items()}
    return found


def _of_logs(plan: Mapping[str, Any], run_id: str) -> list[tuple[str, str]]:
    """Say in words what a plan keeps of logs.

    Raises:
        IllegibleRow: if that is not what this project writes.
    """
    with legible(f"run '{run_id}'"):
        return logs_of(plan)


def _holdings(rows: Rows) -> tuple[set[str], set[str]]:
    """Return the chunks that a run holds, and those that later runs have taken from it and hold."""
    versions = rows["accepted_versions"].values()
    holds = {one["chunk"] for one in versions if one["ended_at"] is None}
    return holds, {one["chunk"] for one in versions if one["ended_how"] == RunState.SUPERSEDED} - holds


def _facts(
    platform: Platform, rows: Rows, run_id: str, before: Mapping[str, Any], records: Sequence[Record]
) -> dict[str, Any]:
    rows = _completed(rows)
    run = rows["runs"][run_id]
    manifest, plan = run["manifest"], completed(Plan, run["plan"])
    chunks = list(rows["chunks"].values())
    table = platform.products.target(run["target"])
    keys = [chunk["chunk"] for chunk in chunks]
    slices = {
        chunk["chunk"]: chunk["measures"].get("slices", []) if isinstance(chunk["measures"], dict) else []
        for chunk in chunks
    }
    counted = {one["chunk"] for one in chunks if isinstance(one["measures"], dict) and "slices" in one["measures"]}
    # a chunk that has failed was not counted: its rows of before would seem to have gone
    earlier = {key: facts["slices"] for key, facts in before.items() if key in counted or not counted}
    done = [one for one in rows["publications"].values() if one["state"] == PublicationState.COMMITTED]
    holds, superseded = _holdings(rows)
    last_pass = {(row["chunk"], row["gate"]): row for row in rows["verdicts"].values()}
    levels = {item.name: (item.level.value, item.description) for item in table.reconciliations}
    accepted = _accepted(rows, run)
    gates = [
        last_pass["", gate]
        | {"level": levels.get(gate, ("platform", ""))[0], "about": levels.get(gate, ("", ""))[1]}
        | {"accepted": accepted.get((gate, _numbers_hash(last_pass["", gate])), "")}
        for gate in plan["gates"]
        if ("", gate) in last_pass
    ]
    return {
        "run": run,
        "manifest": manifest,
        "manifest_text": yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True),
        "plan": plan,
        "of_logs": _of_logs(plan, run_id),
        "ever": [day.isoformat() for day in EVER],
        "table": {"name": table.name, "description": table.description, "owners": table.owners},
        "decisions": _decisions(rows, records),
        "transitions": list(rows["transitions"].values()),
        "publications": list(rows["publications"].values()),
        "committed": done,
        "done_by": defaultdict(str, DONE_BY),
        "published": next((one for one in done if one["action"] == "publish"), None),
        "commits": in_commits(strategy_in(plan).commits(table)),
        "holds": sorted(holds),
        "superseded": superseded,
        "keys": keys,
        "chunks": [_chunk(chunk, before.get(chunk["chunk"])) for chunk in chunks],
        "chunk_verdicts": [row for (chunk, gate), row in sorted(last_pass.items()) if chunk and gate == CHUNK_GATE],
        "gates": gates,
        "sinks": list(rows["sink_attempts"].values()),
        "amendments": list(rows["amendments"].values()),
        "attempts": list(rows["attempts"].values()),
        "takes": _takes(run["state"], published=bool(done)),
        "beside": "" if holds else _beside(run["state"], plan),
        "before_runs": sorted({facts["run"] for facts in before.values()}),
        "totals": totals_of(slices, earlier),
        "by_slice": slices_of(slices, earlier),
        "slices": slices,
        "earlier": earlier,
    }


def _takes(state: str, *, published: bool) -> str:
    """Say whether a run takes the place of others' rows, has taken it once, or would have."""
    if state == RunState.PUBLISHED:
        return "takes"
    if published:
        return "took"
    return "would take" if state not in ENDED else "would have taken"


def _beside(state: str, plan: Mapping[str, Any]) -> str:
    """Say how a published run that holds no chunk stands beside what does; nothing of one whose place others have taken."""
    if state != RunState.PUBLISHED:
        return ""
    if strategy_in(plan).accepted_later:
        return f"as version {plan.get('version')}, until it is accepted"
    return "" if strategy_in(plan).shows_main else "as corrections of it"


def _decisions(rows: Rows, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return what people have decided, in order: also what owners have accepted of gates, and why a decision was refused."""
    decided = list(rows["approvals"].values())
    why = refused(decided, list(rows["publications"].values()), records)
    found = [
        one
        | {"said": _DECISIONS.get(one["decision"], one["decision"]), "refused": in_words(why.get(one["id"]))}
        | {"rests_on": _rests_on(one)}
        for one in decided
    ]
    for one in rows["acceptances"].values():
        said = {"said": f"what {one['gate']} found accepted", "decided_by": one["accepted_by"]}
        said |= {"rests_on": ""}
        found.append(one | said | {"comment": one["reason"], "self_approved": False, "refused": ""})
    return sorted(found, key=lambda one: str(one["at"]))


def _rests_on(approval: Mapping[str, Any]) -> str:
    """Say which dry run an approval rests on; empty of one that rests on none."""
    link = link_of(approval)
    return "" if link is None else link.describe()


def _accepted(rows: Rows, run: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return what owners have accepted under the plan of a run, in words: by gate and hash of the accepted numbers."""
    return {
        (one["gate"], one["numbers_hash"]): accepted_in_words(one["accepted_by"], one["reason"])
        for one in rows["acceptances"].values()
        if one["plan_hash"] == run["plan_hash"]
    }


def _numbers_hash(verdict: Mapping[str, Any]) -> str:
    """Return the hash of what an owner accepts of a verdict; empty of one that does not ask."""
    if verdict["passed"] or not verdict["asks"]:
        return ""
    return sha256_of(numbers_in(verdict["summary"], verdict["details"]))


def _chunk(chunk: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    shown = {name: chunk[name] for name in ("chunk", "state", "attempt", "rows", "bytes", "digest", "error")}
    same = before is not None and before["digest"] == chunk["digest"]
    was = None if before is None else before["rows"]
    return shown | {"files": len(chunk["files"]), "before": was, "before_run": before and before["run"], "same": same}


def _evidence(
    platform: Platform, run_id: str, bundle: Place | None, records: Sequence[Record], damaged: Sequence[str]
) -> dict[str, Any]:
    chain = chain_about(platform, run_id)
    mine = (link for link in chain.links if link.content.get("run") == run_id and "rows" in link.content)
    links = [link for link in mine if not of_no_form(link.content)]  # the others are among what is damaged
    return {
        "root": None if bundle is None else (sealed_file(damaged, bundle, INDEX) or {}).get("root"),
        "files": [] if bundle is None or not bundle.is_dir() else names_in(bundle),
        "links": links,
        "head": links[-1] if links else chain.links[-1] if chain.links else None,
        "is_kept": bundle is not None and (bundle / "run.json").is_file(),
        "records": [one.name for one in records],
    }
