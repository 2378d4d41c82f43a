"""Stores that lie about evidence: listings that are none, or lag; objects as large as memory; and a machine without botocore.

Put here what a store answers that is not as S3 has it, on a small server in this process. What happens where a process dies, or an answer
is lost, is tried in `test_bucket_evidence`.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from small_s3 import Kept, SmallStore, _Handler, _Page
from starlette.testclient import TestClient

from backfill_assets.defs.addresses import PREFIX
from backfill_assets.ui.pages import make_pages
from manifests.errors import EnvironmentRefused, PublicationRefused, StoreRefused
from resources.evidence.object_chain import chain_in
from resources.evidence.probing import require_fit
from resources.evidence.store import PROBE, EvidenceStore
from resources.files import s3_objects
from resources.files.kept_files import sha256_of_file
from resources.files.places import ObjectPlace, object_place
from resources.files.s3_objects import Bucket

pytestmark = pytest.mark.usefixtures("impatient")

RUN = "restate-2012"
FILES: dict[str, Any] = {"chunks.json": [{"chunk": "2012-01", "rows": 3}], "plan.json": {"run": RUN}}


def place_in(server: SmallStore, **properties: str) -> ObjectPlace:
    return object_place("s3://tests/of/here", server.properties() | properties)


def answering(server: SmallStore, body: str) -> None:
    """Have every GET answered by this."""

    class Handler(_Handler):
        def do_GET(self) -> None:  # noqa: N802 - the name is of the server
            self._say(200, f"<ListBucketResult>{body}</ListBucketResult>".encode(), ETag='"x"')

    server.RequestHandlerClass = Handler


def listed(more: str = "false", of: str = "", key: str = "of/here/a", size: str = "<Size>1</Size>") -> str:
    return f"<IsTruncated>{more}</IsTruncated>{of}<Contents><Key>{key}</Key>{size}</Contents>"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (listed(size=""), "an answer that is no listing"),
        (listed(size="<Size>many</Size>"), "an answer that is no listing"),
        (listed(key="elsewhere/a"), "or one of something else"),
        (listed("true"), "an answer that is no listing"),
        (listed("true", "<NextContinuationToken>a</NextContinuationToken>"), "comes back to a page that it has given"),
    ],
)
def test_a_listing_that_is_none_is_a_refusal(small: SmallStore, body: str, said: str) -> None:
    answering(small, body)
    for look in (EvidenceStore(place_in(small)).run_ids, chain_in(place_in(small)).length):
        with pytest.raises(StoreRefused, match=said):
            look()


def test_a_link_that_is_not_listed_yet_is_read_by_its_name_and_the_next_number_taken(small: SmallStore) -> None:
    class Handler(_Handler):
        def _page(self, query: dict[str, str]) -> _Page:
            page = super()._page(query)
            page.keys = [key for key in page.keys if not key.endswith("00000003.json")]
            return page

    small.RequestHandlerClass = Handler

    def appended(event: str) -> int:
        def same(link: Mapping[str, Any]) -> bool:
            return link.get("event") == event

        return chain.append({"event": event}, since=0, same=same).number

    chain = chain_in(place_in(small) / "_chain")
    assert [appended(event) for event in "abcd"] == [1, 2, 3, 4]
    assert len([one for one in small.asked if one[0] == "PUT"]) < 10
    with pytest.raises(EnvironmentRefused, match=r"00000003\.json is missing"):  # nothing is appended over a gap
        chain_in(place_in(small) / "_chain").append({"event": "e"}, since=0, same=lambda _: False)


def test_without_botocore_a_bucket_is_refused_and_the_extra_is_named(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "botocore":
            raise ModuleNotFoundError(f"No module named '{name}'")
        return real(name, *arguments, **named)

    for name in [name for name in sys.modules if name == "resources.files.botocore_private"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", missing)
    bucket = place_in(small).bucket
    asking: list[Callable[[], object]] = [
        lambda: bucket.read("a", 1),
        lambda: bucket.make("a", b""),
        lambda: bucket.put("a", b""),
        lambda: bucket.begins("a"),
    ]
    for ask in asking:
        with pytest.raises(StoreRefused, match=r"pip install 'backfill-assets\[s3\]'"):
            ask()


def test_large_objects_are_hashed_and_served_a_block_at_a_time(small: SmallStore) -> None:
    store = EvidenceStore(place_in(small))
    store.seal(RUN, FILES)
    raw = b"{}" * s3_objects._BLOCK
    small.objects[f"of/here/{RUN}/bundle/more.json"] = Kept(raw, '"x"', {})
    with mock.patch.object(Bucket, "read", side_effect=AssertionError("it was read as a whole")):
        assert len(sha256_of_file(store.path(RUN) / "more.json")) == 64
        client = TestClient(make_pages(mock.Mock(), store))
        found = client.get(f"{PREFIX}/{RUN}/evidence/bundle/more.json")
        assert (found.content == raw, found.headers["content-length"]) == (True, str(len(raw)))
        assert found.headers["content-type"] == "application/json"
        assert "sandbox" in found.headers["content-security-policy"]


def test_an_object_larger_than_the_memory_is_a_refusal_by_name(small: SmallStore) -> None:
    small.objects["of/here/a"] = Kept(b"x", '"x"', {})
    with (
        mock.patch("botocore.response.StreamingBody.read", side_effect=MemoryError),
        pytest.raises(EnvironmentRefused, match=r"s3://tests/of/here/a has 1 bytes, which is more than the memory"),
    ):
        place_in(small).bucket.read("of/here/a", 10)


def test_a_bucket_that_locks_objects_is_told_the_hash_of_each(small: SmallStore) -> None:
    small.locks_objects = True
    store = EvidenceStore(place_in(small))
    store.seal(RUN, FILES)
    place_in(small).bucket.put("of/here/report.html", b"<p>")
    assert store.verify(RUN)


def test_nobody_sees_the_password_of_an_address_or_what_a_store_writes_to_a_terminal(small: SmallStore) -> None:
    address = small.endpoint.replace("://", "://user:p4ss-of-tests@")
    for wrong in ({"s3.endpoint": address + "0000"}, {"s3.endpoint": "http://user:p4ss-of-tests@127.0.0.1:9"}):
        with pytest.raises(StoreRefused) as refusal:
            place_in(small, **wrong).bucket.read("a", 1)
        assert "p4ss-of-tests" not in str(refusal.value)

    class Handler(_Handler):
        def do_GET(self) -> None:  # noqa: N802 - the name is of the server
            said = "\N{RIGHT-TO-LEFT OVERRIDE}" + "x" * 5_000
            self._say(403, f"<Error><Code>AccessDenied</Code><Message>{said}</Message></Error>".encode())

    small.RequestHandlerClass = Handler
    with pytest.raises(StoreRefused, match="AccessDenied") as refusal:
        place_in(small).bucket.read("a", 1)
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in str(refusal.value)
    assert len(str(refusal.value)) < 2_000


def test_a_probe_that_was_copied_without_its_metadata_is_made_anew_once_it_is_removed(
    small: SmallStore, tmp_path: Path
) -> None:
    store = EvidenceStore(place_in(small))
    require_fit(store, tmp_path)
    key = f"of/here/{PROBE}"
    for wrong in (Kept(small.objects[key].raw, '"of a copy"', {}), Kept(b"x" * 1_000, '"x"', {})):
        small.objects[key] = wrong
        with pytest.raises(EnvironmentRefused, match="remove this one object") as refusal:
            require_fit(store, tmp_path)
        assert PROBE in refusal.value.problems[0].fix
    del small.objects[key]
    require_fit(store, tmp_path)


def test_an_object_named_like_its_folder_is_named(small: SmallStore) -> None:
    store = EvidenceStore(place_in(small))
    store.seal(RUN, FILES)
    small.objects[f"of/here/{RUN}/bundle/"] = Kept(b"", '"x"', {})
    with pytest.raises(PublicationRefused, match=r"was changed after it was sealed: /"):
        store.verify(RUN)
    small.objects["of/here/_chain/"] = Kept(b"", '"x"', {})
    assert [one.name for one in store.chain.read().damages] == ["/"]
