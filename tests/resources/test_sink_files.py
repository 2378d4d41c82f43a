"""The topic and the cache that are files: whole after any crash, in order, told once, and served until a chunk changes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from manifests.errors import SinkRefused
from resources.sinks.caches import ChunkCache, InvalidatedChunks
from resources.sinks.declared import Told
from resources.sinks.event_logs import EventLog, events_of

AT = datetime(2024, 5, 1, 12, tzinfo=UTC)
TABLE = "silver.readings"
ROOT = Path(__file__).parents[2]


def told(run_id: str, action: str = "publish", *chunks: str) -> Told:
    return Told(run_id, action, AT, {"snapshot_id": 5}, TABLE, chunks, "LIVE")


def topic(folder: Path) -> tuple[Path, EventLog]:
    file = folder / "topics" / "meters.jsonl"
    return file, EventLog(file, "meters")


def names(file: Path) -> list[tuple[str, str]]:
    return [(one["runId"], one["action"]) for one in events_of(file)]


# --- the topic --------------------------------------------------------------------------------------------------------


def test_events_are_lines_in_the_order_in_which_they_were_told_each_once(tmp_path: Path) -> None:
    file, log = topic(tmp_path)
    assert events_of(file) == []
    for one in (told("b"), told("a"), told("b", "rollback-2"), told("a"), told("b")):
        log.send(one)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["topic"], one["offset"]) for one in lines] == [("meters", 0), ("meters", 1), ("meters", 2)]
    assert names(file) == [("b", "publish"), ("a", "publish"), ("b", "rollback-2")]
    event = {"runId": "b", "action": "publish", "at": "2024-05-01T12:00:00Z", "details": {"snapshot_id": 5}}
    assert lines[0]["event"] == event | {"table": TABLE, "mode": "LIVE"}


@pytest.mark.parametrize("left", [1, 20, -1])
def test_a_line_that_a_killed_writer_left_behind_is_cut_off_and_told_again(tmp_path: Path, left: int) -> None:
    """Whatever part of the line had reached the disk; of `-1`, all but its end of line."""
    file, log = topic(tmp_path)
    log.send(
        told("first", "publish", *(f"chunk-{number}" for number in range(20_000)))
    )  # longer than what is read at once
    whole = file.read_bytes()
    log.send(told("second"))
    torn = file.read_bytes()[len(whole) :][:left]
    file.write_bytes(whole + torn)
    assert names(file) == [("first", "publish")]
    log.send(told("second"))
    assert names(file) == [("first", "publish"), ("second", "publish")]
    assert file.read_bytes().startswith(whole)


def test_a_whole_last_event_without_its_end_of_line_stays_told(tmp_path: Path) -> None:
    """Whoever has edited the file has lost its last character: a run that was told of stays told of."""
    file, log = topic(tmp_path)
    log.send(told("first"))
    log.send(told("second"))
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    log.send(told("third"))
    assert names(file) == [("first", "publish"), ("second", "publish"), ("third", "publish")]


@pytest.mark.parametrize(
    "text", ["a letter of somebody's", '{"topic": "others", "offset": 0', '{"topic": "meters", "offset": 7, ']
)
def test_a_file_that_is_no_topic_keeps_every_byte(tmp_path: Path, text: str) -> None:
    file, log = topic(tmp_path)
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(SinkRefused, match="is no event that a writer was killed in"):
        log.send(told("first"))
    assert file.read_text() == text


def test_a_link_in_place_of_a_topic_is_not_followed(tmp_path: Path) -> None:
    file, log = topic(tmp_path)
    file.parent.mkdir()
    theirs = tmp_path / "letter"
    theirs.write_text("of somebody's")
    file.symlink_to(theirs)
    with pytest.raises(OSError, match="symbolic links"):
        log.send(told("first"))
    assert theirs.read_text() == "of somebody's"


def test_a_torn_first_line_is_cut_off(tmp_path: Path) -> None:
    file, log = topic(tmp_path)
    file.parent.mkdir()
    file.write_bytes(b'{"topic": "met')
    log.send(told("first"))
    assert names(file) == [("first", "publish")]


@pytest.mark.parametrize(
    "planted", ["not JSON", "[]", '{"offset": 7, "event": {"runId": "a", "action": "b"}}', '{"offset": 1, "event": {}}']
)
def test_a_line_that_is_no_event_is_refused_and_nothing_is_appended(tmp_path: Path, planted: str) -> None:
    file, log = topic(tmp_path)
    log.send(told("first"))
    with file.open("a") as lines:
        lines.write(f"{planted}\n")
    before = file.read_bytes()
    for act in (lambda: log.send(told("second")), lambda: events_of(file)):
        with pytest.raises(SinkRefused, match=r"line 2 of .* is no event with offset 1"):
            act()
    assert file.read_bytes() == before


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_sink_files import told, topic
name = sys.argv[1]
file, log = topic(Path({folder!r}))
for number in range(int(sys.argv[2])):
    log.send(told(f"shared-{{number}}"))
    log.send(told(f"{{name}}-{{number}}"))
"""


