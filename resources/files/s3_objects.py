"""Objects of a bucket: listed, read, and made where none of their name is; what a store does not do is a refusal.

Put here how S3 is asked, what its answers are worth, and what people are told where it does not answer. What the objects are is
for whoever keeps them. An answer counts if it is whole: an error of a proxy is no word of the store's, and neither is a 404
without the store's own code, nor a 200 without an ETag. A request that got no answer may have been done: what became of it is
read back, by a token that no other request has.

The credentials are the catalog's (`s3.*`, else `client.*`), and without any those of the machine. None is ever shown.
Imported by every command: botocore is imported once a bucket is asked.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from manifests.errors import EnvironmentRefused, Problem, Refused, StoreRefused
from manifests.text import visible

if TYPE_CHECKING:
    from resources.files.botocore_private import StoreClock

SCHEME = "s3://"
TOGETHER = 32
"""How many requests are made at once where many objects are read."""
_TOKEN = "backfill-write"  # noqa: S105 - the name of a header
_WAITS = (0.2, 0.6, 1.8)
"""Seconds before a request that got no answer is made again."""
_ABSENT = frozenset({"NoSuchKey"})
_BUSY = frozenset(
    {
        *("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "ConditionalRequestConflict"),
        *("OperationAborted", "RequestTimeTooSkewed", "Throttling", "TooManyRequests"),
    }
)
_TAKEN, _TOO_MANY, _SERVER_ERROR = 412, 429, 500
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 30.0
_BLOCK = 1 << 20
_MOST_SAID = 500
"""Letters of what a store says that people are shown."""
_USER_OF_A_URL = re.compile(r"(?<=://)[^\s\"']*@")
_TRUE = frozenset({"true", "1", "yes"})
_Answer = TypeVar("_Answer")


class UnwholeError(Exception):
    """An answer that is none of a store's, or a part of one."""


@dataclass(frozen=True)
class Listed:
    """An object as a listing has it."""

    key: str
    size: int
    etag: str


@dataclass(frozen=True)
class Content:
    """An object as it was read."""

    raw: bytes
    etag: str
    token: str


