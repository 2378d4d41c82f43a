"""Breaks in a changelog: what is known around one, and which timeline of a server may follow on which."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from change_world import Accounts, make_accounts
from test_landing_changes import a_bank, tail_of, whole

from backfill_assets.cli.changelogs import changelog_shown, show_changelog
from backfill_assets.extraction.change_files import Delivered, Line, Transaction
from backfill_assets.ingestion.new_timelines import begins_at, out_of_sequence
from backfill_assets.ingestion.table_loads import undo_load
from backfill_assets.products.accounts import BANK
from backfill_assets.products.accounts.generator import Bank, Message, log_facts
from manifests.chunks import Chunking
from manifests.errors import InputRefused
from manifests.log_breaks import LogBreak, breaks_of, in_sequence, problems_of_breaks
from manifests.log_pins import FoundLog, log_problems
from manifests.log_ranges import (
    LandedLog,
    LandedRange,
    LogIdentity,
    LogKind,
    LogRange,
    Observation,
    going_on,
    known_from,
)
from manifests.model import Mode
from manifests.source_pins import SourceLog

DAY = timedelta(days=1)
BEGIN = datetime(2026, 5, 1, 9, tzinfo=UTC)
BANK_LOG = LogIdentity(LogKind.CHANGELOG, "7301", "bank", "timeline 1")


def load(start: int, until: int, day: int, *, lost: int | None = None, observed: bool = False) -> LandedLog:
    """A load of two days from a day of May on; `lost` is where a gap before it begins."""
    first = BEGIN + (day - 1) * DAY
    return LandedLog(
        BANK_LOG,
        (LandedRange(LogRange(0, start, until), 5, first, first + DAY),),
        lost=() if lost is None else (LogRange(0, lost, start),),
        observed=(Observation(start, first),) if observed else (),
    )


LOADS = [load(100, 200, 1, observed=True), load(300, 400, 7, lost=200, observed=True)]


def test_a_break_is_from_the_last_change_before_it_to_the_snapshot_after_it() -> None:
    (found,) = breaks_of(LOADS)
    assert found == LogBreak(LogRange(0, 200, 300), BEGIN + DAY, Observation(300, BEGIN + 6 * DAY))
    assert "from LSN 0/C8 until 0/12C" in found.describe()
    assert "known again by the snapshot at 0/12C, of 2026-05-07T09:00:00+00:00" in found.describe()
    days = [date(2026, 5, number) for number in range(1, 10)]
    assert [day.day for day in days if found.leaves_unknown(day, day)] == [2, 3, 4, 5, 6, 7]
    assert breaks_of([*LOADS, load(200, 300, 3)]) == (), "what was lost was found"
    assert breaks_of(LOADS, [LogRange(0, 100, 200)]) == (), "it is not read"
    assert [one.again for one in breaks_of(LOADS, [LogRange(0, 100, 250)])] == [None], "the snapshot is not read"
    kafka = [replace(one, log=replace(BANK_LOG, kind=LogKind.KAFKA)) for one in LOADS]
    assert breaks_of(kafka) == ()


def of_tables(load: LandedLog, of_rows: tuple[str, ...], of_snapshot: tuple[str, ...] | None = None) -> LandedLog:
    observed = tuple(replace(one, tables=of_snapshot) for one in load.observed)
    return replace(load, ranges=tuple(replace(one, tables=of_rows) for one in load.ranges), observed=observed)


def test_only_a_snapshot_of_each_table_that_had_rows_says_how_the_tables_are_after_a_break() -> None:
    first, second = of_tables(LOADS[0], ("a", "b"), ("a",)), load(500, 600, 9, observed=True)
    for tables, again, lacking in ((("a",), None, ("b",)), ((), None, ("a", "b")), (("a", "b", "c"), 300, ())):
        (found,) = breaks_of([first, of_tables(LOADS[1], ("a",), tables)])
        assert (found.again.position if found.again else None, found.lacking) == (again, lacking)
        assert ("has no row of " + ", ".join(lacking) in found.describe()) is bool(lacking)
    whole = [first, of_tables(LOADS[1], ("a",), ("a",)), of_tables(second, ("a", "b"), ("a", "b"))]
    (found,) = breaks_of(whole)
    assert found.again is not None
    assert (found.again.position, found.lacking) == (500, ())
    newest = going_on(whole[-1], whole[:-1])
    assert breaks_of([known_from(newest), newest]) == (found,), "it is known when the history of the table was cut"
    assert breaks_of([of_tables(LOADS[0], ("a", "b")), of_tables(LOADS[1], ())]) == breaks_of(LOADS), "as on record"


def test_a_break_is_known_when_the_history_of_the_table_was_cut() -> None:
    newest = going_on(load(400, 500, 9), LOADS)
    assert breaks_of([known_from(newest), newest]) == breaks_of(LOADS)


def test_days_of_a_break_are_named_and_a_break_without_a_snapshot_refuses_what_has_no_days() -> None:
    chunks = [(f"2026-05-0{number}", date(2026, 5, number), date(2026, 5, number)) for number in (1, 2, 7, 8)]
    (said,) = problems_of_breaks("bronze.changes", breaks_of(LOADS), chunks)
    assert said.what.startswith("2026-05-02, 2026-05-07 are in a break of bronze.changes")
    assert list(problems_of_breaks("bronze.changes", breaks_of(LOADS), [])) == []
    blind = [LOADS[0], replace(LOADS[1], observed=())]
    (said,) = problems_of_breaks("bronze.changes", breaks_of(blind), [])
    assert "no snapshot after it says how the tables are" in said.what
    (said,) = problems_of_breaks("bronze.changes", breaks_of(blind), chunks)
    assert said.what.startswith("2026-05-02, 2026-05-07 to 2026-05-08 are in a break")


@pytest.mark.parametrize(
    ("later", "start", "observed", "is_one"),
    [
        ("timeline 2", 300, True, True),
        ("timeline 2", 300, False, False),
        ("timeline 2", 150, True, False),
        ("another", 300, True, False),
    ],
)
def test_a_later_timeline_goes_on_with_a_snapshot_after_all_that_is_landed(
    later: str, start: int, *, observed: bool, is_one: bool
) -> None:
    second = load(start, 400, 7, lost=200 if start > 200 else None, observed=observed)
    loads = [LOADS[0], replace(second, log=replace(BANK_LOG, incarnation=later))]
    assert in_sequence(loads) is is_one
    assert not in_sequence([LOADS[0], replace(second, log=replace(BANK_LOG, server="other"))])
    found = FoundLog("bronze.changes", "commit_lsn", None, {str(number): one for number, one in enumerate(loads)})
    assert found.log == (loads[1].log if is_one else None)


def test_a_later_timeline_is_a_break_even_where_no_position_lies_between() -> None:
    later = replace(load(200, 300, 7, observed=True), log=replace(BANK_LOG, incarnation="timeline 2"))
    landed = [LOADS[0], going_on(later, LOADS[:1])]
    (found,) = breaks_of(landed)
    assert found == LogBreak(LogRange(0, 200, 200), BEGIN + DAY, Observation(200, BEGIN + 6 * DAY))
    assert "a later timeline begins at LSN 0/C8" in found.describe()
    assert breaks_of(landed, [LogRange(0, 100, 200)]) == breaks_of(landed, [LogRange(0, 200, 300)]) == ()
    assert breaks_of(landed, [LogRange(0, 100, 200), LogRange(0, 200, 300)]) == (found,)
    more = going_on(replace(load(300, 400, 9), log=later.log), landed)
    for oldest in (landed[1], more):
        assert breaks_of([known_from(oldest), oldest, more]) == (found,), "the history of the table was cut"
    beyond = replace(LOADS[1], log=later.log)
    assert [one.lost for one in breaks_of([LOADS[0], going_on(beyond, LOADS[:1])])] == [LogRange(0, 200, 300)]
    assert breaks_of([LOADS[0], going_on(load(200, 300, 3), LOADS[:1])]) == ()


def test_a_timeline_begins_where_its_earliest_snapshot_is_whichever_was_found_first() -> None:
    second = replace(BANK_LOG, incarnation="timeline 2")
    begun = going_on(replace(load(300, 400, 7, lost=200, observed=True), log=second), LOADS[:1])
    found_later = going_on(replace(load(250, 300, 5, observed=True), log=second), [LOADS[0], begun])
    assert (begun.begun, found_later.begun) == ((300,), (250,))
    (broken,) = breaks_of([LOADS[0], begun, found_later])
    assert broken.lost == LogRange(0, 200, 250)
    newest = going_on(replace(load(400, 500, 9), log=second), [LOADS[0], begun, found_later])
    assert breaks_of([known_from(newest), newest]) == (broken,), "the history of the table was cut"


def test_commits_of_a_timeline_from_before_it_begins_are_refused_also_where_the_tables_history_was_cut() -> None:
    second = replace(BANK_LOG, incarnation="timeline 2")
    loads = [LOADS[0], going_on(replace(load(300, 400, 7, lost=200, observed=True), log=second), LOADS[:1])]
    newest = going_on(replace(load(400, 500, 9), log=second), loads)
    for known in ([*loads, newest], [known_from(newest), newest]):
        for commit in (150, 250):  # within what is landed of the earlier timeline, and after it
            found = Delivered(BANK, [], [])
            line = Line(0, 1, 0, 1, commit - 1, 0, 1)
            found.transactions["9"] = Transaction("9", {0: line}, commit, 1, commit - 10)
            begins = begins_at(second, known, found)
            assert begins == 300
            (said,) = out_of_sequence(second, begins, known, [], found, "bronze.changes")
            assert "are older than the snapshot at LSN 0/12C that it begins with" in said.what


def test_what_is_published_nevertheless_is_so_of_every_log_that_is_read() -> None:
    blind = [LOADS[0], replace(LOADS[1], observed=())]
    found = FoundLog("bronze.changes", "commit_lsn", None, {str(number): one for number, one in enumerate(blind)})

    def said(log: dict[str, Any] | None, logs: dict[str, FoundLog], mode: Mode = Mode.BACKFILL) -> list[str]:
        manifest: Any = SimpleNamespace(
            source=SimpleNamespace(log=None if log is None else SourceLog.model_validate(log)), execution_mode=mode
        )
        contract: Any = SimpleNamespace(source="silver.history", chunking=Chunking.WHOLE)
        return [one.what for one in log_problems(manifest, contract, logs, [])]

    (refused,) = said(None, {"bronze.changes": found})
    assert refused.startswith("the run reads bronze.changes beyond a break")
    for mode in (Mode.BACKFILL, Mode.LIVE):
        assert said({"breaks": "PUBLISH"}, {"bronze.changes": found}, mode) == []
        assert said({"breaks": "PUBLISH"}, {}, mode) == [], "the break was filled meanwhile"
    assert said({"until": 300}, {}) == ["silver.history is no log"]


# --- landed -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def accounts(tmp_path):  # type: ignore[no-untyped-def]
    world = make_accounts(tmp_path / "home")
    yield world
    world.platform.ledger.close()


def test_a_server_that_was_promoted_goes_on_at_its_timeline_after_a_break_that_somebody_accepts(
    accounts: Accounts, capsys: pytest.CaptureFixture[str]
) -> None:
    bank = a_bank(41)
    accounts.land(tail_of(bank), "first")
    known, (reached, known_at) = bank.lsn, bank.commits[-1]
    bank.work(6)  # which the server that is gone had told nobody
    done = len(bank.messages)
    again = bank.snapshot()
    again_at = bank.commits[-1][1]
    bank.work(8)
    promoted = log_facts(timeline=2)
    with pytest.raises(InputRefused, match=r"timeline 2.*what is landed until LSN .* is of .*timeline 1"):
        accounts.land(bank.messages[done:], "promoted", facts=promoted)
    accounts.land(bank.messages[done:], "promoted", facts=promoted, accept_gap="failed over on 3 May", by="ana")
    loads = [one.landed for one in accounts.platform.lakehouse.landed_loads(BANK.table)]
    assert in_sequence(loads)
    (broken,) = breaks_of(loads)
    assert known == reached
    assert (broken.lost, broken.known_until) == (LogRange(0, reached + 1, again), known_at)
    assert broken.again == Observation(again, again_at, (BANK.tables[0].name,))
    found = changelog_shown(accounts.platform, BANK.name)
    assert found["breaks"] == (broken,)
    show_changelog(found)
    assert f"break: {broken.describe()}" in capsys.readouterr().out
    with pytest.raises(InputRefused, match="of an earlier timeline"):
        accounts.land(tail_of(bank)[:9], "old")
    bank.work(5)
    accounts.land(bank.messages[done:], "later", facts=promoted)
    undo_load(
        accounts.platform,
        BANK.table,
        accounts.platform.lakehouse.landed_loads(BANK.table)[-1].load_id,
        by="ana",
        reason="landed by mistake, to be landed anew",
    )
    accounts.land(bank.messages[done:], "once more", facts=promoted)
    assert accounts.ranges()[-1].range.until == bank.lsn + 1


def test_a_snapshot_without_a_row_of_a_declared_table_ends_no_break(accounts: Accounts) -> None:
    bank = a_bank(10)
    accounts.land([m for one in whole(tail_of(bank))[:5] for m in one], "first")
    done = len(bank.messages)
    bank.snapshot()
    reads = len(bank.messages)
    bank.work(5)
    others = deepcopy(bank.messages[done:reads])
    for one in others:
        assert one.value is not None
        one.value["source"]["table"] = "others"
    accounts.land([*others, *bank.messages[reads:]], "anew", accept_gap="the slot was dropped", by="ana")
    (broken,) = changelog_shown(accounts.platform, BANK.name)["breaks"]
    assert (broken.again, broken.lacking) == (None, ("public.accounts",))


def test_changes_of_tables_that_are_not_declared_are_counted_and_said(
    accounts: Accounts, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = deepcopy([m for one in whole(tail_of(a_bank(10)))[:5] for m in one])
    changes = [one for one in messages if one.value is not None and "source" in one.value]
    for one in changes:
        assert one.value is not None
        one.value["source"]["table"] = "others"
    done = accounts.land(messages, "others")
    assert done.left_out["change of public.others, which is not declared"] == len(changes)
    show_changelog(changelog_shown(accounts.platform, BANK.name))
    assert "1 load(s), 0 changes" in capsys.readouterr().out


def test_a_later_timeline_is_refused_whose_snapshot_is_older_than_what_is_landed_or_that_has_none(
    accounts: Accounts,
) -> None:
    bank = a_bank(42)
    units = whole(tail_of(bank))
    accounts.land([m for one in units for m in one], "first")
    before = accounts.changes()
    promoted = log_facts(timeline=2)
    for names, messages in (
        ("the snapshot at LSN .* is older than what is landed", tail_of(bank)),
        ("a commit at LSN .* is older than what is landed", [m for one in units[3:] for m in one]),
    ):
        with pytest.raises(InputRefused, match=names):
            accounts.land(messages, "old", facts=promoted, accept_gap="failed over", by="ana")
    done = len(bank.messages)
    bank.work(8)
    with pytest.raises(InputRefused, match=r"begin with a commit at LSN .* and with no snapshot"):
        accounts.land(bank.messages[done:], "blind", facts=promoted, accept_gap="failed over", by="ana")
    assert accounts.changes() == before


def promoted_after(accounts: Accounts, previous: str) -> tuple[list[Message], int]:
    """Land a bank's log, and what its second server begins with after six transactions that nobody has; return these, and its snapshot.

    `previous` says what the first transaction after the snapshot names as the commit before it: the snapshot, one that was lost before
    it, or the one that was landed last.
    """
    bank = a_bank(41)
    accounts.land(tail_of(bank), "first")
    landed, at = bank.lsn, len(bank.messages)
    bank.work(6)
    between, done = bank._previous, len(bank.messages)
    again = bank.snapshot()
    bank._previous = {"snapshot": bank._previous, "lost": between, "landed": landed}[previous]
    bank.work(8)
    why = {"accept_gap": "failed over on 3 May", "by": "ana"}
    accounts.land(bank.messages[done:], "promoted", facts=log_facts(timeline=2), **why)
    return bank.messages[at:done], again


@pytest.mark.parametrize("previous", ["lost", "landed"])
def test_no_transaction_of_a_later_timeline_speaks_for_what_was_before_its_snapshot(
    accounts: Accounts, previous: str
) -> None:
    _, again = promoted_after(accounts, previous)
    first, second = [one.landed for one in accounts.platform.lakehouse.landed_loads(BANK.table)]
    assert second.ranges[0].range.start == again
    assert second.lost == (LogRange(0, first.ranges[0].range.until, again),)
    assert in_sequence([first, second])
    (broken,) = breaks_of([first, second])
    assert broken.again is not None
    assert broken.again.position == again


def test_a_commit_of_a_later_timeline_from_before_its_snapshot_is_refused_by_name(accounts: Accounts) -> None:
    lost, again = promoted_after(accounts, "snapshot")
    before = accounts.changes()
    with pytest.raises(
        InputRefused, match=r"commits of .*timeline 2.* are older than the snapshot at LSN .* that it begins with"
    ):
        accounts.land(lost, "found", facts=log_facts(timeline=2), accept_gap="whatever it is", by="ana")
    assert accounts.changes() == before
    loads = [one.landed for one in accounts.platform.lakehouse.landed_loads(BANK.table)]
    assert loads[-1].ranges[0].range.start == again


def test_a_timeline_whose_snapshot_was_taken_back_goes_on_when_that_is_landed_again(accounts: Accounts) -> None:
    bank = a_bank(43)
    accounts.land(tail_of(bank), "first")
    bank.work(4)
    done = len(bank.messages)
    bank.snapshot()
    bank.work(3)
    middle = len(bank.messages)
    bank.work(3)
    more = {"facts": log_facts(timeline=2), "accept_gap": "failed over on 3 May", "by": "ana"}
    begun = accounts.land(bank.messages[done:middle], "promoted", **more)
    accounts.land(bank.messages[middle:], "later", facts=log_facts(timeline=2))
    undo_load(accounts.platform, BANK.table, begun.loads[0].load_id, by="ana", reason="landed by mistake, to be anew")
    bank.work(3)
    with pytest.raises(InputRefused, match=r"timeline 2.* would begin without a snapshot"):
        accounts.land(bank.messages[middle:], "newest", **more)
    accounts.land(bank.messages[done:middle], "again", **more)
    accounts.land(bank.messages[middle:], "newest", facts=log_facts(timeline=2))
    loads = [one.landed for one in accounts.platform.lakehouse.landed_loads(BANK.table)]
    assert in_sequence(loads)
    assert accounts.ranges()[-1].range.until == bank.lsn + 1


def read_late(snapshot: Sequence[Message], hours: int) -> list[Message]:
    """Return the messages of a snapshot of which the later half was read so many hours later."""
    half, late = len(snapshot) // 2, hours * 3_600 * 10**6
    moved = [Message(one.key, one.value | {"source": later(one.value["source"], late)}) for one in snapshot[half:]]
    return [*snapshot[:half], *moved]


def test_what_a_snapshot_read_late_says_nothing_of_the_changes_before_a_break(accounts: Accounts) -> None:
    bank = a_bank(44)
    snapshot, *rest = whole(tail_of(bank))
    read = read_late(snapshot, 30)
    accounts.land([*read, *(m for one in rest for m in one)], "first")
    (landed,) = accounts.ranges()
    assert landed.last_time == bank.commits[-1][1]
    assert accounts.table(BANK.table)["committed_at"].max() == landed.last_time
    first = min(one.value["source"]["ts_us"] for one in read)
    assert landed.first_time == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=first)


def test_a_snapshot_that_is_read_for_days_is_of_the_day_on_which_it_was_begun(accounts: Accounts) -> None:
    """Its rows were there when it began: a row that is read on a later day, and what is changed of it meanwhile, is not lost before."""
    bank = Bank(12, accounts=40, truncates=0.0, seconds=600)
    bank.work(60)
    bank.snapshot()
    bank.work(900)
    snapshot, *rest = whole(tail_of(bank))
    read = read_late(snapshot, 40)
    accounts.land([*read, *(m for one in rest for m in one)], "first")
    begun, ends = bank.commits[-len(rest) - 1][1].date(), bank.commits[-1][1].date()
    assert begun + 2 * DAY < ends, "the last day is over"
    days = {"start": str(begun), "end": str(begun + 2 * DAY)}
    accounts.published(accounts.manifest("daily-1", target={"table": "silver.account_daily", "publishRange": days}))
    rows = accounts.table("silver.account_daily")
    for day in (begun, begun + DAY, begun + 2 * DAY):
        until = max(lsn for lsn, at in bank.commits if at.date() <= day)
        found = {int(row["account_id"]): row["owner"] for row in rows.filter(pl.col("day") == day).to_dicts()}
        assert found == {key: row["owner"] for key, row in bank.rows_at(until).items()}, day


def later(source: dict[str, Any], micros: int) -> dict[str, Any]:
    """The source of a message, so much later."""
    each = {"ts_us": micros, "ts_ms": micros // 1_000, "ts_ns": micros * 1_000}
    return source | {name: source[name] + by for name, by in each.items()}


def test_a_load_of_an_earlier_timeline_is_landed_anew_once_the_later_one_is_taken_back(accounts: Accounts) -> None:
    bank = a_bank(45)
    units = whole(tail_of(bank))
    for number, part in enumerate((units[:6], units[6:12], units[12:])):
        accounts.land([m for one in part for m in one], f"f{number}")
    bank.work(4)
    done = len(bank.messages)
    bank.snapshot()
    bank.work(4)
    second = {"facts": log_facts(timeline=2), "accept_gap": "failed over on 3 May", "by": "ana"}
    accounts.land(bank.messages[done:], "promoted", **second)
    before = accounts.changes()
    for number in (1, -1):
        load_id = accounts.platform.lakehouse.landed_loads(BANK.table)[number].load_id
        undo_load(accounts.platform, BANK.table, load_id, by="ana", reason="landed by mistake, to be anew")
        if number == 1:
            with pytest.raises(InputRefused, match="of an earlier timeline"):
                accounts.land([m for one in units[6:12] for m in one], "f1 again")
    accounts.land([m for one in units[6:12] for m in one], "f1 again")
    accounts.land(bank.messages[done:], "promoted again", **second)
    assert accounts.changes() == before
    assert in_sequence([one.landed for one in accounts.platform.lakehouse.landed_loads(BANK.table)])
