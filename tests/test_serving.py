"""What `backfill ui` does with the processes that come to it, and what its forms start with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from backfill_assets.defs.decision_jobs import DECISION_JOBS

ADOPTING = """
import ctypes, os, subprocess, sys, time
from backfill_assets.ui.orphans import Adopted, processes
ctypes.CDLL(None).prctl(36, 1)  # orphans come to this process
own = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
between = "import os, sys, time; os.posix_spawnp('sleep', ['sleep', sys.argv[1]], os.environ); time.sleep(float(sys.argv[2]))"
adopted, zombies, until = Adopted(), set(), time.monotonic() + 20
child = subprocess.Popen([sys.executable, "-c", between, "2", "1"])
brief = subprocess.Popen([sys.executable, "-c", between, "0", "0"])  # what it starts is never seen alive
brief.wait()
buried = []
while len(buried) < 2 and time.monotonic() < until:
    time.sleep(0.1)
    child.poll()
    buried += adopted.bury()
left = [pid for pid, (state, parent) in processes().items() if state == "Z" and parent == os.getpid()]
print(len(buried), left == [own.pid], own.wait(), child.wait())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans come to a process that asks for them on Linux only")
def test_a_jvm_whose_run_is_over_is_buried_and_no_child_of_ones_own() -> None:
    root = Path(__file__).resolve().parent.parent
    said = subprocess.run([sys.executable, "-c", ADOPTING], cwd=root, capture_output=True, text=True, check=False)
    assert said.stdout.split() == ["2", "True", "7", "0"], said.stderr[-2000:]


WORKING = """
import signal, subprocess, sys, time
java, log = sys.argv[1:]
def end(*_):
    time.sleep(1)
    open(log, "a").write("lives" if jvm.poll() is None else "is gone")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
jvm = subprocess.Popen([java, "60"])
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""
ENDING = """
import os, subprocess, sys
from backfill_assets.ui import orphans
with orphans.ends_what_it_started():
    child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdout=subprocess.PIPE)
    child.stdout.readline()
print(orphans.descendants(os.getpid()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_process_that_is_told_to_end_has_its_jvm_until_it_has_ended(tmp_path: Path) -> None:
    root, java, log = Path(__file__).resolve().parent.parent, tmp_path / "java", tmp_path / "log"
    shutil.copy("/bin/sleep", java)
    command = [sys.executable, "-c", ENDING, WORKING, str(java), str(log)]
    said = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=60)
    assert (said.stdout.strip(), said.stderr) == ("set()", "")
    assert log.read_text() == "lives"


@pytest.mark.parametrize("job", DECISION_JOBS, ids=lambda job: job.name)
def test_the_form_of_a_decision_is_complete_and_says_what_to_fill_in(job: dg.JobDefinition) -> None:
    config = job.run_config
    assert config is not None
    (asked,) = [one["config"] for one in config["ops"].values()]
    assert next(iter(asked)) == "run_id"
    assert asked["run_id"].startswith("FILL IN")
    assert "break_glass" not in asked
    assert dg.validate_run_config(job, config)
