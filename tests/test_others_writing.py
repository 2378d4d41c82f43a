"""What other programs write and point at while a run is published, accepted, taken back or brought back.

Nothing of it is taken for a decision of somebody, or for the run's own doing. The table is the benchmarks' small one, without
Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from small_worlds import copy_of
from test_own_changes import file_of_another, is_shown, said_of, written_by_another
from test_taking_back import (
    APRIL,
    BESIDE,
    FEBRUARY,
    LATER,
    MAY,
    NO_RETENTION,
    PUBLISHED,
    ROLLED_BACK,
    agree,
    compacted,
    dying_at,
    entries,
    expired_by_another_program,
    kinds,
    published,
    readers,
    shown_by_another_program,
    state,
    validated,
    with_history,
)

from backfill_assets import faults
from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.publisher import prepare, publish
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks.small_table import CORRECTIONS, READINGS, closed, declared, rows
from manifests.errors import PublicationRefused, Refused
from manifests.lifecycle import ACCEPT, PUBLISH, REINSTATE, ROLLBACK, WITHDRAW, RunState
from resources.lakehouse import commits
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.data_files import gated_data_files
from resources.lakehouse.facade import (
    ACTION_PROPERTY,
    EVIDENCE_PROPERTY,
    PLAN_PROPERTY,
    RUN_PROPERTY,
    SEQUENCE_PROPERTY,
    VERSION_PROPERTY,
)
from resources.lakehouse.lineage import withdrawn
from resources.lakehouse.live_files import all_files

pytestmark = pytest.mark.matrix


@pytest.fixture
def history() -> Iterator[Platform]:
    """A table with rows of four months, published by the run `base-run`."""
    with declared():
        platform = copy_of(with_history, **NO_RETENTION)
        yield platform
        closed(platform)


def issued(platform: Platform) -> Counter[tuple[Any, ...]]:
    """Return the corrections that readers see, each with how often they see it."""
    return Counter(rows(platform, CORRECTIONS))


# --- corrections that another program has written into files of its own -----------------------------------------------


def rolled_back_beside_a_compaction(platform: Platform) -> None:
    """Roll `run` back while another program compacts the corrections: they stay, in a file of its own."""
    published(platform, "run", **BESIDE)
    real = faults.reach
    with mock.patch.object(
        faults, "reach", lambda point: compacted(platform) if point == "undoing.halfway" else real(point)
    ):
        rollback(platform, "run")
    assert kinds(platform) == [("corrections-left", "run")]


def test_corrections_that_are_there_still_are_not_brought_back_a_second_time(history: Platform) -> None:
    rolled_back_beside_a_compaction(history)
    before, left = rows(history), issued(history)
    with pytest.raises(
        PublicationRefused, match=rf"{left.total()} correction\(s\) of 'run' are in {CORRECTIONS}"
    ) as refused:
        reinstate(history, "run")
    assert "restate the scope with a new run" in str(refused.value)
    assert (state(history, "run"), rows(history), issued(history)) == (ROLLED_BACK, before, left)
    assert kinds(history) == [("corrections-left", "run")]
    assert [one for one in entries(history, "run") if one[1] == "INTENT"] == []
    without = history.lakehouse.table(CORRECTIONS)  # the way out
    commit_replacement(without, AlwaysTrue(), [task.file for task in without.scan().plan_files()], [], {})
    published(history, "again", **BESIDE)
    assert max(issued(history).values()) == 1
    assert readers(history)["2020-02"] == "again"


def test_corrections_that_cannot_be_read_are_not_taken_for_none(history: Platform) -> None:
    rolled_back_beside_a_compaction(history)
    before = rows(history)
    for task in history.lakehouse.table(CORRECTIONS).scan().plan_files():
        Path(task.file.file_path.removeprefix("file://")).unlink()
    with pytest.raises(PublicationRefused, match=f"corrections of 'run' are in {CORRECTIONS} cannot be told"):
        reinstate(history, "run")
    assert (state(history, "run"), rows(history)) == (ROLLED_BACK, before)


@pytest.mark.parametrize("ended_by", ["the same command", "another run", "the doctor"])
@pytest.mark.parametrize("gone", ["all", "one"])
@pytest.mark.parametrize("action", [PUBLISH, REINSTATE])
def test_a_change_whose_corrections_are_gone_halfway_is_brought_to_an_end(
    history: Platform, action: str, gone: str, ended_by: str
) -> None:
    """Nothing current references them then, and whatever expires snapshots, or looks for orphans, may remove them."""
    before = rows(history)
    validated(history, "run", **BESIDE)
    validated(history, "elsewhere", scope=FEBRUARY, computed_by="1")
    act: Callable[..., Any] = publish
    if action == REINSTATE:
        publish(history, "run")
        snapshot = history.lakehouse.snapshot_id(CORRECTIONS)
        assert snapshot is not None
        rollback(history, "run")
        act = reinstate
    with dying_at(history, "undoing.halfway" if action == REINSTATE else "publishing.halfway"):
        act(history, "run")
    if action == REINSTATE:
        history.lakehouse.table(CORRECTIONS).maintenance.expire_snapshots().by_id(snapshot).commit()
    files = [file.path for chunk in history.ledger.chunks("run") for file in chunk.derived]
    removed = files if gone == "all" else files[:1]
    for path in removed:
        Path(path.removeprefix("file://")).unlink()
    if ended_by == "the same command":
        act(history, "run")
    elif ended_by == "another run":
        with pytest.raises(PublicationRefused, match="no longer holds"):
            publish(history, "elsewhere")  # it was planned on what is changed: nothing else stands against it
    mend(history)
    assert (state(history, "run"), readers(history)["2020-02"]) == (PUBLISHED, "run")
    listed = {task.file.file_path for task in history.lakehouse.table(CORRECTIONS).scan().plan_files()}
    assert listed == set(files) - set(removed)
    assert [one for one in kinds(history) if one[0] != "data-loss"] == [("corrections-missing", "run")]
    rollback(history, "run")  # the way out
    assert (rows(history), state(history, "run")) == (before, ROLLED_BACK)
    published(history, "again", scope=FEBRUARY)
    assert kinds(history) == []


# --- a version that nobody has accepted -------------------------------------------------------------------------------


def taken_back_from_another_program(platform: Platform) -> list[tuple[Any, ...]]:
    """Publish a version, have another program point main at it, and take it back; return the rows that readers get."""
    before = rows(platform)
    published(platform, "later", mode="VERSIONED", **LATER)
    shown_by_another_program(platform, "v2")
    rollback(platform, "later")
    assert (rows(platform), state(platform, "later")) == (before, ROLLED_BACK)
    return before


def test_a_version_that_nobody_has_accepted_is_brought_back_by_its_name_alone(history: Platform) -> None:
    before = taken_back_from_another_program(history)
    reinstate(history, "later")
    assert (rows(history), state(history, "later")) == (before, PUBLISHED)
    assert readers(history, "v2")["2020-02"] == "later"
    assert agree(history)
    with pytest.raises(PublicationRefused, match="has moved") as refused:  # main is not what it was made on any more
        accept(history, "later")
    assert "plan the change again" in str(refused.value)
    assert (rows(history), agree(history)) == (before, True)
    rollback(history, "later")
    assert (rows(history), withdrawn("v2") in history.lakehouse.refs(READINGS)) == (before, True)
    assert agree(history)
    published(history, "next", scope=FEBRUARY)
    assert agree(history)


@pytest.mark.parametrize("point", ["undoing.halfway", "undoing.committed"])
@pytest.mark.parametrize("action", [ROLLBACK, REINSTATE])
@pytest.mark.parametrize("ended_by", ["the same command", "another run", "the doctor"])
def test_what_takes_it_back_and_brings_it_back_is_brought_to_an_end(
    history: Platform, ended_by: str, action: str, point: str
) -> None:
    before = rows(history)
    published(history, "later", mode="VERSIONED", **LATER)
    validated(history, "elsewhere", scope=MAY)
    shown_by_another_program(history, "v2")
    act: Callable[..., Any] = rollback
    if action == REINSTATE:
        rollback(history, "later")
        act = reinstate
    with dying_at(history, point):
        act(history, "later")
    if ended_by == "the same command":
        act(history, "later")
    elif ended_by == "another run":
        publish(history, "elsewhere")
        act(history, "later")
    else:
        mend(history)
        act(history, "later")
    assert state(history, "later") is (ROLLED_BACK if action == ROLLBACK else PUBLISHED)
    assert [row for row in rows(history) if row in before] == before
    assert "later" not in readers(history).values()
    done = [one for one in history.ledger.publications("later") if one.state == "COMMITTED"]
    assert [one.action for one in done] == [PUBLISH, ROLLBACK, REINSTATE][: len(done)]
    assert (done[0].snapshot_id == done[1].snapshot_id) is False
    mend(history)
    assert agree(history)


def test_a_version_that_another_program_shows_once_more_is_taken_back_once_more(history: Platform) -> None:
    before = taken_back_from_another_program(history)
    reinstate(history, "later")
    shown_by_another_program(history, "v2")
    rollback(history, "later")
    assert (rows(history), state(history, "later")) == (before, ROLLED_BACK)
    assert "later" not in readers(history).values()


def test_a_version_that_another_program_shows_anew_after_its_rollback_can_be_accepted(history: Platform) -> None:
    taken_back_from_another_program(history)
    reinstate(history, "later")
    shown_by_another_program(history, "v2")
    accept(history, "later")
    assert readers(history)["2020-02"] == history.ledger.accepted(READINGS)["2020-02"] == "later"


# --- a candidate that another program has written to, and shown -------------------------------------------------------


def forged_and_shown(platform: Platform, mode: str, **options: Any) -> int:
    """Have a publisher die before its commit, and another program add to its candidate, in its words, and show that.

    Returns the snapshot that the other one has made.
    """
    validated(platform, "run", mode, **options)
    with dying_at(platform, "publishing.prepared"):
        publish(platform, "run")
    written_by_another(
        platform, said_of(platform.lakehouse.table(READINGS).snapshot_by_name("candidate-run")), "candidate-run"
    )
    shown_by_another_program(platform, "candidate-run")
    forged = platform.lakehouse.snapshot_id(READINGS)
    assert forged is not None
    return forged


@pytest.mark.parametrize("ended_by", ["the same command", "another run", "the doctor"])
def test_what_another_program_has_written_is_not_recorded_as_the_publication(history: Platform, ended_by: str) -> None:
    before = rows(history)
    validated(history, "elsewhere", scope=MAY)
    forged = forged_and_shown(history, "SHADOW_SWAP")
    own = history.lakehouse.parent_of(READINGS, forged)
    assert is_shown(history)
    if ended_by == "the same command":
        publish(history, "run")
    elif ended_by == "another run":
        publish(history, "elsewhere")
        mend(history)  # the other run has told nobody of it
    else:
        mend(history)
    (done,) = [one for one in history.ledger.publications("run") if one.has_landed]
    assert (done.snapshot_id, state(history, "run")) == (own, PUBLISHED)
    told = [str(one.where) + str(one.what) for one in verify(history).everything]
    assert [one for one in told if str(forged) in one]
    assert [one for one in told if str(own) in one and str(forged) not in one] == []
    with pytest.raises(PublicationRefused, match="somebody else wrote it"):
        rollback(history, "run")  # rows of others do not go with it
    if ended_by != "another run":
        assert own is not None  # the way out: what the other one has written is taken back
        history.lakehouse.point(READINGS, expected={}, branches={"main": own})
        rollback(history, "run")
        assert (rows(history), state(history, "run")) == (before, ROLLED_BACK)


def test_rows_that_another_program_writes_in_a_runs_words_are_not_its_publication(history: Platform) -> None:
    """A publisher dies before its commit; another program adds a file in the words that the run's commit would have had."""
    before = rows(history)
    validated(history, "run")
    with dying_at(history, "publishing.prepared"):
        publish(history, "run")
    entry, record = history.ledger.publications("run")[-1], history.ledger.run("run")
    said = {
        "backfill.run-id": "run",
        "backfill.action": "publish",
        "backfill.sequence": "1",
        "backfill.plan-hash": record.plan_hash,
        "backfill.evidence-root": entry.evidence_root,
    }
    written_by_another(history, said)
    shown = rows(history)
    mend(history)
    assert state(history, "run") is RunState.VALIDATED
    with pytest.raises(PublicationRefused):
        publish(history, "run")
    assert (state(history, "run"), rows(history)) == (RunState.REJECTED, shown)
    assert [one for one in history.ledger.publications("run") if one.has_landed or one.is_intent] == []
    assert len(shown) == len(before) + 1


