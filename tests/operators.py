"""What operators have before them: a served installation, a real Chromium, and GraphQL as Dagster's pages send it.

Put here how they are started and stopped, and the movements that several tests make. What is seen is the tests'.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from servers import free_port
from worlds import SPARK, World

from backfill_assets.ui.orphans import descendants

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
SCREENSHOTS = "BACKFILL_SCREENSHOTS"
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
_STILL = """
const still = new CSSStyleSheet();
still.replaceSync("*, *::before, *::after { animation: none !important; transition: none !important; }");
document.adoptedStyleSheets = [...document.adoptedStyleSheets, still];
"""
"""Without a graphics card every frame of a spinner is painted by a core that the run under way needs."""
_ENDED = {"SUCCESS", "FAILURE", "CANCELED"}
_LAUNCH = """
mutation LaunchPartitionBackfill($backfillParams: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $backfillParams) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }
  }
}"""
_RUNS = (
    "query($filter: RunsFilter!) { runsOrError(filter: $filter) { ... on Runs { results { runId status jobName } } } }"
)
_RELAUNCH = """
mutation($parentRunId: String!) {
  launchRunReexecution(reexecutionParams: {parentRunId: $parentRunId, strategy: FROM_FAILURE}) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  }
}"""
_LAUNCH_ONE = """
mutation($executionParams: ExecutionParams!) {
  launchRun(executionParams: $executionParams) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  }
}"""


_TERMINATE = """
mutation($runId: String!) {
  terminateRun(runId: $runId, terminatePolicy: SAFE_TERMINATE) { __typename ... on PythonError { message } }
}"""


class Server:
    """`backfill ui` on an installation: a real webserver, daemon and code server."""

    def __init__(self, world: World, port: int | None = None) -> None:
        self.port = port or free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        environment = os.environ | {"BACKFILL_HOME": str(world.home), "BACKFILL_SPARK": json.dumps(SPARK)}
        self.messages = world.home / "server.log"
        self.log = self.messages.open("ab")  # of the server before it, too
        self.process = subprocess.Popen(
            [sys.executable, "-m", "backfill_assets.cli.command", "ui", "--port", str(self.port)],
            env=environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        until("the webserver answers", self.answers, 120, every=0.3)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.messages.read_text()[-3000:]
        try:
            return bool(self.query("{ repositoriesOrError { __typename } }"))
        except OSError:
            return False

    def query(self, text: str, **variables: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.address}/graphql",
            json.dumps({"query": text, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            data = json.load(answer)
        assert "errors" not in data, data
        return data["data"]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        finally:
            self.log.close()

    def kill(self) -> None:
        """Kill -9 all of it: webserver, daemon, code server, and the runs under way."""
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(40)
        self.log.close()

    # --- launching, and what came of it ---------------------------------------------------------------------------

    def launch(self, asset: str, keys: list[str]) -> str:
        """Launch partitions of an asset, as the dialog does for more than one."""
        params = {"assetSelection": [{"path": asset.split("/")}], "partitionNames": keys, "tags": [], "title": "test"}
        answer = self.query(_LAUNCH, backfillParams=params)["launchPartitionBackfill"]
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        return str(answer["backfillId"])

    def launch_one(self, job: str, partition: str) -> str:
        """Launch one partition of a job, which needs no daemon to make a run of it."""
        answer = self.query(
            _LAUNCH_ONE,
            executionParams={
                "selector": {
                    "jobName": job,
                    "repositoryName": "__repository__",
                    "repositoryLocationName": "backfill_assets",
                },
                "executionMetadata": {"tags": [{"key": "dagster/partition", "value": partition}]},
            },
        )["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def reexecute(self, run_id: str) -> str:
        """Re-execute a Dagster run from failure and return the new run."""
        again = self.query(_RELAUNCH, parentRunId=run_id)["launchRunReexecution"]
        assert again["__typename"] == "LaunchRunSuccess", again
        return str(again["run"]["runId"])

    def terminate(self, run_id: str) -> None:
        """Terminate a Dagster run, as the button of its page does."""
        answer = self.query(_TERMINATE, runId=run_id)["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer

    def runs(self, **tags: str) -> list[dict[str, str]]:
        wanted = {"tags": [{"key": key.replace("__", "/"), "value": value} for key, value in tags.items()]}
        found: list[dict[str, str]] = self.query(_RUNS, filter=wanted)["runsOrError"]["results"]
        return found

    def ended(self, run_id: str) -> str | None:
        """Return how a Dagster run has ended, or None."""
        found = self.query(_RUNS, filter={"runIds": [run_id]})["runsOrError"]["results"]
        return found[0]["status"] if found[0]["status"] in _ENDED else None


def until(what: str, condition: Callable[[], Any], seconds: float = 300, *, every: float = 0.5) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(every)
    raise AssertionError(f"not within {seconds} s: {what}")


# --- Chromium ---------------------------------------------------------------------------------------------------------


def chromium() -> str | None:
    """Return the Chromium of this machine, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def missing_for_a_browser() -> str:
    """Return what this machine lacks for a browser that tests can drive; "" if nothing."""
    if chromium() is None:
        return "there is no Chromium on this machine (Debian: apt-get install chromium)"
    if importlib.util.find_spec("playwright") is None:
        return "the package playwright is not installed (it comes with the extra `dev`)"
    return ""


