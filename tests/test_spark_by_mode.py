"""What Spark's sessions of each mode may reach, held through the resources that Dagster hands to a step.

One process of its own, whose environment holds a sink's credential: a JVM keeps what it was started with.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import a_manifest
from worlds import SPARK

from backfill_assets.declarations.finding import find_products
from backfill_assets.defs.spark_by_mode import resource_key, spark_resources
from manifests.errors import EnvironmentRefused
from manifests.model import Mode
from resources.settings import load_settings
from resources.sinks.policy import judge
from resources.spark.mode_settings import JAVA_OPTIONS, JDBC_PROVIDERS, session_settings, working_folder
from resources.spark.one_mode import SparkOfOneMode

SINKS = find_products(None).sinks
SECRET = "https://hooks.example.org/T0/B0/secret"
SCRIPT = """
import json, os, sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import backfill_assets as ba
from backfill_assets.defs.spark_by_mode import spark_resources
from backfill_assets.installation import Platform
from backfill_assets.products.enforcement import PRODUCT
from manifests.errors import EnvironmentRefused
from manifests.model import Mode
from pyspark.sql import SparkSession
from resources.settings import load_settings

settings = load_settings()
warehouse = Path(settings.catalog["warehouse"].removeprefix("file://"))
warehouse.mkdir(parents=True)
outside = settings.home.parent / f"outside-{settings.home.name}"
(outside / "there").mkdir(parents=True)
(outside / "there" / "rows.csv").write_text("a\\n1\\n")
spark = spark_resources({})["spark"]
index = ba.Sink("meter_index", ba.SinkClass.SEARCH_INDEX, "search", ("team:a",), "json:dumps", isolated=True, settings=("token",))
product = replace(PRODUCT, sinks=(*PRODUCT.sinks, index))
found = {}


def of_sinks(environment):
    return sorted(one for one in environment if one.startswith("BACKFILL_SINKS"))


def other(mode):
    return Mode.LIVE if mode is not Mode.LIVE else Mode.BACKFILL


def tried(act):
    try:
        done = act()
    except Exception as error:
        return f"refused: {type(error).__name__}: {str(error)[:500]}"
    return done


for mode in map(Mode, sys.argv[1:]):
    platform = spark.confine(Platform.of(settings, [product]), mode)
    session = platform.spark.session(mode)
    frame = session.range(3)
    url = "jdbc:derby:memory:books;create=true"
    jdbc = lambda name: {"url": url, "dbtable": name, "driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}
    name = mode.value.lower()
    found[mode.value] = {
        "jdbc write": tried(lambda: frame.write.format("jdbc").options(**jdbc(name)).mode("overwrite").save()),
        "jdbc read": tried(lambda: session.read.format("jdbc").options(**jdbc("live" if name == "live" else "x")).load().count()),
        "read inside": tried(lambda: (frame.write.mode("overwrite").parquet(f"file://{warehouse}/{name}"),
                                      session.read.parquet(f"file://{warehouse}/{name}").count())[1]),
        "read outside": tried(lambda: session.read.csv(f"file://{outside}/there", header=True).count()),
        "write outside": tried(lambda: frame.write.parquet(f"file://{outside}/{name}")),
        "write outside by builder": tried(lambda: SparkSession.builder.getOrCreate().range(3).write.parquet(f"file://{outside}/{name}-b")),
        "own catalog": tried(lambda: frame.write.saveAsTable(f"own_{name}")),
        "beside the process": os.path.exists("spark-warehouse"),
        "builder": SparkSession.builder.getOrCreate().conf.get("spark.backfill.mode"),
        "other mode": tried(lambda: str(platform.spark.session(other(mode)))),
        "other kind": tried(lambda: str(Platform.of(settings, [product]).spark.session(other(mode)))),
        "jvm": dict(session.sparkContext._gateway.jvm.java.lang.System.getenv()).get("BACKFILL_NOTIFICATION_WEBHOOK"),
        "worker": session.sparkContext.parallelize([0], 1).map(
            lambda _: os.environ.get("BACKFILL_NOTIFICATION_WEBHOOK")).collect()[0],
        "process": os.environ.get("BACKFILL_NOTIFICATION_WEBHOOK"),
        "sinks of jvm": of_sinks(dict(session.sparkContext._gateway.jvm.java.lang.System.getenv())),
        "sinks of worker": session.sparkContext.parallelize([0], 1).map(
            lambda _: sorted(one for one in os.environ if one.startswith("BACKFILL_SINKS"))).collect()[0],
        "sinks of process": of_sinks(os.environ),
        "searches its folder": [
            os.getcwd() in [os.path.abspath(entry) for entry in sys.path],
            session.sparkContext.parallelize([0], 1).map(
                lambda _: os.getcwd() in [os.path.abspath(entry) for entry in sys.path]).collect()[0]],
        "setting": str({k: v for k, v in session.sparkContext.getConf().getAll() if "secret" in v}),
        "mode": session.conf.get("spark.backfill.mode"),
    }
    found[mode.value]["written"] = sorted(one.name for one in outside.iterdir())
print("FOUND " + json.dumps(found))
"""
INDEX, OTHERS = (
    "BACKFILL_SINKS__METER_INDEX__TOKEN",
    ["BACKFILL_SINKS__BREACH_NOTIFICATIONS__URL", "BACKFILL_SINKS__NOBODYS__TOKEN"],
)
OF_SINKS = sorted([INDEX, *OTHERS])
CONFINED = [Mode.BACKFILL, Mode.REPLAY, Mode.DRY_RUN, Mode.RECONCILIATION]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    home = tmp_path_factory.mktemp("modes") / "home"
    environment = os.environ | {
        "BACKFILL_HOME": str(home),
        "BACKFILL_SPARK": json.dumps(SPARK),
        "BACKFILL_SPARK_BY_MODE": json.dumps({"LIVE": {"spark.sql.sources.disabledJdbcConnProviderList": ""}}),
        "BACKFILL_NOTIFICATION_WEBHOOK": SECRET,
        **dict.fromkeys(OF_SINKS, SECRET),
    }
    return asked(environment, CONFINED) | asked(environment | {"BACKFILL_HOME": f"{home}-live"}, [Mode.LIVE], "-P")


def asked(environment: dict[str, str], modes: list[Mode], *flags: str) -> dict[str, dict[str, Any]]:
    """Return what sessions of modes say in a process of their own."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", SCRIPT, *modes],
        env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=Path(environment["BACKFILL_HOME"]).parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    answer: dict[str, dict[str, Any]] = json.loads(line.removeprefix("FOUND "))
    return answer


