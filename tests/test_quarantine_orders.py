"""Whatever order people load, release, reject and take back in, and wherever a process dies: no row is lost, and none comes twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pandera.polars as pandera
import polars as pl
import pytest
from servers import Postgres
from worlds import killed_at

import backfill_assets as ba
from backfill_assets import faults
from backfill_assets.audit.verification import verify
from backfill_assets.declarations import finding
from backfill_assets.declarations.places import ROOT
from backfill_assets.ingestion.case_names import Choice
from backfill_assets.ingestion.releases import reject, release, reopen
from backfill_assets.ingestion.table_loads import load_file, undo_load
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.quarantine import releases_interrupted
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.quarantine_cases import CaseState, cases_of
from benchmarks.small_table import serves
from manifests.errors import InputRefused, LeaseHeld
from resources.settings import load_settings

READINGS = "bronze.readings"
POINTS = sorted(point for point in faults.POINTS if point.startswith("releasing."))
LIMITS = (0, -5, -20)


class Readings(pandera.DataFrameModel):
    meter: str = pandera.Field()
    read_at: ba.Instant = pandera.Field()
    watt_hours: pl.Int32 = pandera.Field()


def _from(least: int) -> type[pandera.DataFrameModel]:
    """Return the model of readings that are no less than a number."""

    class Model(Readings):
        watt_hours: pl.Int32 = pandera.Field(ge=least)

    return Model


MODELS = {least: _from(least) for least in LIMITS}


def opened(home: Path, least: int, **settings: Any) -> Platform:
    """Open the installation with the rule that readings are no less than a number."""
    table = ba.InputTable(READINGS, "readings", MODELS[least], ("team:x",))
    finding.find_products = serves(ba.Product("metering", (table,), ()))
    platform = Platform.of(load_settings(home=home, quarantine_limit=1.0, **settings))
    initialise(platform)
    return platform


@pytest.fixture(autouse=True)
def _products_as_they_were() -> Iterator[None]:
    with mock.patch.object(finding, "find_products"):
        yield


def load(platform: Platform, folder: Path, name: str, rows: Any) -> str:
    lines = ["meter,read_at,watt_hours", *(f"{meter},2024-01-01T12:00:00Z,{value}" for meter, value in rows)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return load_file(platform, READINGS, folder / name).load.load_id


def held(platform: Platform) -> Counter[tuple[str, int]]:
    rows = platform.lakehouse.table(READINGS).scan().to_arrow().to_pylist()
    return Counter((row["meter"], row["watt_hours"]) for row in rows)


def refusal(act: Callable[[], Any]) -> str:
    """Act; return what it is refused for, or nothing."""
    try:
        act()
    except InputRefused as refused:
        return str(refused)
    return ""


def release_all(platform: Platform, by: str = "ada") -> Any:
    return release(platform, READINGS, Choice(everything=True), by=by, reason="the rule was wrong")


# --- a process that dies, or is paused -------------------------------------------------------------------------------


def act(home: str) -> None:
    """Release everything, in a process of its own."""
    release_all(opened(Path(home), -20, lease_seconds=2), by="eve")


def _another(home: Path, fault: str) -> subprocess.Popen[bytes]:
    paths = [str(ROOT), str(ROOT / "tests")]
    script = f"import sys; sys.path[:0] = {paths!r}; import test_quarantine_orders as orders; orders.act({str(home)!r})"
    return subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, faults.VARIABLE: fault}, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("point", POINTS)
def test_a_release_that_is_killed_anywhere_and_done_again_brings_each_row_once(tmp_path: Path, point: str) -> None:
    home = tmp_path / "home"
    load(opened(home, 0), tmp_path, "a.csv", [("m1", 5), ("m2", -3), ("m3", -4), ("m4", -99)])
    process = _another(home, point)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    platform = opened(home, -20)
    interrupted = [one.kind for one in releases_interrupted(platform)]
    assert interrupted == (["release-interrupted"] if point in {"releasing.begun", "releasing.appended"} else [])
    done = release_all(platform)
    landed = point in {"releasing.appended", "releasing.recorded"}
    assert held(platform) == Counter({("m1", 5): 1, ("m2", -3): 1, ("m3", -4): 1})
    assert (len(done.released), [len(one) for one in done.before.values()]) == (
        0 if landed else 2,
        [2] if point == "releasing.appended" else [],
    )
    states = {
        case.detail: (case.state, case.decided_by)
        for case in cases_of(platform, platform.products.input(READINGS)).all.values()
    }
    who = "eve" if landed else "ada"
    assert states == {
        "watt_hours is -3": (CaseState.RELEASED, who),
        "watt_hours is -4": (CaseState.RELEASED, who),
        "watt_hours is -99": (CaseState.WAITING, ""),
    }
    assert list(releases_interrupted(platform)) == []
    assert verify(platform).everything == []


def test_of_two_people_who_release_at_once_one_waits_and_a_paused_one_brings_nothing_any_more(tmp_path: Path) -> None:
    home = tmp_path / "home"
    load(opened(home, 0), tmp_path, "a.csv", [("m1", 5), ("m2", -3)])
    platform = opened(home, -20, lease_seconds=2)
    process = _another(home, "releasing.begun:stop")
    try:
        until = time.monotonic() + 60
        while not [one for one in platform.ledger.quarantine.releases(READINGS) if one.state == "INTENT"]:
            assert time.monotonic() < until
            time.sleep(0.05)
        with pytest.raises(LeaseHeld, match="is held by run 'qr'"):
            reject(platform, READINGS, Choice(everything=True), by="bob", reason="no")
        time.sleep(2.5)
        done = release_all(platform)
        assert (done.rows, held(platform)) == (1, Counter({("m1", 5): 1, ("m2", -3): 1}))
    finally:
        process.send_signal(signal.SIGCONT)
        _, said = process.communicate()
    assert process.returncode == 1
    assert b"LeaseLost" in said
    assert held(platform) == Counter({("m1", 5): 1, ("m2", -3): 1})
    assert [one.state for one in platform.ledger.quarantine.releases(READINGS)] == ["ABANDONED", "LANDED"]
    assert verify(platform).everything == []


# --- any order --------------------------------------------------------------------------------------------------------

Reading = tuple[str, int]


@dataclass
class Load:
    """What a load has brought, by the rule of its time; a release has only rows that came in."""

    load_id: str
    came: Counter[Reading]
    waits: Counter[Reading] = field(default_factory=Counter)
    least: int = 0
    of: tuple[str, ...] = ()
    cases: frozenset[tuple[int, Reading]] = frozenset()
    gone: bool = False


@dataclass
class Model:
    """What the tables should hold, told by nothing but the acts."""

    loads: list[Load] = field(default_factory=list)
    rejected: set[tuple[int, Reading]] = field(default_factory=set)

    @property
    def there(self) -> list[Load]:
        return [one for one in self.loads if not one.gone]

    @property
    def held(self) -> Counter[Reading]:
        return sum((one.came for one in self.there), Counter())

    @property
    def cases(self) -> set[tuple[int, Reading]]:
        return {(one.least, row) for one in self.there for row in one.waits}

    @property
    def released(self) -> set[tuple[int, Reading]]:
        return {case for one in self.there for case in one.cases} & self.cases

    @property
    def waiting(self) -> set[tuple[int, Reading]]:
        return self.cases - self.rejected - self.released

    def comes(
        self, chosen: set[tuple[int, Reading]], least: int
    ) -> tuple[set[tuple[int, Reading]], Counter[Reading], set[str]]:
        """Return which cases a release brings in, their rows, and the loads that had them."""
        decided = {row for _, row in self.rejected & self.cases} | {row for _, row in self.released}
        rows = {
            row for _, row in chosen & self.waiting if row not in decided and row[1] >= least and row not in self.held
        }
        cases = {case for case in self.waiting if case[1] in rows}
        came, loads = Counter[Reading](), set[str]()
        for row in rows:
            most = max(self.there, key=lambda one: one.waits[row])
            came[row] = most.waits[row]
            loads.add(most.load_id)
        return cases, came, loads


class Acts:
    """People who act at random on an installation, and what it should hold then."""

    def __init__(self, folder: Path, seed: int, **settings: Any) -> None:
        self.settings = settings
        self.folder, self.home, self.chance = folder, folder / "home", random.Random(seed)
        self.model, self.least, self.files = Model(), 0, dict[str, list[Reading]]()
        self.platform = opened(self.home, 0, **settings)

    def ids(self) -> dict[tuple[int, Reading], str]:
        cases = cases_of(self.platform, self.platform.products.input(READINGS)).all.values()
        found = {}
        for case in cases:
            least = int(case.rule.partition("(")[2].rstrip(")"))
            value = int(case.detail.rpartition(" ")[2])
            found[least, (f"m{-value % 3}", value)] = case.case_id
        return found

    def changes_the_rule(self) -> None:
        self.least = self.chance.choice(LIMITS)
        self.platform = opened(self.home, self.least, **self.settings)

    def loads(self) -> None:
        rows = [(f"n{len(self.files)}", len(self.files))]
        rows += [
            (f"m{-value % 3}", value) for value in self.chance.choices(range(-24, 0, 3), k=self.chance.randrange(1, 5))
        ]
        name = f"f{len(self.files)}.csv"
        self.files[name] = rows
        self._load(name)

    def loads_again(self) -> None:
        if self.files:
            self._load(self.chance.choice(sorted(self.files)))

    def _load(self, name: str) -> None:
        rows = self.files[name]
        if said := refusal(lambda: load(self.platform, self.folder, name, rows)):
            assert "is in bronze.readings already" in said
            return
        load_id = self.platform.lakehouse.loads(READINGS)[-1].load_id
        came = Counter(row for row in rows if row[1] >= self.least)
        self.model.loads.append(Load(load_id, came, Counter(rows) - came, self.least))

    def releases(self) -> None:
        ids = self.ids()
        waiting = sorted(self.model.waiting)
        if self.chance.random() < 0.5 and waiting:
            chosen = {self.chance.choice(waiting)}
            choice = Choice(tuple(ids[case] for case in chosen))
        else:
            chosen, choice = set(waiting), Choice(everything=True)
        cases, came, loads = self.model.comes(chosen, self.least)
        point = self.chance.choice([*POINTS, "", "", ""])
        if point and cases:
            with pytest.MonkeyPatch.context() as patch, killed_at(point, patch):
                release(self.platform, READINGS, choice, by="eve", reason="wanted")
            if point in {"releasing.judged", "releasing.begun"}:
                return
        else:
            done = release(self.platform, READINGS, choice, by="ada", reason="wanted")
            assert {case.case_id for case in done.released} == {ids[case] for case in cases}
        if cases:
            newest = self.platform.lakehouse.loads(READINGS)[-1].load_id
            self.model.loads.append(Load(newest, came, of=tuple(loads), cases=frozenset(cases)))

    def rejects(self) -> None:
        if waiting := sorted(self.model.waiting):
            case = self.chance.choice(waiting)
            reject(self.platform, READINGS, Choice((self.ids()[case],)), by="bob", reason="no")
            self.model.rejected.add(case)

    def reopens(self) -> None:
        if rejected := sorted(self.model.rejected & self.model.cases):
            case = self.chance.choice(rejected)
            reopen(self.platform, READINGS, Choice((self.ids()[case],)), by="bob", reason="it was right")
            self.model.rejected.discard(case)

    def takes_back(self) -> None:
        if not self.model.there:
            return
        one = self.chance.choice(self.model.there)
        held_up = any(one.load_id in other.of for other in self.model.there)
        said = refusal(lambda: undo_load(self.platform, READINGS, one.load_id, by="bob", reason="wrong"))
        assert ("take the release back first" in said) is held_up
        one.gone = not held_up

    def check(self) -> None:
        assert held(self.platform) == self.model.held
        ids = self.ids()
        assert ids.keys() == self.model.cases
        by_id = cases_of(self.platform, self.platform.products.input(READINGS)).all
        for case, case_id in ids.items():
            wanted = (
                CaseState.RELEASED
                if case in self.model.released
                else CaseState.REJECTED
                if case in self.model.rejected
                else CaseState.WAITING
            )
            assert by_id[case_id].state is wanted, case


def _campaign(folder: Path, seed: int, acts: int, **settings: Any) -> Counter[str]:
    people, done = Acts(folder, seed, **settings), Counter[str]()
    ways: list[Callable[[], None]] = [
        people.loads,
        people.loads,
        people.loads_again,
        people.changes_the_rule,
        people.releases,
        people.releases,
        people.releases,
        people.rejects,
        people.reopens,
        people.takes_back,
    ]
    for _ in range(acts):
        way = people.chance.choice(ways)
        done[way.__name__] += 1
        way()
        people.check()
    assert verify(people.platform).everything == []
    return done


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_doubled_in_any_order_of_acts(tmp_path: Path, seed: int) -> None:
    assert len(_campaign(tmp_path, seed, 25)) >= 6


def test_nothing_is_lost_or_doubled_where_the_ledger_is_on_a_server(tmp_path: Path, postgres_server: Postgres) -> None:
    url = postgres_server.database()
    assert sum(_campaign(tmp_path, 11, 12, ledger_url=url).values()) == 12
    postgres_server.drop(url)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(100, 112))
def test_nothing_is_lost_or_doubled_in_many_orders_of_acts(tmp_path: Path, seed: int) -> None:
    assert len(_campaign(tmp_path, seed, 60)) == 7
