"""A recorded run, computed again by Sail: equal digests, or a difference that is named as the engine's. Nothing else is computed there."""

from __future__ import annotations

import ast
import json
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sqlalchemy as sa
from launches import begin, launch
from sail_processes import VERSIONS, ask, refused_by_settings, reproduce_as, serve_until_killed
from test_reproduce import FEW, KEY, SPRING, everything, installation
from worlds import World, real_world, with_version

from backfill_assets.audit import second_engine
from backfill_assets.audit.first_difference import digest_of_files
from backfill_assets.audit.reproduce import reproduce
from backfill_assets.audit.second_engine import EngineName
from backfill_assets.declarations.schema import dtypes
from backfill_assets.products.enforcement import CASE_SLA_DAILY, transforms
from backfill_assets.worker.chunk_gate import digest_columns
from manifests.errors import EnvironmentRefused
from resources import processes
from resources.lakehouse.facade import Lakehouse, local_path
from resources.ledger import tables
from resources.ledger.facade import RunRecord
from resources.settings import WEBHOOK_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
SAIL = ("--engine", "sail", "--json")


def command(world: World, *arguments: str, version: str = "") -> tuple[int, Any, str]:
    """Run `backfill reproduce … --engine sail --json` in a process of its own, with a version 9.9.9 if one is named."""
    environment = installation(world)
    if version:
        done = begin(reproduce_as, version, *arguments, *SAIL, environment=environment)
    else:
        done = launch("reproduce", *arguments, *SAIL, environment=environment)
    code = done.ended()
    return code, json.loads(done.output) if done.output else None, done.errors


def staged(world: World, monkeypatch: pytest.MonkeyPatch, version: str, run_id: str) -> RunRecord:
    """Return a run of one of the versions that Spark has staged and gated."""
    monkeypatch.setitem(transforms.DAY_OF, "9.9.9", transforms.local_date)
    with_version(monkeypatch, "9.9.9", VERSIONS[version])
    record = world.approved(world.manifest(run_id, version="9.9.9", target=world.scope(*SPRING), validation=FEW))
    world.stage(record)
    return world.platform.ledger.run(run_id)


def differing(row: dict[str, Any]) -> list[str]:
    return [name for name, value in row["recorded"].items() if value != row["reproduced"][name]]


@pytest.mark.parametrize("version", ["2.4.1", "3.1.0"])
def test_sail_gives_the_digests_that_spark_gave(shared_world: World, version: str) -> None:
    run_id = f"of-{version}"
    shared_world.ran(
        shared_world.manifest(
            run_id, version=version, target=shared_world.scope(*SPRING), validation=FEW, limits={"maxChunksPerJob": 2}
        )
    )
    before = everything(shared_world)
    code, said, errors = command(shared_world, run_id)
    assert (code, errors) == (0, "")  # neither Sail's log nor a warning of its client
    assert everything(shared_world) == before
    assert said["outcome"] == "EQUAL"
    assert {one["chunk"]: one["digest"] for one in said["chunks"]} == shared_world.digests(run_id)
    assert len(said["chunks"]) == 3
    assert said["found"].startswith("equal, although the engine differs: all 3 chunks have the recorded digest")
    assert (said["engine"]["name"], said["engine"]["version"][:4]) == ("Sail", "0.7.")
    notes = " ".join(said["engine"]["notes"])
    assert "was judged by Spark when the run was staged" in notes
    assert "has days_open as bigint where int is declared" in notes
    (engine,) = (one for one in said["conditions"] if one["name"] == "engine")
    assert (engine["recorded"], engine["same"]) == ("Spark", False)


def test_spark_is_the_engine_unless_another_is_named(shared_world: World) -> None:
    shared_world.ran(shared_world.manifest("by-spark", target=shared_world.scope(*SPRING), validation=FEW))
    done = reproduce(shared_world.platform, "by-spark", ["2010-03"])
    assert (done.engine.name, done.engine.notes) == ("Spark", ())
    assert done.engine.version == shared_world.platform.spark.session(done_mode(shared_world, "by-spark")).version
    assert all(one.name != "engine" for one in done.conditions)


def done_mode(world: World, run_id: str) -> Any:
    return world.platform.ledger.run(run_id).plan.mode