@pytest.mark.parametrize("mode", CONFINED)
def test_no_mode_but_live_reaches_jdbc(found: dict[str, dict[str, Any]], mode: Mode) -> None:
    for act in ("jdbc write", "jdbc read"):
        assert "Empty list of JDBC connection providers" in str(found[mode][act]), found[mode][act]


@pytest.mark.parametrize("mode", CONFINED)
def test_no_mode_but_live_reaches_a_path_outside_the_warehouse(found: dict[str, dict[str, Any]], mode: Mode) -> None:
    for act in ("read outside", "write outside", "write outside by builder"):
        assert str(found[mode][act]).startswith("refused: "), found[mode][act]
    assert found[mode]["written"] == ["there"]


@pytest.mark.parametrize("mode", CONFINED)
def test_no_mode_but_live_reaches_a_table_of_sparks_own_catalog(found: dict[str, dict[str, Any]], mode: Mode) -> None:
    assert str(found[mode]["own catalog"]).startswith("refused: "), found[mode]["own catalog"]


@pytest.mark.parametrize("mode", Mode)
def test_no_mode_makes_a_folder_where_the_process_runs(found: dict[str, dict[str, Any]], mode: Mode) -> None:
    assert found[mode]["beside the process"] is False


@pytest.mark.parametrize("mode", CONFINED)
def test_no_mode_but_live_has_the_credential_of_a_sink(found: dict[str, dict[str, Any]], mode: Mode) -> None:
    said = found[mode]
    assert (said["jvm"], said["worker"], said["process"], said["setting"]) == (None, None, None, "{}")


def test_a_process_of_another_mode_keeps_what_a_sink_needs_that_the_mode_may_use_and_spark_gets_none(
    found: dict[str, dict[str, Any]],
) -> None:
    """DRY_RUN, which comes after them in the same process, may use none: what is left then is taken out for good."""
    for mode in CONFINED:
        assert (found[mode]["sinks of jvm"], found[mode]["sinks of worker"]) == ([], []), mode
    kept = {mode: found[mode]["sinks of process"] for mode in CONFINED}
    none: list[str] = []
    assert kept == {Mode.BACKFILL: [INDEX], Mode.REPLAY: [INDEX], Mode.DRY_RUN: none, Mode.RECONCILIATION: none}
    assert found[Mode.LIVE]["sinks of process"] == found[Mode.LIVE]["sinks of jvm"] == OF_SINKS


@pytest.mark.parametrize("mode", [*CONFINED, Mode.LIVE])
def test_a_step_of_one_mode_gets_no_session_of_another(found: dict[str, dict[str, Any]], mode: Mode) -> None:
    assert found[mode]["mode"] == found[mode]["builder"] == mode.value
    assert "refused: EnvironmentRefused" in found[mode]["other mode"]
    assert "no other mode computes in its process" in found[mode]["other kind"]