def writer(folder: Path, name: str, times: int) -> subprocess.Popen[bytes]:
    paths = [str(Path(__file__).parent), str(ROOT / "tests"), str(ROOT)]
    script = WRITER.format(paths=paths, folder=str(folder))
    return subprocess.Popen([sys.executable, "-c", script, name, str(times)])


def test_processes_that_append_at_once_take_turns_and_tell_each_event_once(tmp_path: Path) -> None:
    file, _ = topic(tmp_path)
    writers = [writer(tmp_path, name, 15) for name in ("a", "b")]
    assert [one.wait(60) for one in writers] == [0, 0]
    found = names(file)
    assert len(found) == len(set(found)) == 3 * 15
    for name in ("a", "b", "shared"):
        own = [run for run, _ in found if run.startswith(name)]
        assert own == [f"{name}-{number}" for number in range(15)]


def test_a_writer_that_is_killed_at_any_moment_leaves_whole_events(tmp_path: Path) -> None:
    file, log = topic(tmp_path)
    one = writer(tmp_path, "a", 1_000_000)
    while not file.exists() or file.stat().st_size < 2_000:
        assert one.poll() is None
    os.kill(one.pid, signal.SIGKILL)
    one.wait(60)
    before = names(file)
    log.send(told("after"))
    assert names(file) == [*before, ("after", "publish")]


# --- the cache --------------------------------------------------------------------------------------------------------


def cache(folder: Path) -> tuple[ChunkCache, InvalidatedChunks]:
    file = folder / "caches" / "sums.db"
    return ChunkCache(file), InvalidatedChunks(file)


def test_a_value_is_served_until_a_run_changes_its_chunk(tmp_path: Path) -> None:
    sums, sink = cache(tmp_path)
    for chunk in ("2020-01", "2020-02"):
        assert sums.generation(TABLE, chunk) == 0
        assert sums.keep(TABLE, chunk, "sum", chunk.encode(), 0)
    sink.send(told("repair", "publish", "2020-02"))
    assert (sums.get(TABLE, "2020-01", "sum"), sums.get(TABLE, "2020-02", "sum")) == (b"2020-01", None)
    assert (sums.changed_by(TABLE, "2020-01"), sums.changed_by(TABLE, "2020-02")) == (None, ("repair", "publish"))
    assert sums.keep(TABLE, "2020-02", "sum", b"new", 1)
    assert sums.get(TABLE, "2020-02", "sum") == b"new"
    assert sums.get("silver.others", "2020-02", "sum") is None
    sink.send(told("repair", "rollback-2", "2020-02"))
    assert sums.get(TABLE, "2020-02", "sum") is None


def test_a_run_told_twice_removes_nothing_twice(tmp_path: Path) -> None:
    sums, sink = cache(tmp_path)
    sink.send(told("repair", "publish", "2020-02"))
    sums.keep(TABLE, "2020-02", "sum", b"new", 1)
    sink.send(told("repair", "publish", "2020-02"))
    assert (sums.get(TABLE, "2020-02", "sum"), sums.generation(TABLE, "2020-02")) == (b"new", 1)


def test_a_value_that_was_computed_from_rows_of_before_is_not_kept(tmp_path: Path) -> None:
    sums, sink = cache(tmp_path)
    generation = sums.generation(TABLE, "2020-02")
    sink.send(told("repair", "publish", "2020-02"))  # while the reader computes
    assert not sums.keep(TABLE, "2020-02", "sum", b"old", generation)
    assert sums.get(TABLE, "2020-02", "sum") is None


def test_a_file_that_is_no_cache_is_told_of(tmp_path: Path) -> None:
    _, sink = cache(tmp_path)
    (tmp_path / "caches").mkdir()
    (tmp_path / "caches" / "sums.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        sink.send(told("repair", "publish", "2020-02"))


def test_an_invalidation_that_is_cut_off_has_changed_nothing(tmp_path: Path) -> None:
    sums, sink = cache(tmp_path)
    sums.keep(TABLE, "2020-01", "sum", b"old", 0)
    with pytest.raises(sqlite3.Error):
        sink.send(Told("repair", "publish", AT, {}, TABLE, ("2020-01", object()), "LIVE"))  # type: ignore[arg-type]
    assert sums.get(TABLE, "2020-01", "sum") == b"old"
    sink.send(told("repair", "publish", "2020-01"))
    assert sums.get(TABLE, "2020-01", "sum") is None