# --- what another program writes in the words of an action that was interrupted before its commit ----------------------


def in_the_words_of(platform: Platform, action: str) -> dict[str, str]:
    """Return all that the commit of an interrupted action of `run` would have said of itself."""
    entry, record = platform.ledger.publications("run")[-1], platform.ledger.run("run")
    assert (entry.action, entry.is_intent) == (action, True)
    return {
        RUN_PROPERTY: "run",
        ACTION_PROPERTY: action,
        SEQUENCE_PROPERTY: str(len(platform.ledger.landed("run")) + 1),
        PLAN_PROPERTY: record.plan_hash,
        VERSION_PROPERTY: record.plan.transform_version,
        EVIDENCE_PROPERTY: entry.evidence_root,
    }


def interrupted_before_its_commit(platform: Platform, action: str, mode: str, **options: Any) -> None:
    """Have `run` published, and rolled back where it is to be brought back; the action dies once its intent is open."""
    published(platform, "run", mode=mode, **options)
    if action == REINSTATE:
        rollback(platform, "run")
    with dying_at(platform, "undoing.begun"):
        UNDOINGS[action](platform, "run")


def ended(platform: Platform, ended_by: str, act: Callable[..., Any]) -> None:
    """Do what brings an interrupted action of `run` to an end; what speaks against it is said, and nothing is done then."""
    try:
        if ended_by == "the same command":
            act(platform, "run")
        elif ended_by == "another run":
            publish(platform, "elsewhere")
        else:
            mend(platform)
    except Refused as refusal:
        assert ended_by == "the same command", refusal  # noqa: PT017 - in any other case nothing is refused


