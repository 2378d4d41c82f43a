"""Spark writes local files without starting a program for each, with the permissions that Hadoop's own code gives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resources.spark import local_files

CHUNKS = 5
WRITES = """
import json, os, stat, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from manifests.model import Mode
from resources.settings import load_settings
from resources.spark import local_files
from resources.spark.sessions import ModeSpark

os.umask(0o022)
settings = load_settings(home=Path(sys.argv[1]))
warehouse = settings.catalog["warehouse"]
folder = Path(warehouse.removeprefix("file://"))
folder.mkdir(parents=True)
folder.chmod(0o2755)  # as it is where a group shares it
with ThreadPoolExecutor(3) as pool:
    all_of = list(pool.map(lambda one: (one.session(Mode.BACKFILL), one)[1], [ModeSpark(settings) for _ in range(3)]))
spark = all_of[0]
session, log = spark.session(Mode.BACKFILL), Path(os.environ["PROGRAMS"])
found = {"own": [one.session(Mode.BACKFILL).conf.get(local_files.OF_VIEW) for one in all_of]}
with spark.settings_kept(Mode.BACKFILL):
    for name in (local_files.BY_CALLS, local_files.BY_PROGRAMS):
        session.conf.set(local_files.OF_VIEW, name)
        log.write_text("")
        session.range(50).selectExpr(f"id % CHUNKS chunk", "id").write.partitionBy("chunk").parquet(f"{warehouse}/{name}")
        below = sorted((folder / name).rglob("*"))
        modes = sorted({(one.is_dir(), stat.filemode(one.stat().st_mode)) for one in below})
        found[name] = {"modes": modes, "rows": session.read.parquet(f"{warehouse}/{name}").count(), "programs": len(log.read_text().split())}
found["after"] = session.conf.get(local_files.OF_VIEW)
print(json.dumps(found))
""".replace("CHUNKS", str(CHUNKS))


def test_files_get_their_permissions_without_a_program(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    own = programs / "chmod"
    own.write_text('#!/bin/sh\necho chmod >> "$PROGRAMS"\nexec /bin/chmod "$@"\n')
    own.chmod(0o755)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "PROGRAMS": str(tmp_path / "log")}
    said = subprocess.run(
        [sys.executable, "-c", WRITES, str(tmp_path / "home")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert said.returncode == 0, said.stderr[-3000:]
    found = json.loads(said.stdout.splitlines()[-1])
    ours, theirs = found[local_files.BY_CALLS], found[local_files.BY_PROGRAMS]
    assert found["own"] == [local_files.BY_CALLS] * 3  # three threads have opened sessions of one JVM at once
    assert found["after"] == local_files.BY_CALLS
    assert (ours["rows"], ours["programs"]) == (50, 0)
    assert theirs["rows"] == 50
    assert theirs["programs"] >= 2 * CHUNKS  # or nothing is told: Hadoop has another way by now
    assert ours["modes"] == theirs["modes"] == [[False, "-rw-r--r--"], [True, "drwxr-sr-x"]]


def test_where_the_jvm_does_not_take_the_class_hadoops_own_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("resources.spark.pyspark_private.has_class", lambda *_: False)
    monkeypatch.setattr("resources.spark.pyspark_private.define_class", lambda *_, **__: "it is of another make")
    wanted = {local_files.OF_VIEW: local_files.BY_PROGRAMS}
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
    assert local_files.without_programs(session, wanted) == wanted
    assert "it is of another make" in caplog.text


@pytest.mark.parametrize("master", ["spark://somewhere:7077", "local-cluster[2,1,1024]", "yarn"])
def test_where_executors_are_elsewhere_hadoops_own_stays(master: str) -> None:
    wanted = {"spark.master": "local[2]", local_files.OF_VIEW: local_files.BY_PROGRAMS}
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    assert local_files.without_programs(session, wanted) == wanted