@contextmanager
def browser(address: str) -> Iterator[Eyes]:
    """Start a real Chromium and yield a page of it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium(), args=list(_FLAGS))
        try:
            page = running.new_page(
                viewport={"width": 1280, "height": 800},
                color_scheme="light",
                reduced_motion="reduce",
                base_url=address,
            )
            page.add_init_script(_STILL)
            page.set_default_timeout(60_000)
            yield Eyes(page)
        finally:
            running.close()


class Eyes:
    """A page of Dagster's UI, and what an operator does with it."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def go(self, path: str, text: str) -> None:
        """Open an address and wait until a text can be seen."""
        self.page.goto(path, wait_until="domcontentloaded")
        self.sees(text)

    def sees(self, text: str, *, seconds: float = 60) -> None:
        shown = self.page.get_by_text(text).locator("visible=true").first
        shown.wait_for(state="visible", timeout=seconds * 1000)

    def rest(self) -> None:
        """Look at nothing: an open page of Dagster's asks its server for news all the time."""
        self.page.goto("about:blank")

    def open_the_lineage(self, group: str) -> None:
        """Open the lineage page from the start page and show one product's; several are folded, each into one box."""
        self.page.goto("/", wait_until="domcontentloaded")
        # there once the definitions are: a graph that is opened before it can stay empty
        self.page.get_by_role("link", name=re.compile("Jobs$")).wait_for()
        self.page.get_by_role("link", name=re.compile("Lineage$")).click()
        self.sees("Materialize all")
        self.page.wait_for_timeout(1000)  # the graph moves to its new places
        self.page.locator(".CodeMirror").last.click()
        self.page.keyboard.type(f'group:"{group}"')
        self.page.keyboard.press("Enter")
        self.page.wait_for_timeout(2000)

    def launch(self, run_id: str, first: str, last: str) -> None:
        """Choose a backfill run and a range of chunks in the launch dialog of the open asset."""
        from playwright.sync_api import TimeoutError as NotThereError

        self.page.get_by_role("button", name="Materialize…").click()
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_text("Select a partition or create one").first.click()
        self.page.locator("label", has_text=run_id).last.click()
        chunks = dialog.get_by_placeholder("ex: ")
        for patience in (5_000, 60_000):  # the choice of a run can come later than what was typed, and take it back
            chunks.fill(f"[{first}...{last}]")
            chunks.press("Enter")
            with suppress(NotThereError):
                dialog.get_by_text("24 partitions").first.wait_for(timeout=patience)
                return
        raise AssertionError(f"the dialog does not show 24 partitions but {dialog.inner_text()}")

    def terminate(self) -> None:
        """Terminate the Dagster run whose page is open."""
        self.page.get_by_role("button", name=re.compile("Terminate")).first.click()
        self.page.get_by_role("dialog").get_by_role("button", name=re.compile("Terminate")).last.click()

    def confirm(self) -> None:
        """Launch what the dialog shows."""
        self.page.get_by_role("dialog").get_by_role("button", name="Launch backfill").click()
        self.sees("Created backfill")

    def keep(self, name: str) -> None:
        """Keep what is seen as an image of the docs, if the environment asks for it."""
        if not os.environ.get(SCREENSHOTS):
            return
        from PIL import Image

        IMAGES.mkdir(exist_ok=True)
        with Image.open(io.BytesIO(self.page.screenshot())) as image:
            small = image.convert("RGB").quantize(192, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
            small.save(IMAGES / f"{name}.png", optimize=True)
