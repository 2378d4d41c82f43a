"""Who looks beside work that goes on finds nothing wrong with it, and who repairs beside another repair does it once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from small_worlds import put_back, set_aside

from backfill_assets import faults
from backfill_assets.audit import verification
from backfill_assets.audit.verification import verify
from backfill_assets.evidence.record_damage import damaged_files
from backfill_assets.installation import Platform
from backfill_assets.operations import garbage
from backfill_assets.operations.doctor import examination
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication import ending
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.review.kept_diffs import keep_diff
from benchmarks import small_table
from benchmarks.small_table import closed, declared, manifest, planned, staged
from resources.evidence.store import KEPT, EvidenceStore
from resources.lakehouse.facade import local_path
from resources.ledger import transactions
from resources.ledger.moments import Moment

pytestmark = pytest.mark.matrix

WINTER = ("2020-01-01", "2020-02-29")


class Killed(BaseException):
    """What stands for the end of a process: nothing handles it."""


def validated(platform: Platform, run_id: str, scope: tuple[str, str], *, computed_by: str = "2") -> None:
    planned(platform, manifest(run_id, "REPLACE_PARTITIONS", scope, computed_by=computed_by))
    staged(platform, run_id)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two published months, a run that waits to replace the second, one that waits to add a third, one to be computed."""
    home = tmp_path_factory.mktemp("beside") / "home"
    with declared():
        platform = small_table.opened(home)
        small_table.initialise(platform)
        validated(platform, "history", WINTER, computed_by="1")
        publish(platform, "history")
        validated(platform, "feb", ("2020-02-01", "2020-02-29"))
        validated(platform, "march", ("2020-03-01", "2020-03-31"))
        planned(platform, manifest("april", "REPLACE_PARTITIONS", ("2020-04-01", "2020-04-30")))
        closed(platform)
    return set_aside(home)


@pytest.fixture
def platform(kept: Path) -> Iterator[Platform]:
    with put_back(kept) as opened:
        yield opened


def once(act: Callable[[], Any]) -> Callable[[], None]:
    """Return what does something the first time that it is called, and nothing while it is at it or afterwards."""
    done: list[bool] = []

    def first() -> None:
        if not done:
            done.append(True)
            act()

    return first


# --- the diff of a publication ----------------------------------------------------------------------------------------


def links_of_diffs(platform: Platform) -> list[tuple[str, str]]:
    return [
        (str(link["run"]), str(link["record"]))
        for link in platform.evidence.chain.contents()
        if link.get("event") == KEPT
    ]


