"""The chain's links are appended once each, whole, in one order, whoever appends at the same time and is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from evidence_writers import append_many, appended, started
from support import NO_FILES, at_once, put_folder, put_pipe, put_socket

from manifests.errors import EnvironmentRefused
from resources.evidence.chain import START, Chain

PROCESSES, EACH = 4, 25


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path / "chain")


def test_an_empty_chain_has_a_head_of_its_own(chain: Chain) -> None:
    found = chain.read()
    assert (found.links, found.damages, found.head) == ((), (), START)


def test_each_link_has_the_hash_of_the_one_before_it(chain: Chain) -> None:
    for event in ("a", "b", "c"):
        appended(chain, event)
    found = chain.read()
    assert found.damages == ()
    assert [link.content["event"] for link in found.links] == ["a", "b", "c"]
    assert [link.content["previous"] for link in found.links] == [START, *(link.hash for link in found.links[:-1])]
    assert found.head == found.links[-1].hash
    assert all(file.stat().st_mode & 0o222 == 0 for file in chain.folder.iterdir())


def test_the_same_event_has_one_link(chain: Chain) -> None:
    assert [appended(chain, event) for event in ("a", "b", "a", "b")] == [1, 2, 1, 2]
    assert chain.length() == 2


def test_processes_that_append_at_the_same_time_get_a_number_each(chain: Chain) -> None:
    workers = [started(append_many, chain.folder, f"p{one}", EACH, False) for one in range(PROCESSES)]
    workers += [started(append_many, chain.folder, "shared", EACH, True) for _ in range(PROCESSES)]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    found = chain.read()
    assert found.damages == ()
    events = [link.content["event"] for link in found.links]
    # what several processes had to say, one of them said
    assert sorted(events) == sorted(
        [f"p{one}-{n}" for one in range(PROCESSES) for n in range(EACH)] + [f"shared-{n}" for n in range(EACH)]
    )


def test_a_killed_process_leaves_whole_links_and_the_next_goes_on(chain: Chain) -> None:
    for one in range(6):
        before = chain.length()
        worker = started(append_many, chain.folder, f"k{one}", 10_000, False)
        while chain.length() < before + 5:
            assert worker.is_alive()
            time.sleep(0.001)
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join()
    length = chain.length()
    found = chain.read()
    assert found.damages == ()
    assert len(found.links) == length >= 30
    assert appended(chain, "after") == length + 1


@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_changed_byte_of_every_link_is_found_and_the_link_named(chain: Chain, number: int) -> None:
    for event in ("a", "b", "c"):
        appended(chain, event)
    file = chain.folder / f"{number:08}.json"
    file.chmod(0o644)
    raw = file.read_bytes()
    unnoticed = []
    for place in range(len(raw)):
        file.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        if file.name not in {damage.name for damage in chain.read().damages}:
            unnoticed.append(place)
    file.write_bytes(raw)
    assert unnoticed == []
    assert chain.read().damages == ()


def test_a_missing_a_swapped_and_a_foreign_file_are_found(chain: Chain) -> None:
    for event in ("a", "b", "c"):
        appended(chain, event)
    first, second, _ = sorted(chain.folder.iterdir())
    kept = second.read_bytes()
    second.unlink()
    assert [damage.name for damage in chain.read().damages] == ["00000002.json"]
    second.write_bytes(first.read_bytes())
    assert "has the number of another link" in {damage.what for damage in chain.read().damages}
    second.chmod(0o644)
    second.write_bytes(kept)
    (chain.folder / "note.txt").write_text("mine")
    assert [damage.name for damage in chain.read().damages] == ["note.txt"]


@pytest.mark.parametrize("put", NO_FILES)
def test_what_is_no_file_is_named_in_a_links_place_and_nothing_is_appended_past_it(
    chain: Chain, put: Callable[[Path], None]
) -> None:
    for event in ("a", "b", "c"):
        appended(chain, event)
    second, next_ = chain.folder / "00000002.json", chain.folder / "00000004.json"
    kept = second.read_bytes()
    second.unlink()
    put(second)
    with at_once():
        assert [(one.name, one.what) for one in chain.read().damages] == [(second.name, "cannot be read as a link")]
        with pytest.raises(EnvironmentRefused, match=second.name):
            list(Chain(chain.folder).links())
        with pytest.raises(EnvironmentRefused, match=second.name):
            appended(Chain(chain.folder), "d")
    second.rmdir() if put is put_folder else second.unlink()
    second.write_bytes(kept)
    put(next_)
    with at_once():
        assert [one.name for one in chain.read().damages] == [next_.name]
        with pytest.raises(EnvironmentRefused, match=next_.name):
            appended(Chain(chain.folder), "d", since=3)
        with pytest.raises(EnvironmentRefused, match=next_.name):
            appended(Chain(chain.folder), "d", since=4)


@pytest.mark.parametrize("put", [put for put in NO_FILES if put is not put_folder])
def test_what_is_no_folder_in_the_chains_place_is_refused(chain: Chain, put: Callable[[Path], None]) -> None:
    put(chain.folder)
    with pytest.raises(EnvironmentRefused, match="chain"):
        appended(chain, "a")
    if put in {put_pipe, put_socket}:
        assert [one.what[:14] for one in chain.read().damages] == ["cannot be read"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("١١١١١١١١.json", "{}"),  # noqa: RUF001 - digits of another script
        ("000000002.json", "{}"),
        ("00000002.json", "[" * 100_000),
        ("00000002.json", '{"a":' * 800 + "1" + "}" * 800),
    ],
)
def test_a_planted_file_is_named_whatever_it_is_called_and_however_deep_it_is(
    chain: Chain, name: str, text: str
) -> None:
    appended(chain, "a")
    (chain.folder / name).write_text(text)
    assert name in {one.name for one in chain.read().damages}
    assert appended(Chain(chain.folder), "b", since=1) > 1


@pytest.mark.parametrize("name", ["00000004.json", "99999999999.json"])
def test_no_link_is_appended_before_one_that_follows_nothing(chain: Chain, name: str) -> None:
    appended(chain, "a")
    assert chain.length() == 1
    (chain.folder / name).write_text("{}")
    again = Chain(chain.folder)
    assert again.length() == 1
    with pytest.raises(EnvironmentRefused, match=rf"00000002\.json is missing .* {name} is there"):
        appended(again, "b", since=1)
    assert appended(chain, "b", since=1) == 2  # a process that was at work before it was put there
    (chain.folder / name).unlink()
    assert appended(Chain(chain.folder), "c", since=1) == 3
    assert chain.read().damages == ()


def test_links_cut_off_the_end_show_to_whoever_kept_the_head(chain: Chain) -> None:
    for event in ("a", "b", "c"):
        appended(chain, event)
    head = chain.read().head
    (chain.folder / "00000003.json").unlink()
    found = chain.read()
    assert found.damages == ()  # by itself a shorter chain is a chain
    assert head not in {link.hash for link in found.links}
