"""Spark that is not this process: a server of Spark Connect, one that is kept, and a standalone cluster.

The same installation is computed by each; digests are those of a JVM of the process's own. What a process does is
`elsewhere_core.py`'s.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from elsewhere import EXECUTORS, ROOT, RUN, SMALL, command, core, process, same
from real_servers.processes import MissingServerError, wait_until
from real_servers.spark import ConnectServer, cluster, connect_server, environment_of, require_spark

pytestmark = pytest.mark.servers


def answer(environment: Mapping[str, str], folder: Path, *arguments: str) -> Any:
    done = command(environment, folder, *arguments, "--json")
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout)


@pytest.fixture(scope="module", autouse=True)
def _there() -> None:
    try:
        require_spark()
    except MissingServerError as reason:
        pytest.skip(f"nothing is tested on Spark elsewhere: {reason}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def local(folder: Path) -> dict[str, Any]:
    """What a JVM of the process's own computes."""
    return core("whole", environment_of(folder / "local", SMALL), folder)


@pytest.fixture(scope="module")
def connect(folder: Path) -> Iterator[ConnectServer]:
    """A server of somebody else, started with what the command prints."""
    home = environment_of(folder / "asking", {})
    assert command(home, folder, "init").returncode == 0
    asked = answer(home, folder, "spark", "settings")
    settings = asked["settings"] | {"spark.backfill.server.modes": "BACKFILL,REPLAY,RECONCILIATION"}
    with connect_server(folder / "server", settings, asked["environment"]) as server:
        yield server


# --- a server of somebody else ----------------------------------------------------------------------------------------


def test_a_run_on_a_connect_server_is_the_run_of_local_spark(
    folder: Path, local: dict[str, Any], connect: ConnectServer
) -> None:
    found = core("whole", environment_of(folder / "connect", SMALL | {"spark.remote": connect.address}), folder)
    assert (local["remote"], found["remote"]) == (False, True)
    same(found, local)


def test_a_session_of_a_connect_server_may_do_what_one_of_its_own_jvm_may(folder: Path, connect: ConnectServer) -> None:
    remote = SMALL | {"spark.remote": connect.address}
    own, found = (
        core("session", environment_of(folder / name, spark), folder)
        for name, spark in (("session-local", SMALL), ("session-connect", remote))
    )
    assert own["unsteady"]["rand(3)"] == [["Rand", "x"]]
    assert own["unsteady"]["upper('rand(1)')"] == []
    # a server's refusal may name a column besides, in which a text looks like the function
    assert {name: sorted({kind for kind, _ in said}) for name, said in found["unsteady"].items()} == {
        name: sorted({kind for kind, _ in said}) for name, said in own["unsteady"].items()
    }
    for name in ("inside", "left outside", "builder", "success file", "tasks", "secrets", "reconciliation wrote"):
        assert found[name] == own[name], name
    assert (found["inside"], found["left outside"], found["builder"]) == (3, ["there"], "BACKFILL")
    assert (found["reconciliation"], found["reconciliation wrote"]) == (True, False)
    assert found["read outside"].startswith("refused: ")
    assert found["write outside"].startswith("refused: ")
    for where in ("worker", "worker elsewhere"):
        assert (found[where]["zone"], found[where]["seed"]) == (own[where]["zone"], own[where]["seed"]), where
    assert (found["worker"]["zone"], found["worker"]["seed"]) == ("UTC", "0")
    assert found["worker elsewhere"]["zone"] == "Pacific/Auckland"


def test_a_server_that_was_started_for_something_else_is_refused_with_what_it_has_to_be_started_with(
    folder: Path, connect: ConnectServer
) -> None:
    remote = SMALL | {"spark.remote": connect.address}
    environment = environment_of(folder / "live", {}, spark_by_mode=json.dumps({"DRY_RUN": remote}))
    assert command(environment, folder, "init").returncode == 0
    script = (
        "from backfill_assets.installation import Platform\n"
        "from resources.settings import load_settings\n"
        "from manifests.model import Mode\n"
        "Platform.of(load_settings()).spark.session(Mode.DRY_RUN)\n"
    )
    done = process(["-c", script], environment, folder)
    assert "spark.backfill.server.modes = BACKFILL,REPLAY,RECONCILIATION" in done.stderr
    assert "--conf spark.backfill.server.modes=DRY_RUN" in done.stderr
    assert "backfill spark settings" in done.stderr


# --- a standalone cluster ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def master(folder: Path) -> Iterator[str]:
    with ExitStack() as stack:
        try:
            address = stack.enter_context(cluster(folder / "cluster")).address
        except MissingServerError as reason:
            pytest.skip(f"nothing is tested on a cluster: {reason}")
        yield address