def test_a_forged_record_is_different_on_sail_too(shared_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One amount of the staged rows is another one, and the ledger says the digest of that."""
    world = shared_world
    world.ran(world.manifest("forged", target=world.scope(*SPRING), validation=FEW))
    chunk = next(one for one in world.platform.ledger.chunks("forged") if one.chunk == "2010-04")
    path = local_path(chunk.files[0].path)
    rows = pl.read_parquet(path, hive_partitioning=False).sort(KEY)
    first = rows.row(0, named=True)
    here = pl.int_range(pl.len()) == 0
    rows.with_columns(
        pl.when(here).then(pl.col("amount") + 1).otherwise(pl.col("amount")).cast(rows["amount"].dtype).alias("amount")
    ).write_parquet(path)
    kinds = {name: dtypes(CASE_SLA_DAILY.model)[name] for name in digest_columns(CASE_SLA_DAILY.model)}
    forged = digest_of_files([file.path for file in chunk.files], kinds, CASE_SLA_DAILY.key)
    assert forged != chunk.digest
    with world.platform.ledger.engine.begin() as connection:
        of_run = (tables.chunks.c.run_id == "forged", tables.chunks.c.chunk == "2010-04")
        assert connection.execute(sa.update(tables.chunks).where(*of_run).values(digest=forged)).rowcount == 1
    code, said, errors = command(world, "forged")
    assert (code, errors) == (1, "")
    assert (said["outcome"], said["causes"]) == ("DIFFERENT", ["engine"])
    assert [one["chunk"] for one in said["chunks"] if one["outcome"] == "DIFFERENT"] == ["2010-04"]
    assert "the engine is not as the plan recorded" in said["found"]
    assert "without --engine" in " ".join(said["whatToDo"])
    row = said["firstDifference"]["row"]
    assert row["key"] == {name: str(first[name]) for name in KEY}
    assert differing(row) == ["amount"]
    assert "Sail 0.7." in said["firstDifference"]["note"]
    assert "gives these rows each time" in said["firstDifference"]["note"]
    assert reproduce(world.platform, "forged", ["2010-04"]).outcome == "DIFFERENT"  # and Spark says who is right


def test_a_function_of_another_meaning_is_shown_with_the_first_row(
    shared_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(shared_world, monkeypatch, "initcap", "meaning")
    assert reproduce(shared_world.platform, "meaning", ["2010-03"]).outcome == "EQUAL"
    code, said, _ = command(shared_world, "meaning", "--chunks", "2010-03", version="initcap")
    assert (code, said["outcome"], said["causes"]) == (1, "DIFFERENT", ["engine"])
    row = said["firstDifference"]["row"]
    assert differing(row) == ["amount"]
    assert (row["recorded"]["amount"], row["reproduced"]["amount"]) == ("2.00", "1.00")
    assert "not deterministic" not in said["found"]


def test_chance_is_told_from_the_engine(shared_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    staged(shared_world, monkeypatch, "eleven", "chance")
    _, said, _ = command(shared_world, "chance", "--chunks", "2010-04", version="dice")
    assert said["outcome"] == "DIFFERENT"
    assert "comes out differently again: the output depends on chance" in said["firstDifference"]["note"]


def test_what_sail_does_not_know_is_named(shared_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    staged(shared_world, monkeypatch, "collation", "unknown")
    before = everything(shared_world)
    code, said, errors = command(shared_world, "unknown", version="collation")
    assert (code, errors) == (1, "")
    assert everything(shared_world) == before
    assert (said["outcome"], said["causes"]) == ("NOT_COMPUTED", ["engine"])
    version = said["engine"]["version"]
    assert {one["note"] for one in said["chunks"]} == {f"Sail {version} does not know `collation`"}


def test_a_number_that_its_declared_type_does_not_hold_is_no_row(
    shared_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(shared_world, monkeypatch, "eleven", "large")
    code, said, _ = command(shared_world, "large", "--chunks", "2010-03", version="large")
    assert (code, said["outcome"]) == (1, "NOT_COMPUTED")
    assert "days_open is no int: 4000000000" in said["chunks"][0]["note"]


def test_a_transform_that_writes_is_refused_on_sail(
    shared_world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    staged(shared_world, monkeypatch, "eleven", "writes")
    monkeypatch.setenv("WRITTEN_BY_A_TRANSFORM", str(tmp_path / "written"))
    code, said, _ = command(shared_world, "writes", "--chunks", "2010-03", version="writes")
    assert (code, said["outcome"]) == (1, "NOT_COMPUTED")
    assert "the transform writes files or a table itself; nothing was sent to Sail" in said["chunks"][0]["note"]
    assert not (tmp_path / "written").exists()


def test_a_session_of_sail_reads_and_writes_below_its_folder_alone_and_has_no_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "scratch"
    secrets = {
        "BACKFILL_SINKS__MAIL__TOKEN": "hush",
        "AWS_SECRET_ACCESS_KEY": "hush",
        WEBHOOK_VARIABLE: "https://hush.invalid",
    }
    done = begin(ask, str(tmp_path / "home"), str(folder), environment=secrets)
    assert done.ended() == 0, done.errors
    said = json.loads(done.output)
    answers = said["asked"]
    allowed = {name for name, answer in answers.items() if answer.startswith("done")}
    assert allowed == {"query", "below the folder", "a checkpoint"}, answers
    assert (answers["query"], answers["below the folder"]) == ("done: 1", "done: 1")
    assert all(answer.startswith("refused: the transform ") for name, answer in answers.items() if name not in allowed)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "home") == ["scratch"]
    assert not any("hush" in one for one in said["environment"])
    assert said["left"] == ["AWS_SECRET_ACCESS_KEY"]  # which is the catalog's, and of no use without a store
    assert "TZ=UTC" in said["environment"]
    assert said["listens"] == ["0100007F"]  # 127.0.0.1, and nothing else


def test_the_server_ends_with_the_process_that_started_it() -> None:
    done = begin(serve_until_killed, environment={})
    until = time.monotonic() + 60
    while not ((done.folder / "out").exists() and done.output.endswith("\n")):
        assert done.is_running(), done.errors
        assert time.monotonic() < until
        time.sleep(0.05)
    server = int(done.output)
    assert processes.is_alive(server)
    done.kill()
    until = time.monotonic() + 10
    while processes.is_alive(server):
        assert time.monotonic() < until, "the server has outlived who started it"
        time.sleep(0.05)


def test_no_setting_has_a_run_computed_on_sail(tmp_path: Path) -> None:
    done = begin(refused_by_settings, str(tmp_path / "home"), environment={})
    assert done.ended() == 2, done.errors
    (what, *_) = json.loads(done.output)
    assert "has spark.backfill.server.modes = nothing" in what


def test_reproduce_alone_asks_for_sail() -> None:
    """Who imports what leads to a session of Sail: no plan, run or gate is computed by one."""
    users: dict[str, set[str]] = {}
    for package in ("backfill_assets", "resources", "manifests"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                names = []
                if isinstance(node, ast.ImportFrom):
                    names = [f"{node.module}.{one.name}" for one in node.names] + [str(node.module)]
                elif isinstance(node, ast.Import):
                    names = [one.name for one in node.names]
                for name in names:
                    users.setdefault(name, set()).add(str(file.relative_to(ROOT)))
    assert users["pysail.spark"] == {"resources/spark/sail_server.py"}
    assert users["resources.spark.sail_server"] == {"resources/spark/sail.py"}
    assert users["resources.spark.sail"] == {"backfill_assets/audit/second_engine.py"}
    assert users["backfill_assets.audit.second_engine"] == {
        "backfill_assets/audit/reproduce.py",
        "backfill_assets/cli/reproduction.py",
    }
    assert users["resources.spark.engines.has_engine"] == {"resources/spark/sail.py"}
    assert users["backfill_assets.audit.reproduce"] <= {
        "backfill_assets/cli/reproduction.py",
        "backfill_assets/cli/console.py",
    }


def test_without_sail_the_extra_is_named(shared_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_world.ran(shared_world.manifest("without", target=shared_world.scope(*SPRING), validation=FEW))
    before = everything(shared_world)
    monkeypatch.setattr("resources.spark.sail.find_spec", lambda _: None)
    with pytest.raises(EnvironmentRefused, match="Sail is not installed") as refused:
        reproduce(shared_world.platform, "without", engine=EngineName.SAIL)
    assert "backfill-assets[sail]" in str(refused.value)
    monkeypatch.undo()
    monkeypatch.setattr(Lakehouse, "location", lambda _, name: f"s3://bucket/{name}")
    with pytest.raises(EnvironmentRefused, match=r"does not compute on tables outside this machine.*\(s3\)"):
        reproduce(shared_world.platform, "without", engine=EngineName.SAIL)
    monkeypatch.undo()
    with pytest.raises(EnvironmentRefused, match="a process computes in one of the two ways"):
        reproduce(shared_world.platform, "without", engine=EngineName.SAIL)
    assert everything(shared_world) == before


def test_an_error_says_what_sail_does_not_know() -> None:
    from pyspark.errors import AnalysisException, PythonException, UnsupportedOperationException

    engine = second_engine.OtherEngine("Sail", "0.7.2")

    def said(error: Exception) -> tuple[str, bool]:
        return second_engine.named(engine, error)

    assert said(UnsupportedOperationException("unknown function: nosuch")) == (
        "Sail 0.7.2 does not know `nosuch`",
        True,
    )
    assert said(UnsupportedOperationException("hint with parameters")) == (
        "Sail 0.7.2 does not know `hint with parameters`",
        True,
    )
    assert said(AnalysisException("This feature is not implemented: Physical plan of X")) == (
        "Sail 0.7.2 does not know `Physical plan of X`",
        True,
    )
    assert said(AnalysisException("Internal error: Cannot run range queries on datatype: Struct(a)")) == (
        "Sail 0.7.2 does not know `range queries on datatype: Struct(a)`",
        True,
    )
    assert said(AnalysisException("divide by zero\nsomewhere")) == ("Sail 0.7.2 fails: divide by zero", False)
    assert said(PythonException("ValueError: mine")) == ("", False)
    assert said(ValueError("not supported: mine")) == ("", False)


@pytest.mark.exhaustive
def test_sail_gives_the_digests_of_the_real_log(tmp_path: Path, real_log: Path) -> None:
    world = real_world(tmp_path / "home", real_log)
    years = replace(world, start=date(2010, 1, 1), end=date(2012, 12, 31))
    for version in ("2.4.1", "3.1.0"):
        run_id = f"real-{version}"
        years.ran(years.manifest(run_id, version=version, validation=FEW))
        code, said, errors = command(world, run_id)
        assert (code, errors) == (0, ""), said
        assert {one["chunk"]: one["digest"] for one in said["chunks"]} == world.digests(run_id)
        assert len(said["chunks"]) == 36
        assert sum(one["rows"] for one in said["chunks"]) > 2_000_000
