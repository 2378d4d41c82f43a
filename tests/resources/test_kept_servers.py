"""Servers that an installation keeps, without one: what they are started with, what of them lies in the home, who uses them."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from backfill_assets.cli.spark import MODES
from backfill_assets.cli.spark import spark as cli_of_spark
from manifests.errors import EnvironmentRefused, TransitionRefused
from manifests.model import Mode
from manifests.server_address import shown_address
from resources import processes
from resources.settings import load_settings
from resources.spark import connected, kept_servers, server_files
from resources.spark.kept_servers import Condition, Kept
from resources.spark.server_files import KeptServer
from resources.spark.sessions import ModeSpark

CODE = "backfill-assets=abc"


def known(kept: Kept, pid: int, fits: str = "hash") -> KeptServer:
    """A server on record whose process is one of some other purpose, and that listens nowhere."""
    kept.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = KeptServer(
        kept.mode.value, str(kept.home), processes.name_of(pid), 1, "secret", fits, "local[2]", "2026-01-01"
    )
    server_files.put_on_record(kept.folder / "server.json", found)
    return found


@contextmanager
def living() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing, and is no server."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_settings_of_java_are_escaped() -> None:
    said = server_files.properties(
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
    server_files.write_private(file, "secret")
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
            assert "`backfill stop RUN --by NAME`" in str(refused.value)
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
        spark = ModeSpark(settings.model_copy(update=changes), modules, code=lambda: code)
        return kept_servers.fitting(*spark.kept(mode))

    before = fits()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKFILL_SINKS__X__TOKEN", "secret")
    assert fits() == before
    assert len({before, fits(Mode.REPLAY), fits(Mode.BACKFILL, "other"), fits(Mode.BACKFILL, CODE, "ours")}) == 4
    assert fits(spark={"spark.driver.memory": "2g"}) != before


def test_a_kept_server_is_started_with_what_is_required_of_anybodys(tmp_path: Path) -> None:
    spark = ModeSpark(load_settings(home=tmp_path), ("ours",), code=lambda: CODE)
    kept, settings, environment = spark.kept(Mode.DRY_RUN)
    asked, surroundings = spark.required(Mode.DRY_RUN, os.environ.get("PYSPARK_PYTHON", sys.executable))
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


# --- keys of S3 -------------------------------------------------------------------------------------------------------

IN_S3 = {
    "warehouse": "s3://lake/warehouse",
    "s3.endpoint": "https://s3.example.com",
    "s3.access-key-id": "mine",
    "s3.secret-access-key": "hunter2",
}


def in_s3(home: Path, **changes: str) -> ModeSpark:
    catalog = {name: value for name, value in (IN_S3 | changes).items() if value}
    return ModeSpark(load_settings(home=home, catalog=catalog, spark_server="if_running"), code=lambda: CODE)


def test_a_kept_server_that_opened_s3_by_other_keys_is_used_no_more(tmp_path: Path) -> None:
    found = {
        kept_servers.fitting(*in_s3(tmp_path, **changes).kept(Mode.BACKFILL))
        for changes in ({}, {"s3.secret-access-key": "rotated"}, {"s3.endpoint": "https://elsewhere.example.com"})
    }
    assert len(found) == 3
    _, settings, environment = in_s3(tmp_path).kept(Mode.BACKFILL)
    assert "hunter2" not in json.dumps([settings, environment])


def test_a_server_of_somebody_else_says_by_which_settings_it_opens_s3(tmp_path: Path) -> None:
    mine, asked = in_s3(tmp_path).required(Mode.BACKFILL, "/venv/bin/python")[0], connected.STORE_KEY
    theirs = in_s3(tmp_path, **{"s3.access-key-id": "theirs"}).required(Mode.BACKFILL, "/venv/bin/python")[0]
    [problem] = connected._wrong_settings(theirs, "sc://there", mine)
    assert problem.what == f"the Spark server at sc://there has {asked} = {theirs[asked]}"
    assert mine[asked] in problem.rule
    [problem] = connected._wrong_settings({name: mine[name] for name in mine if name != asked}, "sc://there", mine)
    assert f"{asked} = nothing" in problem.what
    assert "hunter2" not in json.dumps(mine)
    local = ModeSpark(load_settings(home=tmp_path), code=lambda: CODE).required(Mode.BACKFILL, "/venv/bin/python")[0]
    assert asked not in local
    assert list(connected._wrong_settings(mine, "sc://there", local)) == []


def test_keys_of_the_machine_reach_no_kept_server_which_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyless = in_s3(tmp_path, **{"s3.access-key-id": "", "s3.secret-access-key": ""})
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    keyless.kept(Mode.BACKFILL)  # the keys of the machine's role, if any
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    in_s3(tmp_path).kept(Mode.BACKFILL)
    ModeSpark(load_settings(home=tmp_path), code=lambda: CODE).kept(Mode.BACKFILL)
    with pytest.raises(EnvironmentRefused, match="AWS_ACCESS_KEY_ID") as refused:
        keyless.kept(Mode.BACKFILL)
    assert "s3.access-key-id" in str(refused.value)


# --- what lies in the home --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        *({"port": "x"}, {"port": None}, {"port": 99999}, {"port": 0}, {"port": True}),
        *(
            {"process": None},
            {"process": 7},
            {"process": "host"},
            {"process": "a/b/c/d/-1/5"},
            {"process": "a/b/c/d/0/5"},
        ),
        *({"token": None}, {"fits": []}, {"master": 1}, {"mode": "LIVE"}, {"home": "/another"}, {"more": "1"}),
    ],
)
def test_a_record_that_no_server_has_written_is_none(tmp_path: Path, wrong: dict[str, object]) -> None:
    kept = Kept(tmp_path, Mode.BACKFILL)
    with living() as process:
        known(kept, process.pid)
        file = kept.folder / "server.json"
        said = json.loads(file.read_text())
        assert (kept.known() is not None, said["pid"]) == (True, process.pid)
        server_files.write_private(file, json.dumps(said | wrong))
        assert kept.known() is None
        assert kept.stop() is Condition.STOPPED
        assert process.poll() is None


def test_the_process_of_a_server_is_the_one_whose_life_is_asked_for(tmp_path: Path) -> None:
    kept = Kept(tmp_path, Mode.BACKFILL)
    with living() as server, living() as other:
        known(kept, server.pid)
        said = json.loads((kept.folder / "server.json").read_text())
        server_files.write_private(kept.folder / "server.json", json.dumps(said | {"pid": other.pid}))
        kept.stop()
        assert other.poll() is None


@pytest.mark.parametrize(("name", "bits"), [("", 0o777), ("", 0o770), ("server.json", 0o666)])
def test_a_record_that_others_could_have_written_is_refused(tmp_path: Path, name: str, bits: int) -> None:
    kept = Kept(tmp_path, Mode.BACKFILL)
    with living() as process:
        known(kept, process.pid)
        (kept.folder / name).chmod(bits)
        with pytest.raises(EnvironmentRefused, match="others can write") as refused:
            kept.known()
        assert "chmod go-w" in str(refused.value)
        with pytest.raises(EnvironmentRefused, match="others can write"):
            kept.stop(force=True)
        assert process.poll() is None
        (kept.folder / name).chmod(bits & ~0o022)
        assert kept.known() is not None


def test_a_folder_of_another_user_is_refused_and_one_that_nobody_lets_in_has_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path, Mode.BACKFILL)
    with living() as process:
        known(kept, process.pid)
        with monkeypatch.context() as another:
            another.setattr(os, "geteuid", lambda: 4711)
            with pytest.raises(EnvironmentRefused, match="is another user's"):
                kept.known()

        def refuse(*_: object, **__: object) -> str:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "read_text", refuse)
        assert kept.known() is None


def test_a_home_that_may_not_be_written_has_a_jvm_of_the_process_if_no_server_is_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(connected, "_first", [])
    monkeypatch.setattr(Path, "mkdir", refuse)
    with caplog.at_level(logging.INFO):
        assert of_server(tmp_path, "if_running")._on_server(Mode.BACKFILL) is None
    assert "is not used: the folder" in caplog.text
    with pytest.raises(EnvironmentRefused, match=r"the folder .*spark.backfill cannot be used: Permission denied"):
        of_server(tmp_path, "always")._on_server(Mode.BACKFILL)


def test_a_copied_home_has_none_of_the_servers_of_the_original(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "home", Mode.BACKFILL)
    (tmp_path / "home").mkdir()
    with living() as process:
        known(kept, process.pid)
        (tmp_path / "link").symlink_to(tmp_path / "home")
        assert Kept(tmp_path / "link", Mode.BACKFILL).known() == kept.known()
        shutil.copytree(tmp_path / "home", tmp_path / "copy")
        copy = Kept(tmp_path / "copy", Mode.BACKFILL)
        assert copy.known() is None
        assert copy.stop(force=True) is Condition.STOPPED
        assert process.poll() is None
    assert kept_servers.fitting(kept, {}, {}) != kept_servers.fitting(copy, {}, {})


# --- who uses it ------------------------------------------------------------------------------------------------------


def test_two_who_look_do_not_take_each_other_for_somebody_who_computes(tmp_path: Path) -> None:
    kept, seen = Kept(tmp_path, Mode.BACKFILL), []
    kept.use().close()

    def look() -> None:
        seen.extend(kept.is_used() for _ in range(2000))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(seen)


def test_nobody_begins_to_use_a_server_that_is_being_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, order = Kept(tmp_path, Mode.BACKFILL), []
    kept.use().close()
    with living() as process:
        known(kept, process.pid)
        end = kept._end

        def begin() -> None:
            with kept.use():
                order.append("used")

        user = threading.Thread(target=begin)

        def ended(found: KeptServer) -> None:
            user.start()
            user.join(0.5)
            end(found)
            order.append("ended")

        monkeypatch.setattr(kept, "_end", ended)
        kept.stop()
        user.join(10)
    assert order == ["ended", "used"]


def of_server(home: Path, spark_server: str, **settings: Any) -> ModeSpark:
    return ModeSpark(load_settings(home=home, spark_server=spark_server, **settings), code=lambda: CODE)


class Lost(Exception):  # noqa: N818 - stands for what gRPC raises
    """How the client of a server says that nobody answers."""

    def getGrpcStatusCode(self) -> Any:  # noqa: N802 - PySpark's name
        import grpc

        return grpc.StatusCode.UNAVAILABLE


class Gone:
    """A session whose server does not answer any more."""

    conf: Any = None

    def __init__(self) -> None:
        self.conf = self

    def get(self, *_: object) -> str:
        raise Lost("UNAVAILABLE: it hangs")


def test_who_has_lost_its_session_is_no_user_any_more_and_says_that_the_server_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("grpc", reason="the extra connect is not installed")
    monkeypatch.setattr(connected, "_first", [True])
    kept = Kept(tmp_path, Mode.BACKFILL)
    kept_servers.computes_on(kept, kept.use())
    assert kept.is_used()
    spark = of_server(tmp_path, "if_running")
    spark._sessions[Mode.BACKFILL] = cast("SparkSession", Gone())
    with pytest.raises(EnvironmentRefused, match="the Spark server has gone: UNAVAILABLE: it hangs") as refused:
        spark.session(Mode.BACKFILL)
    assert "a process of its own" not in str(refused.value)
    assert not kept.is_used()
    with pytest.raises(EnvironmentRefused, match="the Spark server has gone"):
        spark.session(Mode.BACKFILL)  # by whatever it is asked again


# --- what it is started with ------------------------------------------------------------------------------------------


def test_a_server_fits_the_code_that_its_environment_leads_to_and_no_folder_or_language_of_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(0o755)

    def fits() -> str:
        return kept_servers.fitting(*of_server(tmp_path, "always").kept(Mode.BACKFILL))

    for name in ("PYTHONPATH", "JAVA_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    before = fits()
    for name in ("TMPDIR", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_ALL"):
        with monkeypatch.context() as other:
            other.setenv(name, str(tmp_path))
            other.setattr("tempfile.tempdir", None)
            assert fits() == before, name
    for name in ("PYTHONPATH", "JAVA_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR"):
        with monkeypatch.context() as other:
            other.setenv(name, str(tmp_path))
            assert fits() != before, name
    with monkeypatch.context() as other:
        other.setenv("PATH", f"/nowhere:{os.environ['PATH']}")
        assert fits() == before
        other.setenv("PATH", f"{java.parent}:{os.environ['PATH']}")
        assert fits() != before
    with monkeypatch.context() as other:
        other.setattr(kept_servers, "_installed", lambda: ["pandas==0.1"])
        assert fits() != before


def test_python_is_one_by_whichever_of_its_names_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(sys.executable).parent
    found = set()
    for python in ("python", "python3", str(folder / "python"), str(folder / "python3")):
        monkeypatch.setenv("PYSPARK_PYTHON", python)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        found.add(kept_servers.fitting(*of_server(tmp_path, "always").kept(Mode.BACKFILL)))
    assert len(found) == 1
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))  # another environment, of the same interpreter
    assert kept_servers.fitting(*of_server(tmp_path, "always").kept(Mode.BACKFILL)) not in found


def test_without_the_packages_of_a_client_no_server_is_looked_at_or_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connected, "_first", [])
    monkeypatch.setitem(sys.modules, "grpc", None)
    kept = Kept(tmp_path, Mode.BACKFILL)
    with living() as process:
        found = known(kept, process.pid)
        for refused in (lambda: kept.condition(found), lambda: kept.start({}, {})):
            with pytest.raises(EnvironmentRefused, match=r"needs a package that is missing: .*grpc") as missing:
                refused()
            assert "backfill-assets[connect]" in str(missing.value)
        with pytest.raises(EnvironmentRefused, match="needs a package that is missing"):
            of_server(tmp_path, "always")._on_server(Mode.BACKFILL)
        with caplog.at_level(logging.INFO):
            assert of_server(tmp_path, "if_running")._on_server(Mode.BACKFILL) is None
        assert "needs a package that is missing" in caplog.text
        assert (process.poll(), kept.known()) == (None, found)
        kept.stop()  # who wants it to end needs no client
        assert process.wait(10) != 0


def test_the_log_of_the_server_before_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    kept = Kept(tmp_path, Mode.BACKFILL)
    for said in ("why it died", "why the next one did"):
        kept.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept.log.write_text(said)
        with pytest.raises(EnvironmentRefused, match="no-java"):
            kept.start({"spark.master": "local[1]"}, {})
        assert kept.log.with_name("log.before").read_text() == said


def test_what_listens_at_the_port_of_a_server_and_is_another_process_gets_no_token(tmp_path: Path) -> None:
    kept, served = Kept(tmp_path, Mode.BACKFILL), []
    with socket.socket() as other, living() as process:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert server_files.is_listening(os.getpid(), port)
        assert not server_files.is_listening(process.pid, port)
        found = replace(known(kept, process.pid), port=port)

        def serve() -> None:
            other.settimeout(5)
            try:
                while True:
                    served.append(other.accept()[0].recv(1))
            except (TimeoutError, OSError):
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        assert kept.condition(found, 1.0) is Condition.SILENT
        thread.join()
    assert b"P" not in served  # how a client of gRPC begins


def test_no_server_is_kept_for_runs_that_compute_on_one_of_somebody_else(tmp_path: Path) -> None:
    spark = of_server(
        tmp_path, "always", spark_by_mode={"BACKFILL": {"spark.remote": "sc://there:15002/;token=hunter2"}}
    )
    with pytest.raises(
        EnvironmentRefused, match=r"runs of BACKFILL compute on the server that `spark\.remote` names"
    ) as refused:
        spark.kept(Mode.BACKFILL)
    assert "hunter2" not in str(refused.value)
    spark.kept(Mode.REPLAY)


@pytest.mark.parametrize(
    ("master", "asked", "why"), [("local[2]", 1, "RuntimeError: no room"), ("spark://there:7077", 0, "a cluster's")]
)
def test_a_server_that_could_compute_nothing_yet_was_started_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, asked: int, why: str
) -> None:
    kept, tried = Kept(tmp_path, Mode.BACKFILL), []

    def warmed(address: str, _: Path) -> None:
        tried.append(address)
        raise RuntimeError("no room")

    with living() as process:
        found = known(kept, process.pid)
        platform = SimpleNamespace(spark=SimpleNamespace(kept=lambda _: (kept, {"spark.master": master}, {})))
        monkeypatch.setattr("backfill_assets.cli.spark.opened_platform", lambda: nullcontext(platform))
        monkeypatch.setattr("resources.spark.warming.warmed", warmed)
        monkeypatch.setattr(kept, "start", lambda *_: (found, True))
        done = CliRunner().invoke(cli_of_spark, ["start", "--json"])
    assert (done.exit_code, tried) == (0, [found.address] * asked), done.output
    assert why in done.stderr
    assert [one["started"] for one in json.loads(done.stdout)] == [True]
