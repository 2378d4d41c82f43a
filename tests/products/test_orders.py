"""The product `orders` from a file to its published tables: nothing is lost, and every figure is counted again by another way."""

from __future__ import annotations

import os
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from order_oracles import repeated_lines, revenue_by_day, states_of
from order_world import (
    ASIDE,
    EVENTS,
    FIRST,
    LAST,
    REVENUE,
    STATE,
    manifest,
    orders_world,
    publish_all,
    rows_of,
)
from worlds import World

from backfill_assets.audit.verification import verify
from backfill_assets.declarations.product import Product
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.products import orders
from backfill_assets.products.enforcement import PRODUCT as ENFORCEMENT
from backfill_assets.products.orders import PRODUCT, generator
from backfill_assets.products.orders.loading import LINES, from_file, generated
from backfill_assets.products.orders.raw import REQUIRED_COLUMNS
from manifests.errors import InputRefused
from manifests.lifecycle import RunState
from manifests.reading import load_manifest

FOLDER = Path(orders.__file__).parent
KINDS = ("sold", "cancelled", "postage", "discounts", "adjusted", "fees", "bad_debt")
YEAR_END, LAST_REAL_DAY = date(2011, 12, 31), date(2011, 12, 9)
REAL_LINES, DAYS_WITHOUT_ORDERS = 541_909, 69
MONTHS = (
    (date(2010, 12, 1), date(2010, 12, 31)),
    (date(2011, 1, 1), date(2011, 1, 31)),
    (date(2011, 2, 1), date(2011, 2, 28)),
)


def written(folder: Path, orders: int = 300, seed: int = 1) -> Path:
    """Return a file of made-up lines, as it would be delivered."""
    file = folder / "lines.parquet"
    generator.generate(orders, seed).select(REQUIRED_COLUMNS).write_parquet(file)
    return file


@pytest.fixture(scope="module")
def real_lines() -> Path:
    """The real log of orders; tests that need it are skipped, saying so, where it is absent."""
    folder = os.environ.get("BACKFILL_TEST_DATA")
    root = Path(folder) if folder else Path(__file__).resolve().parents[3] / "shared" / "data"
    file = root / "online_retail_by_day.parquet"
    if not file.is_file():
        pytest.skip("the real order lines are not here (set BACKFILL_TEST_DATA to their folder): no figure is checked")
    return file


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("delivered"))


