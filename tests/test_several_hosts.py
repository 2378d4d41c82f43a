"""One installation on several hosts whose clocks are wrong: planned on one, computed on another, published from a third.

Ledger and Dagster's storage are in PostgreSQL, tables in S3 by a REST catalog. Evidence is in a home folder that all hosts have, or in S3 as
well: then each host has a home of its own, and nothing of it is another's. A host is a namespace of its own (`real_servers.hosts`): it
neither sees the others' processes nor has their clock.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from elsewhere import CORE, SMALL, core, found_by, services_in
from real_servers.hosts import Host, clock_library
from real_servers.processes import MissingServerError
from real_servers.spark import environment_of

pytestmark = pytest.mark.servers
COMMAND = [sys.executable, "-m", "backfill_assets.cli.command"]
AHEAD, JUMPING, BEHIND = "3600", "5400/7", "-3600"


@dataclass(frozen=True)
class Site:
    """The hosts of an installation, and the environment that a process of it has on each.

    Where evidence `is_in_s3`, hosts have no folder in common.
    """

    folder: Path
    library: Path
    environment: dict[str, str]
    is_in_s3: bool

    def host(self, name: str, clock: str) -> Host:
        return Host(name, clock, self.library)

    def core(self, host: Host, action: str, run: str) -> dict[str, Any]:
        """Return what `elsewhere_core.py` finds on a host."""
        environment = self.environment_on(host, is_made=action != "approved")
        return found_by(host.run([sys.executable, CORE, action], environment | {"ELSEWHERE_RUN": run}, self.folder))

    def backfill(self, host: Host, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the project on a host."""
        return host.run([*COMMAND, *arguments], self.environment_on(host), self.folder)

    def environment_on(self, host: Host, *, is_made: bool = True) -> dict[str, str]:
        """Return the environment of a process on a host; a home of its own is made there first, unless the process makes it."""
        if not self.is_in_s3:
            return self.environment
        home = self.folder / f"of-{host.name}" / "home"
        environment = self.environment | {"BACKFILL_HOME": str(home)}
        if is_made and not home.exists():
            done = host.run([*COMMAND, "init"], environment, self.folder)
            assert done.returncode == 0, done.stderr
        return environment


@pytest.fixture(scope="module", params=["a home in common", "evidence in S3"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("hosts")
    with ExitStack() as stack:
        try:
            library = clock_library(folder)
            services = stack.enter_context(services_in(folder, "hosts"))
        except MissingServerError as reason:
            pytest.skip(f"nothing is tested on several hosts: {reason}")
        is_in_s3 = request.param == "evidence in S3"
        environment = services.environment("home", {})
        if is_in_s3:
            environment["BACKFILL_EVIDENCE"] = f"s3://{services.store.bucket('proofs')}/of/hosts"
        yield Site(folder, library, environment, is_in_s3)
        if is_in_s3:
            assert not (folder / "home").exists()
            assert [str(one) for one in folder.glob("of-*/home/evidence")] == []


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one host computes, on local files and by the right clock."""
    folder = tmp_path_factory.mktemp("one-host")
    return core("whole", environment_of(folder / "local", SMALL), folder)


def test_a_run_is_planned_on_one_host_computed_on_another_and_published_from_a_third(
    site: Site, local: dict[str, Any]
) -> None:
    """The first is an hour ahead, the clock of the second jumps by an hour and a half and back, the third is an hour behind."""
    first, second, third = site.host("ahead", AHEAD), site.host("jumping", JUMPING), site.host("behind", BEHIND)
    site.core(first, "approved", "travelled")
    staged = site.core(second, "staged", "travelled")
    assert (staged["state"], staged["host"]) == ("VALIDATED", "jumping"), staged["why"]
    done = site.backfill(third, "publish", "travelled", "--json")
    assert done.returncode == 0, done.stderr
    for host in (first, second, third):
        found = site.core(host, "result", "travelled")
        assert (found["state"], found["runs"], found["verified"]) == ("PUBLISHED", ["travelled"], []), host.name
        assert (found["digests"], found["rows"]) == (local["digests"], local["rows"])
    undone = site.backfill(first, "rollback", "travelled", "--by", "bob", "--reason", "as it was", "--json")
    assert undone.returncode == 0, undone.stderr
    assert site.core(third, "result", "travelled")["state"] == "ROLLED_BACK"


def test_two_hosts_that_compute_the_same_run_at_once_leave_what_one_does(site: Site, local: dict[str, Any]) -> None:
    """And a host that is gone for good (kill -9 of all that runs on it) holds up nobody for longer than its lease."""
    ahead, behind = site.host("ahead", AHEAD), site.host("behind", BEHIND)
    site.core(ahead, "another", "together")
    command = [*COMMAND, "run", "together", "--json"]
    both = [
        subprocess.Popen(
            host.command(command),
            env=host.environment(site.environment_on(host)),
            cwd=site.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host in (ahead, behind)
    ]
    time.sleep(12)
    both[0].kill()  # with the namespace, and so everything in it
    said = [one.communicate(timeout=600) for one in both]
    again = site.backfill(behind, "run", "together", "--json")
    assert "Traceback" not in said[1][1] + again.stderr, said[1][1][-2000:] + again.stderr[-2000:]
    found = site.core(ahead, "result", "together")
    assert (found["state"], found["runs"], found["verified"]) == ("PUBLISHED", ["together"], []), (
        said[1],
        again.stderr,
    )
    assert (found["digests"], found["rows"]) == (local["digests"], local["rows"])


def test_a_stop_is_ended_by_whoever_resumes_the_run_after_it_whatever_the_clocks_say(site: Site) -> None:
    right, behind = site.host("right", ""), site.host("behind", BEHIND)
    site.core(behind, "another", "stopped")
    assert site.backfill(right, "stop", "stopped", "--by", "olga").returncode == 0
    resumed = site.backfill(behind, "resume", "stopped", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert site.core(right, "result", "stopped")["state"] == "PUBLISHED"