def only_file_added(platform: Platform, said: dict[str, str]) -> None:
    written_by_another(platform, said)


def own_files_taken_and_another_added(platform: Platform, said: dict[str, str]) -> None:
    """Take the run's files out of the table, as its rollback would, and put one of one's own there."""
    table = platform.lakehouse.table(READINGS)
    own = {file.path for chunk in platform.ledger.chunks("run") for file in chunk.files}
    going = [task.file for task in table.scan().plan_files() if task.file.file_path in own]
    commit_replacement(table, AlwaysTrue(), going, [file_of_another(table)], said)


def own_files_shown_beside_the_others(platform: Platform, said: dict[str, str]) -> None:
    """Put the run's files into the table, as its reinstatement would, and leave those that they replace."""
    table = platform.lakehouse.table(READINGS)
    staged = [file for chunk in platform.ledger.chunks("run") for file in chunk.files]
    commit_replacement(table, AlwaysTrue(), [], gated_data_files(table, staged), said)


def written_by_another_in_corrections(platform: Platform, said: dict[str, str]) -> None:
    """Commit a snapshot to the corrections that changes nothing."""
    commit_replacement(platform.lakehouse.table(CORRECTIONS), AlwaysTrue(), [], [], said)


UNDOINGS: dict[str, Callable[..., Any]] = {ROLLBACK: rollback, REINSTATE: reinstate}
FORGERIES = [
    (ROLLBACK, only_file_added),
    (ROLLBACK, own_files_taken_and_another_added),
    (REINSTATE, only_file_added),
    (REINSTATE, own_files_shown_beside_the_others),
]