@pytest.fixture(scope="module")
def world(lines: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    found = orders_world(tmp_path_factory.mktemp("orders") / "home", from_file(lines))
    publish_all(found)
    return found


def require_every_line_accounted_for(world: World, lines: Path) -> None:
    """Hold every row of a delivered file against events, what is set aside, and the quarantine: each is one of them."""
    events, aside = rows_of(world, EVENTS), rows_of(world, ASIDE)
    quarantined = rows_of(world, "bronze.order_lines_quarantine")
    rows = {*range(pl.read_parquet(lines).height)}
    of_events = {*events.filter(origin="NATIVE")["source_row"]}
    set_aside, refused = {*aside["source_row"]}, {*quarantined["source_row"]}
    assert len(aside) == len(set_aside)
    assert of_events | set_aside | refused == rows
    assert len(of_events) + len(set_aside) + len(refused) == len(rows), "none is two of them"
    assert aside["reason"].null_count() + quarantined["reason"].null_count() == 0
    readable = repeated_lines(lines) - _repeated_among(lines, refused)
    assert aside.filter(outcome="DUPLICATE").height == readable


def _repeated_among(lines: Path, rows: set[int]) -> int:
    said = pl.read_parquet(lines, columns=list(REQUIRED_COLUMNS))[sorted(rows)] if rows else pl.DataFrame()
    return said.height - said.unique().height


def require_revenue_of(world: World, lines: Path, first: date, last: date) -> pl.DataFrame:
    """Hold each day against a query straight over the delivered file; return the days."""
    days, expected = rows_of(world, REVENUE).sort("day"), revenue_by_day(lines)
    assert days["day"].to_list() == [first + timedelta(days=number) for number in range((last - first).days + 1)]
    for row in days.iter_rows(named=True):
        wanted = {kind: expected.get(row["day"], {}).get(kind, Decimal(0)) for kind in KINDS}
        assert {kind: row[kind] for kind in KINDS} == wanted, row["day"]
        assert row["revenue"] == sum(wanted[kind] for kind in KINDS[:5])
    return days


def require_states_of(world: World, lines: Path) -> None:
    """Hold the state of each order against that computed directly from the rows."""
    names = {"customer": "customer_id", "events": "source_version"}
    expected = {
        order: {names.get(name, name): value for name, value in state.items()}
        for order, state in states_of(lines).items()
    }
    found = {row["order_id"]: row for row in rows_of(world, STATE).iter_rows(named=True)}
    assert found.keys() == expected.keys()
    for order, state in expected.items():
        assert {name: found[order][name] for name in state} == state, order


def test_every_row_of_a_file_is_of_an_event_or_set_aside_or_quarantined(world: World, lines: Path) -> None:
    require_every_line_accounted_for(world, lines)
    assert verify(world.platform, data=True).everything == []


def test_revenue_by_day_is_that_of_a_query_over_the_file_and_empty_days_are_there(world: World, lines: Path) -> None:
    days = require_revenue_of(world, lines, FIRST, LAST)
    empty = days.filter(events=0)
    assert {*empty["day"].dt.weekday()} == {6}, "nobody orders on a Saturday"
    assert empty.height > 0
    assert {*empty.select(*KINDS, "revenue", "orders", "lines").unique().row(0)} == {0}


def test_the_state_rebuilt_from_events_is_that_computed_from_the_rows(world: World, lines: Path) -> None:
    require_states_of(world, lines)
    states = rows_of(world, STATE)
    assert {*states["state"]} == {"OPEN", "PARTLY_CANCELLED", "CANCELLED"}
    assert states.filter(is_deleted=True)["state"].unique().to_list() == ["CANCELLED"]


def test_events_say_where_they_are_from(world: World) -> None:
    events = rows_of(world, EVENTS)
    by_type = dict(events.group_by("event_type").agg(pl.col("origin").unique().implode()).iter_rows())
    synthetic = {name for name, origins in by_type.items() if "SYNTHETIC" in str(origins)}
    assert synthetic == {"OrderPlaced", "OrderCancelled"}
    assert {*events["source_system"]} == {"retail-shop"}
    assert {*events["transform_version"]} == {"1.0.0"}
    assert {*events["run_id"]} == {"first-order-events"}
    said = events.select("source_system", "source_file", "extracted_at", "business_at", "business_day", "event_id")
    assert said.null_count().row(0) == (0,) * said.width


def values(rows: pl.DataFrame, *but: str) -> pl.DataFrame:
    """Return rows without what says which run made them, by key."""
    lineage = (
        "run_id",
        "processing_mode",
        "transform_version",
        "input_snapshot_id",
        "produced_at",
        "extracted_at",
        *but,
    )
    kept = rows.drop(name for name in lineage if name in rows.columns)
    return kept.sort(pl.all())


@pytest.mark.exhaustive
def test_every_line_of_the_real_log_is_accounted_for_and_worth_what_it_says(real_lines: Path, tmp_path: Path) -> None:
    world = orders_world(tmp_path / "home", from_file(real_lines), limit=0.0)
    for table, end in ((ASIDE, YEAR_END), (EVENTS, YEAR_END), (STATE, YEAR_END), (REVENUE, LAST_REAL_DAY)):
        world.published(manifest(table, f"real-{table.rpartition('.')[2].replace('_', '-')}", FIRST, end))
    require_every_line_accounted_for(world, real_lines)
    assert pl.read_parquet(real_lines, columns=["InvoiceNo"]).height == REAL_LINES
    days = require_revenue_of(world, real_lines, FIRST, LAST_REAL_DAY)
    assert days.filter(orders=0).height == DAYS_WITHOUT_ORDERS
    require_states_of(world, real_lines)


def test_month_by_month_is_what_all_at_once_is(world: World, lines: Path, tmp_path: Path) -> None:
    """Cancellations reach back over months: events are appended, and the orders that they change are merged by key."""
    found = orders_world(tmp_path / "home", from_file(lines))
    for number, (start, end) in enumerate(MONTHS):
        found.published(manifest(ASIDE, f"aside-{number}", start, end))
        before = found.platform.lakehouse.snapshot_id(EVENTS)
        found.published(manifest(EVENTS, f"events-{number}", start, end))
        if not number:
            found.published(manifest(STATE, f"state-{number}", start, end))
        else:
            merge = {"publishMode": "MERGE_BY_KEY", "merge": {"changedSince": before}}
            found.published(manifest(STATE, f"state-{number}", FIRST, end, target=merge, kind="REPAIR"))
        found.published(manifest(REVENUE, f"revenue-{number}", start, end))
    for table in (ASIDE, EVENTS, STATE, REVENUE):
        one, other = values(rows_of(found, table)), values(rows_of(world, table))
        assert one.columns == other.columns
        assert one.equals(other), [pair for pair in zip(one.rows(), other.rows(), strict=True) if pair[0] != pair[1]][
            :3
        ]
    of_runs = dict(rows_of(found, STATE).group_by("run_id").len().iter_rows())
    assert of_runs.keys() == {"state-0", "state-1", "state-2"}, "orders that did not change are those of before"
    assert verify(found.platform, data=True).everything == []
    digests = {chunk: digest for run in range(3) for chunk, digest in found.digests(f"revenue-{run}").items()}
    assert digests == world.digests("first-daily-revenue")


@pytest.fixture
def small(tmp_path: Path) -> World:
    return orders_world(tmp_path / "home", generated(40, 2))


def test_events_are_not_published_without_what_is_set_aside_beside_them(small: World) -> None:
    record = small.ran(manifest(EVENTS, "alone"))
    assert record.state is RunState.FAILED
    failed = {one.gate: one for one in small.platform.ledger.verdicts("alone") if not one.passed}
    assert failed.keys() == {"every_line_is_accounted_for", "amounts_agree_with_the_lines"}
    said = failed["every_line_is_accounted_for"].summary
    assert f"are neither, or both: publish {ASIDE} from the same lines first" in said


def test_a_file_that_is_delivered_again_adds_no_event(small: World, tmp_path: Path) -> None:
    publish_all(small)
    frame = generator.generate(40, 2).select(REQUIRED_COLUMNS)
    frame.reverse().write_csv(tmp_path / "again.csv")
    load_delivery(small.platform, LINES, from_file(tmp_path / "again.csv"), 0.5)
    anew = {"publishMode": "REPLACE_PARTITIONS"}
    small.published(manifest(ASIDE, "aside-again", kind="RESTATEMENT", target=anew))
    small.validated(manifest(EVENTS, "events-again", kind="RESTATEMENT", target=anew))
    assert small.digests("events-again") == small.digests("first-order-events")
    again = rows_of(small, ASIDE).filter(source_file="again.csv")
    assert {*again["outcome"]} == {"DUPLICATE"}
    assert {*again["repeats_file"]} == {"generated-40-orders-seed-2"}


def test_a_file_without_the_shape_of_order_lines_is_refused_by_name(tmp_path: Path) -> None:
    for name, text, said in (
        ("lines.csv", "InvoiceNo,StockCode\n1,2\n", "lacks Description, Quantity"),
        ("lines.txt", "x", "has the extension '.txt'"),
        ("none.csv", "", "is not readable"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputRefused, match=said):
            from_file(tmp_path / name)
    (tmp_path / "empty.csv").write_text(",".join(REQUIRED_COLUMNS) + "\n")
    with pytest.raises(InputRefused, match="has no rows"):
        list(from_file(tmp_path / "empty.csv").batches())


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.yaml")), ids=lambda file: file.stem)
def test_each_manifest_that_ships_is_one_of_a_table_of_the_product(file: Path) -> None:
    shipped = load_manifest(file)
    targets = {one.name: one for one in PRODUCT.targets}
    target = targets[shipped.target.table]
    assert shipped.run_id == file.stem
    assert (shipped.source.table, shipped.transform.name) == (target.source, target.transform)
    assert shipped.transform.version in target.versions


def test_nothing_outside_of_products_names_one_but_the_demo() -> None:
    """Adding a product needs no special case: no module of the platform knows a table, a loader or a package of one that ships."""
    root = Path(__file__).parents[2]
    words = [name for product in (PRODUCT, ENFORCEMENT) for name in words_of(product)]
    assert "silver.order_events" in words
    naming = {
        f"{path.relative_to(root)}: {word}"
        for package in ("backfill_assets", "manifests", "resources")
        for path in (root / package).rglob("*.py")
        if not path.is_relative_to(root / "backfill_assets" / "products") and path.name != "demo.py"
        for text in [path.read_text(encoding="utf-8")]
        for word in words
        if word in text
    }
    assert naming == set()


def words_of(product: Product) -> list[str]:
    """Return the tables, transforms, loaders and the package of a product."""
    tables = [one.name for one in (*product.inputs, *product.targets)]
    return [*tables, *(f'"{one}"' for one in product.loaders), f"products.{product.name}"]
