"""`report.html` stands by itself, says what the evidence says, and takes no text for markup."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from dataclasses import fields
from datetime import date
from decimal import Decimal
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from worlds import World, make_world

from backfill_assets import decisions
from backfill_assets.audit import report as report_module
from backfill_assets.audit.report import report, report_beside, write_report
from backfill_assets.cli.base import EXIT_FAILED
from backfill_assets.cli.command import cli
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from backfill_assets.review.diff import diff_here, recorded_diff
from backfill_assets.review.kept_diffs import after_publication
from benchmarks.changed_bytes import overwrite
from manifests.canonical import plain
from manifests.errors import EnvironmentRefused, InputRefused
from manifests.plan import Plan
from resources.evidence.store import REPORT
from resources.lakehouse.facade import local_path
from resources.ledger.cells import IllegibleRow

pytestmark = pytest.mark.matrix

HOSTILE = '<script>alert("x")</script> & $\\frac{1}{2}$ <img src=http://example.org/x.png onerror=alert(1)>'
MARCH = (date(2010, 3, 1), date(2010, 3, 31))


class Page(HTMLParser):
    """Elements with their attributes, and the text outside of styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._in_style = False
        self.feed(text)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.text += " "
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._in_style &= tag != "style"

    def handle_data(self, data: str) -> None:
        if not self._in_style:
            self.text += data


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = make_world(
        tmp_path_factory.mktemp("report") / "home", cases=150, start=date(2010, 1, 1), end=date(2010, 6, 30)
    )
    world.published(world.manifest("history", version="2.4.1"))
    world.published(world.manifest("fixed", target=world.scope(*MARCH), reason=HOSTILE))
    world.validated(world.manifest("waiting", target=world.scope(*MARCH)))
    return world


@pytest.fixture(scope="module")
def page(world: World) -> Page:
    return Page(report(world.platform, "fixed"))


def test_a_page_is_written_where_the_folder_is_or_nowhere(world: World, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefused, match="No such file or directory"):
        write_report(world.platform, "fixed", tmp_path / "reprots" / "fixed.html")
    assert not (tmp_path / "reprots").exists()
    assert write_report(world.platform, "fixed", tmp_path / "fixed.html").read_text().startswith("<!DOCTYPE html>")


def test_it_says_why_who_what_and_how(world: World, page: Page) -> None:
    ledger = world.platform.ledger
    (done,) = ledger.publications("fixed")
    (chunk,) = ledger.chunks("fixed")
    plan = ledger.run("fixed").plan
    expected = [
        "fixed PUBLISHED",
        "requested by ana",
        "approved by bob",
        "It takes the place of what history had published.",
        "Readers see its rows in 1 of 1 chunks today.",
        "in one commit, which replaces the files of these days in",
        f"rows {chunk.rows:,}",
        f"{len(plan.gates)} of {len(plan.gates)} passed",
        str(plan.source_snapshot_id),
        *(str(pin.snapshot_id) for pin in plan.references),
        str(done.snapshot_id),
        str(plan.base_snapshot_id),
        plan.code.content_hash,
        str(chunk.digest),
        done.evidence_root,
        "backfill reproduce fixed",
        "backfill rollback fixed",
        "backfill verify fixed --data --head",
        "run_audit",
        *(verdict.summary for verdict in ledger.verdicts("fixed") if not verdict.chunk),
    ]
    missing = [text for text in expected if " ".join(text.split()) not in page.text.replace(" ,", ",")]
    assert missing == []
    head = world.platform.evidence.chain.read()
    assert [link.hash for link in head.links if link.content["run"] == "fixed"][-1] in page.text


def test_the_figures_before_are_those_of_the_run_it_took_the_place_of(world: World, page: Page) -> None:
    ledger = world.platform.ledger
    before = next(chunk.rows for chunk in ledger.chunks("history") if chunk.chunk == "2010-03")
    (after,) = (chunk.rows for chunk in ledger.chunks("fixed"))
    assert before is not None
    assert after is not None
    change = f"{after - before:+,}" if after != before else "0"
    assert f"rows {before:,} {after:,} {change}" in page.text