@pytest.mark.parametrize("mode", [Mode.BACKFILL, Mode.REPLAY, Mode.DRY_RUN, Mode.LIVE])
def test_staging_below_the_warehouse_is_written_and_read(found: dict[str, dict[str, Any]], mode: Mode) -> None:
    assert found[mode]["read inside"] == 3


def test_reconciliation_writes_no_file(found: dict[str, dict[str, Any]]) -> None:
    assert str(found[Mode.RECONCILIATION]["read inside"]).startswith("refused: ")


def test_live_reaches_what_the_others_do_not(found: dict[str, dict[str, Any]]) -> None:
    """Else the refusals above would prove nothing."""
    said = found[Mode.LIVE]
    assert (said["jdbc write"], said["jdbc read"], said["read outside"], said["write outside"]) == (None, 3, 1, None)
    assert said["written"] == ["live", "live-b", "there"]
    assert said["worker"] == SECRET


def test_live_has_no_jdbc_unless_an_installation_says_so() -> None:
    by_mode = {Mode.LIVE: {"spark.sql.sources.disabledJdbcConnProviderList": ""}}
    for settings, denied in ((load_settings(), JDBC_PROVIDERS), (load_settings(spark_by_mode=by_mode), "")):
        assert session_settings(settings, Mode.LIVE)["spark.sql.sources.disabledJdbcConnProviderList"] == denied
    everywhere = load_settings(spark_by_mode=dict.fromkeys(Mode, by_mode[Mode.LIVE]))
    for mode in CONFINED:
        assert session_settings(everywhere, mode)["spark.sql.sources.disabledJdbcConnProviderList"] == JDBC_PROVIDERS


@pytest.mark.parametrize("own", ["", "-XX:Tier4InvocationThreshold=7777", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"])
def test_a_jvm_takes_the_options_that_it_is_started_with_and_those_of_an_installation_after_them(own: str) -> None:
    ours = session_settings(load_settings(spark={}), Mode.BACKFILL)[JAVA_OPTIONS]
    asked = ["java", *shlex.split(f"{ours} {own}"), "-XX:+PrintFlagsFinal", "-version"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True)
    flags = {words[1]: words[3] for line in said.stdout.splitlines() if len(words := line.split()) > 3}
    assert flags["Tier4InvocationThreshold"] == ("7777" if "7777" in own else "200000")
    assert "warning" not in said.stderr.lower()


@pytest.mark.parametrize("mode", [*CONFINED, Mode.LIVE])
def test_a_resource_names_the_sinks_that_its_mode_may_be_granted(mode: Mode) -> None:
    resource = spark_resources(SINKS)[resource_key(mode)]
    for sink in SINKS.values():
        safety = {"sinks": [sink.name], "sideEffectsAllowed": mode is Mode.LIVE}
        manifest = a_manifest(kind="LIVE" if mode is Mode.LIVE else "BACKFILL", safety=safety)
        allowed = judge(
            sink.name, mode, manifest, declared=SINKS, from_tick=mode is Mode.LIVE
        ).decision.value.startswith("ALLOWED")
        assert (sink.name in resource.sinks) is allowed


def test_a_resource_whose_mode_was_changed_in_the_launchpad_computes_nothing() -> None:
    sessions = SparkOfOneMode(None, Mode.LIVE)  # type: ignore[arg-type]
    with pytest.raises(EnvironmentRefused, match="a session of BACKFILL is asked for where a run of LIVE is computed"):
        sessions.session(Mode.BACKFILL)


def test_workers_search_the_working_folder_only_where_the_driver_does(found: dict[str, dict[str, Any]]) -> None:
    assert {mode: one["searches its folder"] for mode, one in found.items()} == {
        Mode.LIVE: [False, False],
        **{mode: [True, True] for mode in CONFINED},
    }


@pytest.mark.parametrize(
    ("lies_in", "is_kept_out"), [(".", False), (".venv/lib/site-packages", True), ("../elsewhere", True)]
)
def test_workers_search_the_working_folder_if_the_driver_has_found_a_product_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies_in: str, is_kept_out: bool
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    ours = ModuleType("ours")
    ours.__file__ = os.path.normpath(here / lies_in / "ours" / "__init__.py")
    monkeypatch.setitem(sys.modules, "ours", ours)
    assert bool(working_folder(["ours.tables", "not_imported"])) == is_kept_out
    monkeypatch.syspath_prepend("")
    assert working_folder(["ours.tables"]) == {}
