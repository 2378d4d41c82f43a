"""Servers that an installation keeps, without one: what they are started with, what of them lies in the home, who uses them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from backfill_assets.cli.spark import MODES
from manifests.errors import EnvironmentRefused, TransitionRefused
from manifests.model import Mode
from resources import processes
from resources.server_address import shown_address
from resources.settings import load_settings
from resources.spark import connected, kept_servers
from resources.spark.kept_servers import Condition, Kept, KeptServer
from resources.spark.sessions import ModeSpark

CODE = "backfill-assets=abc"


def known(kept: Kept, pid: int, fits: str = "hash") -> KeptServer:
    """A server on record whose process is one of some other purpose, and that listens nowhere."""
    kept.folder.mkdir(parents=True, exist_ok=True)
    found = KeptServer(kept.mode.value, pid, processes.name_of(pid), 1, "secret", fits, "local[2]", "2026-01-01")
    kept_servers.write_private(kept.folder / "server.json", json.dumps(asdict(found)))
    return found


def test_settings_of_java_are_escaped() -> None:
    said = kept_servers.properties(
        {"spark.a": r"C:\x", "spark.b": "one\ntwo", "spark.c=d": " led", "spark.e": "x=y #z"}
    )
    assert said.splitlines() == [r"spark.a=C:\\x", r"spark.b=one\ntwo", r"spark.c\=d=\ led", "spark.e=x=y #z"]


def test_a_server_has_no_credential_of_the_environment_it_is_started_from() -> None:
    environment = {
        "PATH": "/bin",
        "JAVA_HOME": "/java",
        "LC_ALL": "C.UTF-8",
        "BACKFILL_SINKS__X__TOKEN": "secret",
        "BACKFILL_LEDGER_URL": "postgresql://me:secret@host/db",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "PGPASSWORD": "secret",
    }
    assert kept_servers.passed_on(environment) == {"PATH": "/bin", "JAVA_HOME": "/java", "LC_ALL": "C.UTF-8"}


def test_a_private_file_is_its_owners_alone_whatever_was_there(tmp_path: Path) -> None:
    file = tmp_path / "server.json"
    file.write_text("open to all")
    file.chmod(0o644)
    kept_servers.write_private(file, "secret")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("secret", 0o600)
    assert [one.name for one in tmp_path.iterdir()] == ["server.json"]


def test_a_server_is_stopped_ended_or_silent(tmp_path: Path) -> None:
    kept = Kept(tmp_path, Mode.BACKFILL)
    assert kept.condition(kept.known()) is Condition.STOPPED
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = known(kept, process.pid)
        assert kept.known() == found
        assert kept.condition(found) is Condition.SILENT  # nothing listens there
        process.kill()
        process.wait()
    assert kept.condition(kept.known()) is Condition.ENDED
    (kept.folder / "server.json").write_text("{")
    assert kept.known() is None


def test_a_server_that_somebody_uses_is_not_ended_unless_by_force(tmp_path: Path) -> None:
    kept = Kept(tmp_path, Mode.BACKFILL)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        known(kept, process.pid)
        with kept.use():
            assert kept.is_used()
            with pytest.raises(
                TransitionRefused, match="a process computes on the Spark server of BACKFILL"
            ) as refused:
                kept.stop()
            assert "--force" in str(refused.value)
            assert process.poll() is None
            with pytest.raises(TransitionRefused, match="it does not answer"):
                kept.start({}, {})
        assert not kept.is_used()
        assert kept.stop() is Condition.SILENT
        assert process.wait(10) != 0
    assert kept.known() is None
    assert kept.stop() is Condition.STOPPED


def test_by_force_a_server_ends_that_somebody_uses(tmp_path: Path) -> None:
    kept = Kept(tmp_path, Mode.BACKFILL)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process, kept.use():
        known(kept, process.pid)
        assert kept.stop(force=True) is Condition.SILENT
        assert process.wait(10) != 0


def test_who_computes_elsewhere_is_seen_and_who_has_ended_is_not(tmp_path: Path) -> None:
    kept = Kept(tmp_path, Mode.REPLAY)
    script = (
        f"import sys\nfrom pathlib import Path\nfrom manifests.model import Mode\nfrom resources.spark.kept_servers import Kept\n"
        f"used = Kept(Path({str(tmp_path)!r}), Mode.REPLAY).use()\nprint('uses', flush=True)\ninput()\n"
    )
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "uses\n"
        assert kept.is_used()
        process.kill()
        process.wait()
    assert not kept.is_used()


def test_a_server_that_does_not_start_says_what_java_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    kept = Kept(tmp_path, Mode.BACKFILL)
    with pytest.raises(EnvironmentRefused, match=r"the Spark server of BACKFILL has ended: .*no-java") as refused:
        kept.start({"spark.master": "local[1]"}, {})
    assert str(kept.log) in str(refused.value)
    assert kept.known() is None
    assert stat.S_IMODE(kept.log.stat().st_mode) == 0o600


def test_a_kept_server_fits_by_settings_code_and_modules_wherever_a_command_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(home=tmp_path, spark={"spark.driver.memory": "1g"})

    def fits(mode: Mode = Mode.BACKFILL, code: str = CODE, *modules: str, **changes: dict[str, str]) -> str:
        sessions = ModeSpark(settings.model_copy(update=changes), modules, code=lambda: code)
        return kept_servers.fitting(*sessions.kept(mode)[1:])

    before = fits()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKFILL_SINKS__X__TOKEN", "secret")
    assert fits() == before
    assert len({before, fits(Mode.REPLAY), fits(Mode.BACKFILL, "other"), fits(Mode.BACKFILL, CODE, "ours")}) == 4
    assert fits(spark={"spark.driver.memory": "2g"}) != before


def test_a_kept_server_is_started_with_what_is_required_of_anybodys(tmp_path: Path) -> None:
    sessions = ModeSpark(load_settings(home=tmp_path), ("ours",), code=lambda: CODE)
    kept, settings, environment = sessions.kept(Mode.DRY_RUN)
    asked, surroundings = sessions.required(Mode.DRY_RUN, os.environ.get("PYSPARK_PYTHON", sys.executable))
    assert kept.folder == tmp_path / "spark" / "dry_run"
    assert settings | asked == settings
    assert environment | surroundings == environment
    assert (environment["TZ"], environment["PYTHONHASHSEED"], environment["BACKFILL_WORKER_CODE"]) == ("UTC", "0", CODE)
    assert settings["spark.driver.host"] == "127.0.0.1"


def test_a_server_says_what_it_was_started_for() -> None:
    wanted = connected.required(Mode.BACKFILL, CODE, "basic")
    right = wanted | {connected.PYTHON_KEY: "/venv/bin/python", connected.MODES_KEY: "BACKFILL,REPLAY"}
    wrong = connected._wrong_settings
    assert list(wrong(right, "sc://there", wanted)) == []
    for name in wanted:
        [problem] = wrong({one: value for one, value in right.items() if one != name}, "sc://there", wanted)
        assert f"{name} = nothing" in problem.what
        assert f"--conf {name}=" in problem.rule
    [problem] = wrong(right | {connected.CODE_KEY: "other"}, "sc://there", wanted)
    assert problem.rule.startswith(f"it was started with --conf {connected.CODE_KEY}={CODE}")
    assert connected.JDBC_KEY not in connected.required(Mode.LIVE, CODE, "basic")


def test_the_address_of_a_server_is_shown_without_its_token() -> None:
    address = "sc://spark.example.com:15002/;use_ssl=true;token=hunter2"
    assert shown_address(address) == "sc://spark.example.com:15002"
    settings = load_settings(spark={"spark.remote": address})
    assert settings.server_of(Mode.LIVE) == address
    assert "hunter2" not in json.dumps(settings.shown())
    elsewhere = load_settings(spark={"spark.remote": address}, spark_by_mode={"LIVE": {"spark.remote": ""}})
    assert (elsewhere.server_of(Mode.LIVE), elsewhere.server_of(Mode.REPLAY)) == ("", address)


def test_where_spark_is_changes_no_plan() -> None:
    without = load_settings(spark={"spark.sql.shuffle.partitions": "8"})
    remote = load_settings(
        spark={"spark.sql.shuffle.partitions": "8", "spark.remote": "sc://there"}, spark_server="always"
    )
    assert without.output_hash() == remote.output_hash()
    assert load_settings(spark={"spark.sql.shuffle.partitions": "9"}).output_hash() != without.output_hash()


def test_nothing_at_an_address_is_refused_with_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc_status", reason="the extra connect is not installed")
    with pytest.raises(EnvironmentRefused, match="the Spark server at sc://localhost:1 cannot be used"):
        connected.session_at("sc://localhost:1/;token=hunter2", retries=0, seconds=0.2)


def test_the_command_knows_every_mode() -> None:
    assert tuple(mode.value for mode in Mode) == MODES