def test_text_of_people_is_never_markup(page: Page) -> None:
    assert HOSTILE in page.text  # in the reason, word for word
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "img", "iframe", "object", "embed", "link", "form"}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]


def test_it_opens_without_network_and_fits_a_phone_and_paper(world: World, page: Page) -> None:
    text = report(world.platform, "fixed")
    fetched = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in {"src", "href", "xlink:href", "action", "data", "srcset", "poster"}
        and not (value or "").startswith(("#", "data:image/png;base64,"))
    ]
    assert fetched == []
    assert not re.search(r"url\((?!#)|@import", text)
    metas = [attributes for tag, attributes in page.elements if tag == "meta"]
    assert any(one.get("name") == "viewport" and "width=device-width" in (one["content"] or "") for one in metas)
    assert any((one.get("content") or "").startswith("default-src 'none'") for one in metas)
    assert "@media print" in text
    assert [tag for tag, _ in page.elements].count("svg") == 3
    assert len(text) < 300_000


def test_the_same_evidence_gives_the_same_page(world: World) -> None:
    assert report(world.platform, "fixed") == report(world.platform, "fixed")


def test_decisions_that_an_earlier_version_recorded_without_their_proof_are_shown(
    world: World, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = report_module._facts

    def earlier(installation: Any, rows: Any, *others: Any) -> Any:
        def known(row: Any) -> Any:
            return {name: cell for name, cell in row.items() if name not in {"proof", "channel"}}

        without = {table: {key: known(row) for key, row in own.items()} for table, own in rows.items()}
        return facts(installation, without, *others)

    assert "(claimed)" in report(world.platform, "fixed")
    monkeypatch.setattr(report_module, "_facts", earlier)
    shown = report(world.platform, "fixed")
    assert "bob" in shown
    assert "(claimed)" not in shown


@pytest.mark.parametrize("run_id", ["history", "fixed", "waiting"])
@pytest.mark.parametrize("forged", [{}, {"transform_version": 3}], ids=["as it was", "forged"])
def test_a_run_that_an_earlier_version_has_planned_has_a_report(
    world: World, monkeypatch: pytest.MonkeyPatch, run_id: str, forged: dict[str, Any]
) -> None:
    """Its plan lacks the fields that came later, the product's code among them, and its rows the columns."""
    facts = report_module._facts
    later = {field.name for field in fields(Plan) if field.metadata.get("later")}

    def earlier(installation: Any, rows: Any, *others: Any) -> Any:
        run = rows["runs"][run_id]
        plan = {name: said for name, said in run["plan"].items() if name not in later} | forged
        plan["code"] = {name: said for name, said in plan["code"].items() if name != "product"}
        attempts = {key: {"id": row["id"], "state": row["state"]} for key, row in rows["attempts"].items()}
        without = {"runs": {run_id: run | {"plan": plan}}, "attempts": attempts}
        return facts(installation, defaultdict(dict, rows | without), *others)

    monkeypatch.setattr(report_module, "_facts", earlier)
    page = Page(report(world.platform, run_id))
    assert world.platform.ledger.run(run_id).plan.code.content_hash in page.text
    assert "its content hash" not in page.text


def test_a_run_that_waits_for_its_publication_has_a_page_for_its_reviewer(world: World) -> None:
    page = Page(report(world.platform, "waiting"))
    assert "Not published (yet)." in page.text
    assert "It would take the place of what fixed had published." in page.text
    assert "No bundle is sealed yet" in page.text


@pytest.mark.parametrize("column", ["manifest", "plan"])
def test_a_plan_rewritten_with_blanks_is_refused_by_its_column(world: World, column: str) -> None:
    engine = world.platform.ledger.engine
    where = {"run": "waiting"}
    with engine.begin() as connection:
        text = connection.execute(sa.text(f"SELECT {column} FROM runs WHERE run_id = :run"), where).scalar_one()
        rewritten = sa.text(f"UPDATE runs SET {column} = :text WHERE run_id = :run")
        connection.execute(rewritten, where | {"text": json.dumps(json.loads(text), indent=1)})
    try:
        with pytest.raises(IllegibleRow, match=rf"run 'waiting' has cells.*runs\.{column} is not the canonical text"):
            report(world.platform, "waiting")
    finally:
        with engine.begin() as connection:
            connection.execute(rewritten, where | {"text": text})
    assert "Not published (yet)." in report(world.platform, "waiting")


def test_a_first_publication_has_nothing_before(world: World) -> None:
    page = Page(report(world.platform, "history"))
    assert "Nothing was accepted in its range before." in page.text
    assert "Readers see its rows in 5 of 6 chunks today." in page.text
    assert "Later runs hold part of its scope" in page.text


def tables(text: str) -> list[list[list[str]]]:
    """Every table of a page: its lines, their cells."""
    rows = [
        re.findall(r"<tr>(.*?)</tr>", one, re.DOTALL) for one in re.findall(r"<table>(.*?)</table>", text, re.DOTALL)
    ]
    return [
        [
            [
                unescape(re.sub(r"<[^>]*>", "", cell))
                for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)
            ]
            for row in one
        ]
        for one in rows
    ]


