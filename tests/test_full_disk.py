"""A disk that is full is named, with what could not be written and what to do; what is on record stands.

The home folder lies on a small file system of its own (tmpfs), which only root may mount; where that is not allowed the
tests are skipped, and say so.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import sqlalchemy as sa
from test_bad_inputs import APPROVER, base_manifest, own_environment, run_command, squeezed

from backfill_assets.installation import Platform
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.staging import executor
from benchmarks import small_table
from benchmarks.small_table import HISTORY, READINGS, SCOPE
from manifests.errors import EnvironmentRefused, Refused
from resources.files import space
from resources.ledger.facade import Ledger

RUN = "bad-run"
REPLACE = "REPLACE_PARTITIONS"
REFUSED = 2
FAILED_LAUNCH = 1
SIZE = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("small-disk")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no `mount` here")
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def home(small_disk: Path) -> Path:
    """An installation with 300 cases and a planned run."""
    with pytest.MonkeyPatch.context() as patch:
        own_environment(patch, small_disk / "home", small_disk)
        assert run_command("init") == 0
        assert run_command("load", "case-events", "--cases", "300") == 0
        manifest = small_disk / "manifest.json"
        manifest.write_text(json.dumps(base_manifest(RUN)))
        assert run_command("plan", str(manifest)) == 0
    return small_disk / "home"


@pytest.fixture(autouse=True)
def own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_environment(monkeypatch, home, home.parent)


@contextmanager
def filled(disk: Path, *, leave: int = 0) -> Iterator[None]:
    """Leave so many bytes of a disk free."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        os.posix_fallocate(file.fileno(), 0, max(free - leave, 1))
    try:
        yield
    finally:
        filler.unlink()


