"""A run's records and their links: is each record as its link says, and has each link its record.

Put here what is compared between the two. `evidence.records` says what a record may say; what its rows add up to is held
against the ledger by `ledger_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backfill_assets.audit.findings import REPAIR, Findings, shown_hash
from backfill_assets.evidence.diff_records import no_diff
from backfill_assets.evidence.links import misnamed
from backfill_assets.evidence.records import Record, wrong_as_linked
from resources.evidence.chain import Link


def check_records(
    links: Sequence[Link], records: Sequence[Record], found: Findings, *, is_adopted: bool
) -> tuple[list[str], list[str]]:
    """Hold each record against its link, and each link against its record.

    Return the names of those that are not as their link says, and of those that change rows and have a link only that
    is about no such record.
    """
    by_name = {record.name: record for record in records}
    linked, strange = _links_about(links, by_name, is_adopted=is_adopted)
    beside: dict[str, str] = {}
    wrong: list[str] = []
    before: int | None = 0
    for name, link in linked.items():
        where = f"{found.run_id}/records/{name}.json"
        expected, one = str(link.content.get("recordHash")), by_name.get(name)
        if one is None:
            found.add(where, f"is missing: link {link.number} of the chain names it", f"SHA-256 {expected}", "nothing")
        elif one.hash != expected:
            found.add(where, "was changed after it was written", f"SHA-256 {expected}", shown_hash(one.hash))
        elif what := wrong_as_linked(one, before) if "rows" in link.content else no_diff(name, one.content):
            found.add(where, what)
        else:
            beside |= one.content.get("beside", {}) if one.number else {}
            before = one.number or before
            continue
        wrong.append(name)
        before = None if "rows" in link.content else before
    for record in records:
        where = f"{found.run_id}/records/{record.name}.json"
        if record.number and record.name not in linked:
            found.is_behind = True
            what = "has no link in the chain: it was planted, or a process ended before it could append it; "
            found.add(where, f"{what}{REPAIR}, if the ledger's rows say the same")
        elif not record.number and record.name not in linked and beside.get(record.name) != record.hash:
            if record.name in beside:
                expected = f"SHA-256 {beside[record.name]}"
                found.add(where, "was changed after it was recorded", expected, shown_hash(record.hash))
            else:
                what = "is a record that no link of the chain vouches for: it was planted, or a process ended before the link"
                found.add(where, what, "nothing", shown_hash(record.hash))
    for name in sorted(beside.keys() - by_name.keys()):
        found.add(f"{found.run_id}/records/{name}.json", "is missing", f"SHA-256 {beside[name]}", "nothing")
    return wrong, sorted(strange - linked.keys())


def _links_about(
    links: Sequence[Link], records: Mapping[str, Record], *, is_adopted: bool
) -> tuple[dict[str, Link], set[str]]:
    """Return the first link about each record of a run, and the records of which a link is about none such."""
    linked: dict[str, Link] = {}
    strange: set[str] = set()
    for link in (one for one in links if "record" in one.content):
        name = str(link.content["record"])
        changes_rows = name in records and "follows" in records[name].content
        if misnamed(link.content, is_adopted=is_adopted) or (changes_rows and "rows" not in link.content):
            strange.add(name)
        else:
            linked.setdefault(name, link)
    return linked, strange