def table_of(text: str, *names: str) -> list[dict[str, str]]:
    (found,) = (one for one in tables(text) if one[0][: len(names)] == list(names))
    return [dict(zip(found[0], line, strict=True)) for line in found[1:]]


def test_what_changed_is_said_without_a_diff(world: World) -> None:
    """Rows and sums by chunk are sealed with the bundle: nobody has to compare anything before."""
    text = report(world.platform, "fixed")
    ledger = world.platform.ledger
    (after,), (before,) = (
        [one for one in ledger.chunks(run) if one.chunk == "2010-03"] for run in ("fixed", "history")
    )
    (shown,) = table_of(text, "chunk", "rows before", "rows after")
    assert (shown["chunk"], shown["rows before"], shown["rows after"]) == (
        "2010-03",
        f"{before.rows:,}",
        f"{after.rows:,}",
    )
    sums = {one["column"]: one for one in table_of(text, "column", "sum before", "sum after")}
    then, now = (pl.concat([pl.read_parquet(local_path(file.path)) for file in one.files]) for one in (before, after))
    assert sums["days_open"]["sum before"] == f"{then['days_open'].sum():,}"
    assert sums["days_open"]["sum after"] == f"{now['days_open'].sum():,}"
    assert Decimal(sums["amount"]["change"].replace(",", "")) == now["amount"].sum() - then["amount"].sum()
    assert "Its rows are not compared by key yet: backfill doctor --repair completes that." in Page(text).text


def test_an_unpublished_run_says_what_it_would_change_and_has_the_head_of_the_chain(world: World) -> None:
    world.validated(world.manifest("unseen", target=world.scope(*MARCH)))
    text = report(world.platform, "unseen")
    assert "Readers have seen nothing of it. Published, it would change this." in Page(text).text
    assert "<h2>What it would change</h2>" in text
    assert "What changed" not in text
    (shown,) = table_of(text, "chunk", "rows before", "rows after")
    assert shown["rows after"] == f"{world.platform.ledger.chunks('unseen')[0].rows:,}"
    assert table_of(text, "column", "sum before", "sum after")
    head = world.platform.evidence.chain.last()
    assert head is not None
    assert f"backfill verify unseen --head {head.hash}" in Page(text).text
    done = CliRunner().invoke(cli, ["verify", "unseen", "--head", head.hash], env={"BACKFILL_HOME": str(world.home)})
    assert done.exit_code == 0
    assert "<code>backfill diff unseen</code>" in text
    assert '<strong class="good">' in text
    half = world.approved(world.manifest("half", target=world.scope(date(2010, 3, 1), date(2010, 4, 30))))
    world.stage(half, ["2010-03"])
    begun = report(world.platform, "half")
    assert [one["rows after"] for one in table_of(begun, "chunk", "rows before")][1] == "-"
    assert '<strong class="soft">0 of ' in begun  # nothing has passed that was not judged


