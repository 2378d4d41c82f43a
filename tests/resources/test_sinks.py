"""Which mode may write where is one table, and every request is on record with its answer."""

from __future__ import annotations

import http.server
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from servers import receiving
from sink_receivers import OF_CLASS
from support import a_manifest, planned

from backfill_assets.declarations.finding import imported_adapter
from backfill_assets.products.enforcement import BREACH_NOTIFICATIONS
from manifests.errors import SinkRefused
from manifests.model import Mode, RunManifest
from resources.lakehouse.facade import Lakehouse
from resources.ledger.facade import Ledger
from resources.sinks import policy as sink_policy
from resources.sinks import webhooks as module
from resources.sinks.adapters import Sinks
from resources.sinks.declared import PLATFORM_SINKS, SinkClass, SinkDeclaration, Told, ToTable, tables_of
from resources.sinks.opened import open_own
from resources.sinks.policy import Decision, judge
from resources.sinks.records_table import RecordsTable
from resources.sinks.webhooks import Webhook

AUDIT_TABLE = tables_of(PLATFORM_SINKS.values())["run_audit"]
OWNERS = ("team:test",)
DECLARED = dict(PLATFORM_SINKS) | {"breach_notifications": BREACH_NOTIFICATIONS}
RUN = "restate-2012"
AT = datetime(2024, 5, 1, 12, tzinfo=UTC)
SIDE_EFFECTS = {"EVENT_TOPIC", "NOTIFICATION", "TICKET", "EXTERNAL_API"}


def granting(*names: str, side_effects: bool = False) -> RunManifest:
    """Return a LIVE manifest (the only one that can be written with side effects) that grants these sinks."""
    return a_manifest(RUN, kind="LIVE", safety={"sinks": list(names), "sideEffectsAllowed": side_effects})


@pytest.fixture
def sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ledger: Ledger, lakehouse: Lakehouse) -> Sinks:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BACKFILL_CONFIG", raising=False)
    monkeypatch.setenv("BACKFILL_NOTIFICATION_WEBHOOK", "http://127.0.0.1:9/none")
    return Sinks(ledger, lakehouse, DECLARED, tmp_path / "home", imported_adapter)


def tried(sink_class: SinkClass, adapter: Any = "nobody:HAS_IT", *, isolated: bool | None = None) -> SinkDeclaration:
    return SinkDeclaration("tried", sink_class, "of this test", OWNERS, adapter, isolated=isolated)


def told(run_id: str, action: str, at: datetime, details: dict[str, Any]) -> Told:
    return Told(run_id, action, at, details)


def decisions(ledger: Ledger) -> list[tuple[str, str, str, str]]:
    return [(one.sink, one.mode, one.action, one.decision) for one in ledger.sink_attempts(RUN)]


# --- the table --------------------------------------------------------------------------------------------------------


def expected(sink_class: SinkClass, isolated: bool, mode: Mode, granted: bool, side_effects: bool) -> str:
    """The policy, written down a second time."""
    if not granted or mode in {Mode.DRY_RUN, Mode.RECONCILIATION}:
        return "REFUSED"
    if sink_class.value in SIDE_EFFECTS:
        return "ALLOWED" if mode is Mode.LIVE and side_effects else "REFUSED"
    if mode is Mode.LIVE:
        return "ALLOWED"
    return "ALLOWED_ISOLATED" if isolated else "REFUSED"


@pytest.mark.parametrize("sink_class", list(SinkClass))
def test_class_mode_and_grants_decide_and_nothing_else(sink_class: SinkClass) -> None:
    booleans = [False, True]
    for isolated, mode, granted, side_effects in itertools.product(booleans, Mode, booleans, booleans):
        declared = {"tried": tried(sink_class, isolated=isolated)}
        manifest = granting(*(["tried"] if granted else []), side_effects=side_effects)
        for from_tick in booleans:
            answer = judge("tried", mode, manifest, declared=declared, from_tick=from_tick)
            counts_as = mode if from_tick or mode is not Mode.LIVE else Mode.BACKFILL
            case = (isolated, mode, granted, side_effects, from_tick)
            assert answer.decision.value == expected(sink_class, isolated, counts_as, granted, side_effects), case
            assert (answer.sink, answer.sink_class) == ("tried", sink_class.value)
            assert answer.reason


