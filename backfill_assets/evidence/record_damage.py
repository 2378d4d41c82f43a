"""Records and bundles that are no longer as they were written, by the links of the chain that vouch for them.

Put here what counts as damage, and what stands in for it. `preconditions` refuses to publish because of it; an auditor hears of
it from `audit.linked_records` and `audit.sealed_bundles`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backfill_assets.evidence.bundles import bundle_in_use, tables_in
from backfill_assets.evidence.diff_records import no_diff
from backfill_assets.evidence.links import misnamed
from backfill_assets.evidence.links import of_no_form as link_of_no_form
from backfill_assets.evidence.record_order import planted
from backfill_assets.evidence.records import (
    Record,
    is_adopted,
    is_linked,
    kept_rows,
    link_of,
    record_of,
    records_of,
    wrong_as_linked,
)
from backfill_assets.installation import Platform
from manifests.errors import EnvironmentRefused, LedgerLocked, Problem, Refused
from manifests.lifecycle import WAS_PUBLISHED
from resources.evidence.chain import ReadChain
from resources.evidence.object_chain import ObjectChain
from resources.evidence.store import INDEX, SEALED, examine, hash_or_kind
from resources.files.kept_files import read_kept
from resources.files.places import Place
from resources.ledger.moments import Moment
from resources.ledger.rows import MOVING, Rows, is_id, tables_of_runs

_SHOWN = 10


@dataclass(frozen=True)
class Harmed:
    """A record that is not as a link of the chain vouches for it: SHA-256 then and now, or what is there instead.

    Or, with the SHA-256 that its link gives, one that is `wrong` as it is: this project has written neither.
    """

    run_id: str
    name: str
    file: Place
    expected: str
    found: str
    wrong: str = ""

    @property
    def what(self) -> str:
        """Say what has become of it."""
        if self.wrong:
            return f"{self.file} {self.wrong}"
        how = "is missing" if self.found == "nothing" else "was changed after it was written"
        return f"{self.file} {how}: the chain has the SHA-256 {self.expected} of it"

    @property
    def fix(self) -> str:
        """Say what is to be done."""
        if self.wrong:
            return f"find out who has put it and its link there; restore the evidence from a backup that has neither: {self.file}"
        return f"restore this file from a backup, byte by byte: {self.file}"


def harmed(platform: Platform, links: Iterable[Mapping[str, Any]]) -> list[Harmed]:
    """Return the records that are missing, or are not as links vouch for them, or that links vouch for and are none of a change.

    Those that change rows count up, run by run, in the order of their links. Of several links about a record the first one
    counts; one that is about no record of its name never does.
    """
    told: dict[tuple[str, str], tuple[str, bool]] = {}
    for link in _about_records(platform, links):
        told.setdefault((str(link["run"]), str(link["record"])), (str(link["recordHash"]), "rows" in link))
    wrong = []
    before: dict[str, int] = {}
    for (run_id, name), (expected, changes_rows) in told.items():
        file = platform.evidence.records(run_id) / f"{name}.json"
        if (found := hash_or_kind(file)) != expected:
            wrong.append(Harmed(run_id, name, file, expected, found))
            if changes_rows:
                before.pop(run_id, None)
        elif changes_rows:
            one = record_of(file, run_id, read_kept(file))
            if why := wrong_as_linked(one, before.get(run_id)):
                wrong.append(Harmed(run_id, name, file, expected, found, why))
            before[run_id] = one.number
        elif why := no_diff(name, record_of(file, run_id, read_kept(file)).content):
            wrong.append(Harmed(run_id, name, file, expected, found, why))
    return wrong


def _about_records(platform: Platform, links: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the links that may be about the records that they name."""
    adopted: dict[str, bool] = {}
    for link in links:
        if not ("recordHash" in link and is_id(link.get("run")) and is_id(link.get("record"))):
            continue
        run_id = str(link["run"])
        if misnamed(link, is_adopted=False) and run_id not in adopted:
            adopted[run_id] = is_adopted(platform, run_id)
        if not misnamed(link, is_adopted=adopted.get(run_id, False)):
            yield link


def harmed_of(platform: Platform, run_id: str, *, since: int = 0) -> list[Harmed]:
    """Return the records of a run that links after number `since` vouch for, and that are missing or changed."""
    links = platform.evidence.chain.contents(since=since)
    return harmed(platform, (link for link in links if link.get("run") == run_id))