def test_a_kept_diff_is_shown_in_words_and_a_rollback_says_what_it_changed_back(world: World) -> None:
    run_id = world.published(world.manifest("shown", target=world.scope(*MARCH), version="2.4.1")).run_id
    after_publication(world.platform, run_id)
    diff = recorded_diff(world.platform, run_id)
    assert diff is not None
    text = report(world.platform, run_id)
    (chunk,) = table_of(text, "chunk", "rows before", "rows after")
    assert [chunk[name] for name in ("added", "removed", "changed", "unchanged")] == [
        f"{number:,}" for number in (diff.added, diff.removed, diff.changed, diff.unchanged)
    ]
    largest = table_of(text, "column", "kind", "chunk", "key", "before", "after", "by")
    assert {row["kind"] for row in largest} <= {"added", "removed", "changed"}
    assert any(row["by"].endswith(" days") for row in largest)
    assert [cell for one in tables(text) for line in one for cell in line if re.search(r"[{}\[\]]", cell)] == []
    rollback(world.platform, run_id)
    after_publication(world.platform, run_id)
    back = Page(report(world.platform, run_id)).text
    assert f"the {diff.added:,} added rows are gone, the {diff.removed:,} removed are back" in back
    assert "It took the place of what " in back
    reinstate(world.platform, run_id)
    assert "readers have what is shown as “after” again" in Page(report(world.platform, run_id)).text
    rollback(world.platform, run_id)


def test_who_decided_and_whose_process_did_it_are_told_apart(world: World) -> None:
    run_id = world.validated(world.manifest("decided", target=world.scope(*MARCH))).run_id
    decisions.publish(world.platform, run_id, by="ops", comment="after lunch")
    text = Page(report(world.platform, run_id)).text
    assert "decided to publish by ops" in text
    assert "PUBLISH by" not in text
    assert "published under the name ops" in text
    rollback(world.platform, run_id)


def test_a_dry_run_is_said_to_change_nothing(world: World) -> None:
    world.ran(world.manifest("dry", mode="DRY_RUN", target=world.scope(*MARCH), safety={}))
    text = report(world.platform, "dry")
    assert "Nothing: it is a dry run, which is never published." in Page(text).text
    (shown,) = table_of(text, "chunk", "rows before", "rows after")
    assert shown["rows after"] == f"{world.platform.ledger.chunks('dry')[0].rows:,}"


def test_a_version_that_main_does_not_show_has_a_report(world: World) -> None:
    """No chunk of it is accepted, so that its bundle has no file of accepted versions."""
    scope = world.scope(*MARCH) | {"publishMode": "VERSIONED", "version": "v9", "acceptance": "LATER"}
    run_id = world.published(world.manifest("version", target=scope)).run_id
    text = " ".join(Page(report(world.platform, run_id)).text.split())
    assert "version PUBLISHED" in text
    assert (
        "Readers of silver.case_sla_daily see what was accepted before; what this run has published stands beside it, as"
        in text
    )
    assert "as version v9, until it is accepted" in text
    assert "takes the place of" not in text


def test_a_diff_on_record_is_shown(world: World) -> None:
    moved = {"chunk": "2010-03", "kind": "ADDED", "key": {"case_id": HOSTILE}, "old": None, "new": {"amount": "12.00"}}
    largest = [moved | {"column": "amount", "by": "12.00", "unit": ""}]
    record = plain(diff_here(world.platform, "fixed")) | {"largest": largest}
    world.platform.evidence.append("fixed", "diff-2", record)
    page = Page(report(world.platform, "fixed"))
    counts = [f"{record[name]:,}" for name in ("added", "removed", "changed", "unchanged")]
    said = "Rows: {} added, {} removed, {} changed, {} as before; compared by {}."
    assert said.format(*counts, ", ".join(record["key"])) in page.text
    assert "12.00" in page.text
    assert "script" not in {tag for tag, _ in page.elements}


