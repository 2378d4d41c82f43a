"""An operator's day, as they do it: `backfill ui`, a real Chromium, launches, a blocked publication, its repair.

Where there is no Chromium the launches are sent over GraphQL, as Dagster's pages send them, so that daemon, sensor and
refusals are tested everywhere; what only eyes can see is skipped and says so. The tests go on from one another, in order.
With BACKFILL_SCREENSHOTS=1 what is seen is kept in docs/images.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest
from operators import Eyes, Server, browser, missing_for_a_browser, until
from worlds import FEW_GATES, World, make_world

from backfill_assets.defs.launch import initialise_instance
from backfill_assets.defs.launched_by import RUN_TAG
from backfill_assets.defs.publish import SENSOR_SECONDS
from backfill_assets.defs.staging import partition_key
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.ui.orphans import descendants
from manifests.lifecycle import RunState
from resources.processes import is_alive
from resources.settings import load_settings

pytestmark = pytest.mark.exhaustive

STAGING, PUBLISHED = "silver/case_sla_daily", "silver/case_sla_daily_published"
PUBLISH_JOB = "publish_silver_case_sla_daily"
BAD, REPAIR, STOPPED = "restate-2010", "repair-2010", "stopped-2010"
FIRST, LAST = "2010-01", "2011-12"
GATE = "payment_breaches_are_penalties"


@dataclass
class Day:
    world: World
    server: Server
    launched: dict[str, str] = field(default_factory=dict)

    def state(self, run_id: str) -> RunState:
        return self.world.platform.ledger.run(run_id).state

    def launch(self, eyes: Eyes | None, run_id: str) -> None:
        """Launch every chunk of a run: in the browser, or, where there is none, as the browser would."""
        if eyes is not None:
            eyes.go(f"/assets/{STAGING}", "Latest materialization")
            eyes.launch(run_id, FIRST, LAST)
            eyes.keep("launch")
            eyes.confirm()
            eyes.rest()
        else:
            chunks = self.world.platform.ledger.run(run_id).plan.chunks
            self.server.launch(STAGING, [str(partition_key(run_id, chunk.key)) for chunk in chunks])

    def dagster_run(self, run_id: str) -> str:
        """Return the Dagster run that stages a backfill run: found by its tag, which the body writes."""
        (found,) = until(
            f"a Dagster run carries the tag of {run_id}",
            lambda: self.server.runs(**{RUN_TAG.replace("/", "__"): run_id}),
        )
        return str(found["runId"])


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    world = make_world(tmp_path_factory.mktemp("day") / "home", cases=200)
    reason = "the days of deadlines follow the local calendar"
    world.announced(
        world.manifest(BAD, version="2.4.1", validation={}, reason=reason)
    )  # its payments' gate will not pass
    made = Day(world, Server(world))
    try:
        yield made
    finally:
        made.server.stop()  # the one there is by then


@pytest.fixture(scope="module")
def glance(day: Day) -> Iterator[Eyes | None]:
    """A browser on the day's server, or None."""
    if missing_for_a_browser():
        yield None
        return
    with browser(day.server.address) as eyes:
        yield eyes


@pytest.fixture
def eyes(glance: Eyes | None) -> Eyes:
    if glance is None:
        pytest.skip(f"nothing is looked at: {missing_for_a_browser()}")
    return glance


def test_the_lineage_reads_from_left_to_right_and_leads_to_the_table(day: Day, eyes: Eyes) -> None:
    eyes.page.goto("/")
    eyes.page.get_by_role("link", name="Backfill runs").click()
    eyes.sees(BAD)
    eyes.open_the_lineage("enforcement")
    eyes.keep("lineage")
    at = [
        eyes.page.locator("svg, div").get_by_text(name, exact=True).last.bounding_box()["x"]
        for name in ("sla_rules", "case_sla_daily")
    ]
    assert at == sorted(at)
    eyes.page.get_by_text("case_sla_daily", exact=True).last.click()
    eyes.sees("View in Asset Catalog")
    eyes.page.get_by_text("View in Asset Catalog").first.click()
    eyes.sees("enforcement-data")  # its owners
    eyes.sees("One row per case, clock and day")


