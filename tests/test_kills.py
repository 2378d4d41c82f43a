"""Crash and doubt: whatever a process, a disk, a catalog or a clock does, the same command again ends as if undisturbed."""

from __future__ import annotations

import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io.pyarrow import PyArrowFile
from servers import Postgres

from backfill_assets import decisions, faults
from backfill_assets.gates import judging
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication import ending
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from backfill_assets.staging import executor
from benchmarks import kills, small_table
from benchmarks.kills import CASES, RUN, STEPS, Case
from benchmarks.small_table import CORRECTIONS, READINGS, closed, manifest, planned, rows, staged
from manifests.errors import EnvironmentRefused, PublicationDeferred, PublicationRefused, TransitionRefused
from manifests.lifecycle import RunState
from manifests.model import Conflict, OnConflict
from resources.lakehouse.facade import local_path
from resources.ledger import judged
from resources.ledger.facade import ChunkState, Verdict
from resources.ledger.transactions import LedgerEngine, system_clock

pytestmark = pytest.mark.matrix

BY_NAME = {case.name: case for case in CASES}
REPLACE = BY_NAME["REPLACE_PARTITIONS"]


@pytest.fixture(scope="module")
def kept(kept_site: Path) -> Path:
    return kept_site


@pytest.fixture
def platform(kept: Path) -> Iterator[Platform]:
    """The installation, put back to its history."""
    kills.restore(kept)
    platform = kills.at(kept)
    yield platform
    closed(platform)


@pytest.fixture(scope="module")
def twin(kept: Path) -> Callable[[Case], dict[str, Any]]:
    """Return what a case leaves if nothing disturbs it; each is done once, with the same installation."""
    known: dict[str, dict[str, Any]] = {}

    def of(case: Case) -> dict[str, Any]:
        if case.name not in known:
            kills.restore(kept)
            platform = kills.at(kept)
            for step in case.steps:
                STEPS[step](platform, case)
            known[case.name] = kills.outcome(platform, case)
            closed(platform)
        return known[case.name]

    return of


def only(case: Case, *steps: str) -> Case:
    return Case(f"{case.name} {' '.join(steps)}", case.mode, case.scope, case.options, steps)


def differing(platform: Platform, case: Case, expected: dict[str, Any], *, but: tuple[str, ...] = ()) -> dict[str, Any]:
    found = kills.outcome(platform, case)
    return {
        name: (found[name], expected[name]) for name in expected if name not in but and found[name] != expected[name]
    }


def validated(platform: Platform, case: Case) -> None:
    planned(platform, manifest(case.run_id, case.mode, case.scope, **dict(case.options)))
    assert staged(platform, case.run_id).state is RunState.VALIDATED


# --- kill -9 ----------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_dozen_kills_over_all_modes_leave_no_trace(tmp_path: Path) -> None:
    tallies = kills.campaign(tmp_path / "site", 12, 4)
    assert [wrong for tally in tallies for wrong in tally.wrong] == []
    assert sum(tally.kills for tally in tallies) == 12
    assert all(tally.cycles and tally.polls for tally in tallies)


def test_a_kill_a_mode_leaves_no_trace_on_a_server(tmp_path: Path, postgres_server: Postgres) -> None:
    tallies = kills.campaign(tmp_path / "site", len(CASES[::2]), 5, CASES[::2], postgres_server)
    assert [wrong for tally in tallies for wrong in tally.wrong] == []
    assert sum(tally.kills for tally in tallies) == len(CASES[::2])
    assert list(tmp_path.rglob("*.db")) == [], "ledger and catalog are on the server"


def test_the_harness_sees_a_reader_who_saw_something_else() -> None:
    assert kills._follows(["a", "c"], ["a", "b", "c", "b"])
    assert not kills._follows(["a", "x"], ["a", "b"])
    assert not kills._follows(["b", "a"], ["a", "b"])


