"""The pages under `/backfill`: what they say of a run, when, and where they lead."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from html import escape, unescape
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote

import dagster as dg
import pytest
from click.testing import CliRunner
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, InstigatorType
from support import put_in_force

from backfill_assets import decisions, faults
from backfill_assets.audit.report import report
from backfill_assets.cli.command import cli
from backfill_assets.declarations import finding
from backfill_assets.defs import build as definitions
from backfill_assets.defs.launched_by import RUN_TAG, USER_TAG
from backfill_assets.defs.starting import Starting, is_switched_off, publication_sensor, starting
from backfill_assets.evidence.refusals import in_words, refusals_of, refused
from backfill_assets.gates import judging
from backfill_assets.installation import Platform
from backfill_assets.products.enforcement import PRODUCT
from backfill_assets.publication import accepting, announcements, undoing
from backfill_assets.publication import publisher as publication
from backfill_assets.publication.modes import stages_of
from backfill_assets.publication.replace_files import ReplaceFiles
from backfill_assets.publication.requirements import ATTEMPTS
from backfill_assets.review.diff import diff_run
from backfill_assets.review.kept_diffs import keep_diff
from backfill_assets.staging import executor
from backfill_assets.ui.next_step import next_step
from backfill_assets.ui.pages import make_pages
from benchmarks import small_table
from benchmarks.small_table import serves
from manifests.errors import InputRefused, Problem, PublicationRefused
from manifests.lifecycle import RunState
from manifests.reading import manifest_from
from resources.ledger.facade import PROCESS_ENDED, RECORDED_BY_ANOTHER, Verdict

TIME = re.compile(r"<time>20\d\d-\d\d-\d\d \d\d:\d\d:\d\d</time> UTC")
ASSET = "/assets/silver/readings"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with small_table.declared():
        platform = small_table.opened(tmp_path_factory.mktemp("pages") / "home")
        small_table.initialise(platform)
        yield platform
        small_table.closed(platform)


def page(platform: Platform, path: str, starts: Callable[[], Any] = dict, off: Collection[str] = ()) -> str:
    """Return what a page answers; `starts` says what Dagster was asked to do, `off` which sensors were stopped there."""
    path, _, query = path.partition("?")
    status, body = answered(platform, path, starts, query, off)
    assert status == 200
    return body.decode()


def answered(
    platform: Platform, path: str, starts: Callable[[], Any] = dict, query: str = "", off: Collection[str] = ()
) -> tuple[object, bytes]:
    stages = partial(stages_of, platform.products)
    app = make_pages(platform.ledger, platform.evidence, None, starts, stages, switched_off=off.__contains__)
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        await asyncio.sleep(0)  # whoever waits for the end of the connection waits for more
        return {"type": "http.request"}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(errors="surrogateescape"),
        "headers": [],
        "query_string": query.encode(),
    }
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:])  # type: ignore[misc]


def planned(platform: Platform, run_id: str, **changes: object) -> None:
    text = small_table.manifest_data(run_id, "REPLACE_PARTITIONS", small_table.SCOPE) | changes
    small_table.planned(platform, manifest_from(text))


def test_a_decision_says_who_when_and_why_apart_and_every_table_has_its_times(platform: Platform) -> None:
    planned(platform, "first")
    small_table.staged(platform, "first")
    decisions.publish(platform, "first", by="ops")
    decisions.rollback(platform, "first", by="root", comment="try")
    shown = page(platform, "/backfill/first")
    assert "root try" not in shown
    assert re.search(r"<td>decided: rollback<td>root<td>" + TIME.pattern + "<td>try<", shown)
    assert re.search(r"<td>rollback done: snapshot \d+<td>[^<]+<td>" + TIME.pattern, shown)
    assert "<th>Dagster run<th>" in shown  # of Attempts; no column is without a name
    assert "<th><th>error" not in shown
    plan = platform.ledger.run("first").plan
    assert (
        f"<td>transform<td>{plan.transform} {plan.transform_version}; its output is checked at staging only<" in shown
    )
    assert len(TIME.findall(page(platform, "/backfill"))) == 2  # planned, last change


def test_a_run_leads_to_its_asset_launch_checks_publication_and_to_the_rows_that_disagree(platform: Platform) -> None:
    def twice(version: str, *days: object) -> list[dict[str, object]]:
        return [row for row in rows_of(version, *days) for _ in range(2)]

    rows_of = small_table.rows_of
    planned(platform, "doubled")
    with mock.patch.object(small_table, "rows_of", twice):
        small_table.staged(platform, "doubled")
    shown = page(platform, "/backfill/doubled")
    for way in (
        f"<a href='{ASSET}'>asset</a>",
        f"<a href='{ASSET}?view=checks'>checks</a>",
        "jobs/stage_silver_readings/partitions'>launch</a>",
        "tag%3Abackfill%2Frun_id%3Ddoubled&amp;view=runs'>its Dagster runs</a>",
        f"<a href='{ASSET}_published?view=events&amp;partition=doubled'>what readers see</a>",
        f"<a href='{ASSET}?view=checks&amp;checkDetail=chunk_rules'>chunk_rules</a>",
    ):
        assert way in shown, way
    (anchor,) = {name for name in re.findall(r"href='#(rows-[^']+)'", shown) if name.endswith("2020-02")}
    assert f"id='{anchor}'" in shown
    assert f"<br><a href='#{anchor}'>show the rows</a>" in shown, "the link is no part of the sentence before it"
    assert "unique key" in shown.partition("Rows that disagree")[2]
    next_ = shown.partition("<b>Next:</b>")[2].partition("</p>")[0]
    assert "<code>backfill exceptions doubled</code>" in next_
    assert "<code>backfill reject doubled</code>" in next_


def test_nobody_is_sent_to_rows_that_a_gate_has_not_kept(platform: Platform) -> None:
    planned(platform, "changed-too-much")
    refused = Verdict("change_within_tolerance", False, "2020-02 changes by 29%", {})
    record, chunks = platform.ledger.run("changed-too-much"), platform.ledger.chunks("changed-too-much")
    record = replace(record, state=RunState.FAILED)
    with mock.patch.object(type(platform.ledger.launches), "waits", return_value=None):
        said = next_step(platform.ledger, record, chunks, [refused], ())
        kept = replace(refused, details={"exceptions": {"rows": 3}})
        pointed = next_step(platform.ledger, record, chunks, [kept], ())
    assert "backfill exceptions" not in said
    assert "see the gates below" in said
    assert "backfill exceptions changed-too-much" in pointed


def test_a_published_run_shows_what_it_changed_by_chunk_and_leads_to_the_whole_diff(platform: Platform) -> None:
    planned(platform, "compared")
    small_table.staged(platform, "compared")
    decisions.publish(platform, "compared", by="ops")
    with small_table.here():
        keep_diff(platform, "compared")
    shown = page(platform, "/backfill/compared").partition("<h2 id=diff>What changed<")[2]
    href = re.findall(r"<a href='(/backfill/compared/evidence/records/diff[^']*)'>the whole diff</a>", shown)[0]
    whole = json.loads(answered(platform, unquote(unescape(href)))[1])
    assert whole["run_id"] == "compared"
    for chunk in whole["chunks"]:
        assert re.search(rf"<td>{chunk['chunk']}<td[^>]*>{chunk['added']:,}<td[^>]*>{chunk['removed']:,}<", shown)


@pytest.mark.parametrize(
    "name", ["a\0b", "x" * 5_000, "a" * 65, "..", "~", "%", "\u202e", "ad\ufeffa", "l" * 255 + "/" + "m" * 4_000]
)
@pytest.mark.parametrize(
    "rest", ["", "/plan.json", "/evidence/index.json", "/evidence/a\0b", f"/evidence/{'y' * 5_000}"]
)
def test_no_name_of_a_run_or_a_file_is_more_than_not_found(platform: Platform, name: str, rest: str) -> None:
    assert answered(platform, f"/backfill/{name}{rest}")[0] == 404
    planned(platform, "named") if platform.ledger.find("named") is None else None
    if "evidence" in rest:
        assert answered(platform, f"/backfill/named{rest}")[0] == 404


@pytest.mark.parametrize("text", ["[" * 100_000, '{"chunks": 1}', "{", '{"chunks": [], "columns": [[1]]}'])
def test_a_recorded_diff_that_cannot_be_read_is_said_on_the_page(platform: Platform, text: str) -> None:
    planned(platform, "told") if platform.ledger.find("told") is None else None
    folder = platform.evidence.records("told")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "diff.json").write_text(text)
    (folder / "a 'b'#c?.json").write_text("{}")
    assert "no link of the chain vouches for" in page(platform, "/backfill/told")
    platform.evidence.vouch_for("told", folder / "diff.json")
    shown = page(platform, "/backfill/told")
    assert "cannot be read" in shown
    (href,) = re.findall(r"href='(/backfill/told/evidence/records/a[^']*)'", shown)
    assert answered(platform, unquote(unescape(href)))[0] == 200


def test_a_diff_of_what_nobody_has_published_is_of_what_it_would_change(platform: Platform) -> None:
    planned(platform, "would")
    small_table.staged(platform, "would")
    with small_table.here():
        diff_run(platform, "would")
    shown = page(platform, "/backfill/would")
    assert "<h2 id=diff>What it would change</h2>" in shown
    assert "What changed" not in shown
    decisions.cancel(platform, "would", by="grace")
    assert "<h2 id=diff>What it would have changed</h2>" in page(platform, "/backfill/would")


def test_a_file_whose_name_is_no_text_takes_no_page_away(platform: Platform) -> None:
    planned(platform, "strange")
    folder = platform.evidence.records("strange")
    folder.mkdir(parents=True)
    (folder / "\udcff.json").write_text("{}")
    (folder / "circle").symlink_to("circle")
    assert "Evidence" in page(platform, "/backfill/strange")
    assert answered(platform, "/backfill/strange/evidence/records/circle")[0] == 404


def test_a_run_that_waits_for_a_launch_says_so_in_the_list(platform: Platform) -> None:
    planned(platform, "part")
    from backfill_assets.gates.judging import gate_chunks
    from backfill_assets.staging.executor import stage_chunks

    stage_chunks(platform, "part", ["2020-02"])
    gate_chunks(platform, "part")
    (row,) = [line for line in page(platform, "/backfill").split("<tr>") if "/backfill/part'" in line]
    assert "<span class=bad>waits for a launch</span>" in row
    assert "it waits for a launch" in page(platform, "/backfill/part")


def test_the_list_is_narrowed_by_state_and_by_table(platform: Platform) -> None:
    for run_id in ("one-to-approve", "one-to-cancel"):
        planned(platform, run_id)
    decisions.cancel(platform, "one-to-cancel", by="ops")

    def listed(query: str) -> set[str]:
        return set(re.findall(r"<a href='/backfill/([^']+)'>", page(platform, f"/backfill?{query}")))

    everything = listed("")
    assert {"one-to-approve", "one-to-cancel"} <= everything
    assert listed("state=CANCELLED") & {"one-to-approve", "one-to-cancel"} == {"one-to-cancel"}
    assert listed("target=silver.readings") == everything
    assert listed("target=silver.readings&state=CANCELLED") == listed("state=CANCELLED")
    nothing = page(platform, "/backfill?target=%3Cb%3E&state=DRAFT")
    assert "No such run." in nothing
    assert "<b>&lt;b&gt; (0)</b>" in nothing
    whole = page(platform, "/backfill")
    assert "<b>all (" in whole
    for count, state in re.findall(r"<a href='/backfill\?state=(\w+)'>\w+ \((\d+)\)", whole):
        assert len(listed(f"state={count}")) == int(state)


def test_a_page_asks_again_only_while_something_is_under_way(platform: Platform) -> None:
    planned(platform, "still")
    assert "http-equiv=refresh" not in page(platform, "/backfill/still")
    launched = Starting("still", datetime.now(UTC), "", "its process is starting", "/runs/f")
    assert "http-equiv=refresh" in page(platform, "/backfill/still", lambda: {"still": [launched]})
    assert "http-equiv=refresh" in page(platform, "/backfill", lambda: {"still": [launched]})
    planned(platform, "validated-and-stopped")
    small_table.staged(platform, "validated-and-stopped")
    assert "http-equiv=refresh" in page(platform, "/backfill/validated-and-stopped")
    decisions.stop(platform, "validated-and-stopped", by="olga", through="backfill stop")
    assert "http-equiv=refresh" not in page(platform, "/backfill/validated-and-stopped")


def test_a_page_does_not_ask_again_while_a_publisher_whom_the_policy_names_is_waited_for(tmp_path: Path) -> None:
    with small_table.declared():
        platform = small_table.opened(tmp_path / "home")
        small_table.initialise(platform)
        put_in_force(platform, {"name": "test", "rules": [{"publishers": ["grace"]}]})
        planned(platform, "for-grace")
        small_table.staged(platform, "for-grace")
        shown = page(platform, "/backfill/for-grace")
        small_table.closed(platform)
    assert next_of(shown).startswith("somebody publishes it")
    assert "http-equiv=refresh" not in shown


def test_each_product_has_its_group(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "find_products", serves(PRODUCT, *platform.products))
    graph = definitions.build_definitions(platform).resolve_asset_graph()
    groups = {key.to_user_string(): graph.get(key).group_name for key in graph.get_all_asset_keys()}
    assert {groups[f"silver/readings{suffix}"] for suffix in ("", "_published", "_reconciled")} == {"readings"}
    assert {group for key, group in groups.items() if "reading" not in key} == {"enforcement"}
    assert platform.products.group_of("silver.unknown") == "backfill"


@pytest.mark.parametrize(
    ("run_id", "changes", "said"),
    [
        ("dry", {"mode": "DRY_RUN"}, "it is never published"),
        ("by-hand", {"safety": {"requiresManualPublish": True}}, "<code>backfill publish by-hand</code>"),
        ("by-itself", {}, "the sensor publishes it within seconds"),
    ],
)
def test_a_validated_run_says_who_publishes_it(
    platform: Platform, run_id: str, changes: dict[str, object], said: str
) -> None:
    planned(platform, run_id, **changes)
    small_table.staged(platform, run_id)
    text = page(platform, f"/backfill/{run_id}")
    assert said in text
    assert ("(DRY_RUN)" in text) == (run_id == "dry")
    decisions.cancel(platform, run_id, by="grace")


def next_of(shown: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", shown.partition("<b>Next:</b>")[2].partition("</p>")[0])).strip()


def test_a_validated_run_whose_sensor_somebody_has_stopped_says_how_it_is_published(platform: Platform) -> None:
    planned(platform, "unasked")
    small_table.staged(platform, "unasked")
    sensor = "publish_silver_readings_when_validated"
    said = next_of(page(platform, "/backfill/unasked", off={sensor}))
    assert said.startswith(
        "somebody publishes it (backfill publish unasked, or the job publish_run in Dagster), or starts"
    )
    assert f"{sensor} is stopped in Dagster" in said
    assert "within seconds" not in said
    assert "once it is loaded again" in said
    assert "http-equiv=refresh" not in page(platform, "/backfill/unasked", off={sensor})
    asked = Starting("unasked", datetime.now(UTC), "", "its process is starting", "/runs/f", publishes=True)
    assert "http-equiv=refresh" in page(platform, "/backfill/unasked", lambda: {"unasked": [asked]}, off={sensor})
    shown = page(platform, "/backfill/unasked", off={"publish_other_when_validated"})
    assert "within seconds" in next_of(shown)
    assert "http-equiv=refresh" in shown
    decisions.cancel(platform, "unasked", by="grace")


def test_a_sensor_is_switched_off_once_somebody_has_stopped_it_in_dagster(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(finding, "find_products", serves(*platform.products))
    name = publication_sensor(small_table.READINGS)
    assert name in {one.name for one in definitions.build_definitions(platform).sensors or ()}
    place = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("backfill_assets"), "__repository__")
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert not is_switched_off(instance, name), "it runs where nobody has stopped it"
        for number, (status, off) in enumerate([("DECLARED_IN_CODE", False), ("STOPPED", True), ("RUNNING", False)]):
            state = InstigatorState(place.get_instigator_origin(name), InstigatorType.SENSOR, InstigatorStatus(status))
            (instance.update_instigator_state if number else instance.add_instigator_state)(state)
            assert is_switched_off(instance, name) is off
            assert not is_switched_off(instance, f"{name}_of_another")


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_publication_that_waits_in_dagsters_queue_is_waited_for_and_asked_of_nobody(
    platform: Platform, by_hand: bool
) -> None:
    run_id = f"queued-{'by-hand' if by_hand else 'by-itself'}"
    planned(platform, run_id, **({"safety": {"requiresManualPublish": True}} if by_hand else {}))
    small_table.staged(platform, run_id)
    asked = Starting(run_id, datetime.now(UTC), "olga", "waits in Dagster's queue", "/runs/q", publishes=True)
    said = next_of(page(platform, f"/backfill/{run_id}", lambda: {run_id: [asked]}))
    assert said.startswith("its publication, which Dagster was asked for, shows it to readers when its turn comes")
    assert "somebody publishes" not in said
    assert "within seconds" not in said
    decisions.cancel(platform, run_id, by="grace")


@pytest.mark.parametrize(
    ("asked", "more", "goes_on"),
    [
        (timedelta(minutes=-5), {}, False),
        (timedelta(minutes=5), {}, True),
        (timedelta(seconds=5), {}, False),  # the clocks of two machines may be further apart
        (timedelta(minutes=-5), {"knows": 10**9}, True),  # the server has seen the stop
        (timedelta(minutes=5), {"knows": 0}, False),  # the server has not
        (timedelta(minutes=5), {"decided": False}, False),  # no sensor ends a stop
    ],
)
def test_a_stop_ends_what_was_launched_before_it_and_the_page_says_how_the_run_goes_on(
    platform: Platform, asked: timedelta, more: dict[str, Any], goes_on: bool
) -> None:
    if platform.ledger.find("ended") is None:
        planned(platform, "ended")
        platform.ledger.stops.stop("ended", by="ada", through="backfill stop")
    stop = platform.ledger.stops.held("ended")
    assert stop is not None
    launch = Starting("ended", stop.at + asked, "olga", "waits in Dagster's queue", "/runs/q", **more)
    shown = page(platform, "/backfill/ended", lambda: {"ended": [launch]})
    assert "<b>Stopped</b> by ada" in shown
    assert ("computes its chunks and has them gated" in next_of(shown)) is goes_on
    assert ("backfill resume ended" in next_of(shown)) is not goes_on
    later = replace(launch, at=stop.at + timedelta(hours=1), decided=True, knows=None)
    both = page(platform, "/backfill/ended", lambda: {"ended": [launch, later]})
    assert "computes its chunks" in next_of(both)


def test_an_owner_is_told_how_to_accept_a_change_and_how_to_decline_it(platform: Platform) -> None:
    planned(platform, "asks")
    record, chunks = platform.ledger.run("asks"), platform.ledger.chunks("asks")
    found = [Verdict(gate, False, "2020-02 changes by 29%", {}) for gate in ("little_changed", "sums_stay")]
    with (
        mock.patch.object(type(platform.ledger.launches), "waits", return_value=None),
        mock.patch.object(type(platform.ledger), "asking", return_value=found),
    ):
        said = next_of(next_step(platform.ledger, replace(record, state=RunState.STAGED), chunks, found, ()))
    for gate in ("little_changed", "sums_stay"):
        assert f"backfill accept-change asks --gate {gate} --by NAME --reason TEXT" in said
    assert "the job accept_change in Dagster" in said
    assert "backfill cancel asks --by NAME" in said
    assert "reject" not in said


def test_a_run_that_the_sensor_has_given_up_says_so(platform: Platform) -> None:
    planned(platform, "given-up")
    small_table.staged(platform, "given-up")

    def refuse(point: str) -> None:
        if point == "publishing.leased":
            raise InputRefused(Problem("no"))

    with mock.patch.object(faults, "reach", refuse):
        for _ in range(ATTEMPTS):
            assert "the sensor publishes it within seconds" in page(platform, "/backfill/given-up")
            with pytest.raises(InputRefused):
                publication.publish(platform, "given-up")
    text = page(platform, "/backfill/given-up")
    assert "its publication was asked for 5 times and failed" in text
    assert "<code>backfill publish given-up</code>" in text
    decisions.cancel(platform, "given-up", by="grace")


def test_a_launch_in_dagster_is_on_the_page_from_its_first_moment_on(platform: Platform) -> None:
    planned(platform, "launched")
    backfill = "qwertzui"
    tags = {RUN_TAG: "launched", USER_TAG: "olga"}
    with dg.DagsterInstance.ephemeral() as instance:

        def shown(path: str = "/backfill/launched") -> str:
            return page(platform, path, partial(starting, instance))

        assert "<b>Launched</b>" not in shown()
        asked = PartitionBackfill(
            backfill_id=backfill,
            status=BulkActionStatus.REQUESTED,
            from_failure=False,
            tags=tags,
            backfill_timestamp=1_700_000_000.0,
        )
        instance.add_backfill(asked)
        found = shown()
        assert "<b>Launched</b> <time>2023-11-14 22:13:20</time> UTC by olga <a href='/runs/b/qwertzui'>" in found
        assert "Dagster takes it up within half a minute" in found
        assert "<b>Next:</b> the launch in Dagster computes its chunks" in found
        assert "launched, Dagster takes it up" in shown("/backfill")
        job = dg.GraphDefinition("staging").to_job()
        run = instance.create_run_for_job(
            job, status=dg.DagsterRunStatus.NOT_STARTED, tags=tags | {"dagster/backfill": backfill}
        )
        found = shown()
        assert f"by olga <a href='/runs/{run.run_id}'>in Dagster</a>: waits in Dagster&#x27;s queue" in found
        assert "/runs/b/" not in found, "its run says it"
        assert "<b>Launched</b> <time>2023-11-14 22:13:20</time>" in found, "it was asked for as a whole"
        instance.report_run_canceled(run)
        assert "<b>Launched</b>" not in shown()


def test_a_run_that_was_stopped_and_launched_again_says_both(platform: Platform) -> None:
    planned(platform, "again")
    platform.ledger.stops.stop("again", by="ada", through="backfill stop")
    (row,) = [line for line in page(platform, "/backfill").split("<tr>") if "/backfill/again'" in line]
    assert "stopped, waits for a launch" in row
    with dg.DagsterInstance.ephemeral() as instance:
        instance.create_run_for_job(
            dg.GraphDefinition("staging").to_job(), status=dg.DagsterRunStatus.STARTING, tags={RUN_TAG: "again"}
        )
        found = page(platform, "/backfill/again", partial(starting, instance))
    assert "<b>Stopped</b> by ada (backfill stop), " in found
    assert " UTC <a href='/runs/" in found, "nobody vouches for who it was"
    assert "its process is starting" in found
    assert "it waits for a launch" not in found


def test_what_waits_for_a_launch_is_named_with_its_gaps_and_gates_are_in_order(platform: Platform) -> None:
    contract = small_table.manifest("gaps", "REPLACE_PARTITIONS", small_table.HISTORY)
    small_table.planned(platform, contract)
    executor.stage_chunks(platform, "gaps", ["2020-02"])
    assert "launch its chunks 2020-01 to 2020-04 without 2020-02 in Dagster" in page(platform, "/backfill/gaps")

    def twice(version: str, *days: object) -> list[dict[str, object]]:
        return [row for row in rows_of(version, *days) for _ in range(2)]

    rows_of = small_table.rows_of
    with mock.patch.object(small_table, "rows_of", twice):
        for chunk in ("2020-04", "2020-01", "2020-03"):
            executor.stage_chunks(platform, "gaps", [chunk])
            judging.gate_chunks(platform, "gaps")
    shown = page(platform, "/backfill/gaps")
    gates = re.findall(r"checkDetail=chunk_rules'>chunk_rules</a><td>([^<]*)<", shown)
    assert gates == ["2020-01", "2020-03", "2020-04"]


def test_how_long_an_attempt_computed_is_not_known_where_only_its_dead_process_was_found(platform: Platform) -> None:
    planned(platform, "killed")
    ledger = platform.ledger
    ledger.start_attempt("killed", ["2020-02"], edition=ledger.edition("killed"), actor="ada", location="file:///x")
    with mock.patch("resources.ledger.attempts.has_ended", return_value=True):  # the next launch notices
        ledger.fail_attempts_of_dead_processes("killed")
    executor.stage_chunks(platform, "killed", ["2020-03"])
    shown = page(platform, "/backfill/killed").partition("<h2>Attempts</h2>")[2]
    found = re.findall(rf"<td>\d<td>(\w+)<td>1<td>{TIME.pattern}<td>([^<]*)<td><td>([^<]*)", shown)
    assert found[0] == ("failed", "not known", "its process ended")
    assert found[1][0] == "staged"
    assert re.fullmatch(r"\d+\.\d s", found[1][1])


def who_of(shown: str) -> list[tuple[str, str, str]]:
    rows = re.findall(
        rf"<tr><td>([^<]*)<td>([^<]*)<td>{TIME.pattern}<td>([^<]*)",
        shown.partition("Who and when")[2].partition("<h2")[0],
    )
    return [tuple(map(unescape, one)) for one in rows]


def test_a_cancelled_run_says_who_ended_it_and_why(platform: Platform) -> None:
    planned(platform, "given-away")
    decisions.cancel(platform, "given-away", by="grace", comment="the source is to be corrected")
    shown = page(platform, "/backfill/given-away")
    assert "<b>Why it is CANCELLED:</b> the source is to be corrected<" in shown
    assert who_of(shown)[-1] == ("cancelled", "grace", "the source is to be corrected")
    assert "new run id" in next_of(shown)


def test_a_rejection_by_a_person_is_among_the_decisions_once(platform: Platform) -> None:
    planned(platform, "declined")
    decisions.reject(platform, "declined", by="grace", comment="these meters were right")
    shown = page(platform, "/backfill/declined")
    assert [one for one in who_of(shown) if "reject" in one[0]] == [
        ("decided: rejected", "grace", "these meters were right")
    ]
    assert next_of(shown).startswith("nothing: it is over")


def test_a_run_that_others_were_before_says_whose_change_and_that_it_is_planned_again(platform: Platform) -> None:
    for run_id in ("quicker", "late"):
        planned(platform, run_id)
        small_table.staged(platform, run_id)
    publication.publish(platform, "quicker")
    with pytest.raises(PublicationRefused):
        publication.publish(platform, "late")
    shown = page(platform, "/backfill/late")
    assert next_of(shown) == (
        "its chunks were changed, since it was planned, by quicker: plan the change again, under a new run id, on the table "
        "as it is now."
    )
    (end,) = [one for one in who_of(shown) if one[0] == "rejected"]
    assert "2 chunk(s) of silver.readings have changed since 'late' was planned" in end[2]


def test_what_readers_see_or_have_seen_says_how_it_is_undone_and_brought_back(platform: Platform) -> None:
    planned(platform, "first-one")
    small_table.staged(platform, "first-one")
    publication.publish(platform, "first-one")
    said = next_of(page(platform, "/backfill/first-one"))
    assert said.startswith("nothing: readers see it.")
    assert "backfill rollback first-one --by NAME, or the job roll_back_run in Dagster, undoes it" in said
    undoing.rollback(platform, "first-one")
    said = next_of(page(platform, "/backfill/first-one"))
    assert "backfill reinstate first-one --by NAME, or the job reinstate_run in Dagster, brings it back" in said
    planned(platform, "second-one")
    small_table.staged(platform, "second-one")
    publication.publish(platform, "second-one")
    assert "reinstated once second-one is rolled back" in next_of(page(platform, "/backfill/first-one"))
    undoing.rollback(platform, "second-one")
    undoing.reinstate(platform, "first-one")
    small_table.planned(
        platform, small_table.manifest("part-of-it", "REPLACE_PARTITIONS", ("2020-02-01", "2020-02-29"))
    )
    small_table.staged(platform, "part-of-it")
    publication.publish(platform, "part-of-it")
    assert "roll back part-of-it first" in next_of(page(platform, "/backfill/first-one"))
    small_table.planned(platform, small_table.manifest("the-rest", "REPLACE_PARTITIONS", small_table.SCOPE))
    small_table.staged(platform, "the-rest")
    publication.publish(platform, "the-rest")
    assert platform.ledger.run("first-one").state is RunState.SUPERSEDED
    assert "rolling back the-rest" in next_of(page(platform, "/backfill/first-one"))


def test_a_run_whose_rows_below_are_rolled_back_as_well_says_whom_to_reinstate_before_it(platform: Platform) -> None:
    for run_id in ("ground", "lower", "upper"):
        planned(platform, run_id)
        small_table.staged(platform, run_id)
        publication.publish(platform, run_id)
    for run_id in ("upper", "lower"):
        undoing.rollback(platform, run_id)
    said = next_of(page(platform, "/backfill/upper"))
    assert "it is reinstated once lower is." in said
    assert "ground" not in said
    with pytest.raises(PublicationRefused, match="reinstate lower first"):
        undoing.reinstate(platform, "upper")
    undoing.rollback(platform, "ground")
    with pytest.raises(PublicationRefused, match="reinstate"):
        undoing.reinstate(platform, "lower")
    assert "it is reinstated once ground is." in next_of(page(platform, "/backfill/lower"))
    for run_id in ("ground", "lower", "upper"):
        assert f"backfill reinstate {run_id} --by NAME" in next_of(page(platform, f"/backfill/{run_id}"))
        undoing.reinstate(platform, run_id)


def test_a_version_that_is_accepted_later_says_that_readers_of_main_do_not_see_it(platform: Platform) -> None:
    later = {"version": "v2", "acceptance": "LATER"}
    small_table.planned(platform, small_table.manifest("beside", "VERSIONED", small_table.SCOPE, **later))
    small_table.staged(platform, "beside")
    publication.publish(platform, "beside")
    said = next_of(page(platform, "/backfill/beside"))
    assert said.startswith(
        "readers of main do not see it until somebody accepts its version v2: backfill accept beside"
    )
    assert "backfill rollback beside" in said
    accepting.accept(platform, "beside")
    assert next_of(page(platform, "/backfill/beside")).startswith("nothing: readers see it.")


@pytest.mark.parametrize(
    ("act", "headline"),
    [
        (undoing.rollback, "the rollback is refused"),
        (undoing.reinstate, "the reinstatement is refused"),
        (accepting.accept, "the acceptance is refused"),
        (publication.publish, "the publication is refused"),
    ],
)
def test_a_refusal_is_headed_by_what_was_asked_for(
    platform: Platform, act: Callable[[Platform, str], Any], headline: str
) -> None:
    planned(platform, "not-yet")
    with pytest.raises(PublicationRefused) as refused:
        act(platform, "not-yet")
    assert refused.value.headline == headline
    assert str(refused.value).startswith(headline)


def test_stops_and_the_launches_that_end_them_are_among_the_decisions(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(platform, "decided")
    stops = platform.ledger.stops
    stops.stop("decided", by="olga", through="backfill stop", reason="month's end")
    stops.launched("decided", by="ada")
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    said = CliRunner().invoke(cli, ["decisions", "decided", "--json"], catch_exceptions=False).output
    found = [(one["decision"], one["by"], one["channel"], one["comment"]) for one in json.loads(said)]
    assert found[1:] == [("STOPPED", "olga", "backfill stop", "month's end"), ("LAUNCHED AGAIN", "ada", "", "")]
    listed = CliRunner().invoke(cli, ["decisions"], catch_exceptions=False).output
    assert "STOPPED" in listed
    assert not re.search(r"[│ ],", listed)  # a stop takes no role
    only = CliRunner().invoke(cli, ["decisions", "--break-glass"], catch_exceptions=False).output
    assert "STOPPED" not in only


def test_a_decision_that_was_refused_says_so_and_why(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    planned(platform, "over")
    small_table.staged(platform, "over")
    decisions.publish(platform, "over", by="ops")

    def said(run_id: str) -> list[tuple[str, str]]:
        run = CliRunner().invoke(cli, ["decisions", run_id, "--json"], catch_exceptions=False)
        return [(one["decision"], one["refused"]) for one in json.loads(run.output)]

    assert {refused for _, refused in said("over")} == {""}
    # refused after the ledger had an entry of it
    why = "the catalog <is> away"
    with (
        mock.patch.object(ReplaceFiles, "undo", side_effect=PublicationRefused(Problem(why))),
        pytest.raises(PublicationRefused),
    ):
        decisions.rollback(platform, "over", by="ops", comment="too early")
    assert said("over")[-1] == ("ROLLBACK", f"refused: {why}")
    decisions.rollback(platform, "over", by="root")
    assert said("over")[-2:] == [("ROLLBACK", f"refused: {why}"), ("ROLLBACK", "")]
    # refused before: only the evidence says it
    with (
        mock.patch.object(undoing, "require_unharmed", side_effect=PublicationRefused(Problem("a file is damaged"))),
        pytest.raises(PublicationRefused),
    ):
        decisions.reinstate(platform, "over", by="root")
    assert said("over")[-1] == ("REINSTATE", "refused: a file is damaged")
    shown = page(platform, "/backfill/over")
    assert re.search(rf"<td>decided: rollback<td>ops<td>{TIME.pattern}<td>too early; refused: {escape(why)}<", shown)
    assert re.search(rf"<td>decided: reinstate<td>root<td>{TIME.pattern}<td>refused: a file is damaged<", shown)
    told = unescape(re.sub("<[^>]*>", "", report(platform, "over")))
    assert f"“too early”; refused: {why}" in told
    assert "without a comment; refused: a file is damaged" in told
    assert "refused: a file is damaged" in CliRunner(env={"COLUMNS": "400"}).invoke(cli, ["decisions", "over"]).output
    # what is tried again and done was not refused
    decisions.reinstate(platform, "over", by="root")
    assert said("over")[3:] == [("ROLLBACK", ""), ("REINSTATE", "")]


def test_a_refusal_by_which_a_run_of_an_earlier_version_comes_under_the_chain_is_told(platform: Platform) -> None:
    planned(platform, "older")
    small_table.staged(platform, "older")
    with (
        mock.patch.object(publication, "bundle_files", return_value={"plan.json": {"any": "plan"}, "chunks.json": []}),
        mock.patch.object(announcements, "tell"),
        mock.patch.object(announcements, "catch_up"),
    ):
        decisions.publish(platform, "older", by="ops")  # as a version did that sealed no rows
    with (
        mock.patch.object(undoing, "require_unharmed", side_effect=PublicationRefused(Problem("a file is damaged"))),
        pytest.raises(PublicationRefused),
    ):
        decisions.rollback(platform, "older", by="root")
    assert [file.stem for file in platform.evidence.records("older").iterdir()] == ["adopted-1"]
    done = platform.ledger.decisions("older")
    chain = platform.evidence.chain
    with mock.patch.object(type(chain), "contents", autospec=True, side_effect=type(chain).contents) as read:
        assert refusals_of(platform.ledger, platform.evidence, "older") == {done[-1].approval: "a file is damaged"}
    (called,) = read.call_args_list
    assert called.kwargs["since"] == chain.length() - 1 > 0  # what came before the refusal is not read
    assert done[-1].decision == "ROLLBACK"


@pytest.mark.parametrize(
    ("note", "said"),
    [
        (f"{PROCESS_ENDED}; nothing of it is in the target's history", ""),
        (RECORDED_BY_ANOTHER, ""),
        ("the rollback is refused\n  - the table has moved on\n    rule: none", "refused: the table has moved on"),
        ("no more", "refused: no more"),
        ("\x1b[2Jno more", "refused: \\x1b[2Jno more"),
    ],
)
def test_an_entry_that_a_repair_or_another_process_has_closed_is_no_refusal(note: str, said: str) -> None:
    decided = [{"id": 1, "decision": "ROLLBACK", "at": "2020-01-01"}]
    entry = {"action": "rollback", "started_at": "2020-01-02", "state": "REFUSED", "note": note}
    assert in_words(refused(decided, [entry], []).get(1)) == said


def test_a_run_shows_the_stages_that_it_is_executed_by(platform: Platform) -> None:
    planned(platform, "shown")
    shown = page(platform, "/backfill/shown")
    for number, stage in enumerate(stages_of(platform.products, platform.ledger.run("shown").plan), start=1):
        assert f"{number}. {escape(stage.describe())}" in shown
    assert "in one commit, which replaces the files of these days in silver.readings" in shown