def test_the_manifest_s_word_alone_opens_nothing_that_has_side_effects(sinks: Sinks, ledger: Ledger) -> None:
    manifest = granting("run_audit", "breach_notifications", side_effects=True)

    with pytest.raises(SinkRefused, match="no tick of LIVE is on record for this manifest"):
        sinks.check_grants(manifest)
    with pytest.raises(SinkRefused, match="no tick of LIVE is on record for this manifest"):
        sinks.open("breach_notifications", mode=Mode.LIVE, manifest=manifest, action="publish")
    assert decisions(ledger)[-1] == ("breach_notifications", "LIVE", "publish", "REFUSED")
    # a tick's manifest of another run, or another text under the same id, is not this one
    ledger.ticks.record(manifest.model_copy(update={"reason": "what the tick has written"}), AT)
    with pytest.raises(SinkRefused, match="no tick of LIVE is on record for this manifest"):
        sinks.open("breach_notifications", mode=Mode.LIVE, manifest=manifest, action="publish")


def test_what_is_on_record_says_the_mode_whoever_asks(sinks: Sinks, ledger: Ledger) -> None:
    record = planned(ledger, RUN, safety={"sinks": ["run_audit", "breach_notifications"]})

    with pytest.raises(SinkRefused, match="only LIVE may cause any"):
        sinks.open("breach_notifications", mode=Mode.LIVE, manifest=record.manifest, action="publish")
    assert decisions(ledger) == [("breach_notifications", "BACKFILL", "publish", "REFUSED")]


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.LIVE])
@pytest.mark.parametrize("sink_class", sorted(SIDE_EFFECTS))
def test_only_live_may_cause_side_effects_whatever_its_manifest_says(sink_class: str, mode: Mode) -> None:
    declared = {"tried": tried(SinkClass(sink_class), isolated=True)}

    answer = judge("tried", mode, granting("tried", side_effects=True), declared=declared)
    assert answer.decision is Decision.REFUSED


@pytest.mark.parametrize("mode", list(Mode))
def test_a_sink_that_nobody_declared_is_refused_in_every_mode(mode: Mode) -> None:
    answer = judge("carrier_pigeon", mode, granting("carrier_pigeon", side_effects=True), declared=DECLARED)

    assert answer.decision is Decision.REFUSED
    assert "no such sink is declared; declared are breach_notifications, run_audit" in answer.reason


def test_the_shipped_sinks_are_classed_as_what_they_do() -> None:
    assert DECLARED["breach_notifications"].sink_class is SinkClass.NOTIFICATION
    assert DECLARED["run_audit"].sink_class is SinkClass.ANALYTICAL_TABLE
    assert DECLARED["run_audit"].isolated
    assert {sink_class.value for sink_class in sink_policy.SIDE_EFFECTS} == SIDE_EFFECTS


# --- asking -----------------------------------------------------------------------------------------------------------


def test_a_backfill_that_asks_for_a_webhook_is_refused_before_it_is_planned(sinks: Sinks, ledger: Ledger) -> None:
    manifest = a_manifest(RUN, safety={"sinks": ["run_audit", "breach_notifications", "carrier_pigeon"]})

    with pytest.raises(SinkRefused, match="for 2 reasons") as refused:
        sinks.check_grants(manifest)
    assert f"run '{RUN}' (BACKFILL) asks for the sink 'breach_notifications'" in str(refused.value)
    assert "a sink of class NOTIFICATION has side effects, and only LIVE may cause any" in str(refused.value)
    assert "carrier_pigeon" in str(refused.value)
    assert decisions(ledger) == [
        ("run_audit", "BACKFILL", "plan", "ALLOWED_ISOLATED"),
        ("breach_notifications", "BACKFILL", "plan", "REFUSED"),
        ("carrier_pigeon", "BACKFILL", "plan", "REFUSED"),
    ]


def test_a_manifest_that_asks_for_what_it_may_have_is_planned(sinks: Sinks, ledger: Ledger) -> None:
    sinks.check_grants(a_manifest(RUN, safety={"sinks": ["run_audit"]}))
    sinks.check_grants(a_manifest(RUN))

    assert len(decisions(ledger)) == 1


