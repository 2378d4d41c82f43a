"""Evidence in a bucket: sealed whole or not at all, linked once, never replaced, whoever dies at whichever request.

Each test runs on a small server in this process, and on a real one that keeps its objects on disk (`-m servers`).
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from evidence_writers import append_many, append_one, appended, die, seal, seal_and_say, started, where
from launches import CONTEXT
from real_servers.misbehaving import CUT, NOT_FOUND, SWALLOWED, UNAVAILABLE, misbehaving
from real_servers.misbehaving import LOST as LOST_BY_PROXY
from real_servers.s3 import Store
from small_s3 import LOST, Kept, SmallStore, small_store

from manifests.errors import EnvironmentRefused, PublicationRefused, StoreRefused
from resources.evidence import object_bundles
from resources.evidence.chain import START, Chain
from resources.evidence.object_chain import ObjectChain, chain_in
from resources.evidence.probing import require_fit
from resources.evidence.store import INDEX, PROBE, SEALED, EvidenceStore, examine
from resources.files.botocore_private import StoreClock
from resources.files.kept_files import read_kept
from resources.files.places import ObjectPlace, object_place

pytestmark = pytest.mark.usefixtures("impatient")

RUN = "restate-2012"
FILES: dict[str, Any] = {"chunks.json": [{"chunk": "2012-01", "rows": 3}], "plan.json": {"run": RUN}}
OTHERS = FILES | {"chunks.json": ["of another"]}
REQUESTS = len(FILES) + 3
"""Objects that sealing makes: what is begun, the link, each file, the list."""


@pytest.fixture(params=["small", pytest.param("disk_store", marks=pytest.mark.servers)])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def place(server: SmallStore | Store) -> ObjectPlace:
    return object_place(f"s3://{server.bucket(f'evidence-{uuid4().hex[:8]}')}/of/here", server.properties())


@pytest.fixture
def store(place: ObjectPlace) -> EvidenceStore:
    return EvidenceStore(place)


@pytest.fixture
def chain(place: ObjectPlace) -> Chain:
    return chain_in(place / "_chain")


def fresh(place: ObjectPlace) -> ObjectPlace:
    """Return a place as another process has it: with connections of its own."""
    return object_place(place.uri, place.bucket._properties)


def dying(place: ObjectPlace, number: int, when: str, work: Callable[..., object], *arguments: Any) -> int:
    """Do some work in a process that is killed before or after it has made its object of a number; return how it ended."""
    process = started(die, where(place), number, when, work, *arguments)
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


# --- the chain --------------------------------------------------------------------------------------------------------


def test_links_follow_each_other_and_each_event_has_one(chain: Chain) -> None:
    assert (chain.length(), chain.last(), chain.read().head) == (0, None, START)
    assert [appended(chain, event) for event in ("a", "b", "a", "c", "b")] == [1, 2, 1, 3, 2]
    found = chain.read()
    assert found.damages == ()
    assert [link.content["previous"] for link in found.links] == [START, *(link.hash for link in found.links[:-1])]
    assert [one["event"] for one in chain.contents(since=1)] == ["b", "c"]
    assert (chain.length(), chain.last()) == (3, found.links[-1])


def test_processes_that_append_at_the_same_time_get_a_number_each(chain: ObjectChain) -> None:
    at = where(chain.folder)
    workers = [started(append_many, at, name, 8, name == "shared") for name in ("p1", "p2", "shared", "shared")]
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    found = chain.read()
    assert found.damages == ()
    expected = [f"{name}-{one}" for name in ("p1", "p2", "shared") for one in range(8)]
    assert sorted(link.content["event"] for link in found.links) == sorted(expected)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_killed_while_it_appends_leaves_a_chain_that_goes_on(chain: ObjectChain, when: str) -> None:
    appended(chain, "a")
    assert dying(chain.folder, 1, when, append_one, "b") == -signal.SIGKILL
    assert (appended(chain, "b"), appended(chain, "c")) == (2, 3)
    assert chain.read().damages == ()


def test_an_answer_that_is_lost_is_read_back_and_the_number_given_away_once(small: SmallStore) -> None:
    place = object_place("s3://tests/evidence/_chain", small.properties())
    lost: list[str] = []

    def answers(method: str, key: str) -> str | None:
        if method == "PUT" and key not in lost:
            lost.append(key)
            return LOST
        return None

    small.answers = answers
    chain = chain_in(place)

    def never(_: Mapping[str, Any]) -> bool:
        return False

    for _ in range(3):  # the same content each time: only the token tells whose link it is
        chain.append({"event": "a"}, since=chain.length(), same=never)
    assert len(lost) == 3
    assert [link.number for link in chain_in(fresh(place)).read().links] == [1, 2, 3]


def test_a_number_that_another_got_while_the_answer_was_lost_is_left_to_it(small: SmallStore) -> None:
    place = object_place("s3://tests/evidence/_chain", small.properties())
    first = place / "00000001.json"

    def answers(method: str, key: str) -> str | None:
        if method == "PUT" and key == first.key:
            small.answers = lambda _, __: None
            appended(chain_in(fresh(place)), "of another")  # it overtakes the request that fails
            return "SlowDown"
        return None

    small.answers = answers
    assert appended(chain_in(place), "mine") == 2
    found = chain_in(place).read()
    assert [link.content["event"] for link in found.links] == ["of another", "mine"]
    assert found.damages == ()


def test_equal_links_of_two_processes_are_two_whatever_answers_are_lost(small: SmallStore) -> None:
    place = object_place("s3://tests/evidence/_chain", small.properties())
    first = place / "00000001.json"

    def never(_: Mapping[str, Any]) -> bool:
        return False

    def answers(method: str, key: str) -> str | None:
        if method == "PUT" and key == first.key:
            small.answers = lambda _, __: None
            chain_in(fresh(place)).append({"event": "same"}, since=0, same=never)
            return LOST  # and this one finds that it is there, byte for byte
        return None

    small.answers = answers
    assert chain_in(place).append({"event": "same"}, since=0, same=never).number == 2


def test_whoever_may_not_go_on_makes_no_link_by_asking_again(small: SmallStore) -> None:
    chain, asked = chain_in(object_place("s3://tests/evidence/_chain", small.properties())), []

    def still() -> None:
        asked.append(1)
        if len(asked) > 1:
            raise PublicationRefused(())

    small.answers = lambda method, _: "SlowDown" if method == "PUT" else None
    with pytest.raises(PublicationRefused):
        chain.append({"event": "a"}, since=0, same=lambda _: False, still=still)
    assert small.objects == {}


def test_a_long_chain_is_listed_by_pages_and_a_link_costs_a_few_requests(small: SmallStore) -> None:
    place = object_place("s3://tests/evidence/_chain", small.properties())
    chain = chain_in(place)
    for number in range(1, 2_501):
        raw = json.dumps({"number": number}).encode()
        small.objects[(place / f"{number:08}.json").key] = Kept(raw, f'"{number}"', {})
    small.asked.clear()
    assert chain.length() == 2_500
    assert len(small.asked) == 3
    small.asked.clear()
    appended(chain, "next", since=chain.length())
    assert sorted(method for method, _ in small.asked) == ["GET"] * 4 + ["PUT"]
    small.asked.clear()
    appended(chain, "one more", since=chain.length())
    assert sorted(method for method, _ in small.asked) == ["GET"] * 3 + ["PUT"]
    small.asked.clear()
    assert [one["event"] for one in chain.contents(since=2_500)] == ["next", "one more"]
    assert len(small.asked) == 1
    assert [one["number"] for one in chain.contents()][:2_500] == list(range(1, 2_501))


def test_a_changed_a_missing_and_a_foreign_object_are_found(chain: ObjectChain) -> None:
    for event in ("a", "b", "c"):
        appended(chain, event)
    second = chain.folder / "00000002.json"
    kept = read_kept(second)
    assert list(chain.contents())  # what this process has read before does not stand in for what is there
    second.bucket.put(second.key, kept.replace(b'"b"', b'"x"'))
    assert "00000002.json" in {damage.name for damage in chain.read().damages}
    second.bucket.put(second.key, kept)
    planted = chain.folder / "00000005.json"
    planted.bucket.put(planted.key, b"{}")
    (chain.folder / "notes").bucket.put((chain.folder / "notes" / "of me.txt").key, b"mine")
    assert {damage.name for damage in chain.read().damages} >= {"00000004.json", "00000005.json", "notes/of me.txt"}
    with pytest.raises(EnvironmentRefused, match=r"00000004\.json is missing"):
        appended(chain_in(fresh(chain.folder)), "d", since=3)


# --- bundles ----------------------------------------------------------------------------------------------------------


def links_of(store: EvidenceStore) -> list[tuple[str, str]]:
    return [(str(one["bundle"]), str(one["root"])) for one in store.chain.contents() if one["event"] == SEALED]


def test_a_bundle_lies_in_a_bucket_as_in_a_folder_and_the_first_one_stays(store: EvidenceStore, tmp_path: Path) -> None:
    here = EvidenceStore(tmp_path)
    root = here.seal(RUN, FILES)
    assert store.seal(RUN, FILES) == root == store.verify(RUN) == store.seal(RUN, OTHERS)
    assert {name: read_kept(store.path(RUN) / name) for name in (*FILES, INDEX)} == {
        file.name: file.read_bytes() for file in here.path(RUN).iterdir()
    }
    assert links_of(store) == [("bundle", root)]
    assert store.run_ids() == [RUN]
    assert store.unsealed(RUN) == []
    second = store.seal(RUN, OTHERS, edition=1)
    assert [bundle.name for bundle in store.bundles(RUN)] == ["bundle", "bundle-1"]
    assert store.verify(RUN) == second


def test_records_are_kept_once_each_with_a_link(store: EvidenceStore) -> None:
    root = store.seal(RUN, FILES)
    file = store.append(RUN, "diff", {"root": root})
    store.append(RUN, "diff", {"root": "another"})
    assert json.loads(read_kept(file)) == {"root": root}
    assert [name for name, _ in store.kept(RUN)] == ["diff"]


def test_of_processes_that_seal_other_files_at_once_one_decides(store: EvidenceStore) -> None:
    said = CONTEXT.Queue()
    contents = [FILES | {"who.json": one} for one in range(3)] * 2
    workers = [started(seal_and_say, where(store.folder), RUN, files, said) for files in contents]
    roots = {said.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join(60)
    assert len(roots) == 1
    assert links_of(store) == [("bundle", *roots)]
    assert {store.verify(RUN)} == roots


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, REQUESTS + 1))
@pytest.mark.parametrize("again", [FILES, OTHERS])
def test_whoever_seals_after_one_that_was_killed_finds_a_whole_bundle_or_none(
    store: EvidenceStore, number: int, when: str, again: dict[str, Any]
) -> None:
    assert dying(store.folder, number, when, seal, RUN, FILES) == -signal.SIGKILL
    left = EvidenceStore(fresh(store.folder))
    is_decided = (number, when) >= (2, "after") and (number, when) != (2, "before")
    is_sealed = (number, when) == (REQUESTS, "after")
    assert [bundle.name for bundle in left.bundles(RUN)] == (["bundle"] if is_sealed else [])
    assert left.unsealed(RUN) == []
    assert left.chain.read().damages == ()

    root = store.seal(RUN, again)
    assert store.verify(RUN) == root
    assert links_of(store) == [("bundle", root)]
    is_first = json.loads(read_kept(store.path(RUN) / "chunks.json")) == FILES["chunks.json"]
    assert is_first == (is_decided or again is FILES)


def test_a_bundle_is_not_sealed_over_what_somebody_has_put_in_its_place(store: EvidenceStore) -> None:
    planted = store.folder / RUN / "bundle" / "chunks.json"
    planted.bucket.put(planted.key, b"[]\n")
    with pytest.raises(PublicationRefused, match="no link of the chain vouches for bundle in"):
        store.seal(RUN, FILES)
    assert store.chain.length() == 0


def test_a_file_that_is_put_there_while_the_bundle_is_sealed_is_refused_by_name(store: EvidenceStore) -> None:
    assert dying(store.folder, 2, "after", seal, RUN, FILES) == -signal.SIGKILL
    planted = store.folder / RUN / "bundle" / "chunks.json"
    planted.bucket.put(planted.key, b"[]\n")
    with pytest.raises(PublicationRefused, match=r"chunks\.json in s3://.*/bundle is not what was begun"):
        store.seal(RUN, FILES)
    assert store.bundles(RUN) == []


def test_where_what_was_begun_is_lost_its_link_stays_and_says_so(small: SmallStore) -> None:
    store = EvidenceStore(object_place("s3://tests/evidence", small.properties()))
    assert dying(store.folder, 2, "after", seal, RUN, FILES) == -signal.SIGKILL
    (key,) = (key for key in small.objects if ".begun-" in key)
    lost = small.objects.pop(key)
    (linked,) = links_of(store)
    root = store.seal(RUN, OTHERS)
    assert links_of(store) == [linked, ("bundle", root)]
    assert store.verify(RUN) == root != linked[1]
    another = next(key for key in small.objects if ".begun-" in key)
    small.objects[another] = lost
    assert not object_bundles.is_whole(store.path(RUN), root)


@pytest.mark.parametrize("name", [*FILES, INDEX])
def test_a_changed_and_a_missing_file_of_a_bundle_are_found(small: SmallStore, name: str) -> None:
    store = EvidenceStore(object_place("s3://tests/evidence", small.properties()))
    store.seal(RUN, FILES)
    key = (store.path(RUN) / name).key
    kept = small.objects[key]
    for place in range(0, len(kept.raw), 7):
        other = kept.raw[:place] + bytes([kept.raw[place] ^ 1]) + kept.raw[place + 1 :]
        small.objects[key] = Kept(other, kept.etag, kept.metadata)  # whatever the store says of it
        with pytest.raises(PublicationRefused, match=r"was changed after it was sealed"):
            store.verify(RUN)
    del small.objects[key]
    with pytest.raises(PublicationRefused, match=RUN):
        store.verify(RUN)
    small.objects[key] = kept
    assert store.verify(RUN)


def test_every_changed_byte_of_what_was_begun_shows(small: SmallStore) -> None:
    store = EvidenceStore(object_place("s3://tests/evidence", small.properties()))
    root = store.seal(RUN, FILES)
    bundle = store.path(RUN)
    key = object_bundles.begun_at(bundle, root).key
    kept = small.objects[key]
    for place in range(len(kept.raw)):
        other = kept.raw[:place] + bytes([kept.raw[place] ^ 1]) + kept.raw[place + 1 :]
        small.objects[key] = Kept(other, kept.etag, kept.metadata)
        assert not object_bundles.is_whole(bundle, root), kept.raw[:place]
    small.objects[key] = kept
    assert object_bundles.is_whole(bundle, root)


def test_an_added_object_is_named(store: EvidenceStore) -> None:
    store.seal(RUN, FILES)
    added = store.path(RUN) / "more" / "of it.json"
    added.bucket.put(added.key, b"{}")
    assert [one.name for one in examine(store.path(RUN), RUN)[1]] == ["more/of it.json"]


# --- the store --------------------------------------------------------------------------------------------------------


def test_a_store_that_gives_a_name_away_once_is_fit_however_often_it_is_tried(
    store: EvidenceStore, tmp_path: Path
) -> None:
    for _ in range(3):
        require_fit(store, tmp_path)
    assert store.folder.below() == [PROBE]


def test_a_store_that_gives_a_name_away_twice_is_refused_by_name(small: SmallStore, tmp_path: Path) -> None:
    small.gives_names_once = False
    store = EvidenceStore(object_place("s3://tests/evidence", small.properties()))
    for _ in range(2):
        with pytest.raises(EnvironmentRefused, match=r"made the object s3://tests/evidence/_probe\.json \d times"):
            require_fit(store, tmp_path)
    small.gives_names_once, small.keeps_metadata = True, False
    small.objects.clear()
    with pytest.raises(EnvironmentRefused, match="without the metadata"):
        require_fit(store, tmp_path)


def test_a_second_chain_is_not_begun_while_the_first_is_in_the_home(small: SmallStore, tmp_path: Path) -> None:
    EvidenceStore(tmp_path).seal(RUN, FILES)
    store = EvidenceStore(object_place("s3://tests/evidence", small.properties()))
    with pytest.raises(
        EnvironmentRefused, match=r"has the evidence of this installation, and s3://tests/evidence has none"
    ):
        require_fit(store, tmp_path)
    for file in tmp_path.rglob("*.json"):
        small.objects[f"evidence/{file.relative_to(tmp_path)}"] = Kept(file.read_bytes(), '"of a copy"', {})
    require_fit(store, tmp_path)
    assert store.verify(RUN) == EvidenceStore(tmp_path).verify(RUN)


ANSWERS = [
    ("AccessDenied", "AccessDenied", "may list"),
    ("NoSuchBucket", "NoSuchBucket", "make the bucket"),
    ("SlowDown", "SlowDown", "the store is up"),
    (LOST, "closed|aborted|reset", "the store is up"),
]


@pytest.mark.parametrize(
    ("method", "answer", "what", "fix"),
    # of a request that was done and whose answer was lost, see the tests of the chain
    [(method, *one) for method in ("GET", "PUT") for one in ANSWERS if (method, one[0]) != ("PUT", LOST)],
)
def test_a_store_that_does_not_answer_is_a_refusal_that_says_what_to_do(
    small: SmallStore, method: str, answer: str, what: str, fix: str
) -> None:
    store = EvidenceStore(object_place("s3://tests/evidence", small.properties()))
    small.answers = lambda asked, _: answer if asked == method else None
    with pytest.raises(StoreRefused, match=what) as refusal:
        store.seal(RUN, FILES)
    (problem,) = refusal.value.problems
    assert problem.what.startswith("s3://tests/evidence")
    assert small.endpoint in problem.what
    assert fix in problem.fix
    assert "secret-of-tests" not in str(refusal.value)
    small.answers = lambda _, __: None
    assert store.bundles(RUN) == []
    assert store.chain.length() == 0
    assert store.seal(RUN, FILES) == store.verify(RUN)


def test_a_store_that_is_not_there_is_a_refusal() -> None:
    with small_store() as server:
        properties = server.properties() | {"s3.connect-timeout": "1"}
    with pytest.raises(StoreRefused, match="cannot be listed") as refusal:
        EvidenceStore(object_place("s3://tests/evidence", properties)).verify(RUN)
    assert "`s3.endpoint`" in str(refusal.value)


@pytest.mark.servers
@pytest.mark.parametrize("how", [UNAVAILABLE, NOT_FOUND, SWALLOWED, CUT, LOST_BY_PROXY])
def test_a_proxy_that_lies_is_never_taken_for_the_stores_word(disk_store: Store, how: str) -> None:
    """Once, for each kind of request: what was sealed is whole and linked once. Always: it is a refusal, and no damage."""
    bucket = disk_store.bucket(f"evidence-{uuid4().hex[:8]}")
    with misbehaving(disk_store.endpoint) as proxy:
        properties = disk_store.properties() | {"s3.endpoint": proxy.endpoint}
        store = EvidenceStore(object_place(f"s3://{bucket}/evidence", properties))
        seen: set[tuple[str, str]] = set()

        def once(method: str, path: str) -> str | None:
            is_new = (method, path) not in seen
            seen.add((method, path))
            return how if is_new else None

        proxy.answers = once
        root = store.seal(RUN, FILES)
        assert store.verify(RUN) == root
        assert links_of(store) == [("bundle", root)]
        assert len(store.chain.read().links) == 1
        proxy.answers = lambda method, _: how if method != "PUT" else None
        with pytest.raises(StoreRefused):
            store.verify(RUN)
        with pytest.raises(StoreRefused):
            store.chain.read()


@pytest.mark.servers
def test_a_host_whose_clock_is_wrong_signs_by_the_clock_of_the_store(disk_store: Store) -> None:
    bucket = disk_store.bucket(f"evidence-{uuid4().hex[:8]}")
    place = object_place(f"s3://{bucket}/evidence", disk_store.properties())
    place.bucket._clock = StoreClock(timedelta(hours=-5))
    assert EvidenceStore(place).seal(RUN, FILES)
    assert abs(place.bucket._clock.off) < timedelta(minutes=1)


@pytest.mark.parametrize(
    "wrong", [{"s3.endpoint": "nowhere"}, {"s3.connect-timeout": "soon"}, {"s3.profile-name": "nobody"}]
)
def test_a_property_that_cannot_be_used_is_a_refusal(small: SmallStore, wrong: dict[str, str]) -> None:
    store = EvidenceStore(object_place("s3://tests/evidence", small.properties() | wrong))
    with pytest.raises(StoreRefused, match=r"s3://tests"):
        store.verify(RUN)


def test_credentials_are_never_shown(small: SmallStore) -> None:
    store = EvidenceStore(object_place("s3://tests/evidence", small.properties()))
    assert "secret-of-tests" not in f"{store.folder!r} {store.folder.bucket!r} {vars(store)!r}"