def test_a_run_whose_gate_fails_is_seen_to_be_blocked(day: Day, glance: Eyes | None) -> None:
    day.launch(glance, BAD)
    day.launched[BAD] = dagster_run = day.dagster_run(BAD)
    if glance is not None:
        # filtered: else what is new pushes it out of sight
        glance.go(f"/runs/{dagster_run}?logs=24%20chunks", "computing 24 chunks, 2010-01 to 2011-12")
        glance.sees("staged 24 chunks, 2010-01 to 2011-12", seconds=240)
        glance.keep("progress")
        glance.rest()
    assert until("the bad run ends", lambda: day.server.ended(dagster_run)) == "FAILURE"
    assert day.state(BAD) is RunState.FAILED
    assert GATE in day.world.platform.ledger.run(BAD).state_reason
    assert day.world.snapshots() == []


def test_why_it_is_blocked_is_told_with_numbers(day: Day, eyes: Eyes) -> None:
    eyes.go(f"/assets/{STAGING}?view=checks&checkDetail={GATE}", "PAYMENT deadlines compared with penalties")
    eyes.sees("Failed")
    eyes.sees(f"/backfill/{BAD}")
    eyes.keep("blocked")
    with eyes.page.expect_popup() as popup:
        eyes.page.get_by_text(f"/backfill/{BAD}").first.click()
    page = Eyes(popup.value)
    page.sees(f"gate(s) not passed: {GATE}")
    page.page.set_viewport_size({"width": 1280, "height": 800})
    page.keep("run")
    page.page.close()


def test_its_repair_is_published_by_the_sensor_and_readers_see_nothing_in_between(
    day: Day, glance: Eyes | None
) -> None:
    world, ledger = day.world, day.world.platform.ledger
    world.announced(world.manifest(REPAIR, reason="the same days with the local calendar"))
    stop, seen = threading.Event(), []

    def read() -> None:
        while not stop.wait(0.2):
            rows = world.rows()
            seen.append((*sorted(rows["run_id"].unique()), rows.height))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        day.launch(glance, REPAIR)
        until("its chunks are being computed", lambda: ledger.attempts(REPAIR), 200, every=0.1)
        (lost,) = day.server.runs(**{RUN_TAG.replace("/", "__"): REPAIR})
        day.server.kill()  # the machine goes down
        assert day.state(REPAIR) is RunState.RUNNING
        day.server = Server(day.world, day.server.port)
        until("its run is ended, which would hold the queue", lambda: day.server.ended(lost["runId"]), 120)
        day.launch(glance, REPAIR)
        until("the repair is published by the sensor", lambda: day.state(REPAIR) is RunState.PUBLISHED, 400)
    finally:
        stop.set()
        reader.join()
    rows = sum(chunk.rows or 0 for chunk in ledger.chunks(REPAIR))
    assert set(seen) <= {(0,), (REPAIR, rows)}  # nothing in between
    # one Dagster run for 24 chunks, and one for the publication, besides the one that was lost
    runs = [run for run in day.server.runs(**{RUN_TAG.replace("/", "__"): REPAIR}) if run["runId"] != lost["runId"]]
    until("both have ended", lambda: all(day.server.ended(run["runId"]) == "SUCCESS" for run in runs))
    assert sorted(run["jobName"] for run in runs) == ["__ASSET_JOB", PUBLISH_JOB]


def test_the_publication_shows_what_changed_and_leads_to_its_evidence(day: Day, eyes: Eyes) -> None:
    eyes.go(f"/assets/{PUBLISHED}?view=events", "evidence root")
    eyes.sees("dagster/row_count")
    eyes.page.get_by_text("[Show Markdown]").first.click()
    charts = eyes.page.get_by_role("dialog").locator("img")
    charts.first.wait_for()
    assert charts.first.evaluate("image => image.complete && image.naturalWidth") == 720
    eyes.keep("published")
    eyes.page.keyboard.press("Escape")
    eyes.go(f"/assets/{STAGING}?view=partitions&partition={REPAIR}%7C2010-03", "batch seconds")
    eyes.keep("chunks")
    eyes.go(f"/backfill/{REPAIR}", "PUBLISHED")
    eyes.page.get_by_role("link", name="bundle/plan.json").click()
    eyes.sees('"publish_range"')
    assert eyes.page.evaluate("origin") == "null"  # whatever it holds, it has no hold on the UI
    eyes.go(f"/backfill/{REPAIR}", "PUBLISHED")
    eyes.page.get_by_role("link", name="report", exact=True).click()
    eyes.sees("How to reproduce")
    eyes.keep("report")


