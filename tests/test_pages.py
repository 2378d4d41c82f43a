"""The pages under `/backfill`: what they say of a run, when, and where they lead."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from unittest import mock

import pytest

from backfill_assets import decisions, definitions
from backfill_assets import platform as platform_module
from backfill_assets.pages import make_pages
from backfill_assets.platform import Platform, group_of
from backfill_assets.products.enforcement import PRODUCT
from benchmarks import small_table
from manifests.model import manifest_from

TIME = re.compile(r"<time>20\d\d-\d\d-\d\d \d\d:\d\d:\d\d</time> UTC")
ASSET = "/assets/silver/readings"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with small_table.declared():
        platform = small_table.opened(tmp_path_factory.mktemp("pages") / "home")
        small_table.initialise(platform)
        yield platform
        small_table.closed(platform)


def page(platform: Platform, path: str) -> str:
    """Return what a page answers."""
    app = make_pages(platform.ledger, platform.evidence)
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "headers": [],
        "query_string": b"",
    }
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 200
    return b"".join(one.get("body", b"") for one in sent[1:]).decode()  # type: ignore[misc]


def planned(platform: Platform, run_id: str, **changes: object) -> None:
    text = small_table.manifest_data(run_id, "REPLACE_PARTITIONS", small_table.SCOPE) | changes
    small_table.planned(platform, manifest_from(text))


def test_a_decision_says_who_when_and_why_apart_and_every_table_has_its_times(platform: Platform) -> None:
    planned(platform, "first")
    small_table.staged(platform, "first")
    decisions.publish(platform, "first", by="ops")
    decisions.rollback(platform, "first", by="root", comment="try")
    shown = page(platform, "/backfill/first")
    assert "root try" not in shown
    assert re.search(r"<td>decided: rollback<td>root<td>" + TIME.pattern + "<td>try<", shown)
    assert re.search(r"<td>rollback done: snapshot \d+<td>[^<]+<td>" + TIME.pattern, shown)
    assert "<th>Dagster run<th>" in shown  # of Attempts; no column is without a name
    assert "<th><th>error" not in shown
    assert len(TIME.findall(page(platform, "/backfill"))) == 2  # planned, last change


def test_a_run_leads_to_its_asset_launch_checks_publication_and_to_the_rows_that_disagree(platform: Platform) -> None:
    def twice(version: str, *days: object) -> list[dict[str, object]]:
        return [row for row in rows_of(version, *days) for _ in range(2)]

    rows_of = small_table.rows_of
    planned(platform, "doubled")
    with mock.patch.object(small_table, "rows_of", twice):
        small_table.staged(platform, "doubled")
    shown = page(platform, "/backfill/doubled")
    for way in (
        f"<a href='{ASSET}'>asset</a>",
        f"<a href='{ASSET}?view=checks'>checks</a>",
        "jobs/stage_silver_readings/partitions'>launch</a>",
        "tag%3Abackfill%2Frun_id%3Ddoubled&amp;view=runs'>its Dagster runs</a>",
        f"<a href='{ASSET}_published?view=events&amp;partition=doubled'>what readers see</a>",
        f"<a href='{ASSET}?view=checks&amp;checkDetail=chunk_rules'>chunk_rules</a>",
    ):
        assert way in shown, way
    (anchor,) = {name for name in re.findall(r"href='#(rows-[^']+)'", shown) if name.endswith("2020-02")}
    assert f"id='{anchor}'" in shown
    assert "unique key" in shown.partition("Rows that disagree")[2]


def test_a_run_that_waits_for_a_launch_says_so_in_the_list(platform: Platform) -> None:
    planned(platform, "part")
    from backfill_assets.executor import gate_chunks, stage_chunks

    stage_chunks(platform, "part", ["2020-02"])
    gate_chunks(platform, "part")
    (row,) = [line for line in page(platform, "/backfill").split("<tr>") if "/backfill/part'" in line]
    assert "waits for a launch" in row
    assert "it waits for a launch" in page(platform, "/backfill/part")


def test_each_product_has_its_group(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform_module, "PRODUCTS", (PRODUCT, *platform_module.PRODUCTS))
    monkeypatch.setattr(definitions, "PRODUCTS", platform_module.PRODUCTS)
    graph = definitions.build_definitions(platform).resolve_asset_graph()
    groups = {key.to_user_string(): graph.get(key).group_name for key in graph.get_all_asset_keys()}
    assert {groups[f"silver/readings{suffix}"] for suffix in ("", "_published", "_reconciled")} == {"readings"}
    assert {group for key, group in groups.items() if "reading" not in key} == {"enforcement"}
    assert group_of("silver.unknown") == "backfill"


@pytest.mark.parametrize(
    ("run_id", "changes", "said"),
    [
        ("dry", {"mode": "DRY_RUN"}, "it is never published"),
        ("by-hand", {"safety": {"requiresManualPublish": True}}, "<code>backfill publish by-hand</code>"),
        ("by-itself", {}, "the sensor publishes it within seconds"),
    ],
)
def test_a_validated_run_says_who_publishes_it(
    platform: Platform, run_id: str, changes: dict[str, object], said: str
) -> None:
    planned(platform, run_id, **changes)
    small_table.staged(platform, run_id)
    text = page(platform, f"/backfill/{run_id}")
    assert said in text
    assert ("(DRY_RUN)" in text) == (run_id == "dry")
    decisions.cancel(platform, run_id, by="grace")
