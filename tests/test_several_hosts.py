"""One installation on several hosts whose clocks are wrong: planned on one, computed on another, published from a third.

Ledger and Dagster's storage are in PostgreSQL, tables in S3 by a REST catalog, evidence in a folder that all hosts have. A host is a
namespace of its own (`real_servers.hosts`): it neither sees the others' processes nor has their clock.
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
AHEAD, JUMPING, BEHIND = "3600", "5400/7", "-3600"


@dataclass(frozen=True)
class Site:
    """The hosts of an installation, and the environment that a process of it has on each."""

    folder: Path
    library: Path
    environment: dict[str, str]

    def host(self, name: str, clock: str) -> Host:
        return Host(name, clock, self.library)

    def core(self, host: Host, action: str, run: str) -> dict[str, Any]:
        """Return what `elsewhere_core.py` finds on a host."""
        return found_by(
            host.run([sys.executable, CORE, action], self.environment | {"ELSEWHERE_RUN": run}, self.folder)
        )

    def backfill(self, host: Host, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the project on a host."""
        return host.run(
            [sys.executable, "-m", "backfill_assets.cli.command", *arguments], self.environment, self.folder
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("hosts")
    with ExitStack() as stack:
        try:
            library = clock_library(folder)
            services = stack.enter_context(services_in(folder, "hosts"))
        except MissingServerError as reason:
            pytest.skip(f"nothing is tested on several hosts: {reason}")
        yield Site(folder, library, services.environment("home", {}))


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
    command = [sys.executable, "-m", "backfill_assets.cli.command", "run", "together", "--json"]
    both = [
        subprocess.Popen(
            host.command(command),
            env=host.environment(site.environment),
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