def test_two_repairs_of_a_diff_without_its_link_append_one_link(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(EvidenceStore, "vouch_for", killed)
        with pytest.raises(Killed):
            keep_diff(platform, "history")
    assert links_of_diffs(platform) == []
    another = once(
        lambda: keep_diff(platform, "history")
    )  # while the rows are compared: the command again, or the doctor
    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", lambda point: another() if point == "comparing.kept" else None)
        assert keep_diff(platform, "history") is not None
    assert links_of_diffs(platform) == [("history", "diff")]
    assert verify(platform).everything == []


def test_a_repair_between_a_diff_and_its_link_appends_it_for_both(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, another = EvidenceStore.vouch_for, once(lambda: keep_diff(platform, "history"))

    def late(self: EvidenceStore, run_id: str, file: Path, **since: int) -> None:
        another()
        real(self, run_id, file, **since)

    with monkeypatch.context() as patch:
        patch.setattr(EvidenceStore, "vouch_for", late)
        assert keep_diff(platform, "history") is not None
    assert links_of_diffs(platform) == [("history", "diff")]
    assert verify(platform).everything == []


def test_a_second_link_of_a_kept_record_is_forgiven_if_it_says_the_same(platform: Platform) -> None:
    """Earlier versions appended two where two processes completed the record, and no link is ever taken away."""
    keep_diff(platform, "history")
    chain = platform.evidence.chain
    (link,) = [link for link in chain.contents() if link.get("event") == KEPT]
    said = {name: link[name] for name in ("event", "run", "record", "recordHash")}
    chain.append(said, since=chain.length(), same=lambda _: False)
    assert links_of_diffs(platform) == [("history", "diff")] * 2
    assert verify(platform).everything == []
    chain.append(said | {"recordHash": "0" * 64}, since=chain.length(), same=lambda _: False)
    assert f"chain link {chain.length()}" in {problem.where for problem in verify(platform).everything}


# --- verify -----------------------------------------------------------------------------------------------------------


def propose(platform: Platform) -> None:
    platform.ledger.policies.keep("f" * 64, {"x": 1})


def stop(platform: Platform) -> None:
    platform.ledger.stops.stop("feb", by="olga", through="test")


def cancel(platform: Platform) -> None:
    ending.cancel(platform, "march", "ada", "not wanted")


def compute(platform: Platform) -> None:
    staged(platform, "april")


def replace(platform: Platform) -> None:
    publish(platform, "feb")


def undo(platform: Platform) -> None:
    rollback(platform, "history")


def seal(platform: Platform) -> None:
    """Begin a publication that is not committed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "reach", killing("publishing.sealed"))
        with pytest.raises(Killed):
            publish(platform, "feb")


def killing(at: str) -> Callable[[str], None]:
    def reach(point: str) -> None:
        if point == at:
            raise Killed

    return reach


WORK = [propose, stop, cancel, compute, replace, undo, seal]


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("late", ["of_no_run", "run"])
def test_verify_finds_nothing_wrong_with_work_beside_it(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, work: Callable[[Platform], None], late: str
) -> None:
    """It has read the journal and the chain; then somebody works; then it reads rows and files."""
    real, act = getattr(verification._Check, late), once(lambda: work(platform))

    def after_work(self: Any, *of: Any, **how: Any) -> Any:
        act()
        return real(self, *of, **how)

    monkeypatch.setattr(verification._Check, late, after_work)
    assert verify(platform).everything == []


@pytest.mark.parametrize("work", [stop, cancel, compute])
def test_verify_beside_work_still_names_what_was_changed_by_hand(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, work: Callable[[Platform], None]
) -> None:
    with closing(sqlite3.connect(platform.settings.home / "ledger.db")) as connection:
        connection.execute("UPDATE runs SET requested_by = 'eve'")
        connection.commit()
    real, act = verification._Check.run, once(lambda: work(platform))

    def after_work(self: Any, *of: Any, **how: Any) -> Any:
        act()
        return real(self, *of, **how)

    monkeypatch.setattr(verification._Check, "run", after_work)
    named = {problem.where.removesuffix(" column requested_by") for problem in verify(platform).everything}
    assert {f"ledger runs {run_id}" for run_id in ("history", "feb", "march", "april")} <= named


def test_a_head_that_is_kept_while_verify_begins_is_not_missed(kept: Path, platform: Platform, tmp_path: Path) -> None:
    """The places are asked before the chain is read, which only grows."""
    closed(platform)
    watched = small_table.opened(kept, head_places=[str(tmp_path)])
    publish(watched, "march")
    real, act = verification._Check.__init__, once(lambda: publish(watched, "feb"))

    def before_work(self: Any, *of: Any) -> None:
        real(self, *of)
        act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification._Check, "__init__", before_work)
        done = verify(watched)
    assert done.everything == []
    closed(watched)


# --- doctor -----------------------------------------------------------------------------------------------------------


def plan_anew(platform: Platform) -> None:
    for version in ("1", "2"):
        plan_run(platform, manifest("draft", "REPLACE_PARTITIONS", ("2020-05-01", "2020-05-31"), computed_by=version))


def late(monkeypatch: pytest.MonkeyPatch, looks: str, act: Callable[[], Any]) -> None:
    """Have somebody act just before one of the doctor's looks: a function of its own, or of a moment that holds nobody up."""
    of = examination if hasattr(examination, looks) else Moment
    real, acts = getattr(of, looks), once(act)

    def after(*given: Any, **named: Any) -> Any:
        if of is examination or not transactions._writes(given[0]._connection):
            acts()
        return real(*given, **named)

    monkeypatch.setattr(of, looks, after)


@pytest.mark.parametrize("work", [stop, cancel, compute, replace, undo, plan_anew])
@pytest.mark.parametrize(
    "looks",
    ["_examine_target", "publications_off_the_record", "accepted_files_that_differ", "lost_files", "unexplained"],
)
def test_the_doctor_finds_nothing_wrong_with_work_beside_it(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, work: Callable[[Platform], None], looks: str
) -> None:
    if work is plan_anew:
        plan_run(platform, manifest("draft", "REPLACE_PARTITIONS", ("2020-05-01", "2020-05-31")))
    late(monkeypatch, looks, lambda: work(platform))
    assert examination.examine(platform) == []


def test_the_doctor_finds_no_entry_without_its_link_where_one_was_written_beside_it(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    late(monkeypatch, "explain", lambda: stop(platform))  # the chain is read; then somebody writes
    assert examination.examine(platform) == []


def test_the_doctor_takes_no_collection_for_lost_data(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(platform)
    rollback(platform, "feb")
    at = datetime.now(UTC) + timedelta(days=900)
    collected: list[int] = []

    def collect() -> None:
        done = garbage.collect(platform, garbage.find(platform, at=at), by="ops", at=at)
        collected.extend(one.files for one in done)

    late(monkeypatch, "lost_files", collect)
    assert examination.examine(platform) == []
    assert sum(collected) > 0


AT_IT = [
    "leasing.fenced",
    "publishing.sealed",
    "publishing.tagged",
    "publishing.leased",
    "publishing.committed",
    "undoing.committed",
]


def test_a_change_that_is_under_way_is_said_to_be_and_is_repaired_by_nobody(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, list[Disagreement]] = {}

    def reach(point: str) -> None:
        if point in AT_IT and point not in found:
            found[point] = examination.examine(platform)

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        publish(platform, "feb")
        rollback(platform, "feb")
    assert found.keys() == set(AT_IT)
    assert [one for all_ in found.values() for one in all_ if one.sure is not Confidence.POSSIBLE or one.repair] == []
    for point, action in (("publishing.committed", "publish"), ("undoing.committed", "rollback")):
        (one,) = found[point]
        assert (one.kind, one.where) == ("intent-in-doubt", "feb")
        assert one.what.startswith(f"its {action} is under way")
    assert examination.examine(platform) == []


def test_a_record_whose_writer_is_paused_before_its_link_is_not_called_damaged(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the ledger's write lock, for longer than anybody waits."""
    other = small_table.opened(platform.settings.home)
    found: list[Any] = []

    def reach(point: str) -> None:
        if point == "recording.written":
            found.append((damaged_files(other, "feb"), {one.kind for one in examination.examine(other)}))

    with monkeypatch.context() as patch:
        patch.setattr(transactions, "WRITE_WAIT", 0)
        patch.setattr(faults, "reach", reach)
        publish(platform, "feb")
    closed(other)
    assert found
    assert [(files, kinds & {"evidence-damaged", "record-planted"}) for files, kinds in found] == [([], set())] * len(
        found
    )


@pytest.mark.parametrize("work", [stop, compute, replace])
def test_the_doctor_beside_work_still_finds_a_lost_file(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, work: Callable[[Platform], None]
) -> None:
    file = next(chunk for chunk in platform.ledger.chunks("history") if chunk.chunk == "2020-01").files[0]
    Path(local_path(file.path)).unlink()
    late(monkeypatch, "lost_files", lambda: work(platform))
    (found,) = examination.examine(platform)
    assert (found.kind, found.sure) == ("DATA-LOSS", Confidence.CERTAIN)


def test_what_is_found_anew_at_each_look_is_asked_about(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that never ends: nothing that was found only once is certain, or repaired."""
    real, looks = examination.freezes_over, iter(range(100))

    def something_else_each_time(platform: Platform) -> Iterator[Disagreement]:
        platform.ledger.policies.keep(f"{next(looks):064}", {"x": 1})
        yield Disagreement("freeze-over", str(next(looks)), "it is over", Confidence.CERTAIN, "end it", str)
        yield from real(platform)

    monkeypatch.setattr(examination, "freezes_over", something_else_each_time)
    (found,) = examination.examine(platform)
    assert (found.sure, found.repair) == (Confidence.POSSIBLE, None)
    assert next(looks) < 20
