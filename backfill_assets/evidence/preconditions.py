"""What evidence and ledger must agree on before a run is published, taken back or brought back.

Put here a refusal for which evidence, or the ledger's journal, is the reason. What a publication needs besides is
`publication.requirements`'.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from backfill_assets.evidence.bundles import RUN_FILE, sealed_rows
from backfill_assets.evidence.record_damage import harmed_of, refuse_harmed
from backfill_assets.evidence.records import records_of, vouched_for
from backfill_assets.installation import Platform
from manifests.canonical import plain
from manifests.errors import EnvironmentRefused, Problem, PublicationRefused
from resources.files.kept_files import read_json
from resources.files.places import Place
from resources.ledger.facade import RunRecord
from resources.ledger.journal import Unexplained
from resources.ledger.rows import differences

_SETTLED = ("hashes.json", "code.json", "policy.json")
"""Files of a bundle beside those of rows that are the same whenever it is sealed."""
_SHOWN = 10
_LOOKS, _AGAIN_SECONDS = 3, 0.5
"""How often, and how soon, it is looked again for the link of a record that may be made just now."""


def require_of_the_run(platform: Platform, record: RunRecord, files: Mapping[str, Any], bundle: Place) -> None:
    """Refuse to publish a run with a bundle that was there before and does not say what the ledger does.

    `files` are what would be sealed now. What may move on after a bundle was sealed may have.

    Raises:
        PublicationRefused: naming what it says otherwise.
    """
    run_id = record.run_id
    with platform.ledger.reading() as moment:
        here, of_earlier_version = moment.rows_of(run_id), moment.is_adopted(run_id)
    try:
        sealed = sealed_rows(bundle)
        wrong = [] if sealed is None else [one.where for one in differences(sealed, here) if not one.lawful]
        if not of_earlier_version:
            wrong += [f"{bundle.name}/{RUN_FILE}"] if sealed is None else []
            wrong += [
                f"{bundle.name}/{name}" for name in _SETTLED if read_json(bundle / name) != plain(files.get(name))
            ]
    except (FileNotFoundError, EnvironmentRefused, ValueError, KeyError, TypeError, AttributeError) as error:
        wrong = [f"{type(error).__name__} {error}"]
    if wrong:
        shown = ", ".join(wrong[:_SHOWN]) + (f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else "")
        raise _not_of_the_run(bundle, f"says other things of '{run_id}' than the ledger: {shown}")


def require_no_later(platform: Platform, record: RunRecord, edition: int) -> None:
    """Refuse to publish a run beside a bundle of an edition that it does not have.

    Raises:
        PublicationRefused: naming it.
    """
    store, run_id = platform.evidence, record.run_id
    store.require_sealed(run_id)
    known = {store.path(run_id, number) for number in range(edition + 1)}
    for one in store.bundles(run_id):
        if one not in known:
            raise _not_of_the_run(one, f"is there, and '{run_id}' was planned anew {edition} time(s)")


def _not_of_the_run(bundle: Place, what: str) -> PublicationRefused:
    return PublicationRefused(
        Problem(
            f"{bundle} {what}",
            "a run is published with the bundle of what was decided and judged, as the ledger has it",
            "move it out of the folder, keep it, find out who has put it there, and run the same command again; in a bucket, where it "
            "comes back because a link of the chain is about it, cancel the run, and plan the change under a new run id",
        )
    )


def require_explained(platform: Platform, run_id: str) -> None:
    """Refuse to publish a run whose rows are not what its transactions have written and the chain's links vouch for.

    Raises:
        PublicationRefused: naming each row.
    """
    wrong = unexplained_of(platform, run_id)
    if wrong:
        raise PublicationRefused(
            Problem(
                f"the ledger was changed by hand since '{run_id}' was planned:{_listed(wrong)}",
                "what is published is what was decided and judged, as the chain's links vouch for it",
                f"`backfill verify {run_id}`; find out who has changed it, and cancel the run, or put back what was there",
            )
        )


def unexplained_of(platform: Platform, run_id: str) -> list[Unexplained]:
    """Return what of a run's rows is not what its transactions have written and the chain's links vouch for."""
    with platform.ledger.reading() as moment:
        first, follows = moment.first_of(run_id)
    # first: what each is about was committed by then; the newest one whatever the entry says that it follows
    since = min([follows, *(link.number - 1 for link in platform.ledger.journal.newest_link())])
    links = list(platform.evidence.chain.links(since=since))
    with platform.ledger.reading() as moment:  # entries and rows as they are at one moment
        journal = moment.explain(links, first=first, run_id=run_id)
        return [*journal.damages, *moment.unexplained(journal, run_id)]


def require_own_rows(platform: Platform, run_id: str) -> None:
    """Refuse to take back or to bring back a run whose own rows are not what its transactions have written.

    What is wrong with the rows of other runs keeps nobody from taking a publication back. A journal with entries that were
    changed by hand does, in `who_decides`: it no longer tells which policy is in force.

    Raises:
        PublicationRefused: naming each row.
    """
    with platform.ledger.reading() as moment:
        wrong = moment.unexplained(moment.explain_run(run_id), run_id)
    if wrong:
        raise PublicationRefused(
            Problem(
                f"the ledger's rows of '{run_id}' were changed by hand:{_listed(wrong)}",
                "what is taken back, or brought back, is what the run's own transactions have recorded",
                f"`backfill verify {run_id}`; find out who has changed it, put back what was there, or restate the scope with a "
                "new run",
            )
        )


def require_vouched_for(platform: Platform, run_id: str) -> None:
    """Refuse to publish a run beside whose evidence records lie that no link of the chain vouches for.

    Raises:
        PublicationRefused: naming each of them.
    """
    for look in range(_LOOKS):
        records = records_of(platform, run_id)
        vouched = vouched_for(platform, run_id, records)
        strange = [one.name for one in records if one not in vouched]  # nothing has changed rows before a publication
        if not strange:
            return
        if look < _LOOKS - 1:
            time.sleep(_AGAIN_SECONDS)  # a record that is made just now gets its link next
    folder = platform.evidence.records(run_id)
    raise PublicationRefused(
        Problem(
            f"no link of the chain vouches for {', '.join(f'{name}.json' for name in strange[:_SHOWN])} in {folder}",
            "what lies beside a run that is published is what this project has put on record",
            f"of a diff whose process ended before its link, `backfill diff {run_id}` completes it, if the rows say the same, "
            "and with --table the record of its table; move anything else out of the folder, keep it, and find out who has "
            "put it there; where the chain is said to have its SHA-256 then, cancel the run, and plan it under another run id",
        )
    )


def require_unharmed(platform: Platform, run_id: str) -> None:
    """Refuse to go on from a run's records where one is missing or was changed.

    Raises:
        EnvironmentRefused: naming each of them.
    """
    with platform.ledger.reading() as moment:
        _, follows = moment.first_of(run_id)
    refuse_harmed(run_id, harmed_of(platform, run_id, since=follows))


def _listed(wrong: Sequence[Unexplained]) -> str:
    """Name the first of several places, a line each, and how many more there are."""
    shown = [f"{one.where}: {one.what}" for one in wrong[:_SHOWN]]
    more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
    return "".join(f"\n      {line}" for line in [*shown, *more])
