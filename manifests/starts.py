"""States that a run may start from instead of from the first row: which one a plan pins, and why it may not be started from.

Put here the rules. What is found of a state in tables and ledger is `backfill_assets.planning.states`'; what a pinned one says of
itself, `manifests.further_sources`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date

from manifests.chunks import in_words
from manifests.errors import Problem
from manifests.estimates import FileIndex
from manifests.facts import DeclaredStart, FurtherSource, SourceState, TargetContract
from manifests.further_sources import PinnedSource, UpstreamRun, pin_of
from manifests.model import DayRange, Mode, RunManifest
from manifests.source_pins import StartFrom

_BEGIN = "take source.startFrom out of the manifest: the run reads from the first row then, and has the same rows"
_SHOWN = 5


@dataclass(frozen=True)
class MadeState:
    """Of the run that holds a state: what it was made by, and of what.

    Attributes:
        run_id: the run.
        version: of its transform.
        code: the product's code by which it was made, in words; `code_now` the one that is running. They are "" of a product
            that plans do not tell apart.
        source_snapshot_id: the snapshot of the source that it was made of.
        is_ancestor: whether that is in the history of the snapshot that the run reads, or is that one.
        came: days up to that of the state, of which the two snapshots have other rows; None where nobody can tell.
    """

    run_id: str
    version: str
    code: str
    code_now: str
    source_snapshot_id: int
    is_ancestor: bool
    came: tuple[date, ...] | None


@dataclass(frozen=True)
class FoundStart:
    """What is known of the states that a manifest names, when a run is planned.

    Attributes:
        time_column: the column by which they have days.
        chunk: the chunk of the table that the day is in, and `chunk_ends` the last day of that.
        state: the table at its newest snapshot; None where it has none.
        made: of the run that holds the chunk; None where none does.
        policy: the tables of which the policy says what may be used, of those that the state is made of and that itself.
    """

    time_column: str
    chunk: str
    chunk_ends: date
    state: SourceState | None = None
    made: MadeState | None = None
    policy: tuple[str, ...] = field(default=())


def start_problems(
    manifest: RunManifest, contract: TargetContract, found: FoundStart | None, inputs: DayRange
) -> list[Problem]:
    """Return why a run may not start from the states that its manifest names; nothing where it names none.

    Args:
        manifest: the contract of the run.
        contract: its target.
        found: what is known of the states; None where nothing was looked up, because their table is none that is declared.
        inputs: the days that are read: the publish range, with the warm-up before it.
    """
    asked, declared = manifest.source.start_from, contract.start
    if asked is None:
        return []
    where = "source.startFrom"
    if declared is None or declared.table != asked.table:
        known = "declares none" if declared is None else f"declares those of {declared.table}"
        rule = f"a run starts from states that its target declares with `starts_from`; {contract.table} {known}"
        return [Problem(f"source.startFrom.table is {asked.table}", rule, _BEGIN, where)]
    problems = [*_of_the_run(manifest, asked, inputs)]
    if found is not None:
        problems += [*_of_the_state(asked, found), *_of_its_making(manifest, declared, asked, found)]
    return [replace(one, where=one.where or where) for one in problems]


def _of_the_run(manifest: RunManifest, asked: StartFrom, inputs: DayRange) -> Iterator[Problem]:
    if manifest.execution_mode is Mode.RECONCILIATION:
        yield Problem("the run is a reconciliation", "one computes no rows, and starts from nothing", _BEGIN)
    if manifest.target.merge is not None:
        rule = "a merge computes entities from all of their rows"
        yield Problem("the run merges, and names states to start from", rule, _BEGIN)
    if asked.day >= inputs.start:
        yield Problem(
            f"source.startFrom.day is {asked.day}, and the run reads the days from {inputs.start} on as they are",
            "a state to start from is of a day before those",
            f"name the state of a day before {inputs.start}",
        )


def _of_the_state(asked: StartFrom, found: FoundStart) -> Iterator[Problem]:
    if asked.day != found.chunk_ends:
        yield Problem(
            f"source.startFrom.day is {asked.day}, and chunk {found.chunk} of {asked.table} ends on {found.chunk_ends}",
            "each chunk has one state: that at the end of its last day",
            f"name {found.chunk_ends}, or the last day of another chunk",
        )
    if found.state is None or found.made is None:
        yield Problem(
            f"no accepted run holds {found.chunk} of {asked.table}",
            "a run starts from a state that was gated, approved and published",
            f"publish {found.chunk} of {asked.table} first; or {_BEGIN}",
        )
    if found.policy:
        yield Problem(
            f"the policy says what may be used of {', '.join(found.policy)}",
            "old data is used as policy allows today, and what a state has of a row that is no longer used cannot be taken out of it",
            _BEGIN,
        )


def _of_its_making(
    manifest: RunManifest, declared: DeclaredStart, asked: StartFrom, found: FoundStart
) -> Iterator[Problem]:
    made, version = found.made, manifest.transform.version
    if made is None:
        return
    again = f"publish {found.chunk} of {asked.table} again (a RESTATEMENT of it), and start from that"
    fitting = declared.fits.get(version, ())
    if made.version not in fitting:
        yield Problem(
            f"{found.chunk} of {asked.table} was made by version {made.version} ('{made.run_id}')",
            f"version {version} of {manifest.transform.name} starts from states of version {' or '.join(fitting) or 'none'}",
            f"{again}; or {_BEGIN}",
        )
    if made.code != made.code_now:
        yield Problem(
            f"{found.chunk} of {asked.table} was made by {made.code} ('{made.run_id}'), and the code is {made.code_now} now",
            "what a run starts from was made by the code that goes on from it",
            f"{again}: where no row of it changes, its digests say so; or {_BEGIN}",
        )
    if not made.is_ancestor:
        yield Problem(
            f"{found.chunk} of {asked.table} was made of snapshot {made.source_snapshot_id} of {manifest.source.table} ('{made.run_id}')",
            "a state is made of rows that the run would read itself: of a snapshot in the history of the one that it reads",
            f"read a later snapshot of {manifest.source.table}, or {again}; or {_BEGIN}",
        )
    elif made.came is None:
        yield Problem(
            f"snapshot {made.source_snapshot_id} of {manifest.source.table}, of which {found.chunk} of {asked.table} was made, is gone",
            "what a state was made of is held against what the run reads",
            f"{again}; or {_BEGIN}",
        )
    elif made.came:
        days = in_words([f"{day}" for day in made.came[:_SHOWN]])
        more = f" and {len(made.came) - _SHOWN:,} more" if len(made.came) > _SHOWN else ""
        yield Problem(
            f"rows of {manifest.source.table} of {days}{more} have come, gone or been written anew since {found.chunk} of "
            f"{asked.table} was made ('{made.run_id}')",
            f"a state of {asked.day} has every row up to that day",
            f"{again}; or {_BEGIN}",
        )


def pin_of_start(asked: StartFrom, found: FoundStart) -> PinnedSource:
    """Return how the states that a run starts from are pinned."""
    assert found.state is not None
    assert found.made is not None
    pin = pin_of(FurtherSource(asked.table, found.time_column, 0, 0, may_be_empty=True), found.state)
    return replace(
        pin,
        day=asked.day,
        reads=FileIndex(found.state.files).touched(asked.day, asked.day),
        upstream=(UpstreamRun(found.made.run_id, (found.chunk,)),),
    )