def test_a_refused_sink_is_not_handed_out_and_the_request_is_on_record(sinks: Sinks, ledger: Ledger) -> None:
    manifest = a_manifest(RUN, safety={"sinks": ["breach_notifications"]})

    with pytest.raises(SinkRefused, match="breach_notifications"):
        sinks.open("breach_notifications", mode=Mode.BACKFILL, manifest=manifest, action="publish")
    assert decisions(ledger) == [("breach_notifications", "BACKFILL", "publish", "REFUSED")]


def test_a_sink_that_was_not_granted_is_not_handed_out(sinks: Sinks, ledger: Ledger) -> None:
    with pytest.raises(SinkRefused, match=r"does not grant it in safety\.sinks"):
        sinks.open("run_audit", mode=Mode.BACKFILL, manifest=a_manifest(RUN), action="publish")
    assert decisions(ledger) == [("run_audit", "BACKFILL", "publish", "REFUSED")]


def test_a_granted_sink_is_handed_out_and_the_request_is_on_record(sinks: Sinks, ledger: Ledger) -> None:
    wanted = {"sinks": ["run_audit", "breach_notifications"], "sideEffectsAllowed": True}
    manifest = planned(ledger, RUN, kind="LIVE", safety=wanted).manifest

    audit = sinks.open("run_audit", mode=Mode.LIVE, manifest=manifest, action="publish")
    hook = sinks.open("breach_notifications", mode=Mode.LIVE, manifest=manifest, action="publish")
    assert (type(audit.adapter), type(hook.adapter)) == (RecordsTable, Webhook)
    assert [decision for *_, decision in decisions(ledger)] == ["ALLOWED", "ALLOWED"]


def test_a_sink_that_is_declared_with_a_table_appends_its_records_there(
    sinks: Sinks, lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DECLARED, "tried", tried(SinkClass.ANALYTICAL_TABLE, ToTable("audit.tried")))
    sink = sinks.open("tried", mode=Mode.BACKFILL, manifest=granting("tried"), action="publish")
    sink.send(told(RUN, "publish", AT, {"snapshot_id": 5}))
    (row,) = lakehouse.table("audit.tried").scan().to_arrow().to_pylist()
    assert (row["run_id"], row["action"], row["at"]) == (RUN, "publish", AT)


def test_a_declared_sink_that_nobody_implements_is_never_taken_for_the_webhook(
    sinks: Sinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DECLARED, "tried", tried(SinkClass.CACHE, None, isolated=True))
    manifest = a_manifest(RUN, safety={"sinks": ["tried"]})

    with pytest.raises(SinkRefused, match="tried is declared, but nothing implements it"):
        sinks.open("tried", mode=Mode.BACKFILL, manifest=manifest, action="publish")


def test_what_came_of_a_write_is_on_record(sinks: Sinks, ledger: Ledger) -> None:
    sinks.record_outcome(granting("run_audit"), "run_audit", "publish", "SENT", "")

    assert decisions(ledger) == [("run_audit", "LIVE", "publish", "SENT")]


NOT_LIVE = [mode for mode in Mode if mode is not Mode.LIVE]