@pytest.mark.parametrize("ended_by", ["the same command", "another run", "the doctor"])
@pytest.mark.parametrize(("mode", "options"), [("REPLACE_PARTITIONS", {}), ("VERSIONED", {"version": "v2"})])
@pytest.mark.parametrize(("action", "forge"), FORGERIES)
def test_what_another_program_writes_in_the_words_of_an_undoing_is_not_recorded_as_that(
    history: Platform,
    action: str,
    forge: Callable[[Platform, dict[str, str]], None],
    mode: str,
    options: dict[str, Any],
    ended_by: str,
) -> None:
    before = PUBLISHED if action == ROLLBACK else ROLLED_BACK
    validated(history, "elsewhere", scope=MAY)
    interrupted_before_its_commit(history, action, mode, **options)
    done, shown = len(history.ledger.landed("run")), history.lakehouse.snapshot_id(READINGS)
    forge(history, in_the_words_of(history, action))
    forged = history.lakehouse.snapshot_id(READINGS)
    assert forged != shown
    ended(history, ended_by, UNDOINGS[action])
    assert forged not in {one.snapshot_id for one in history.ledger.publications("run")}
    assert (state(history, "run"), len(history.ledger.landed("run"))) == (before, done)
    assert str(forged) in " ".join(f"{one.where} {one.what}" for one in verify(history).everything)
    if ended_by != "another run":  # the way out: what the other one has written is taken back
        history.lakehouse.point(READINGS, expected={}, branches={"main": shown})
        UNDOINGS[action](history, "run")
        assert state(history, "run") is (ROLLED_BACK if action == ROLLBACK else PUBLISHED)
        assert kinds(history) == []