class Bucket:
    """One bucket, by the properties that a catalog gives for S3."""

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self.name = name
        self._properties = dict(properties)
        self._client: tuple[int, Any] | None = None
        self._clock: StoreClock | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def where(self) -> str:
        """Where the store answers, for naming."""
        return _shown(self._properties.get("s3.endpoint") or "AWS")

    def listed(self, prefix: str, *, after: str = "") -> Iterator[Listed]:
        """Yield the objects whose keys begin so, in the order of their keys, those after a key; a thousand a request."""
        for page in self._pages({"Prefix": prefix} | ({"StartAfter": after} if after else {})):
            for one in page.get("Contents", ()):
                yield Listed(str(one["Key"]), int(one["Size"]), str(one.get("ETag", "")))

    def children(self, prefix: str) -> tuple[list[str], list[str]]:
        """Return what lies directly below a prefix that ends a folder: the names of objects, and those of folders."""
        files: list[str] = []
        folders: list[str] = []
        for page in self._pages({"Prefix": prefix, "Delimiter": "/"}):
            files += [str(one["Key"]).removeprefix(prefix) for one in page.get("Contents", ())]
            folders += [str(one["Prefix"]).removeprefix(prefix)[:-1] for one in page.get("CommonPrefixes", ())]
        return [name for name in files if name], folders

    def begins(self, prefix: str) -> str:
        """Return the first key that begins so; empty if there is none."""
        page = self._page({"Prefix": prefix, "MaxKeys": 1})
        return next((str(one["Key"]) for one in page.get("Contents", ())), "")

    def read(self, key: str, most: int) -> Content:
        """Return an object of at most `most` bytes.

        Raises:
            FileNotFoundError: if there is none of that key.
            EnvironmentRefused: if it is larger.
            StoreRefused: if it cannot be read.
        """

        def ask(client: Any) -> Content:
            answer, size = self._got(client, key, most)
            try:
                raw = answer["Body"].read()
            except MemoryError as error:
                raise self._larger(key, f"has {size:,} bytes, which is more than the memory that is left") from error
            if len(raw) != size:
                raise UnwholeError(f"{len(raw):,} of {size:,} bytes")
            return Content(raw, str(answer["ETag"]), str(answer.get("Metadata", {}).get(_TOKEN, "")))

        return self._asked("read", key, ask)

    def sha256(self, key: str, most: int) -> str:
        """Return the SHA-256 (hex) of an object of at most `most` bytes, a block at a time; it raises what `read` does."""

        def ask(client: Any) -> str:
            answer, size = self._got(client, key, most)
            digest, had = hashlib.sha256(), 0
            for block in answer["Body"].iter_chunks(_BLOCK):
                digest.update(block)
                had += len(block)
            if had != size:
                raise UnwholeError(f"{had:,} of {size:,} bytes")
            return digest.hexdigest()

        return self._asked("read", key, ask)

    def blocks(self, key: str, most: int) -> tuple[int, Iterator[bytes]]:
        """Return the size of an object of at most `most` bytes, and its content, a block at a time; it raises what `read` does.

        A connection that is lost in between raises botocore's own error.
        """

        def ask(client: Any) -> tuple[int, Iterator[bytes]]:
            answer, size = self._got(client, key, most)
            return size, answer["Body"].iter_chunks(_BLOCK)

        return self._asked("read", key, ask)

    def _got(self, client: Any, key: str, most: int) -> tuple[Mapping[str, Any], int]:
        """Return an object's answer, whose content is still to be read, and its size."""
        answer = client.get_object(Bucket=self.name, Key=key)
        if "ContentLength" not in answer or not answer.get("ETag"):
            raise UnwholeError("an answer without a length or an ETag")
        size = int(answer["ContentLength"])
        if size > most:
            answer["Body"].close()
            raise self._larger(key, f"has {size:,} bytes, and at most {most:,} are read")
        return answer, size

    def _larger(self, key: str, what: str) -> LargerError:
        return LargerError(
            Problem(
                f"{SCHEME}{self.name}/{key} {what}",
                "evidence is kept in objects no larger than this project writes them",
                "`backfill verify --all` names everything that is not as it was recorded; find out who has put it there, "
                "and put back the object that belongs there",
            )
        )

    def make(self, key: str, raw: bytes, still: Callable[[], object] | None = None) -> str:
        """Make an object, whole, if there is none of that key; return its ETag, and nothing if there is one already.

        `still` is asked before each try, and raises if the object may not be made any more.

        Raises:
            StoreRefused: if the store does not do it, or nobody can say whether it has.
        """
        token = uuid4().hex
        for wait in (*_WAITS, None):
            if still is not None:
                still()
            trouble = ""
            try:
                answer = self._opened().put_object(
                    Bucket=self.name,
                    Key=key,
                    Body=raw,
                    ContentMD5=_md5(raw),
                    IfNoneMatch="*",
                    Metadata={_TOKEN: token},
                    ContentType=kind_of(key),
                )
                if etag := answer.get("ETag"):
                    return str(etag)
                trouble = "an answer without an ETag"
            except Refused:
                raise  # nobody could be asked
            except Exception as error:  # noqa: BLE001 - what is not the store's is raised again
                trouble = self._why_not_made(key, error)
            # without an answer it may have been done; and a proxy that asks again is told that it is there
            made = self._read_back(key, raw, token)
            if made is not None:
                return made
            if wait is not None:
                time.sleep(wait)
        raise self._refused("made", key, trouble)

    def put(self, key: str, raw: bytes) -> None:
        """Write an object, whole, also in place of one that is there.

        Raises:
            StoreRefused: if the store does not do it.
        """

        def ask(client: Any) -> None:
            answer = client.put_object(
                Bucket=self.name, Key=key, Body=raw, ContentMD5=_md5(raw), ContentType=kind_of(key)
            )
            if not answer.get("ETag"):
                raise UnwholeError("an answer without an ETag")

        self._asked("written", key, ask)

    def _why_not_made(self, key: str, error: Exception) -> str:
        """Say why an object was not made, or may not have been: it is read back then.

        Raises:
            StoreRefused: if it was not, and will not be.
        """
        from botocore.exceptions import ClientError  # noqa: PLC0415

        if isinstance(error, ClientError) and _status(error) == _TAKEN:
            return "the store says that there is such an object, and has none of that name"
        if self._passes(error):
            return _said(error)
        if isinstance(error, ClientError) or _is_botocore(error):
            raise self._refused("made", key, _said(error), _code(error)) from error
        raise error

    def _read_back(self, key: str, raw: bytes, token: str) -> str | None:
        """Return the ETag of an object that this process has made, nothing of another's, None if there is none."""
        try:
            found = self.read(key, len(raw) + 1)
        except FileNotFoundError:
            return None
        except LargerError:
            return ""
        return found.etag if found.token == token and found.raw == raw else ""

    def _pages(self, asked: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        more: dict[str, Any] = {}
        seen: set[str] = set()
        while True:
            page = self._page({**asked, **more})
            yield page
            if not page["IsTruncated"]:
                return
            token = page["NextContinuationToken"]
            if token in seen:
                raise self._refused(
                    "listed", str(asked["Prefix"]), "its listing comes back to a page that it has given before"
                )
            seen.add(token)
            more = {"ContinuationToken": token}

    def _page(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        def ask(client: Any) -> Mapping[str, Any]:
            try:
                page: Mapping[str, Any] = client.list_objects_v2(Bucket=self.name, **asked)
                is_whole = "IsTruncated" in page and (not page["IsTruncated"] or "NextContinuationToken" in page)
                names = [one["Key"] for one in page.get("Contents", ()) if one["Size"] >= 0]
            except (KeyError, TypeError, ValueError) as error:  # a part of an object, or a size that is no number
                raise UnwholeError("an answer that is no listing") from error
            names += [one["Prefix"] for one in page.get("CommonPrefixes", ())]
            if not is_whole or not all(str(name).startswith(str(asked["Prefix"])) for name in names):
                raise UnwholeError("an answer that is no listing, or one of something else")
            return page

        return self._asked("listed", str(asked["Prefix"]), ask)

    def _asked(self, what: str, key: str, ask: Callable[[Any], _Answer]) -> _Answer:
        """Return an answer that counts; a request that got none is made again, a few times.

        Raises:
            FileNotFoundError: if the store says that there is no such object.
            StoreRefused: if there is no answer, or it is a refusal.
        """
        for wait in (*_WAITS, None):
            try:
                return ask(self._opened())
            except Refused:
                raise
            except Exception as error:
                if _code(error) in _ABSENT:
                    raise FileNotFoundError(f"there is no {SCHEME}{self.name}/{key}") from error
                if wait is None or not self._passes(error):
                    if isinstance(error, UnwholeError) or _is_botocore(error):
                        raise self._refused(what, key, _said(error), _code(error)) from error
                    raise
                time.sleep(wait)
        raise AssertionError("unreachable")

    def _passes(self, error: Exception) -> bool:
        """Whether the same request may be answered later."""
        from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError  # noqa: PLC0415

        if isinstance(error, ClientError):
            if _code(error) == "RequestTimeTooSkewed" and self._clock is not None:
                return self._clock.learn(error.response["ResponseMetadata"].get("HTTPHeaders", {}))
            if _code(error).isdigit():  # no code of a store's: a proxy has answered
                return True
            return _code(error) in _BUSY or _status(error) == _TOO_MANY or _status(error) >= _SERVER_ERROR
        return isinstance(error, UnwholeError | HTTPClientError | IncompleteReadError)

    def _opened(self) -> Any:
        """Return the client of this process: a connection is no child's."""
        if self._client is None or self._client[0] != os.getpid():
            try:
                self._client = (os.getpid(), self._connected())
            except ValueError as error:  # an endpoint, or a number of seconds, that is none
                raise self._refused("asked", "", f"a property of the catalog cannot be used: {error}") from error
        return self._client[1]

    def _connected(self) -> Any:
        try:
            from botocore import UNSIGNED  # noqa: PLC0415
            from botocore.config import Config  # noqa: PLC0415
            from botocore.session import Session  # noqa: PLC0415

            from resources.files.botocore_private import StoreClock  # noqa: PLC0415
        except ImportError as error:
            raise StoreRefused(
                Problem(
                    f"botocore is missing, which {SCHEME}{self.name} is asked by ({error})",
                    "evidence in S3 is written on the condition that nothing of the name is there",
                    "install the extra: pip install 'backfill-assets[s3]'",
                )
            ) from error
        own = self._properties
        session = Session(profile=own.get("s3.profile-name") or own.get("client.profile-name"))
        key, secret = self._either("access-key-id"), self._either("secret-access-key")
        if key and secret:
            session.set_credentials(key, secret, self._either("session-token"))
        is_anonymous = own.get("s3.anonymous", "").lower() in _TRUE
        is_virtual = own.get("s3.force-virtual-addressing", "").lower() in _TRUE
        endpoint = own.get("s3.endpoint") or None
        proxy = own.get("s3.proxy-uri")
        client = session.create_client(
            "s3",
            region_name=self._either("region") or session.get_config_variable("region") or "us-east-1",
            endpoint_url=endpoint,
            config=Config(
                signature_version=UNSIGNED if is_anonymous else None,
                s3={"addressing_style": "virtual" if is_virtual or not endpoint else "path"},
                connect_timeout=float(own.get("s3.connect-timeout", _CONNECT_SECONDS)),
                read_timeout=float(own.get("s3.request-timeout", _READ_SECONDS)),
                proxies={"http": proxy, "https": proxy} if proxy else None,
                retries={"total_max_attempts": 1, "mode": "standard"},  # what is asked again is decided here
                max_pool_connections=TOGETHER,
                request_checksum_calculation="when_required",  # many stores know no other
                response_checksum_validation="when_required",
            ),
        )
        if not is_anonymous:
            credentials = session.get_credentials()
            if credentials is None:
                raise self._refused("asked", "", "there are no credentials for it", "NoCredentials")
            self._clock = self._clock or StoreClock()
            self._clock.sign_for(client, credentials)
        return client

    def _either(self, name: str) -> str | None:
        return self._properties.get(f"s3.{name}") or self._properties.get(f"client.{name}") or None

    def _refused(self, what: str, key: str, why: str, code: str = "") -> StoreRefused:
        place = f"{SCHEME}{self.name}/{key}".rstrip("/")
        return StoreRefused(
            Problem(
                f"{place} cannot be {what} (store: {self.where}): {_shown(why)}",
                "evidence is in a bucket that answers, and that this installation may list, read and write",
                _FIXES.get(code, _FIX),
            )
        )


class LargerError(EnvironmentRefused):
    """An object is larger than anybody has written it."""


_FIX = (
    "see that the store is up and that `s3.endpoint` of the catalog is its address, then run the same command again: what was "
    "written is found, and nothing is written twice"
)
_KEYS = (
    "`s3.access-key-id` and `s3.secret-access-key` of the catalog, or the credentials of this machine, are of somebody who may list "
    "the bucket, and read and write below the setting `evidence`"
)
_FIXES = {
    "NoSuchBucket": "make the bucket, or name another one by the setting `evidence`",
    **dict.fromkeys(("AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoCredentials"), _KEYS),
    "XAdminUserNotFound": _KEYS,  # the Versity gateway's word for a key that it does not know
    **dict.fromkeys(("ExpiredToken", "InvalidToken", "AllAccessDisabled", "AccountProblem"), _KEYS),
}


def _md5(raw: bytes) -> str:
    """Return the header by which a store knows that it has all of it; a bucket that locks objects asks for it."""
    return b64encode(hashlib.md5(raw, usedforsecurity=False).digest()).decode()


def kind_of(key: str) -> str:
    """Return what a browser takes an object for, by the end of its key."""
    return {"json": "application/json", "html": "text/html"}.get(key.rpartition(".")[2], "application/octet-stream")


def _shown(text: str) -> str:
    """Return what a store or botocore says as people are shown it: without the user and password of an address."""
    return visible(without_user(text)[:_MOST_SAID])


def without_user(text: str) -> str:
    """Return a text whose addresses are without user and password."""
    return _USER_OF_A_URL.sub("***@", text)


def _is_botocore(error: Exception) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    return isinstance(error, BotoCoreError | ClientError)


def _answer_of(error: Exception) -> Mapping[str, Any]:
    """Return what a store has answered instead; of an error of the connection nothing."""
    return getattr(error, "response", None) or {}


def _code(error: Exception) -> str:
    return str(_answer_of(error).get("Error", {}).get("Code", ""))


def _status(error: Exception) -> int:
    return int(_answer_of(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _said(error: Exception) -> str:
    """Say in words why a store has not answered, or what it has answered."""
    said = _answer_of(error).get("Error", {})
    if not said:
        return f"{error}".rstrip(".")
    return f"{said.get('Code')} ({_status(error)}): {said.get('Message')}".rstrip(".")