def test_a_run_on_a_standalone_cluster_is_the_run_of_local_spark(
    folder: Path, local: dict[str, Any], master: str
) -> None:
    spark = SMALL | EXECUTORS | {"spark.master": master}
    found = core("whole", environment_of(folder / "on-cluster", spark), folder)
    assert found["master"] == master
    same(found, local)
    logs = [*(folder / "cluster").rglob("stderr")]
    assert {one.parts[-5] for one in logs} == {"worker-0", "worker-1"}


def test_workers_of_other_code_compute_no_row(folder: Path, master: str) -> None:
    """The executors search a copy first in which a module has one more line."""
    copy = folder / "other-code"
    for package in ("backfill_assets", "resources", "manifests"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "backfill_assets" / "worker" / "digest.py").open("a") as module:
        module.write("\n_CHANGED = True\n")
    spark = SMALL | EXECUTORS | {"spark.master": master, "spark.executorEnv.PYTHONPATH": str(copy)}
    found = core("refused", environment_of(folder / "refused", spark), folder)
    assert "the code of backfill-assets" in found["said"]
    assert "is not the driver's" in found["said"]
    assert "install the same version" in found["said"]
    assert found["state"] != "VALIDATED"


# --- a server that is kept --------------------------------------------------------------------------------------------


@pytest.fixture
def kept(folder: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The environment of an installation whose runs compute on the server that is kept, which is stopped in the end."""
    secret = {"BACKFILL_SINKS__BREACH_NOTIFICATIONS__URL": "https://hooks.example.org/secret"}
    environment = environment_of(folder / request.node.name[:40], SMALL, spark_server="always") | secret
    try:
        yield environment
    finally:
        command(environment, folder, "spark", "stop", "--force")


def test_a_server_is_kept_without_credentials_and_answers_who_has_its_token(folder: Path, kept: dict[str, str]) -> None:
    assert command(kept, folder, "init").returncode == 0
    [one] = answer(kept, folder, "spark", "start", "--cold")
    assert one["started"] is True
    assert [entry["started"] for entry in answer(kept, folder, "spark", "start")] == [False]
    home = Path(kept["BACKFILL_HOME"]) / "spark" / "backfill"
    for name in ("server.json", "settings.conf", "log"):
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600, name
    token = json.loads((home / "server.json").read_text())["token"]
    assert token not in Path(f"/proc/{one['pid']}/cmdline").read_text()
    has = Path(f"/proc/{one['pid']}/environ").read_text()
    assert token not in has
    assert "BACKFILL_SINKS" not in has
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if " 0A " in line]
    mine = [address for address in listening if address.endswith(f":{one['port']:04X}")]
    assert all(address.startswith("0100007F") for address in mine)  # nobody but this machine
    for given in ("", "/;token=guessed"):
        script = f"from resources.spark.connected import session_at\nsession_at('sc://localhost:{one['port']}{given}', retries=0)\n"
        done = process(["-c", script], kept, folder)
        assert "cannot be used" in done.stderr, given
        assert "UNAUTHENTICATED" in done.stderr or "authentication" in done.stderr.lower(), done.stderr[-500:]
    [said] = answer(kept, folder, "spark", "status", "--mode", "BACKFILL")
    assert (said["condition"], said["used"], "token" in json.dumps(said)) == ("RUNNING", False, False)
    assert [entry["was"] for entry in answer(kept, folder, "spark", "stop", "--mode", "BACKFILL")] == ["RUNNING"]
    wait_until(lambda: not Path(f"/proc/{one['pid']}").exists(), "its process has ended")


def test_a_server_that_is_killed_in_the_middle_of_a_batch_is_started_again_by_the_same_command(
    folder: Path, kept: dict[str, str], local: dict[str, Any]
) -> None:
    core("approved", kept, folder)
    home = Path(kept["BACKFILL_HOME"])
    data = home / "warehouse" / "silver" / "case_sla_daily" / "data"
    running = subprocess.Popen(
        [sys.executable, "-m", "backfill_assets.cli.command", "run", RUN, "--json"],
        env=kept,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: any(data.glob("run=*/**/_temporary")), "a batch is being written", 300.0, every=0.005)
    pid = json.loads((home / "spark" / "backfill" / "server.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    _, errors = running.communicate(timeout=300)
    assert running.returncode in {1, 2}, errors[-2000:]
    assert "the Spark server has gone" in errors
    assert time.monotonic() - began < 90  # it does not retry for ten minutes, as PySpark does by itself
    done = command(kept, folder, "spark", "status", "--mode", "BACKFILL", "--json")
    assert (done.returncode, json.loads(done.stdout)[0]["condition"]) == (1, "ENDED")
    again = command(kept, folder, "run", RUN, "--json")
    assert again.returncode == 0, again.stderr[-3000:]
    said = json.loads(again.stdout)
    assert said["state"] == "PUBLISHED"
    assert {one["chunk"]: one["digest"] for one in said["chunks"]} == local["digests"]
    assert json.loads((home / "spark" / "backfill" / "server.json").read_text())["pid"] != pid