@pytest.mark.parametrize("sink_class", list(SinkClass))
def test_a_sink_of_a_product_is_opened_in_no_mode_that_may_not_use_it(
    sink_class: SinkClass, ledger: Ledger, lakehouse: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is its adapter imported: what would import it says so."""
    monkeypatch.setenv("BACKFILL_SINKS__TRIED__FOLDER", str(tmp_path / "kept"))
    imported: list[str] = []

    def importing(path: str, sink: str) -> Any:
        imported.append(sink)
        return imported_adapter(path, sink)

    path = f"sink_receivers:{OF_CLASS[sink_class].__name__}"
    for isolated, mode in itertools.product((False, True), NOT_LIVE):
        sink = replace(tried(sink_class, path, isolated=isolated), settings=("folder",))
        sinks = Sinks(ledger, lakehouse, {"tried": sink}, tmp_path, importing)
        manifest = a_manifest(safety={"sinks": ["tried"]})
        may = isolated and sink_class.value not in SIDE_EFFECTS and mode in {Mode.BACKFILL, Mode.REPLAY}
        if may:
            assert sinks.open("tried", mode=mode, manifest=manifest, action="publish").adapter
        else:
            with pytest.raises(SinkRefused, match=rf"\({mode}\) asks for the sink 'tried'"):
                sinks.open("tried", mode=mode, manifest=manifest, action="publish")
        assert imported == (["tried"] if may else [])
        imported.clear()
        (last,) = ledger.sink_attempts(manifest.run_id)[-1:]
        assert (last.sink, last.sink_class, last.mode) == ("tried", sink_class.value, mode.value)
        assert last.decision == ("ALLOWED_ISOLATED" if may else "REFUSED")


# --- the audit table --------------------------------------------------------------------------------------------------


def audit_rows(lakehouse: Lakehouse) -> list[dict[str, Any]]:
    return list(lakehouse.table(AUDIT_TABLE).scan().to_arrow().to_pylist())


def test_the_audit_table_has_a_row_a_run_and_action(lakehouse: Lakehouse) -> None:
    audit = RecordsTable(lakehouse, AUDIT_TABLE)
    audit.send(told(RUN, "publish", AT, {"snapshot_id": 5}))
    audit.send(told(RUN, "rollback", AT, {}))
    audit.send(told("another-run", "publish", AT, {}))

    rows = audit_rows(lakehouse)
    assert {(row["run_id"], row["action"]) for row in rows} == {
        (RUN, "publish"),
        (RUN, "rollback"),
        ("another-run", "publish"),
    }
    (first,) = [row for row in rows if (row["run_id"], row["action"]) == (RUN, "publish")]
    assert (first["at"], json.loads(first["details"])) == (AT, {"snapshot_id": 5})


def test_an_instant_of_another_zone_is_told_as_the_same_instant(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    # importing pandera sets this for the whole process; pyarrow then takes local clock time for UTC
    monkeypatch.setenv("PYARROW_IGNORE_TIMEZONE", "1")
    at = datetime.fromisoformat("2024-05-02T01:30:00+13:30")
    RecordsTable(lakehouse, AUDIT_TABLE).send(told(RUN, "publish", at, {}))

    assert [row["at"] for row in audit_rows(lakehouse)] == [at]


def test_the_same_action_told_twice_is_one_row(lakehouse: Lakehouse) -> None:
    for _ in range(2):
        RecordsTable(lakehouse, AUDIT_TABLE).send(told(RUN, "publish", AT, {"snapshot_id": 5}))

    assert len(audit_rows(lakehouse)) == 1


def test_an_action_that_two_processes_tell_at_once_is_one_row(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    RecordsTable(lakehouse, AUDIT_TABLE).send(told("another-run", "publish", AT, {}))
    others = iter([1])
    commit_table = type(lakehouse.catalog).commit_table

    def first_theirs(catalog: Any, *arguments: Any) -> Any:
        if next(others, None) is not None:
            RecordsTable(lakehouse, AUDIT_TABLE).send(told(RUN, "publish", AT, {"snapshot_id": 5}))
        return commit_table(catalog, *arguments)

    monkeypatch.setattr(type(lakehouse.catalog), "commit_table", first_theirs)
    RecordsTable(lakehouse, AUDIT_TABLE).send(told(RUN, "publish", AT, {"snapshot_id": 5}))

    assert [row["run_id"] for row in audit_rows(lakehouse)].count(RUN) == 1


# --- the webhook ------------------------------------------------------------------------------------------------------


class Receiver(http.server.BaseHTTPRequestHandler):
    """Answers with what its server was told to, and keeps what it was sent."""

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.received.append((self.path, self.headers["Content-Type"], json.loads(body)))
        if server.answer is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(server.answer)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with receiving(Receiver) as server:
        yield server


def url_of(receiver: Any, userinfo: str = "") -> str:
    return f"http://{userinfo}127.0.0.1:{receiver.server_address[1]}/breaches"


def test_the_webhook_posts_what_was_done_with_what_recognises_a_repetition(receiver: Any) -> None:
    Webhook(url_of(receiver)).send(told(RUN, "publish", AT, {"snapshot_id": 5}))

    ((path, content_type, body),) = receiver.received
    assert (path, content_type) == ("/breaches", "application/json")
    assert body == {"runId": RUN, "action": "publish", "at": "2024-05-01T12:00:00Z", "details": {"snapshot_id": 5}}


@pytest.mark.parametrize(
    "said",
    [
        lambda secret: secret,
        quote,
        lambda secret: json.dumps({"token": secret}),
        lambda secret: repr({"token": secret}),
    ],
)
def test_what_an_adapter_raises_has_no_secret_in_any_form(said: Callable[[str], str]) -> None:
    secret = "pass word/with'\"\u00e9"
    sink = SinkDeclaration("chat", SinkClass.NOTIFICATION, "x", ("team:x",), "some:Adapter", settings=("token",))

    class Adapter:
        sink_class = SinkClass.NOTIFICATION

        def __init__(self, settings: Mapping[str, str]) -> None:
            self.token = settings["token"]

        def send(self, told: Told) -> None:
            raise ValueError(f"no answer for {said(self.token)}, {told.run_id}")

    opened = open_own(sink, lambda: Adapter, {"token": secret})
    with pytest.raises(SinkRefused, match=f"raised ValueError: no answer for .*, {RUN}") as refused:
        opened.send(told(RUN, "publish", AT, {}))
    assert said(secret) not in str(refused.value)
    assert "word" not in str(refused.value)


def test_a_redirect_is_not_followed(receiver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Followed, it would be a GET without the record at a host that nobody named, with the token in its header."""
    elsewhere = f"http://127.0.0.1:{receiver.server_address[1]}/elsewhere"
    ends = Receiver.end_headers

    def end_headers(self: Receiver) -> None:
        self.send_header("Location", elsewhere)
        ends(self)

    monkeypatch.setattr(Receiver, "end_headers", end_headers)
    receiver.answer = 302
    with pytest.raises(SinkRefused, match="302"):
        Webhook(url_of(receiver), "token").send(told(RUN, "publish", AT, {}))
    assert [path for path, *_ in receiver.received] == ["/breaches"]


@pytest.mark.parametrize("answer", [400, 401, 404, 500, 503])
def test_a_receiver_that_answers_with_an_error_is_told_of(receiver: Any, answer: int) -> None:
    receiver.answer = answer

    with pytest.raises(SinkRefused, match=str(answer)):
        Webhook(url_of(receiver)).send(told(RUN, "publish", AT, {}))


def test_a_receiver_that_is_not_there_is_told_of(receiver: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

    with pytest.raises(SinkRefused, match="the webhook did not take the record"):
        Webhook(f"http://127.0.0.1:{port}/").send(told(RUN, "publish", AT, {}))


def test_a_receiver_that_hangs_up_without_an_answer_is_told_of(receiver: Any) -> None:
    receiver.answer = None

    with pytest.raises(SinkRefused, match="the webhook did not take the record"):
        Webhook(url_of(receiver)).send(told(RUN, "publish", AT, {}))


def test_a_receiver_that_does_not_speak_http_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def babble() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        try:
            with pytest.raises(SinkRefused, match="the webhook did not take the record"):
                Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/").send(told(RUN, "publish", AT, {}))
        finally:
            thread.join()


def test_a_receiver_that_is_too_slow_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module, "WEBHOOK_TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(SinkRefused, match="timed out"):
        Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/").send(told(RUN, "publish", AT, {}))


def test_a_password_in_the_webhooks_url_is_never_shown(receiver: Any) -> None:
    receiver.answer = 500

    with pytest.raises(SinkRefused) as refused:
        Webhook(url_of(receiver, "ada:hunter2@")).send(told(RUN, "publish", AT, {}))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["", "breaches.example", "file:///etc/passwd", "ftp://example/x", "/tmp/x", "https:///x"]
)
def test_a_webhook_that_is_no_http_url_is_refused(url: str) -> None:
    with pytest.raises(SinkRefused, match=r"not set to an http\(s\) URL"):
        Webhook(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://ada:SECRET@breaches.example/x",
        "https://breaches.example:SECRET/x",
        "https://breaches.example/services/SECRET token",
        "https://breaches.example/SECRET\x1b",
        "https://ada:SECRET@breaches\u2100.example/x",
    ],
)
def test_a_webhook_that_libraries_would_quote_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(SinkRefused, match=r"not set to an http\(s\) URL") as refused:
        Webhook(url)
    assert "SECRET" not in str(refused.value)


def test_an_answer_is_shown_in_part_and_never_the_address(receiver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Webhook(url_of(receiver) + "/token-of-ours")

    def answers(request: Any, timeout: float) -> None:
        raise OSError(f"{request.full_url} says " + "no " * 1000)

    monkeypatch.setattr(module._OPENER, "open", answers)
    with pytest.raises(SinkRefused) as refused:
        hook.send(told(RUN, "publish", AT, {}))
    assert "token-of-ours" not in str(refused.value)
    assert len(str(refused.value)) < 600