def harmed_among(platform: Platform, moment: Moment, run_id: str, linked: Sequence[Record]) -> list[Harmed]:
    """Return the records of a run that are missing or changed; the whole chain is asked only where one of them is."""
    is_whole = [one.number for one in linked] == list(range(1, len(linked) + 1))
    is_whole = is_whole and all(link_of(platform, run_id, one).get("recordHash") == one.hash for one in linked)
    _, first = moment.first_of(run_id)
    since = linked[-1].content["follows"] if linked and is_whole else first
    return harmed_of(platform, run_id, since=since)


def chain_about(platform: Platform, run_id: str) -> ReadChain:
    """Return the chain as it is read for a run: in a bucket from where it was when the run came on record, in a folder all of it."""
    chain = platform.evidence.chain
    if not isinstance(chain, ObjectChain):
        return chain.read()
    with platform.ledger.reading() as moment:
        _, follows = moment.first_of(run_id)
    return chain.read_since(follows)


def damaged_files(platform: Platform, run_id: str) -> list[str]:
    """Return the files of a run's last bundle and of its records that are not as they were written, below the evidence's folder."""
    store, chain = platform.evidence, chain_about(platform, run_id)
    mine = [link.content for link in chain.links if link.content.get("run") == run_id]
    sealed = [one for one in mine if one.get("event") == SEALED]
    odd = {
        f"{link.number:08}.json"
        for link in chain.links
        if link.content.get("run") == run_id and link_of_no_form(link.content)
    }
    found = [f"{store.chain.folder.name}/{name}" for name in sorted(odd | {one.name for one in chain.damages})]
    if store.bundles(run_id):
        bundle = bundle_in_use(platform, run_id)
        root, wrong = examine(bundle, run_id)
        roots = {str(one.get("root")) for one in sealed if one.get("bundle") == bundle.name}
        found += [f"{run_id}/{bundle.name}/{one.name}" for one in wrong]
        if roots and not wrong and root not in roots:  # whoever has changed a file has made its list anew
            found.append(f"{run_id}/{bundle.name}/{INDEX}")
    elif sealed and platform.ledger.run(run_id).state in WAS_PUBLISHED:
        found.append(f"{run_id}/{sealed[-1].get('bundle')}")
    records = {one.name for one in harmed(platform, mine)}
    records |= _without_link(platform, run_id)
    return found + [f"{run_id}/records/{name}.json" for name in sorted(records)]


def _without_link(platform: Platform, run_id: str) -> set[str]:
    """Return the records of a run that say they change rows, that no link vouches for, and that are not due.

    Of one that is due the link is still to come: its process is at it, or ended before it.
    """
    strange = {
        one.name
        for one in records_of(platform, run_id)
        if (one.number or one.wrong) and not is_linked(platform, run_id, one)
    }
    record = platform.ledger.run(run_id)
    if not strange or record.state not in WAS_PUBLISHED or not platform.evidence.bundles(run_id):
        return strange
    try:
        return strange & set(planted(platform, record))
    except LedgerLocked:  # whoever writes it may be about to link them: nothing is known to be wrong
        return set()
    except (Refused, FileNotFoundError):  # what they would follow from is damaged: nobody can say what is due
        return strange


def unharmed_rows(
    platform: Platform, run_id: str, bundle: Place, records: Sequence[Record], damaged: Sequence[str]
) -> Rows | None:
    """Return what the ledger's rows of a run are to be today, as `kept_rows`; the ledger's own where damaged evidence would say it.

    `damaged` are the `damaged_files`. None where the evidence has no rows.
    """
    at = f"{run_id}/{bundle.name}/"
    files = {name.removeprefix(at) for name in damaged if name.startswith(at)}
    unharmed = [one for one in records if f"{run_id}/records/{one.name}.json" not in damaged]
    every = frozenset(tables_of_runs())
    lost = (tables_in(files) | (MOVING if len(unharmed) < len(records) else frozenset())) & every
    rows = kept_rows(bundle, unharmed, sorted(every - lost))
    if rows is None or not lost:
        return rows
    with platform.ledger.reading() as moment:
        return rows | moment.rows_of(run_id, sorted(lost))


def refuse_harmed(run_id: str, wrong: Sequence[Harmed]) -> None:
    """Refuse to go on from a run's records, if any of them is harmed.

    Raises:
        EnvironmentRefused: naming each of them.
    """
    if wrong:
        rule = "a record says what has happened: nothing is recorded past one that is not as it was written"
        raise EnvironmentRefused(
            [Problem(one.what, rule, f"`backfill verify {run_id}`; {one.fix}") for one in wrong[:_SHOWN]]
        )
