"""An extraction from its first request to its seal: every answer is kept before the next one is asked for.

Put here the order of things, and what happens to an extraction that stopped: what is kept is put on record, and is never asked
for again. Nothing here loads a row. What is asked, is `conversation`'s; how, `http_client`'s.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from backfill_assets import faults
from backfill_assets.declarations.apis import ApiFeed
from backfill_assets.extraction.archive import Archive, alone_with, archive_of, content_hash
from backfill_assets.extraction.conversation import OF_RECORDS, Ask, Conversation, converse
from backfill_assets.extraction.http_client import Answer, ApiClient, Request
from backfill_assets.extraction.indexes import seal
from backfill_assets.extraction.questions import Question
from backfill_assets.extraction.records import contents_of
from backfill_assets.extraction.refusals import ExtractionRefused, MalformedAnswer
from backfill_assets.installation import Platform
from manifests.canonical import canonical_json
from manifests.errors import EnvironmentRefused, Problem, Refused
from resources.ledger.extractions import ExtractionRecord, ExtractionState, ResponseRecord, response_id
from resources.ledger.facade import Ledger, operator

_AT_ONCE, _SECONDS = 200, 1.0
"""How many answers, or for how long, are in the archive alone before they are put on record together: each transaction of the ledger is
vouched for in the evidence, and an answer in the archive is found there."""
_UNSTABLE = "what takes several pages was read otherwise each time: records may be missing"


@dataclass(frozen=True)
class Progress:
    """How far an extraction is: what is read now, and how many answers and records of them are kept so far, repeated ones too."""

    part: str
    responses: int
    records: int


Told = Callable[[Progress], None]


def extract(
    platform: Platform,
    feed: ApiFeed,
    asked: Question,
    *,
    anew: bool = False,
    tell: Told = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> ExtractionRecord:
    """Ask a server a question, or go on asking it, and keep every answer; return the extraction, sealed.

    Args:
        platform: the opened installation.
        feed: the feed.
        asked: the question.
        anew: give up what asks the same and is not over, and begin with the first request.
        tell: told after each answer how far it is.
        sleep: waits so many seconds.

    Raises:
        EnvironmentRefused: if a setting is missing, another process asks the same server, or the archive was changed; nothing
            is asked then.
        ExtractionRefused: if the server does not answer, or says what does not fit the declaration. What is kept stays, and the
            same call goes on from there.
    """
    settings = platform.settings.of_api(feed.name)
    with ApiClient(feed, settings, now=platform.ledger.now, sleep=sleep) as client:
        server = hashlib.sha256(settings[feed.base].encode()).hexdigest()[:16]
        with (
            alone_with(platform.settings.responses_folder, f"server-{server}", f"asks the server of {feed.name}"),
            alone_with(platform.settings.responses_folder, f"extract-{feed.name}", f"extracts {feed.name}"),
        ):
            record = _begun(platform.ledger, feed, asked, anew=anew)
            archive = archive_of(platform, record)
            driver = _Driver(platform.ledger, feed, record, archive, client, tell, sleep)
            try:
                is_stable = driver.run(converse(feed, asked))
                driver.put_on_record()
                sealed = seal(feed, archive, platform.ledger.extractions.responses(record.id))
            except Refused as refusal:
                driver.put_on_record()
                why = client.credentials.without_secrets("; ".join(map(str, refusal.problems)))
                platform.ledger.extractions.stop(record.id, ExtractionState.FAILED, why)
                raise
            faults.reach("extracting.indexed")
            state = ExtractionState.COMPLETE if is_stable else ExtractionState.UNSTABLE
            done = platform.ledger.extractions.seal(record.id, state, sealed, "" if is_stable else _UNSTABLE)
            faults.reach("extracting.sealed")
            return done


def _begun(ledger: Ledger, feed: ApiFeed, asked: Question, *, anew: bool) -> ExtractionRecord:
    """Return the extraction to go on with, or a new one."""
    question = asked.as_record()
    while True:
        record, goes_on = ledger.extractions.begin(feed.name, asked.pattern_name, question, by=operator())
        if not (goes_on and anew):
            return record
        ledger.extractions.stop(record.id, ExtractionState.GIVEN_UP, f"begun anew by {operator()}")


class _Driver:
    """Leads a conversation: with what is kept first, and then with the server."""

    def __init__(
        self,
        ledger: Ledger,
        feed: ApiFeed,
        record: ExtractionRecord,
        archive: Archive,
        client: ApiClient,
        tell: Told,
        sleep: Callable[[float], None],
    ) -> None:
        self._ledger, self._feed, self._record, self._archive = ledger, feed, record, archive
        self._client, self._tell, self._sleep = client, tell, sleep
        self._records = 0
        self._pending: list[ResponseRecord] = []
        self._recorded_at = time.monotonic()

    def run(self, conversation: Conversation) -> bool:
        """Lead it to its end, and return what it returns."""
        kept = self._kept()
        number = 0
        try:
            ask = next(conversation)
            while True:
                number += 1
                response = kept[number - 1] if number <= len(kept) else self._asked(ask, number)
                self._require_same(ask, response)
                body = self._archive.read(response)
                if response.kind in OF_RECORDS:
                    self._records += len(contents_of(self._feed, body, lines=response.kind != "PAGE"))
                self._tell(Progress(ask.part, number, self._records))
                ask = conversation.send(body)
        except StopIteration as end:
            if number < len(kept):
                raise self._other_declaration(kept[number]) from None
            return bool(end.value)
        except MalformedAnswer as error:  # an answer that was understood when it came
            raise ExtractionRefused(
                Problem(
                    f"an answer that is kept cannot be read by this declaration: {error}",
                    "an extraction goes on by the declaration that it began with",
                    "begin anew: the same command with --anew",
                    self._record.id,
                )
            ) from None

    def put_on_record(self) -> None:
        """Put on record what is in the archive and is not yet."""
        self._ledger.extractions.keep(self._record.id, self._pending)
        if self._pending:
            faults.reach("extracting.recorded")
        self._pending, self._recorded_at = [], time.monotonic()

    def _kept(self) -> list[ResponseRecord]:
        """Return the answers that are kept, each on record by now."""
        kept = self._ledger.extractions.responses(self._record.id)
        for response in self._archive.beyond(len(kept) + 1):
            if response.extraction != self._record.id:
                raise EnvironmentRefused(
                    Problem(
                        f"{self._archive.folder} has an answer of extraction '{response.extraction}'",
                        "each extraction has a folder of its own",
                        "find out who has put it there; the ledger and the archive are restored together",
                    )
                )
            self._pending.append(response)
        kept += self._pending
        self.put_on_record()
        return kept

    def _asked(self, ask: Ask, number: int) -> ResponseRecord:
        """Ask the server, and keep its answer: in the archive first, then on record."""
        answer = self._answer(ask)
        faults.reach("extracting.answered")
        response = ResponseRecord(
            response=response_id(self._record.id, number),
            extraction=self._record.id,
            number=number,
            kind=ask.kind,
            part=ask.part,
            reading=ask.reading,
            page=ask.page,
            method=ask.method,
            address=answer.address,
            parameters=canonical_json(dict(ask.parameters)),
            status=answer.status,
            headers=canonical_json(dict(answer.headers)),
            attempts=answer.attempts,
            bytes=len(answer.body),
            content_hash=content_hash(answer.body),
            at=answer.at,
        )
        self._archive.keep(response, answer.body)
        faults.reach("extracting.kept")
        self._pending.append(response)
        if len(self._pending) >= _AT_ONCE or time.monotonic() - self._recorded_at > _SECONDS:
            self.put_on_record()
        return response

    def _answer(self, ask: Ask) -> Answer:
        request = Request(ask.method, ask.path, ask.parameters, ask.understood, ask.may_be_nothing)
        until = time.monotonic() + ask.most_seconds
        while True:
            answer = self._client.ask(request)
            if ask.is_there is None or ask.is_there(answer.body):
                return answer
            if time.monotonic() + ask.poll_seconds > until:
                raise ExtractionRefused(
                    Problem(
                        f"{ask.method} {ask.path}: what was asked for is not done after {ask.most_seconds:,.0f} s",
                        "a job of the server is waited for so long (`most_seconds` of the export)",
                        "the same command goes on waiting; `--anew` starts another job",
                        f"feed {self._feed.name}",
                    )
                )
            self._sleep(ask.poll_seconds)

    def _require_same(self, ask: Ask, response: ResponseRecord) -> None:
        """Refuse to go on with answers to other requests than this declaration makes."""
        asked = (ask.kind, ask.part, ask.reading, ask.page, canonical_json(dict(ask.parameters)))
        found = (response.kind, response.part, response.reading, response.page, response.parameters)
        if asked != found or response.address != self._client.address(ask.path):
            raise self._other_declaration(response)

    def _other_declaration(self, response: ResponseRecord) -> ExtractionRefused:
        return ExtractionRefused(
            Problem(
                f"answer {response.number} of extraction {self._record.id} is to another request than would be made now",
                "an extraction goes on by the declaration and the address that it began with",
                "begin anew: the same command with --anew",
            )
        )
