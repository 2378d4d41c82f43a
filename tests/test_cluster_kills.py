"""Whatever is killed of all of it, and whatever its networks do, the same command ends as if nothing had been.

Runs are computed on a standalone cluster and on a server of Spark Connect in turn, with tables in S3 by a REST catalog and the ledger
in PostgreSQL. Meanwhile driver, executor, worker, Connect server, catalog, store and database are killed one after the other, and one
request in twenty to catalog and store fails, takes seconds, or is answered by nothing once it has been done. CLUSTER_KILLS,
CLUSTER_KILLS_OF_A_RUN, CLUSTER_SEED and CLUSTER_SECONDS make it a campaign.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from elsewhere import SMALL, Services, core, services_in
from real_servers.misbehaving import CUT, LOST, UNAVAILABLE, misbehaving
from real_servers.processes import MissingServerError
from real_servers.rest_catalog import Fault
from real_servers.spark import Cluster, ConnectServer, cluster, environment_of

pytestmark = pytest.mark.servers

KILLS = int(os.environ.get("CLUSTER_KILLS", "8"))
SEED = int(os.environ.get("CLUSTER_SEED", "21"))
SECONDS = float(os.environ.get("CLUSTER_SECONDS", "900"))
FAULTY = 0.05
PAUSE = (0.5, 9.0)
"""Seconds between two kills, of which the first is counted from the start of the command."""
ATTEMPTS = 60
OF_ONE_RUN = int(os.environ.get("CLUSTER_KILLS_OF_A_RUN", "6"))
"""Kills of a run, after which it may end: on a busy machine all of a campaign would fall into one."""
OF_ONE_INSTALLATION = 8
"""Publications of an installation before the next one is made: each is verified with all those before."""
ON_CLUSTER = ("driver", "executor", "catalog", "worker", "store", "database")
ON_SERVER = ("driver", "server", "catalog", "store", "database")


@dataclass
class Weather:
    """What a network does to one request in twenty: it fails, takes seconds, or its answer is lost after it was done."""

    chance: random.Random
    said: Counter[str] = field(default_factory=Counter)
    on: bool = True

    def of_store(self, method: str, path: str) -> str | None:
        """Return what becomes of a request to the store."""
        del path
        if not self.on or self.chance.random() >= FAULTY:
            return None
        how = self.chance.choice((UNAVAILABLE, LOST, CUT if method == "GET" else UNAVAILABLE, "slow"))
        self.said[f"store: {how.partition(',')[0]}"] += 1
        if how == "slow":
            time.sleep(self.chance.uniform(0.2, 2.0))
            return None
        return how

    def of_catalog(self) -> Fault | None:
        """Return what becomes of a request to the catalog."""
        if not self.on or self.chance.random() >= FAULTY:
            return None
        name, fault = self.chance.choice(
            (
                ("503", Fault(503)),
                ("closed", Fault(0)),
                ("slow", Fault(-1, then=lambda: time.sleep(1.0))),
                ("lost", Fault(0, lands=True)),
                ("502 once it was done", Fault(502, lands=True)),
            )
        )
        self.said[f"catalog: {name}"] += 1
        return fault


@dataclass
class Site:
    """All that is killed."""

    services: Services
    cluster: Cluster
    server: ConnectServer
    weather: Weather
    workers: int = 0

    def kill(self, process: subprocess.Popen[str], part: str) -> None:
        """Kill -9 a part of it; what is a server is there again a moment later."""
        services = self.services
        acts: dict[str, Callable[[], object]] = {
            "driver": process.kill,
            "executor": self._kill_an_executor,
            "worker": self._replace_a_worker,
            "server": lambda: _restarted(self.server.kill, self.server.start),
            "catalog": lambda: _restarted(services.catalog.kill, services.catalog.start),
            "store": lambda: _restarted(services.store.kill, services.store.start),
            "database": lambda: _restarted(services.postgres.kill, services.postgres.resume),
        }
        acts[part]()

    def _kill_an_executor(self) -> None:
        for pid in self.cluster.executors()[:1]:
            os.kill(pid, signal.SIGKILL)

    def _replace_a_worker(self) -> None:
        self.workers += 1
        number = self.workers % 2
        _restarted(lambda: self.cluster.kill_worker(number), lambda: self.cluster.start_worker(number))


def _restarted(kill: Callable[[], object], start: Callable[[], object]) -> None:
    kill()
    time.sleep(1.0)
    start()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        try:
            services = stack.enter_context(services_in(tmp_path_factory.mktemp("kills"), "kills"))
            proxy = stack.enter_context(misbehaving(services.store.endpoint))
            services = replace(services, endpoint=proxy.endpoint)
            server = stack.enter_context(services.connect_server("server"))
            master = stack.enter_context(cluster(services.folder / "cluster"))
        except MissingServerError as reason:
            pytest.skip(f"nothing is killed of a cluster with S3, a REST catalog and PostgreSQL: {reason}")
        weather = Weather(random.Random(SEED))
        proxy.answers, services.catalog.proxy.at_random = weather.of_store, weather.of_catalog
        yield Site(services, master, server, weather)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a JVM of the process's own computes, on local files."""
    folder = tmp_path_factory.mktemp("local")
    return core("whole", environment_of(folder / "local", SMALL), folder)