@pytest.mark.parametrize("ended_by", ["the same command", "the doctor"])
def test_a_runs_files_beside_those_that_they_replace_are_not_its_publication(history: Platform, ended_by: str) -> None:
    """They came as they should have, and what was to go is there still: readers would get every row twice."""
    validated(history, "run")
    with dying_at(history, "publishing.leased"):
        publish(history, "run")
    own_files_shown_beside_the_others(history, in_the_words_of(history, PUBLISH))
    ended(history, ended_by, publish)
    assert history.ledger.landed("run") == []
    assert state(history, "run") is (RunState.REJECTED if ended_by == "the same command" else RunState.VALIDATED)


@pytest.mark.parametrize("ended_by", ["the same command", "the doctor"])
def test_a_withdrawal_that_took_nothing_does_not_bring_corrections_a_second_time(
    history: Platform, ended_by: str
) -> None:
    validated(history, "run", **BESIDE)
    with dying_at(history, "publishing.committed"):
        publish(history, "run")
    once = issued(history)
    written_by_another_in_corrections(history, {**in_the_words_of(history, PUBLISH), ACTION_PROPERTY: WITHDRAW})
    ended(history, ended_by, publish)
    assert state(history, "run") is PUBLISHED
    assert issued(history) == once


def test_a_commit_that_lost_to_one_in_the_same_words_is_not_taken_for_landed(history: Platform) -> None:
    """Another program commits between the look and the commit, elsewhere in the table, and says that it is this one."""
    validated(history, "run")
    elsewhere: list[int | None] = []

    def commit(*arguments: Any, **named: Any) -> int:
        if not elsewhere:
            row = [task.file for task in history.lakehouse.table(READINGS).scan("day >= '2020-04-01'").plan_files()]
            said = in_the_words_of(history, PUBLISH)
            real(history.lakehouse.table(READINGS), AlwaysTrue(), row, row, said)
            elsewhere.append(history.lakehouse.snapshot_id(READINGS))
            raise CommitFailedException("another one came between")
        return real(*arguments, **named)

    real = commits.commit_replacement
    with mock.patch.object(commits, "commit_replacement", commit):
        publish(history, "run")
    (done,) = history.ledger.landed("run")
    assert done.snapshot_id not in elsewhere
    assert readers(history)["2020-02"] == "run"