def test_the_commands_write_it_beside_the_bundle_and_where_they_are_told(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    run = CliRunner().invoke
    file = world.platform.evidence.folder / "waiting" / REPORT
    assert not file.exists()
    assert run(cli, ["publish", "waiting"]).exit_code == 0
    assert "waiting" in Page(file.read_text()).text
    elsewhere = tmp_path / "page.html"
    assert run(cli, ["report", "waiting", "--output", str(elsewhere)]).exit_code == 0
    assert elsewhere.read_text() == file.read_text()
    assert run(cli, ["rollback", "waiting"]).exit_code == 0
    text = Page(file.read_text()).text
    assert "It was rolled back. That can be undone, too: backfill reinstate waiting" in text
    assert "rolled back under the name" in text
    assert isinstance(run(cli, ["report", "nobody-knows"]).exception, InputRefused)
    assert (done := run(cli, ["verify", "--all"])).exit_code == 0, (
        done.output
    )  # a page is no evidence, and in nobody's way


@pytest.mark.parametrize(
    "name",
    [
        "bundle/approvals.json",
        "bundle/changes.json",
        "bundle/accepted_before.json",
        "bundle/index.json",
        "records/publish.json",
    ],
)
@pytest.mark.parametrize("is_emptied", [True, False], ids=["emptied", "forged"])
def test_a_page_of_damaged_evidence_says_so_at_its_top_and_the_command_fails(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_emptied: bool
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    file = world.platform.evidence.folder / "fixed" / name
    raw = file.read_bytes()
    overwrite(file, b"" if is_emptied else raw.replace(b"bob", b"eve").replace(b"20", b"19"))
    try:
        elsewhere = tmp_path / "page.html"
        done = CliRunner().invoke(cli, ["report", "fixed", "--output", str(elsewhere)])
        told = CliRunner().invoke(cli, ["report", "fixed", "--output", str(elsewhere), "--json"])
    finally:
        overwrite(file, raw)
    assert (done.exit_code, told.exit_code) == (EXIT_FAILED, EXIT_FAILED)
    assert f"fixed/{name}" in done.output
    assert json.loads(told.stdout)["damaged"] == [f"fixed/{name}"]
    text = Page(elsewhere.read_text()).text
    assert f"The evidence is not what was sealed: fixed/{name}" in text
    assert text.index("The evidence is not what was sealed") < text.index("RESTATEMENT")
    assert "eve" not in text.split()
    assert "The evidence is not what was sealed" not in report(world.platform, "fixed")


def test_a_page_that_cannot_be_drawn_is_said_and_fails_no_publication(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_arguments: object) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr(report_module, "charts_of", broken)
    assert report_beside(world.platform, "fixed") is None
    assert "the report of fixed could not be written: RuntimeError: no font" in caplog.text
    again = world.validated(world.manifest(target=world.scope(*MARCH)))
    assert publish(world.platform, again.run_id).new
    assert rollback(world.platform, again.run_id).new


def test_a_browser_shows_it_on_a_phone_without_a_page_wider_than_the_screen(world: World, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no chromium here: how wide the page is on a phone is not looked at")
    file = tmp_path / "report.html"
    probe = "<script>document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script>"
    text = report(world.platform, "fixed")
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    file.write_text(policy.sub("", text).replace("</body>", f"{probe}</body>"))
    frame = tmp_path / "phone.html"
    frame.write_text(
        f'<body><iframe id="f" src="{file.name}" style="width:390px;height:800px;border:0"></iframe><script>'
        "onload = () => { document.body.dataset.found = document.getElementById('f').contentDocument.title }</script></body>"
    )
    shown = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", frame.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = re.search(r'data-found="(\d+) of (\d+)"', shown.stdout)
    assert found, shown.stderr[-2000:]
    assert int(found[1]) <= int(found[2]) == 390
