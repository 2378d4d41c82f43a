"""Heads kept elsewhere: written to folders, repositories and addresses, asked again, and never in the way."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from resources.evidence.chain import Chain
from resources.evidence.heads import keep_head, kept_heads, not_extended
from resources.files.head_places import shown


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    made = Chain(tmp_path / "chain")
    for number in range(3):
        made.append({"event": f"told-{number}"}, since=number, same=lambda _: False)
    return made


@pytest.fixture
def repository(tmp_path: Path) -> str:
    for name, bare in (("origin", ["--bare"]), ("here", [])):
        subprocess.run(["git", "init", "--quiet", *bare, str(tmp_path / name)], check=True)
    here = str(tmp_path / "here")
    subprocess.run(["git", "-C", here, "remote", "add", "origin", str(tmp_path / "origin")], check=True)
    return here


@pytest.fixture
def address() -> Iterator[tuple[str, list[bytes]]]:
    """A server that takes what is posted to it."""
    taken: list[bytes] = []

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Taker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/heads?token=secret", taken
    server.shutdown()
    server.server_close()


def test_a_head_is_kept_in_every_place_and_asked_again(
    chain: Chain, tmp_path: Path, repository: str, address: tuple[str, list[bytes]]
) -> None:
    (tmp_path / "disk").mkdir()
    places = [str(tmp_path / "disk"), f"git:{repository}", address[0]]
    for _ in range(2):  # the same head once more changes nothing
        assert [one.trouble for one in keep_head(places, chain.last())] == ["", "", ""]
    head = chain.read().head
    assert json.loads(address[1][0])["head"] == head
    folder, git, web = kept_heads(places)
    assert dict(folder.heads) == dict(git.heads) == {3: head}
    assert "cannot be asked" in web.trouble
    assert "secret" not in web.place
    subprocess.run(["git", "-C", repository, "tag", "-d", f"backfill-head/00000003-{head}"], check=True)
    assert dict(kept_heads([f"git:{repository}"])[0].heads) == {3: head}  # its origin has it


def test_no_program_that_a_repository_names_is_run_to_ask_it(repository: str, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    for name, value in (
        ("protocol.ext.allow", "always"),
        ("remote.origin.url", f"ext::sh -c touch% {ran}"),
        ("core.fsmonitor", f"touch {ran}"),
    ):
        subprocess.run(["git", "-C", repository, "config", name, value], check=True)
    (asked,) = kept_heads([f"git:{repository}"])
    assert "ext" in asked.trouble
    assert not ran.exists()


def test_a_chain_that_was_cut_or_rebuilt_does_not_extend_a_kept_head(chain: Chain, tmp_path: Path) -> None:
    keep_head([str(tmp_path)], chain.last())
    head = chain.read().head
    chain.append({"event": "more"}, since=3, same=lambda _: False)
    assert not_extended(kept_heads([str(tmp_path)]), chain.read()) == []
    (chain.folder / "00000004.json").unlink()
    (chain.folder / "00000003.json").unlink()
    (found,) = not_extended(kept_heads([str(tmp_path)]), chain.read())
    assert (found.expected, found.found) == (head, "nothing")
    chain.append({"event": "another third"}, since=2, same=lambda _: False)
    (found,) = not_extended(kept_heads([str(tmp_path)]), chain.read())
    assert found.found == chain.read().head


@pytest.mark.parametrize("prefix", ["", "git:"])
def test_a_head_that_another_chain_has_put_beside_the_one_that_was_kept_does_not_hide_it(
    chain: Chain, tmp_path: Path, repository: str, prefix: str
) -> None:
    place = f"git:{repository}" if prefix else str(tmp_path)
    keep_head([place], chain.last())
    kept = chain.read().head
    for attempt in range(6):  # each rebuilt chain has another hash: before the one that was kept, or after it, by name
        (chain.folder / "00000003.json").unlink()
        chain.append({"event": f"another third {attempt}"}, since=2, same=lambda _: False)
        keep_head([place], chain.last())
        heads = kept_heads([place])
        assert len(heads[0].heads) == attempt + 2
        assert heads[0].newest == 3
        wrong = not_extended(heads, chain.read())
        assert kept in {one.expected for one in wrong}
        assert f"{attempt + 2} heads of link 3 are kept: at least one is of another chain" in {
            one.what for one in wrong
        }


@pytest.mark.parametrize("place", ["/no/such/disk", "git:/no/such/repository", "http://127.0.0.1:1/heads"])
def test_a_place_that_is_down_is_said_and_stops_nothing(chain: Chain, place: str) -> None:
    (written,) = keep_head([place], chain.last())
    (asked,) = kept_heads([place])
    assert written.trouble
    assert asked.trouble
    assert shown(place) in {written.place, asked.place}


@pytest.mark.parametrize(
    "place", ["https://[heads.example", "http://[::1", "//[", "https://h:x/", "git:-C", "\0", "x" * 5000]
)
def test_a_place_that_settings_would_have_refused_stops_nothing_either(chain: Chain, place: str) -> None:
    (written,) = keep_head([place], chain.last())
    (asked,) = kept_heads([place])
    assert written.trouble
    assert asked.trouble


def test_of_an_address_that_cannot_be_parsed_nothing_secret_is_shown() -> None:
    assert shown("https://me:hunter2@[heads.example/?token=hunter2") == "https://..."
    assert shown("/mnt/[disk") == "/mnt/[disk"