def states(home: Path) -> dict[str, str]:
    (file,) = home.rglob("ledger.db")
    ledger = Ledger(f"sqlite:///{file}")
    found = {record.run_id: record.state.value for record in ledger.runs()}
    ledger.engine.dispose()
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "manifest-2.json"),
        ("approve", RUN, "--by", APPROVER, "--comment", "x" * 100_000),
        ("reject", RUN, "--by", APPROVER, "--comment", "x" * 100_000),
        ("load", "case-events", "--cases", "400"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_finds_no_room_is_refused_and_nothing_is_half_done(
    home: Path, arguments: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    (home.parent / "manifest-2.json").write_text(json.dumps(base_manifest("second-run")))
    before = states(home)
    with filled(home.parent):
        assert run_command(*arguments) == REFUSED
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert "thediskisfull" in squeezed(said)
    assert "makeroomthere" in squeezed(said)
    assert states(home) == before


def test_the_same_command_goes_on_once_there_is_room(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (home.parent / "manifest-3.json").write_text(json.dumps(base_manifest("third-run")))
    with filled(home.parent):
        assert run_command("plan", "manifest-3.json") == REFUSED
    assert run_command("plan", "manifest-3.json") == 0
    assert states(home)["third-run"] == "PLANNED"
    assert run_command("verify", "--all") == 0
    assert "Traceback" not in capfd.readouterr().err


def test_a_run_that_finds_no_room_computes_nothing(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (home.parent / "manifest-4.json").write_text(json.dumps(base_manifest("fourth-run")))
    assert run_command("plan", "manifest-4.json") == 0
    assert run_command("approve", "fourth-run", "--by", APPROVER) == 0
    capfd.readouterr()
    with filled(home.parent, leave=4 * 1024 * 1024):
        assert run_command("run", "fourth-run") == FAILED_LAUNCH
    said = squeezed(capfd.readouterr().err)
    assert "computing3chunk(s)needsabout" in said
    assert "arefreewhere" in said
    assert states(home)["fourth-run"] == "APPROVED"
    (file,) = home.rglob("ledger.db")
    assert Ledger(f"sqlite:///{file}").attempts("fourth-run") == []


def by_python(folder: Path) -> Exception:
    return OSError(errno.ENOSPC, "No space left on device", str(folder / "part.parquet"))


def by_java(_: Path) -> Exception:
    return RuntimeError("Job aborted: java.io.IOException: No space left on device\n\tat java.base/...")


def by_a_ledger(_: Path) -> Exception:
    return sa.exc.OperationalError("INSERT", {}, Exception("database or disk is full"))


@pytest.mark.parametrize("met", [by_python, by_java, by_a_ledger])
def test_a_full_disk_is_told_from_other_errors_whoever_met_it(met: Callable[[Path], Exception], tmp_path: Path) -> None:
    error = ValueError("a batch failed")
    error.__cause__ = met(tmp_path)
    refusal = space.refusal(error)
    assert refusal is not None
    assert refusal.problems[0].what.startswith("the disk is full")
    assert "df" in refusal.problems[0].fix or str(tmp_path) in refusal.problems[0].what
    assert space.refusal(ValueError("half full")) is None
    assert space.refusal(PermissionError(errno.EACCES, "no", "x")) is None


# --- publications, on a table that needs no Spark ---------------------------------------------------------------------


@pytest.fixture
def platform(small_disk: Path) -> Iterator[Platform]:
    """A published history, and a restatement of some months that is validated."""
    folder = small_disk / "readings"
    with small_table.declared():
        platform = small_table.opened(folder)
        small_table.initialise(platform)
        for run_id, scope, version in (("history", HISTORY, "1"), ("again", SCOPE, "2")):
            small_table.planned(platform, small_table.manifest(run_id, REPLACE, scope, computed_by=version))
            if run_id == "history":
                small_table.staged(platform, run_id)
                publish(platform, run_id)
        yield platform
        small_table.closed(platform)
    shutil.rmtree(folder)


def told(act: Callable[[Platform, str], object], platform: Platform) -> str:
    """Do it in a process of its own, as the command does; return what it says, empty where it is done."""
    reading, writing = multiprocessing.Pipe(duplex=False)

    def command() -> None:
        try:
            act(platform, "again")
        except Refused as refused:
            writing.send(str(refused))
        except OSError as error:
            writing.send(str(space.refusal(error, str(platform.settings.home)) or f"a traceback: {error!r}"))
        except sa.exc.SQLAlchemyError as error:
            writing.send(str(space.refusal(error, str(platform.settings.home)) or f"a traceback: {error!r}"))
        else:
            writing.send("")

    small_table.closed(platform)
    process = multiprocessing.get_context("fork").Process(target=command)
    process.start()
    process.join()
    assert reading.poll(), "a traceback"
    return str(reading.recv())


@pytest.mark.parametrize("act", [publish, rollback])
def test_a_publication_without_room_is_refused_and_lands_once_there_is(
    platform: Platform, small_disk: Path, act: Callable[[Platform, str], object]
) -> None:
    before = small_table.rows(platform)
    small_table.staged(platform, "again")
    if act is rollback:
        publish(platform, "again")
    snapshots = len(platform.lakehouse.table(READINGS).snapshots())
    refused, seen = [], [small_table.rows(platform)]
    for leave in (0, 8, 16, 32, 64, 96):
        with filled(small_disk, leave=leave * 1024):
            refused.append(told(act, platform))
        seen.append(small_table.rows(platform))
    assert any(refused)
    assert all("disk is full" in one or "No space left" in one for one in refused if one)
    assert told(act, platform) == ""
    assert len(platform.lakehouse.table(READINGS).snapshots()) == snapshots + 1
    assert platform.ledger.run("again").state.value == ("ROLLED_BACK" if act is rollback else "PUBLISHED")
    assert (small_table.rows(platform) == before) is (act is rollback)
    assert all(one in (seen[0], small_table.rows(platform)) for one in seen)


def test_a_batch_that_finds_no_room_is_not_halved(platform: Platform) -> None:
    def no_room(*_: object) -> None:
        raise RuntimeError("Job aborted due to stage failure") from by_java(Path())

    with (
        mock.patch.object(executor, "compute_batch", no_room),
        pytest.raises(EnvironmentRefused, match="the disk is full"),
    ):
        small_table.staged(platform, "again")
    assert [one.state for one in platform.ledger.attempts("again")] == ["FAILED"]
    assert small_table.staged(platform, "again").state.value == "VALIDATED"