def test_what_is_blocked_stays_so_by_hand_and_by_reexecution(day: Day) -> None:
    by_hand = day.server.launch_one(PUBLISH_JOB, BAD)
    assert until("the publish asset materialised by hand ends", lambda: day.server.ended(by_hand)) == "FAILURE"
    day.launched["by hand"] = by_hand
    # the publication again, and the run that staged and gated: its only failed step is what judged the run
    again = [day.server.reexecute(by_hand), day.server.reexecute(day.launched[BAD])]
    ended = [until("the re-execution ends", lambda run_id=run_id: day.server.ended(run_id)) for run_id in again]
    assert ended[0] == "FAILURE"
    sensor = f"{PUBLISH_JOB}_when_validated"
    at = time.time()
    with day.world.dagster() as instance:
        (state,) = [one for one in instance.all_instigator_state() if one.instigator_name == sensor]

        def ticked() -> list[object]:
            ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=3)
            return [tick for tick in ticks if tick.timestamp > at and tick.status.value != "STARTED"]

        until("the sensor has looked at what they left", ticked, 6 * SENSOR_SECONDS)
    assert day.state(BAD) is RunState.FAILED
    assert len(day.world.snapshots()) == 1
    assert set(day.world.rows()["run_id"]) == {REPAIR}


def test_a_refusal_is_told_in_plain_words(day: Day, glance: Eyes | None) -> None:
    run = day.launched["by hand"]
    with day.world.dagster() as instance:
        (failure,) = [
            entry.dagster_event.step_failure_data
            for entry in instance.all_logs(run, of_type=dg.DagsterEventType.STEP_FAILURE)
        ]
    assert failure.user_failure_data.description.startswith("the publication is refused")
    assert "what to do:" in failure.user_failure_data.description
    if glance is not None:
        glance.go(f"/runs/{run}", "the publication is refused")


def test_terminate_ends_a_run_at_once_and_nothing_publishes_it_until_it_is_launched_again(
    day: Day, glance: Eyes | None
) -> None:
    ledger = day.world.platform.ledger
    record = day.world.announced(day.world.manifest(STOPPED, validation={"gates": FEW_GATES}))
    keys = [str(partition_key(STOPPED, chunk.key)) for chunk in record.plan.chunks]
    day.server.launch(STAGING, keys)
    dagster_run = day.dagster_run(STOPPED)
    if glance is not None:
        glance.go(f"/runs/{dagster_run}", "Terminate")
    until("its chunks are being computed", lambda: ledger.attempts(STOPPED), 200, every=0.1)
    at = time.monotonic()
    day.server.terminate(dagster_run) if glance is None else glance.terminate()
    assert until("the terminated run ends", lambda: day.server.ended(dagster_run), 60, every=0.1) == "CANCELED"
    assert time.monotonic() - at < 20  # its process is gone, too: 5 seconds where nothing else needs the cores
    if glance is not None:
        glance.rest()
    assert [one.state for one in ledger.attempts(STOPPED)] == ["STOPPED"]  # nothing was halved, nothing failed
    (stop,) = ledger.stops.of_run(STOPPED)
    assert stop.through == f"Terminate of the Dagster run {dagster_run}"
    time.sleep(2 * SENSOR_SECONDS)
    assert day.state(STOPPED) is RunState.RUNNING
    assert STOPPED not in set(day.world.rows()["run_id"])

    day.server.launch(STAGING, keys)
    until("it is published once it was launched again", lambda: day.state(STOPPED) is RunState.PUBLISHED, 400)
    assert set(day.world.rows()["run_id"]) == {STOPPED}


def test_a_team_is_served_on_sockets_and_everything_ends_with_the_server(tmp_path: Path) -> None:
    home = tmp_path / "home"
    settings = load_settings(home=home)
    initialise(Platform.of(settings))
    initialise_instance(settings)
    command = [sys.executable, "-m", "backfill_assets.cli.command", "ui", "--behind", "https://backfill.example.com"]
    process = subprocess.Popen(
        command, env=os.environ | {"BACKFILL_HOME": str(home)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    folder = home / "ui"
    try:
        assert process.stdout.readline().startswith("viewers: ")
        assert process.stdout.readline().startswith("operators: ")
        assert {file.name: f"{file.stat().st_mode & 0o777:o}" for file in folder.glob("*.sock")} == {
            "viewer.sock": "660",
            "operator.sock": "660",
        }
        assert f"{folder.stat().st_mode & 0o777:o}" == "750"
        started = descendants(process.pid)
        assert len(started) >= 3  # the daemon, the code server, and the one that reloads it
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert list(folder.glob("*.sock")) == []
    assert [pid for pid in started if is_alive(pid)] == []
