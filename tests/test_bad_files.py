"""Whatever lands: each file is accepted, quarantined or rejected as declared, none crashes a receipt, and none is lost.

Put here what can be wrong with a file, a path or an archive. Each case lands beside a good file, which is taken whatever its neighbour
is. What becomes of files that are good and come again is `test_receiving`'s.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import random
import socket
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from feed_world import HEADER, Site, file_of, fresh_site, path_of

SEEDS = (1, 2)
GOOD = path_of(day="20240201")
BAD = path_of(day="20240202")
Content = Callable[[random.Random], bytes]
ACCEPTED, QUARANTINED, REJECTED = "ACCEPTED", "QUARANTINED", "REJECTED"


def _numbers(rng: random.Random) -> list[int]:
    return [rng.randint(1, 999) for _ in range(3)]


def _good(rng: random.Random) -> bytes:
    return file_of(*_numbers(rng))


def _lines(*lines: str) -> bytes:
    return "\n".join((*lines, "")).encode()


def _with_line(number: int, line: str) -> Content:
    def made(rng: random.Random) -> bytes:
        lines = _good(rng).decode().splitlines()
        lines[number:number] = [line]
        return _lines(*lines)

    return made


def _replaced(old: bytes, new: bytes) -> Content:
    return lambda rng: _good(rng).replace(old, new, 1)


def _zipped(rng: random.Random) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("readings.csv", _good(rng))
    return made.getvalue()


CONTENTS: dict[str, tuple[Content, str, str]] = {
    "as it should be": (_good, ACCEPTED, ""),
    "of an older form": (lambda _: _lines("meter,kwh", "m1,1", "m2,2", "m3,3"), ACCEPTED, ""),
    "with line ends of Windows": (lambda rng: _good(rng).replace(b"\n", b"\r\n"), ACCEPTED, ""),
    "with line ends of old Macs": (lambda rng: _good(rng).replace(b"\n", b"\r"), ACCEPTED, ""),
    "without its last line end": (lambda rng: _good(rng).rstrip(b"\n"), REJECTED, "may have been cut there"),
    "cut in its last field": (lambda rng: file_of(*_numbers(rng), note="spring")[:-3], REJECTED, "may have been cut"),
    "with empty lines": (lambda rng: _good(rng).replace(b"\n", b"\n\n"), ACCEPTED, ""),
    "with a byte order mark": (lambda rng: b"\xef\xbb\xbf" + _good(rng), ACCEPTED, ""),
    "in Latin-1": (lambda rng: file_of(*_numbers(rng), note="così").decode().encode("latin-1"), ACCEPTED, ""),
    "with semicolons": (lambda rng: file_of(*_numbers(rng), delimiter=";"), ACCEPTED, ""),
    "with columns in another order": (lambda _: _lines("kwh,note,meter", "1,,m1", "2,,m2", "3,,m3"), ACCEPTED, ""),
    "with a line end in quotes": (
        lambda rng: _good(rng).replace(b"m1,", b'"m1",').replace(b",\n", b',"a\nb"\n', 1),
        ACCEPTED,
        "",
    ),
    "with one row twice": (_with_line(4, "m2,5,"), ACCEPTED, ""),
    "with one number too large for the model": (_with_line(4, "m9,2000000,"), ACCEPTED, ""),
    "with one record cut": (lambda _: _lines(HEADER, "m1,1,", "m2,2,", "m3,3"), ACCEPTED, ""),
    "with full-width digits in one row": (lambda _: _lines(HEADER, "m1,\uff11\uff12,", "m2,2,", "m3,3,"), ACCEPTED, ""),
    "with every row twice": (
        lambda rng: _good(rng) + b"".join(_good(rng).splitlines(keepends=True)[1:]),
        QUARANTINED,
        "a meter once",
    ),
    "cut after two rows": (lambda rng: b"".join(_good(rng).splitlines(keepends=True)[:3]), QUARANTINED, "cut"),
    "a first line and nothing else": (lambda _: _lines(HEADER), QUARANTINED, "cut"),
    "with values of swapped columns": (
        lambda _: _lines(HEADER, "1,m1,", "2,m2,", "3,m3,"),
        QUARANTINED,
        "a known meter",
    ),
    "with more fields than names": (lambda _: _lines(HEADER, "m1,1,,,", "m2,2,,,", "m3,3,,,"), QUARANTINED, "fields"),
    "with formulas for numbers": (
        lambda _: _lines(HEADER, "m1,=1+1,", "m2,NaN,", "m3,1e3,"),
        QUARANTINED,
        "whole number",
    ),
    "what the translator fails on": (_with_line(1, "raise,1,"), QUARANTINED, "KeyError"),
    "empty": (lambda _: b"", REJECTED, "empty"),
    "blanks": (lambda _: b" \r\n\t\n", REJECTED, "empty"),
    "cut in its first line": (lambda rng: _good(rng)[:7], REJECTED, "no reader"),
    "in UTF-16": (lambda rng: _good(rng).decode().encode("utf-16"), REJECTED, "no reader"),
    "with damaged UTF-8 where no other encoding is declared": (
        lambda _: b"meter,kwh\nm1,1\nm\xff,2\nm3,3\n",
        REJECTED,
        "it is not UTF-8: byte 16, in line 3, is 0xff",
    ),
    "with a NUL": (_replaced(b"m2", b"m\x002"), REJECTED, "NUL character, in line 3"),
    "with zeros at its end": (lambda rng: _good(rng) + b"\0" * 512, REJECTED, "NUL"),
    "with a quote that is never closed": (_replaced(b"m2,", b'"m2,'), REJECTED, "damaged"),
    "with a quote in the middle of a field": (_replaced(b"m2,", b'"m"2,'), REJECTED, "damaged"),
    "two files joined": (
        lambda rng: _good(rng) + b"\xef\xbb\xbf" + _good(rng),
        REJECTED,
        "byte order mark in the middle",
    ),
    "with a huge field": (_replaced(b",\n", b"," + b"x" * 3_000 + b"\n"), REJECTED, "names|field"),
    "with a huge note": (lambda rng: file_of(*_numbers(rng), note="x" * 3_000), REJECTED, "limits.field_chars"),
    "with too many records": (lambda rng: _good(rng) + b"m1,1,\n" * 120, REJECTED, "limits.rows"),
    "larger than allowed": (lambda rng: _good(rng) + b"m1,1,\n" * 5_000, REJECTED, "limits.bytes"),
    "random bytes": (lambda rng: rng.randbytes(500), REJECTED, ""),
    "with tabs": (lambda rng: file_of(*_numbers(rng), delimiter="\t"), REJECTED, "no reader"),
    "with an unknown column": (lambda rng: file_of(*_numbers(rng), header=f"{HEADER},more"), REJECTED, "no reader"),
    "without a column": (lambda _: _lines("meter,note", "m1,", "m2,", "m3,"), REJECTED, "no reader"),
    "with a column twice": (lambda _: _lines("meter,kwh,kwh", "m1,1,1", "m2,2,2", "m3,3,3"), REJECTED, "no reader"),
    "without a first line": (lambda rng: b"".join(_good(rng).splitlines(keepends=True)[1:]), REJECTED, "no reader"),
    "a page that says there is an error": (
        lambda _: b"<html><body>504 Gateway Time-out</body></html>\n",
        REJECTED,
        "no reader",
    ),
    "a ZIP archive": (_zipped, REJECTED, ""),
    "compressed, and not named so": (lambda rng: gzip.compress(_good(rng)), REJECTED, ""),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_becomes_what_is_declared_and_its_bytes_are_kept(name: str, seed: int) -> None:
    make, status, said = CONTENTS[name]
    content = make(random.Random(seed))
    site = fresh_site()
    site.land(_good(random.Random(99)), GOOD)
    place = site.land(content, BAD)
    done = site.receive()
    good, bad = sorted(site.entries, key=lambda one: one.path)
    assert (good.status, good.rows) == (ACCEPTED, 3)
    assert bad.status == bad.decision == status, bad.reason
    assert all(one in bad.reason for one in said.split("|")[:1]) or any(one in bad.reason for one in said.split("|"))
    assert sum(done.by_status.values()) == 2
    assert (bad.path in done.refused) == (status != ACCEPTED)
    if len(content) > 20_000:
        assert place.exists(), "what is larger than what is kept stays where it lies"
        assert done.left == (BAD,)
    else:
        assert bad.content_hash in site.archived("accepted" if status == ACCEPTED else "rejected")
        assert bad.content_hash == hashlib.sha256(content).hexdigest()
        assert not place.exists()
    _require_nothing_lost(site)


def _require_nothing_lost(site: Site) -> None:
    """Every row of the table and the quarantine is one that the import ledger counts, and nothing is left in the middle."""
    entries = site.entries
    assert "SEEN" not in site.statuses()
    assert site.rows().height == sum(one.rows for one in entries)
    per_file = dict(site.rows("bronze.readings_quarantine")["source_file"].value_counts().iter_rows())
    for one in entries:
        expected = max(one.rejected, 1) if one.status == QUARANTINED else one.rejected
        assert per_file.get(one.path, 0) == expected, one


# --- what is no file, and what no path may be --------------------------------------------------------------------------


def _link(place: Path) -> None:
    target = place.parent / "elsewhere.txt"
    place.symlink_to(target)


def _link_to_a_secret(place: Path) -> None:
    place.symlink_to("/etc/passwd")


def _link_to_a_folder(place: Path) -> None:
    place.symlink_to("/etc")


def _pipe(place: Path) -> None:
    os.mkfifo(place)


def _socket(place: Path) -> None:
    here = Path.cwd()
    os.chdir(place.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(place.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_link, "a link to elsewhere"),
        (_link_to_a_secret, "a link to elsewhere"),
        (_link_to_a_folder, "a link to elsewhere"),
        (_pipe, "a pipe"),
        (_socket, "a socket"),
    ],
)
def test_what_is_no_file_is_rejected_by_name_and_never_opened(make: Callable[[Path], None], said: str) -> None:
    site = fresh_site()
    site.land(file_of(), GOOD)
    place = site.landing / BAD
    place.parent.mkdir(parents=True)
    make(place)
    done = site.receive()
    by_path = {one.path: one for one in site.entries}
    assert by_path[GOOD].status == ACCEPTED
    assert (by_path[BAD].status, by_path[BAD].content_hash) == (REJECTED, "")
    assert said in by_path[BAD].reason
    assert done.left == (BAD,)
    assert place.is_symlink() or place.exists()
    assert site.receive().seen_again == 1, "it is counted each time, and on record once"
    assert len(site.entries) == 2


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("readings.csv", "does not fit the feed's"),
        ("day=20240231/at=20240102T060000.csv", "no business date"),
        ("day=20240101/at=20249902T060000.csv", "no time of publication"),
        ("day=20240101/at=20240102T060000.csv.bak", "does not fit the feed's"),
        ("day=20240101/at=20240102T060000.CSV", "does not fit the feed's"),
        ("day=20240101/a\nb.csv", "characters that cannot be shown"),
        (f"day=20240101/{'x' * 200}.csv", "does not fit the feed's"),
        (os.fsdecode(b"day=20240101/\xff\xfe.csv"), "characters that cannot be shown"),
    ],
)
def test_a_path_that_says_nothing_is_rejected_and_its_bytes_are_kept(path: str, said: str) -> None:
    site = fresh_site()
    site.land(file_of(7, 8, 9), GOOD)
    site.land(file_of(), path)
    site.receive()
    bad = next(one for one in site.entries if one.path != GOOD)
    assert bad.status == REJECTED
    assert said in bad.reason
    assert bad.path.isprintable()
    _require_nothing_lost(site)


# --- archives ---------------------------------------------------------------------------------------------------------


def _tar(*members: tuple[str | tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(content) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def _special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def _with_a_huge_header() -> bytes:
    info = tarfile.TarInfo(BAD)
    info.pax_headers = {"comment": "x" * (3 << 19)}
    return _tar((GOOD, file_of()), (info, file_of()))


def _damaged_checksum() -> bytes:
    content = bytearray(gzip.compress(_tar((GOOD, file_of()))))
    content[-6] ^= 0xFF
    return bytes(content)


def _lying_about_size() -> bytes:
    content = bytearray(_tar((GOOD, file_of())))
    info = tarfile.TarInfo(GOOD)
    info.size = 15_000
    content[:512] = info.tobuf()[:512]
    return bytes(content[:1024])


WHOLE_ARCHIVES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "cut": (
        "a.tar.xz",
        lambda: lzma.compress(_tar((GOOD, file_of()), (BAD, file_of())))[:-40],
        "cannot be read to its end",
    ),
    "cut between members": (
        "a.tar",
        lambda: _tar((GOOD, file_of()), (BAD, file_of()))[:1536],
        "cannot be read to its end|ends within",
    ),
    "no archive": ("a.tar", file_of, "cannot be read to its end"),
    "empty": ("a.tar", lambda: b"", "cannot be read to its end"),
    "named as compressed and is not": ("a.tar.xz", lambda: _tar((GOOD, file_of())), "cannot be read to its end"),
    "with a wrong checksum": ("a.tar.gz", _damaged_checksum, "cannot be read to its end"),
    "with a member that ends early": ("a.tar", _lying_about_size, "cannot be read to its end|ends within"),
    "a bomb of zeros": (
        "a.tar.bz2",
        lambda: bz2.compress(_tar((GOOD, file_of()), (BAD, b"\0" * 3_000_000))),
        "limits.archive_bytes",
    ),
    "a bomb of members": (
        "a.tar.gz",
        lambda: gzip.compress(_tar(*((f"x{n}", b"") for n in range(501)))),
        "limits.archive_files",
    ),
    "a bomb in a header": (
        "a.tar.xz",
        lambda: lzma.compress(_with_a_huge_header()),
        "limits.archive_bytes|headers of a member",
    ),
}


@pytest.mark.parametrize("name", WHOLE_ARCHIVES)
def test_an_archive_that_is_not_whole_or_too_much_brings_nothing_and_is_rejected(name: str) -> None:
    file, make, said = WHOLE_ARCHIVES[name]
    site = fresh_site()
    site.land(file_of(), GOOD)
    place = site.land(make(), file)
    done = site.receive()
    by_path = {one.path: one for one in site.entries}
    assert set(by_path) == {GOOD, file}
    assert (by_path[GOOD].status, by_path[file].status) == (ACCEPTED, REJECTED)
    assert any(one in by_path[file].reason for one in said.split("|")), by_path[file].reason
    assert place.exists()
    assert done.left == (file,)
    assert site.rows().height == 3


MEMBERS: dict[str, tuple[str | tarfile.TarInfo, bytes, str]] = {
    "that climbs out": ("../../day=20240202/at=20240102T060000.csv", file_of(), "'..'"),
    "that climbs in the middle": ("day=20240202/../at=20240102T060000.csv", file_of(), "'..'"),
    "with an absolute path": ("/etc/cron.d/readings.csv", file_of(), "absolute"),
    "with a path of Windows": ("C:\\day=20240202\\at=20240102T060000.csv", file_of(), "absolute"),
    "that is a link": (_special(BAD, tarfile.SYMTYPE, "/etc/passwd"), b"", "a link to elsewhere"),
    "that is a hard link": (_special(BAD, tarfile.LNKTYPE, GOOD), b"", "a link to elsewhere"),
    "that is a pipe": (_special(BAD, tarfile.FIFOTYPE), b"", "a pipe"),
    "that is a disk": (_special(BAD, tarfile.BLKTYPE), b"", "a device"),
    "that is a terminal": (_special(BAD, tarfile.CHRTYPE), b"", "a device"),
    "that is an archive": ("more.tar", _tar((BAD, file_of())), "does not fit the feed's"),
    "that is larger than allowed": (BAD, b"x" * 30_000, "limits.bytes"),
    "with a control character": ("day=20240202/\x1b[2J.csv", file_of(), "characters that cannot be shown"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_that_may_not_be_is_rejected_and_the_others_are_taken(name: str, tmp_path: Path) -> None:
    member, content, said = MEMBERS[name]
    archive = tmp_path / "delivery.tar"
    archive.write_bytes(_tar((GOOD, file_of()), (member, content)))
    site = fresh_site()
    before = set(tmp_path.rglob("*"))
    done = site.receive(archive)
    assert set(tmp_path.rglob("*")) == before, "nothing is unpacked into a folder"
    good, bad = sorted(site.entries, key=lambda one: one.status)
    assert (good.path, good.status, bad.status) == (GOOD, ACCEPTED, REJECTED)
    assert said in bad.reason
    assert dict(done.by_status) == {ACCEPTED: 1, REJECTED: 1}
    _require_nothing_lost(site)


def test_a_member_that_is_there_twice_is_one_file_that_was_seen_twice(tmp_path: Path) -> None:
    archive = tmp_path / "delivery.tar"
    archive.write_bytes(_tar((GOOD, file_of()), (GOOD, file_of())))
    site = fresh_site()
    site.receive(archive)
    (entry,) = site.entries
    assert (entry.status, entry.sightings) == (ACCEPTED, 2)


def test_a_hundred_bad_landings_at_once_are_counted_one_by_one() -> None:
    site = fresh_site()
    expected: dict[str, str] = {}
    for number in range(100):
        make, status, _ = list(CONTENTS.values())[number % len(CONTENTS)]
        path = path_of(day=f"2024{1 + number // 28:02d}{1 + number % 28:02d}")
        site.land(make(random.Random(number)), path)
        expected[path] = status
    done = site.receive()
    assert {one.path: str(one.status) for one in site.entries} == expected
    assert sum(done.by_status.values()) == 100
    _require_nothing_lost(site)
