"""What is asked of a ledger takes what is asked about it: not what it holds besides, and of many runs no chunk of any."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from support import REQUESTER, TARGET, a_manifest, a_plan, approved, moved, pass_all, planned, stage_all

from manifests.canonical import canonical_json, canonical_json_of_plain, canonical_pieces, data_of, plain, sha256_of
from manifests.chunks import Chunking
from manifests.lifecycle import RunState
from manifests.model import DayRange, Mode
from manifests.plan import Plan, PlannedChunk, plan_from_json
from resources.evidence.bundle_files import texts_of
from resources.evidence.chain import Chain
from resources.ledger import accepted_versions, journal, journaling, plans, runs, watermarks
from resources.ledger.facade import Ledger
from resources.ledger.tables import journal as JOURNAL
from resources.ledger.tables import metadata

RUN = "restate-2012"
ODD = 'a reason with "chunks":[{} and ],"code":{ in it, é and 1'


def published(ledger: Ledger, run_id: str, start: str = "2012-01-01", end: str = "2012-03-31") -> None:
    record = approved(ledger, run_id, start, end)
    pass_all(ledger, record, stage_all(ledger, record))
    moved(ledger, run_id, RunState.VALIDATED, REQUESTER)
    publication = ledger.open_publication(run_id, "publish", 7, "root", REQUESTER)
    ledger.accept(run_id, publication, snapshot_id=100, added=3, removed=2, actor=REQUESTER)


@contextmanager
def statements(ledger: Ledger) -> Iterator[list[str]]:
    """Yield the queries that the ledger is asked meanwhile."""
    said: list[str] = []

    def listen(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT"):
            said.append(statement)

    sa.event.listen(ledger.engine, "before_cursor_execute", listen)
    try:
        yield said
    finally:
        sa.event.remove(ledger.engine, "before_cursor_execute", listen)


# --- the text of a plan -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [0, 1, 999, 1_000, 1_001, 2_500])
def test_a_plan_is_written_in_pieces_as_it_is_written_whole(chunks: int) -> None:
    plan = a_plan()
    reads = plan.chunks[0].reads
    many = tuple(
        PlannedChunk(f"é-{number}", number, date(2012, 1, 1), date(2012, 1, 1), reads, number % 24 or None, ODD)
        for number in range(chunks)
    )
    plan = Plan(**{name: getattr(plan, name) for name in plan.__dataclass_fields__} | {"chunks": many, "reason": ODD})

    assert "".join(canonical_pieces(plan)) == canonical_json(plan) == plan.to_json()
    assert plan.hash == sha256_of(plan)
    assert plan_from_json(plan.to_json()) == plan


def test_the_chunks_of_a_plan_stand_before_its_code() -> None:
    """As the database finds them in its text: see `plans.without_chunks`."""
    names = sorted(Plan.__dataclass_fields__)
    assert names[names.index("chunks") + 1] == "code"
    assert not [name for name in Plan.__dataclass_fields__ if name.startswith("chunks") and name != "chunks"]


# --- texts by the thousand --------------------------------------------------------------------------------------------

PLAIN = [
    None,
    True,
    0,
    -7,
    1.5,
    1e300,
    "",
    ODD,
    "\x00\u2028 é 😀",
    [],
    {},
    [1, [2, {}], "x"],
    {"b": [None, False], "a": {"é": 1.0, "": "y"}},
]


@pytest.mark.parametrize("data", PLAIN)
def test_canonical_json_is_what_json_writes_and_reads(data: Any) -> None:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    assert canonical_json_of_plain(data) == canonical_json(data) == text
    assert data_of(text) == data_of(f" {text}\n") == data


@pytest.mark.parametrize("data", [float("nan"), [float("inf")], {"x": {1, 2}}, object()])
def test_what_json_cannot_say_has_no_canonical_text(data: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        canonical_json_of_plain(data)


@pytest.mark.parametrize("text", ["", "{", "[1] 2", "{}x", "nonsense"])
def test_what_is_no_json_says_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="char"):
        data_of(text)


def test_a_file_of_a_bundle_has_the_canonical_text_of_each_cell_on_a_line() -> None:
    rows = [{"b": ODD, "a": {"y": [1], "x": None}, "c": 5, "d": True, "e": None, "f": [], "g": 0.5, "h": ""}, {}, []]
    files = {"rows.json": rows, "plan.json": a_plan(), "empty.json": [], "when.json": date(2012, 1, 1), "one.json": "x"}
    for name, raw in texts_of(files).items():
        said = plain(files[name])
        assert json.loads(raw) == said
        levels = said if isinstance(said, list) else [said]
        cells = [cell for row in levels if isinstance(row, dict) for cell in row.items()]
        lines = raw.decode().splitlines()
        assert all(any(line.startswith(f"{json.dumps(name)}: ") for line in lines) for name, _ in cells)
    assert texts_of({"rows.json": rows})["rows.json"].decode() == "\n".join(
        [
            "[",
            "{",
            '"a": {"x":null,"y":[1]},',
            f'"b": {canonical_json(ODD)},',
            '"c": 5,',
            '"d": true,',
            '"e": null,',
            '"f": [],',
            '"g": 0.5,',
            '"h": ""',
            "},",
            "{},",
            "[]",
            "]",
            "",
        ]
    )


# --- what the plans of many runs say ----------------------------------------------------------------------------------


def test_the_terms_of_a_plan_are_the_plan_without_its_chunks(ledger: Ledger) -> None:
    manifest = a_manifest(RUN, reason=ODD)
    plan = a_plan(manifest)
    whole = Plan(**{name: getattr(plan, name) for name in plan.__dataclass_fields__} | {"reason": ODD})
    ledger.record_plan(manifest, whole, REQUESTER)

    (terms,) = ledger.terms([RUN]).values()

    bare = {name: getattr(whole, name) for name in whole.__dataclass_fields__} | {"chunks": ()}
    assert terms.each == [Plan(**bare)]
    assert terms.of("2012-01") == terms.approved


def test_the_terms_of_a_run_that_was_planned_anew_are_those_of_each_of_its_plans(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    ledger.resume(RUN, REQUESTER)
    pass_all(ledger, record, stage_all(ledger, record))
    moved(ledger, RUN, RunState.VALIDATED, REQUESTER)
    anew = a_plan(record.manifest, base_snapshot_id=99)
    ledger.replan(RUN, anew, ["2012-02"], actor=REQUESTER, reason="somebody has changed it")

    terms = ledger.terms()[RUN]

    assert [one.base_snapshot_id for one in terms.each] == [record.plan.base_snapshot_id, 99]
    assert (terms.of("2012-02").base_snapshot_id, terms.of("2012-03")) == (99, terms.approved)
    assert ledger.terms(["another"]) == {}


def test_who_lists_the_terms_of_all_runs_reads_no_chunk_of_any(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    published(ledger, "first")
    published(ledger, "second")
    parsed: list[str] = []
    monkeypatch.setattr(plans, "_parsed", plans._Parsed())
    monkeypatch.setattr(plans, "plan_from_json", lambda text: (parsed.append(text), plan_from_json(text))[1])

    with statements(ledger) as asked:
        ledger.terms()

    assert len(parsed) == 2
    assert not any("2012-02" in text for text in parsed)
    assert len(asked) == 2


# --- what is written of many chunks -----------------------------------------------------------------------------------


def test_a_plan_of_many_chunks_is_in_the_journal_entry_by_entry_and_whole(
    ledger: Ledger, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journaling, "_ROWS_OF_AN_ENTRY", 5)
    monkeypatch.setattr(journaling, "_BATCH", 3)
    monkeypatch.setattr(runs, "_CHUNKS_AT_ONCE", 4)
    ledger.journal.chain = Chain(tmp_path / "chain")

    record = planned(ledger, RUN, "2010-01-01", "2012-12-31")

    assert len(ledger.chunks(RUN)) == len(record.plan.chunks) == 36
    with ledger.engine.connect() as connection:
        explained = journal.explain(connection, ledger.journal.chain.read().links)
        assert (explained.damages, explained.linked) == ([], explained.length)
        assert explained.length > 36 // 6
        assert journal.unexplained(connection, explained, RUN) == []
        assert journal.unexplained(connection, journal.explain_run(connection, RUN), RUN) == []
    with sa.create_engine(ledger.url).begin() as other:
        other.execute(metadata.tables["chunks"].update().where(sa.text("chunk = '2011-07'")).values(rows=5))
    with ledger.engine.connect() as connection:
        wrong = journal.unexplained(connection, journal.explain_run(connection, RUN), RUN)
    assert [one.where for one in wrong] == ["ledger chunks 2011-07"]


def test_a_run_is_held_against_the_journal_and_the_rows_of_others_are_not_kept(ledger: Ledger, tmp_path: Any) -> None:
    ledger.journal.chain = Chain(tmp_path / "chain")
    planned(ledger, RUN, "2010-01-01", "2010-12-31")
    planned(ledger, "another", "2011-01-01", "2012-12-31")
    links = ledger.journal.chain.read().links
    with ledger.engine.connect() as connection:
        found = journal.explain(connection, links, run_id=RUN)
        assert (found.damages, journal.unexplained(connection, found, RUN)) == ([], [])
        assert found.runs.keys() == {RUN}
        assert found.length == journal.explain(connection, links).length


@pytest.mark.parametrize(
    "rows",
    [
        {"nonsense": 5},
        {"chunks": {"columns": ["rows"], "rows": {"2011-01": ["a", "b", "c"]}}},
        {"chunks": {"columns": ["rows"], "rows": {"2011-01": {"a": 1, "b": 2}}}},
        {"chunks": {"columns": ["rows"], "rows": {"2011-01": ["a", 1]}}},
        {"chunks": {"columns": ["rows"], "rows": {"2011-01": "ab"}}},
        {"chunks": {"columns": ["rows"], "rows": {}}},
    ],
)
def test_an_entry_of_another_run_that_no_transaction_has_written_is_named_once_a_link_is_past_it(
    ledger: Ledger, tmp_path: Any, rows: Any
) -> None:
    ledger.journal.chain = Chain(tmp_path / "chain")
    planned(ledger, RUN, "2010-01-01", "2010-12-31")
    planned(ledger, "another", "2011-01-01", "2012-12-31")
    with sa.create_engine(ledger.url).begin() as other:
        number, hash_ = other.execute(
            sa.select(JOURNAL.c.number, JOURNAL.c.hash).order_by(JOURNAL.c.number.desc())
        ).first()
        text = canonical_json(
            {"number": number + 1, "previous": hash_, "run": "another", "at": "2026-01-01", "follows": 0, "rows": rows}
        )
        own = hashlib.sha256(text.encode()).hexdigest()
        other.execute(JOURNAL.insert().values(number=number + 1, run_id="another", hash=own, said=text))
    planned(ledger, "later", "2011-01-01", "2012-12-31")  # whose link is about an entry after it
    with ledger.engine.connect() as connection:
        found = journal.explain(connection, ledger.journal.chain.read().links, run_id=RUN)
    assert [one.where for one in found.damages] == [f"ledger journal {number + 1}"]


def test_a_plan_that_was_just_recorded_is_not_read_back(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(plans, "plan_from_json", read.append)
    manifest = a_manifest(RUN)
    plan = a_plan(manifest)

    assert ledger.record_plan(manifest, plan, REQUESTER).plan is plan
    assert read == []


# --- what is asked of one run among many ------------------------------------------------------------------------------


def asked_of(ledger: Ledger, run_id: str) -> int:
    """Return how many questions are asked to show where a run stands."""
    with statements(ledger) as said:
        record = ledger.run(run_id)
        chunks = ledger.chunks(run_id)
        ledger.launches.waits(record, chunks=chunks)
        ledger.verdicts(run_id)
        ledger.publications(run_id)
        ledger.history(run_id)
        ledger.decisions(run_id)
        ledger.stops.of_run(run_id)
        ledger.topics.of_run(run_id)
        ledger.accepted(TARGET, ["2012-01"])
        ledger.runs_named([run_id])
    return len(said)


def test_what_is_asked_about_a_run_does_not_grow_with_the_others(ledger: Ledger) -> None:
    published(ledger, RUN)
    alone = asked_of(ledger, RUN)
    for number in range(4):
        published(ledger, f"other-{number}", "2012-04-01", "2012-04-30")
    assert asked_of(ledger, RUN) == alone


def test_the_rows_of_a_run_are_found_by_an_index_in_each_table(ledger: Ledger, backend: str) -> None:
    if backend != "sqlite":
        pytest.skip("a server chooses its plan by the number of rows")
    with ledger.engine.connect() as connection:
        for name, table in sorted(metadata.tables.items()):
            if "run_id" not in table.c or name == "leases":  # housekeeping, of which few are kept open
                continue
            how = connection.execute(sa.text(f"EXPLAIN QUERY PLAN SELECT * FROM {name} WHERE run_id = 'x'")).all()
            assert [one for one in how if "SEARCH" in one.detail and "INDEX" in one.detail], (name, how)
        held = "SELECT run_id FROM accepted_versions WHERE target = 'x' AND chunk = 'y' AND ended_at IS NULL"
        (how_held,) = connection.execute(sa.text(f"EXPLAIN QUERY PLAN {held}")).all()
        assert "accepted_now" in how_held.detail


def test_who_holds_chunks_is_asked_of_these_chunks(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted_versions, "_KEYS_AT_ONCE", 2)
    published(ledger, "first")
    published(ledger, "second", "2012-02-01", "2012-02-29")

    assert ledger.accepted(TARGET, ["2012-01", "2012-02", "2012-12"]) == {"2012-01": "first", "2012-02": "second"}
    assert ledger.accepted(TARGET, []) == {}
    assert ledger.accepted(TARGET) == {"2012-01": "first", "2012-02": "second", "2012-03": "first"}


def test_runs_are_looked_up_together_and_one_that_is_not_there_is_refused(ledger: Ledger) -> None:
    approved(ledger, "first")
    approved(ledger, "second")
    assert list(ledger.runs_named({"second", "first"})) == ["first", "second"]
    assert [one.run_id for one in ledger.runs(mode=Mode.BACKFILL)] == ["first", "second"]
    assert ledger.runs(mode=Mode.LIVE) == []
    assert ledger.targets() == {TARGET}
    with pytest.raises(Exception, match="run 'third' is unknown"):
        ledger.runs_named(["first", "third"])


@pytest.mark.parametrize(
    ("chunking", "end", "held", "later"),
    [
        (Chunking.MONTH, date(2012, 2, 29), ["2012-01", "2012-02"], "2012-03"),
        (Chunking.MONTH, date(2012, 2, 29), ["2012-02~b", "2012-01~z"], "2012-03~a"),
        (Chunking.WEEK, date(2012, 3, 4), ["2012-W09"], "2012-W10"),
        (Chunking.DAY, date(2012, 2, 29), ["2012-02-29~zz"], "2012-03-01~a"),
        (Chunking.HOUR, date(2012, 2, 29), ["2012-02-29T00", "2012-02-29T23~z"], "2012-03-01T00"),
        (Chunking.YEAR, date(2012, 12, 31), ["2012"], "2013"),
    ],
)
def test_whether_somebody_holds_a_later_chunk_is_told_by_their_keys(
    ledger: Ledger, chunking: Chunking, end: date, held: list[str], later: str
) -> None:
    approved(ledger, RUN)
    plan: Any = SimpleNamespace(target="silver.keys", chunking=chunking, publish_range=DayRange(start=end, end=end))
    for keys, expected in ((held, False), ([later], True)):
        with ledger.engine.begin() as connection:
            accepted_versions.insert(connection, plan.target, keys, RUN, ledger.now())
        with ledger.engine.connect() as connection:
            assert watermarks._holds_later_chunks(connection, plan) is expected


def test_an_entry_that_nobody_has_closed_is_found_among_all(ledger: Ledger) -> None:
    published(ledger, "done")
    record = approved(ledger, RUN, "2012-05-01", "2012-05-31")
    pass_all(ledger, record, stage_all(ledger, record))
    moved(ledger, RUN, RunState.VALIDATED, REQUESTER)
    assert ledger.undecided() == set()
    ledger.open_publication(RUN, "publish", 7, "root", REQUESTER)
    assert ledger.undecided() == {RUN}
    assert {run_id: len(entries) for run_id, entries in ledger.all_publications().items()} == {"done": 1, RUN: 1}