@pytest.mark.parametrize("point", ["publishing.halfway", "undoing.halfway"])
def test_the_doctor_does_not_call_half_a_publication_nothing(
    kept: Path, platform: Platform, twin: Callable[[Case], dict[str, Any]], point: str
) -> None:
    case = BY_NAME["CORRECTION_EVENTS beside"]
    expected = twin(case)
    kills.restore(kept)
    assert kills._launch(kept, case, point, None) == -signal.SIGKILL
    kinds = {one.kind for one in examine(platform)}
    assert "publication-unrecorded" in kinds
    assert "intent-left-open" not in kinds
    assert mend(platform)[1] == []
    assert kills._launch(kept, case, None, None) == 0
    assert differing(platform, case, expected) == {}


@pytest.mark.parametrize("by", ["the same command", "the doctor"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_publication_that_the_next_lease_records_is_recorded_as_what_it_was(
    kept: Path, platform: Platform, twin: Callable[[Case], dict[str, Any]], case: Case, by: str
) -> None:
    expected = twin(case)
    kills.restore(kept)
    assert kills._launch(kept, case, "publishing.committed", None) == -signal.SIGKILL
    if by == "the doctor":
        assert "publication-unrecorded" in {one.kind for one in examine(platform)}
        assert mend(platform)[1] == []
        assert platform.ledger.run(case.run_id).state is RunState.PUBLISHED
    assert kills._launch(kept, case, None, None) == 0
    assert differing(platform, case, expected) == {}


def test_a_version_that_was_accepted_and_is_reinstated_holds_its_chunks(platform: Platform) -> None:
    case = BY_NAME["VERSIONED, accepted later"]
    STEPS[RUN](platform, case)
    assert set(platform.ledger.accepted(READINGS).values()) == {"history"}
    accept(platform, case.run_id)
    mine = {chunk.chunk for chunk in platform.ledger.chunks(case.run_id)}
    for _ in range(2):
        held = platform.ledger.accepted(READINGS)
        assert {chunk for chunk, run_id in held.items() if run_id == case.run_id} == mine
        rollback(platform, case.run_id)
        assert set(platform.ledger.accepted(READINGS).values()) == {"history"}
        reinstate(platform, case.run_id)
    assert examine(platform) == []


# --- the catalog ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point", ["publishing.sealed", "publishing.tagged", "publishing.leased", "publishing.committed"]
)
def test_a_catalog_that_goes_away_while_publishing_and_comes_back(
    platform: Platform, twin: Callable[[Case], dict[str, Any]], monkeypatch: pytest.MonkeyPatch, kept: Path, point: str
) -> None:
    case = only(REPLACE, RUN)
    expected = twin(case)
    closed(platform)
    kills.restore(kept)
    validated(platform, case)
    file = Path(platform.settings.catalog["uri"].removeprefix("sqlite:///"))
    away = file.with_suffix(".away")

    def reach(here: str) -> None:
        if here == point:
            platform.lakehouse.catalog.engine.dispose()  # type: ignore[attr-defined]
            file.rename(away)
            file.mkdir()  # nothing that could be opened, and nothing that would be made anew

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        with pytest.raises(EnvironmentRefused):
            publish(platform, case.run_id)
        # what has landed is on record; its evidence, which hashes the table's metadata, waits for the same command
        landed = point == "publishing.committed"
        assert platform.ledger.run(case.run_id).state is (RunState.PUBLISHED if landed else RunState.VALIDATED)
    file.rmdir()
    away.rename(file)
    publish(platform, case.run_id)
    assert differing(platform, case, expected) == {}


class Doubtful:
    """A catalog that misreports: each commit lands and is called a failure, or each is made only at the second try.

    A try of the same commit changes the same refs of the same table.
    """

    def __init__(self, commit: Callable[..., Any], error: Exception, *, lands: bool) -> None:
        self.commit, self.error, self.lands = commit, error, lands
        self.calls: Counter[Any] = Counter()
        self.lies = 0

    def __call__(self, *arguments: Any) -> Any:
        table, _, updates = arguments
        commit = table.name(), tuple(sorted(getattr(update, "ref_name", "") for update in updates))
        self.calls[commit] += 1
        if not self.lands and self.calls[commit] % 2 == 0:
            return self.commit(*arguments)
        self.lies += 1
        if self.lands:
            self.commit(*arguments)
        raise self.error


@pytest.mark.parametrize("name", ["REPLACE_PARTITIONS", "SHADOW_SWAP", "CORRECTION_EVENTS beside"])
@pytest.mark.parametrize(
    ("error", "lands"),
    [
        (CommitStateUnknownException("no answer in time"), True),
        (CommitStateUnknownException("no answer in time"), False),
        (ConnectionError("reset by peer"), True),
        (CommitFailedException("no, says the proxy"), True),
        (CommitFailedException("no, says the proxy"), False),
    ],
    ids=["unknown, landed", "unknown, not landed", "connection lost, landed", "failed, landed", "failed, not landed"],
)
def test_a_commit_of_unknown_outcome_is_looked_up_before_anything_is_tried_again(
    platform: Platform,
    twin: Callable[[Case], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    kept: Path,
    name: str,
    error: Exception,
    lands: bool,
) -> None:
    case = BY_NAME[name]
    expected = twin(case)
    closed(platform)
    kills.restore(kept)
    validated(platform, case)
    catalog = platform.lakehouse.catalog
    doubtful = Doubtful(catalog.commit_table, error, lands=lands)
    monkeypatch.setattr(catalog, "commit_table", doubtful)
    tries = 0
    for step in case.steps:
        while True:
            tries += 1
            assert tries < 30
            try:
                STEPS[step](platform, case)
            except EnvironmentRefused as refusal:
                assert "unknown" in str(refusal)  # noqa: PT017 - how often it is refused depends on the mode
            else:
                break
    assert doubtful.lies >= 3
    # what the catalog calls failed is tried again at once; what it cannot say, by the operator
    assert (tries == len(case.steps)) is isinstance(error, CommitFailedException)
    assert differing(platform, case, expected) == {}


# --- disks ------------------------------------------------------------------------------------------------------------


def test_a_disk_full_while_staging_is_said_and_leaves_nothing_half_staged(
    platform: Platform, twin: Callable[[Case], dict[str, Any]], monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    case = only(REPLACE, RUN)
    expected = twin(case)
    closed(platform)
    kills.restore(kept)
    planned(platform, manifest(case.run_id, case.mode, case.scope))
    files = kept / "home"

    def on_a_full_disk(*arguments: Any) -> Any:
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead: as on a full disk
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
        try:
            return small_table.compute(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)

    with monkeypatch.context() as patch:
        patch.setattr(executor, "compute_batch", on_a_full_disk)
        record = staged(platform, case.run_id)
    assert record.state is RunState.FAILED
    chunks = platform.ledger.chunks(case.run_id)
    assert {chunk.state for chunk in chunks} == {ChunkState.FAILED}
    assert all("OSError" in chunk.error and "File too large" in chunk.error for chunk in chunks)
    assert all(not chunk.files for chunk in chunks)
    assert files.exists()
    with pytest.raises(PublicationRefused):
        publish(platform, case.run_id)
    STEPS[RUN](platform, case)  # there is room again
    assert platform.ledger.run(case.run_id).state is RunState.PUBLISHED
    assert differing(platform, case, expected, but=("transitions",)) == {}


@pytest.mark.parametrize("harm", ["truncated", "gone", "other rows"])
def test_a_staged_file_that_was_harmed_after_its_gate_is_not_published(platform: Platform, harm: str) -> None:
    case = only(REPLACE, RUN)
    validated(platform, case)
    before = rows(platform)
    chunks = platform.ledger.chunks(case.run_id)
    file, other = (Path(local_path(one.path)) for one in chunks[0].files)
    if harm == "truncated":
        file.write_bytes(file.read_bytes()[:-100])
    elif harm == "gone":
        file.unlink()
    else:
        file.write_bytes(other.read_bytes())
    with pytest.raises(PublicationRefused, match="what is published is what was gated"):
        publish(platform, case.run_id)
    assert rows(platform) == before
    assert platform.ledger.run(case.run_id).state is RunState.REJECTED
    again = Case("again", case.mode, case.scope, case.options, (RUN,))
    STEPS[RUN](platform, again)
    assert rows(platform) != before


def test_the_doctor_plans_a_chunk_again_whose_file_was_harmed_before_its_gate(platform: Platform) -> None:
    case = only(REPLACE, RUN)
    record = planned(platform, manifest(case.run_id, case.mode, case.scope))
    executor.stage_chunks(platform, case.run_id, [chunk.key for chunk in record.plan.chunks])
    harmed = platform.ledger.chunks(case.run_id)[0]
    Path(local_path(harmed.files[0].path)).write_bytes(b"")
    repaired, left = mend(platform)
    assert [one.found.kind for one in repaired] == ["staged-file-damaged"]
    assert left == []
    assert platform.ledger.chunks(case.run_id)[0].state is ChunkState.PLANNED
    STEPS[RUN](platform, case)
    assert platform.ledger.run(case.run_id).state is RunState.PUBLISHED
    assert platform.ledger.chunks(case.run_id)[0].attempt == harmed.attempt + 1


# --- operators and clocks ---------------------------------------------------------------------------------------------


def test_two_operators_who_launch_the_same_run_at_once_make_one_publication(
    platform: Platform, twin: Callable[[Case], dict[str, Any]], kept: Path
) -> None:
    case = only(BY_NAME["MERGE_BY_KEY"], RUN)
    expected = twin(case)
    closed(platform)
    kills.restore(kept)
    pipes, operators = [], []
    for _ in range(2):
        mine, theirs = kills.CONTEXT.Pipe()
        operators.append(kills.CONTEXT.Process(target=kills.insist, args=(kept, case, theirs)))
        operators[-1].start()
        theirs.close()
        pipes.append(mine)
    for pipe in pipes:
        pipe.recv()
    for pipe in pipes:
        pipe.send(None)
    refusals = [pipe.recv() for pipe in pipes]
    for operator in operators:
        operator.join()
    assert [operator.exitcode for operator in operators] == [0, 0]
    assert max(map(len, refusals)) < kills._REFUSALS, refusals
    assert RunState.FAILED not in {one.to_state for one in platform.ledger.history(case.run_id)}
    # whose attempt was first is open; the other's is not used
    found = differing(platform, case, expected, but=("attempts that were staged",))
    files, of_twin = found.pop("evidence", ((), ()))
    assert found == {}
    assert set(of_twin) <= set(files) <= {*of_twin, "waits.json"}, "one of them may have waited for the other's place"


def test_a_launch_whose_chunks_another_one_has_staged_meanwhile_has_nothing_left_to_do(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = only(REPLACE, RUN)
    record = planned(platform, manifest(case.run_id, case.mode, case.scope))

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(executor, "compute_batch", small_table.compute)
        staged(platform, case.run_id)
        return small_table.compute(*arguments)

    monkeypatch.setattr(executor, "compute_batch", overtaken)
    outcome = executor.stage_chunks(platform, case.run_id, [chunk.key for chunk in record.plan.chunks])
    assert outcome.computed == []
    assert len(outcome.skipped) == len(record.plan.chunks)
    assert platform.ledger.run(case.run_id).state is RunState.VALIDATED
    assert {one.attempt for one in platform.ledger.chunks(case.run_id)} == {2}


def test_a_launch_whose_run_another_one_has_judged_meanwhile_has_nothing_left_to_do(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = only(REPLACE, RUN)
    record = planned(platform, manifest(case.run_id, case.mode, case.scope))
    executor.stage_chunks(platform, case.run_id, [chunk.key for chunk in record.plan.chunks])
    judging.gate_chunks(platform, case.run_id)
    judge = judging._run_verdicts

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(judging, "_run_verdicts", judge)
        assert judging.gate_run(platform, case.run_id)
        return judge(*arguments)

    monkeypatch.setattr(judging, "_run_verdicts", overtaken)
    assert judging.gate_run(platform, case.run_id) is None
    assert platform.ledger.run(case.run_id).state is RunState.VALIDATED
    moves = [one.to_state for one in platform.ledger.history(case.run_id)]
    assert moves.count("VALIDATED") == 1


def test_a_read_that_fails_once_does_not_reject_a_validated_run(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated(platform, REPLACE)
    with monkeypatch.context() as patch:
        opened = PyArrowFile.open

        def slow_down(self: PyArrowFile, *arguments: Any) -> Any:
            if not self.location.endswith(".parquet"):
                return opened(self, *arguments)
            raise OSError("AWS Error SLOW_DOWN")

        patch.setattr(PyArrowFile, "open", slow_down)
        with pytest.raises(EnvironmentRefused, match="could not be read just now"):
            publish(platform, REPLACE.run_id)
    assert platform.ledger.run(REPLACE.run_id).state is RunState.VALIDATED
    publish(platform, REPLACE.run_id)


def test_verdicts_of_files_that_another_launch_has_replaced_meanwhile_validate_nothing(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow launch judges; another one validates the run, fails to publish, plans chunks anew and stages more rows."""
    case = only(REPLACE, RUN)
    limited = manifest(case.run_id, case.mode, case.scope)
    record = planned(platform, limited)
    keys = [chunk.key for chunk in record.plan.chunks]
    executor.stage_chunks(platform, case.run_id, keys)
    judging.gate_chunks(platform, case.run_id)
    judge = judging._run_verdicts

    def overtaken(*arguments: Any) -> Any:
        verdicts = judge(*arguments)
        monkeypatch.setattr(judging, "_run_verdicts", judge)
        assert judging.gate_run(platform, case.run_id)
        platform.ledger.replan(case.run_id, record.plan, keys, actor="grace", reason="changed since")
        executor.stage_chunks(platform, case.run_id, keys)
        judging.gate_chunks(platform, case.run_id)
        return verdicts

    monkeypatch.setattr(judging, "_run_verdicts", overtaken)
    assert judging.gate_run(platform, case.run_id) is None
    assert platform.ledger.run(case.run_id).state is RunState.STAGED
    with pytest.raises(PublicationRefused, match=r"(?s)STAGED.*judged other files"):
        publish(platform, case.run_id)
    assert judging.gate_run(platform, case.run_id)  # whoever staged them judges them
    publish(platform, case.run_id)


def test_an_owner_accepts_numbers_of_the_files_that_are_staged_and_of_no_others(platform: Platform) -> None:
    record = planned(platform, manifest("unusual", REPLACE.mode, REPLACE.scope))
    keys, ledger = [chunk.key for chunk in record.plan.chunks], platform.ledger
    executor.stage_chunks(platform, "unusual", keys)
    judging.gate_chunks(platform, "unusual")
    first, *others = record.plan.gates
    found = [Verdict(first, passed=False, summary="down by 80%", details={}, asks=True)]
    found += [Verdict(gate, passed=True, summary="fine", details={}) for gate in others]
    assert ledger.judge("unusual", found, "ada", of=judged.name_of(ledger.chunks("unusual")))
    (seen,) = ledger.asking("unusual")
    assert ledger.repairs.plan_again("unusual", ledger.chunks("unusual")[0], "its file is damaged", "doctor")
    executor.stage_chunks(platform, "unusual", keys)
    judging.gate_chunks(platform, "unusual")

    def accept(verdict: Verdict) -> RunState:
        return ledger.accept_change(
            "unusual", verdict, by="olga", reason="rain", plan_hash=record.plan_hash, gates=record.plan.gates
        )

    with pytest.raises(TransitionRefused, match="that are not what is staged now"):
        accept(seen)
    assert not ledger.validate_accepted("unusual", record.plan.gates, by="ada", why="as before")
    assert ledger.judge("unusual", found, "ada", of=judged.name_of(ledger.chunks("unusual")))
    assert accept(seen) is RunState.VALIDATED


@pytest.mark.parametrize(
    "end",
    [
        lambda platform, _: ending.cancel(platform, REPLACE.run_id, "grace", "not wanted"),
        lambda platform, plan_hash: decisions.reject(
            platform, REPLACE.run_id, by="grace", comment="no", plan_hash=plan_hash
        ),
    ],
    ids=["cancel", "reject"],
)
def test_what_landed_unrecorded_cannot_be_ended_as_if_it_had_not(
    platform: Platform, kept: Path, twin: Callable[[Case], dict[str, Any]], end: Callable[[Platform, str], None]
) -> None:
    expected = twin(REPLACE)
    closed(platform)
    kills.restore(kept)
    assert kills._launch(kept, REPLACE, "publishing.committed", None) == -signal.SIGKILL
    record = platform.ledger.run(REPLACE.run_id)
    assert record.state is RunState.VALIDATED
    with pytest.raises(PublicationRefused, match="has landed"):
        end(platform, record.plan_hash)
    assert platform.ledger.run(REPLACE.run_id).state is RunState.PUBLISHED  # it is on record by now
    for step in REPLACE.steps[len(kills._noted(kept)) :]:
        STEPS[step](platform, REPLACE)
    assert differing(platform, REPLACE, expected) == {}


def test_a_validated_run_is_rejected_by_those_who_looked_at_its_numbers(platform: Platform) -> None:
    validated(platform, REPLACE)
    decisions.reject(platform, REPLACE.run_id, by="grace", comment="too many")
    assert platform.ledger.run(REPLACE.run_id).state is RunState.REJECTED
    with pytest.raises(PublicationRefused, match="REJECTED"):
        publish(platform, REPLACE.run_id)


def test_corrections_that_are_planned_anew_stand_on_the_corrections_as_they_are_then(platform: Platform) -> None:
    beside = BY_NAME["CORRECTION_EVENTS beside"]
    options = dict(beside.options)
    patient = manifest("patient", beside.mode, beside.scope, **options)
    patient = patient.model_copy(update={"conflict": Conflict(onConflict=OnConflict.REPLAN)})
    planned(platform, patient)
    staged(platform, "patient")
    first_month = (beside.scope[0], "2020-02-29")
    planned(platform, manifest("faster", beside.mode, first_month, **options))
    staged(platform, "faster")
    publish(platform, "faster")
    with pytest.raises(PublicationDeferred, match="planned anew"):
        publish(platform, "patient")
    assert staged(platform, "patient").state is RunState.VALIDATED
    publish(platform, "patient")
    assert platform.ledger.run("patient").state is RunState.PUBLISHED
    issued = platform.lakehouse.table(CORRECTIONS).scan(selected_fields=("correction_id", "day", "run_id")).to_arrow()
    assert len(set(issued["correction_id"].to_pylist())) == issued.num_rows
    by_month = {
        (day.month, run_id) for day, run_id in zip(issued["day"].to_pylist(), issued["run_id"].to_pylist(), strict=True)
    }
    assert by_month == {(2, "faster"), (3, "patient")}  # February was right when it was computed anew


@pytest.mark.check
@pytest.mark.parametrize("point", ["staging.written", "publishing.tagged", "publishing.committed", "undoing.committed"])
def test_a_clock_that_is_set_back_between_attempts_changes_nothing(
    platform: Platform, twin: Callable[[Case], dict[str, Any]], monkeypatch: pytest.MonkeyPatch, kept: Path, point: str
) -> None:
    expected = twin(REPLACE)
    closed(platform)
    kills.restore(kept)
    assert kills._launch(kept, REPLACE, point, None) == -signal.SIGKILL
    with monkeypatch.context() as patch:
        patch.setattr(LedgerEngine, "clock", staticmethod(lambda: system_clock() - timedelta(days=1)))
        for step in REPLACE.steps[len(kills._noted(kept)) :]:
            STEPS[step](platform, REPLACE)
        # a command makes the diff after what is done here; a day later by the doctor's clock it is missing
        assert {one.kind for one in examine(platform)} <= {"clock-behind", "diff-missing"}
    assert {one.kind for one in examine(platform)} <= {"diff-missing"}
    assert differing(platform, REPLACE, expected, but=("what the doctor finds",)) == {}
    assert rows(platform, CORRECTIONS) == []