# --- a candidate that was built anew from files of the same names ------------------------------------------------------


def listed_twice(_table: Table, came: Sequence[DataFile], _stay: Sequence[DataFile]) -> Listed:
    return [*came, *(described_anew(file) for file in came)], []


def others_listed_twice(_table: Table, came: Sequence[DataFile], stay: Sequence[DataFile]) -> Listed:
    return [*came, *(described_anew(file) for file in stay)], []


def with_other_bounds(table: Table, came: Sequence[DataFile], _stay: Sequence[DataFile]) -> Listed:
    return [described_anew(file, **nowhere(table, file)) for file in came], []


def others_with_other_bounds(table: Table, came: Sequence[DataFile], stay: Sequence[DataFile]) -> Listed:
    return [*came, *(described_anew(file, **nowhere(table, file)) for file in stay)], list(stay)


def with_other_counts(_table: Table, came: Sequence[DataFile], _stay: Sequence[DataFile]) -> Listed:
    return [described_anew(file, record_count=file.record_count * 10) for file in came], []


def described_anew(file: DataFile, **changes: Any) -> DataFile:
    """Return another description of a file."""
    names = ("content", "file_path", "file_format", "partition", "record_count", "file_size_in_bytes", "column_sizes")
    names += ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds", "split_offsets")
    described = DataFile.from_args(**({name: getattr(file, name) for name in names} | changes))
    described.spec_id = getattr(file, "_spec_id", 0)  # a file that no manifest has yet does not say it
    return described


def nowhere(table: Table, file: DataFile) -> dict[str, Any]:
    """Return bounds by which nobody finds the rows of a file who looks for a meter."""
    meter = table.schema().find_field("meter").field_id
    return {
        "lower_bounds": {**file.lower_bounds, meter: b"zz"},
        "upper_bounds": {**file.upper_bounds, meter: b"zz"},
    }


Listed = tuple[Sequence[DataFile], Sequence[DataFile]]
"""The files that a candidate lists as come, and those of others that it lists as gone before."""
REBUILT = [listed_twice, others_listed_twice, with_other_bounds, others_with_other_bounds, with_other_counts]
WAITING = [("SHADOW_SWAP", {}), ("VERSIONED", {"version": "v2"}), ("VERSIONED", LATER)]


@pytest.mark.parametrize(("mode", "options"), WAITING, ids=["swap", "version", "version, accepted later"])
@pytest.mark.parametrize("rebuild", REBUILT)
def test_a_candidate_that_was_built_anew_from_the_same_files_is_not_published(
    history: Platform,
    rebuild: Callable[[Table, Sequence[DataFile], Sequence[DataFile]], Listed],
    mode: str,
    options: dict[str, Any],
) -> None:
    before = rows(history)
    validated(history, "run", mode, **options)
    prepare(history, "run")
    rebuilt_by_another(history, rebuild)
    with pytest.raises(
        PublicationRefused, match=r"the candidate of 'run', is not what was gated: .*parquet"
    ) as refused:
        publish(history, "run")
    assert "restate the scope with a new run" in str(refused.value)
    assert rows(history) == before
    assert "v2" not in history.lakehouse.refs(READINGS)
    assert state(history, "run") is RunState.REJECTED


@pytest.mark.parametrize("rebuild", REBUILT)
def test_a_version_that_was_built_anew_from_the_same_files_is_not_accepted(
    history: Platform, rebuild: Callable[[Table, Sequence[DataFile], Sequence[DataFile]], Listed]
) -> None:
    """Its name is moved to it; the ledger knows the snapshot, and an accepted one must be that."""
    before = rows(history)
    published(history, "run", mode="VERSIONED", **LATER)
    moved = rebuilt_by_another(history, rebuild)
    for act in (lambda change: change.remove_tag("v2"), lambda change: change.create_tag(moved, "v2")):
        with history.lakehouse.table(READINGS).manage_snapshots() as change:
            act(change)
    with pytest.raises(PublicationRefused):
        accept(history, "run")
    assert rows(history) == before