def test_whatever_is_killed_the_same_command_ends_as_if_nothing_had_been(site: Site, local: dict[str, Any]) -> None:
    chance, until = random.Random(SEED), time.monotonic() + SECONDS
    done: Counter[str] = Counter()
    published = attempts = 0
    environment: dict[str, str] = {}
    while done.total() < KILLS and time.monotonic() < until:
        if published % OF_ONE_INSTALLATION == 0:
            environment = site.services.environment(f"killed-{SEED}-{published}", {})
        on_cluster = (published + SEED) % 2 == 0
        run = f"killed-{SEED}-{published}"
        own = environment | {"ELSEWHERE_RUN": run, "BACKFILL_SPARK": _spark(site, on_cluster=on_cluster)}
        site.weather.on = False  # the tests' own calls are not what is tried
        core("another" if published % OF_ONE_INSTALLATION else "approved", own, site.services.folder)
        site.weather.on = True
        attempts += computed(site, own, run, done, chance)
        site.weather.on = False
        as_undisturbed(core("result", own, site.services.folder), run, local)
        published += 1
        print(
            f"{done.total()} kills, {published} published, {attempts} attempts, {sum(site.weather.said.values())} faults",
            flush=True,
        )
    print(f"{done.total()} kills ({dict(done)}), {attempts} attempts, faults {dict(site.weather.said)}")
    print(f"{published} publications: 0 lost, doubled or torn")
    assert done.total() > 0
    assert published > 0


def _spark(site: Site, *, on_cluster: bool) -> str:
    where = site.services.on_cluster(site.cluster.address) if on_cluster else {"spark.remote": site.server.address}
    return json.dumps(SMALL | {"spark.driver.extraClassPath": f"{site.services.jars}/*"} | where)


def computed(site: Site, own: Mapping[str, str], run: str, done: Counter[str], chance: random.Random) -> int:
    """Have a run computed and published, killing what its turn is of, until its command says that it is; return how often it took."""
    turns = ON_CLUSTER if "spark.master" in own["BACKFILL_SPARK"] else ON_SERVER
    most = min(KILLS, done.total() + OF_ONE_RUN)
    for attempt in range(1, ATTEMPTS + 1):
        process = start(own, site.services.folder, run)
        while done.total() < most and not _ended(process, chance.uniform(*PAUSE)):
            part = min(turns, key=lambda one: (done[one], turns.index(one)))
            site.kill(process, part)
            done[part] += 1
        said, errors = process.communicate(timeout=900)
        assert "Traceback" not in errors, errors[-3000:]
        if process.returncode == 0:
            return attempt
    raise AssertionError(f"{run} has not ended in {ATTEMPTS} attempts: {said[-2000:]} {errors[-2000:]}")


def _ended(process: subprocess.Popen[str], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def as_undisturbed(found: dict[str, Any], run: str, local: dict[str, Any]) -> None:
    """Hold what readers, ledger and evidence say of a run against one that nobody disturbed."""
    assert (found["state"], found["runs"], found["verified"]) == ("PUBLISHED", [run], []), found
    assert found["publications"].count("COMMITTED") == 1, found["publications"]
    assert found["snapshots"] == 1, found["snapshots"]
    assert found["digests"] == local["digests"]
    assert found["rows"] == local["rows"]


def start(environment: Mapping[str, str], folder: Path, run: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "backfill_assets.cli.command", "run", run, "--json"],
        env=dict(environment),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