def rebuilt_by_another(
    platform: Platform, rebuild: Callable[[Table, Sequence[DataFile], Sequence[DataFile]], Listed]
) -> int:
    """Put another candidate on the branch of `run`, with the words of the first; return its snapshot."""
    branch, table = "candidate-run", platform.lakehouse.table(READINGS)
    good, base = table.snapshot_by_name(branch), table.current_snapshot()
    assert good is not None
    assert base is not None
    now, then = ({file.file_path: file for file in all_files(table, one)} for one in (good, base))
    came = [file for path, file in now.items() if path not in then]
    gone = [file for path, file in then.items() if path not in now]
    listed, others_gone = rebuild(table, came, [file for path, file in now.items() if path in then])
    with table.manage_snapshots() as change:
        change.remove_branch(branch)
    with platform.lakehouse.table(READINGS).manage_snapshots() as change:
        change.create_branch(base.snapshot_id, branch)
    table = platform.lakehouse.table(READINGS)
    commit_replacement(table, AlwaysTrue(), [*gone, *others_gone], listed, said_of(good), branch=branch)
    snapshot = platform.lakehouse.snapshot_of(READINGS, branch)
    assert snapshot is not None
    return snapshot


# --- an acceptance on a base that has expired -------------------------------------------------------------------------


def test_an_acceptance_whose_base_has_expired_is_refused_by_name_and_leaves_no_intent(history: Platform) -> None:
    published(history, "later", mode="VERSIONED", scope=FEBRUARY, **LATER)
    base = history.ledger.run("later").plan.base_snapshot_id
    assert base is not None
    published(history, "elsewhere", scope=APRIL)
    expired_by_another_program(history, base)
    with pytest.raises(PublicationRefused, match=f"snapshot {base}.* has expired") as refused:
        accept(history, "later")
    assert "new run id" in str(refused.value)
    assert [one for one in entries(history, "later") if one[1] == "INTENT"] == []
    assert state(history, "later") is PUBLISHED
    assert [one for one in examine(history) if one.kind.startswith("intent")] == []
    rollback(history, "later")
    assert (state(history, "later"), readers(history)["2020-02"]) == (ROLLED_BACK, "base-run")


def test_an_acceptance_whose_base_expires_while_it_looks_leaves_no_intent(history: Platform) -> None:
    published(history, "later", mode="VERSIONED", scope=FEBRUARY, **LATER)
    base = history.ledger.run("later").plan.base_snapshot_id
    assert base is not None
    published(history, "elsewhere", scope=APRIL)
    real = history.ledger.open_publication

    def opened_late(*arguments: Any, **named: Any) -> int:
        entry = real(*arguments, **named)
        expired_by_another_program(history, base)
        return entry

    with (
        mock.patch.object(history.ledger, "open_publication", opened_late),
        pytest.raises(PublicationRefused, match="has expired"),
    ):
        accept(history, "later")
    assert [one for one in entries(history, "later") if one[0] == ACCEPT] == [(ACCEPT, "REFUSED")]


def test_an_acceptance_that_landed_is_recorded_although_its_base_has_expired_since(history: Platform) -> None:
    published(history, "later", mode="VERSIONED", scope=FEBRUARY, **LATER)
    base = history.ledger.run("later").plan.base_snapshot_id
    assert base is not None
    with dying_at(history, "accepting.committed"):
        accept(history, "later")
    expired_by_another_program(history, base)
    accept(history, "later")
    assert (entries(history, "later")[-1], readers(history)["2020-02"]) == ((ACCEPT, "COMMITTED"), "later")
