"""The commands of those who work on quarantined rows: `quarantine list`, `show`, `release`, `reject`, `export`.

Put here arguments, output and exit codes. What a case is is `planning.quarantine_cases`'; what is decided, `ingestion.releases`'; which
runs a release asks for, `ingestion.repairs`'.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.base import EXIT_FAILED, json_option, opened_instance, opened_platform, say, show, tell
from manifests.text import visible

if TYPE_CHECKING:
    from backfill_assets.ingestion.releases import Released
    from backfill_assets.ingestion.repairs import Repair
    from backfill_assets.installation import Platform
    from backfill_assets.planning.quarantine_cases import Case, Cases, RuleSummary

_LISTED = 20
_STATES = ("WAITING", "RELEASED", "REJECTED")
_CHOICE = (
    click.argument("table"),
    click.argument("cases", nargs=-1, metavar="[CASE]..."),
    click.option("--rule", help="Every case that waits (`reopen`: was rejected) and has broken this rule."),
    click.option("--all", "everything", is_flag=True, help="Every case that waits (`reopen`: was rejected)."),
    click.option("--by", help="Who decides. Default: who acts."),
    click.option("--reason", required=True, help="Why."),
)


def _chooses(command: Any) -> Any:
    """Give a command the arguments that say which cases are meant, who decides and why."""
    for option in reversed(_CHOICE):
        command = option(command)
    return command


def _filters(command: Any) -> Any:
    """Give a command the options that choose among the cases of a table."""
    for option in (
        click.option(
            "--since", type=click.DateTime(["%Y-%m-%d"]), help="Only cases that were seen on this day (UTC) or later."
        ),
        click.option("--state", type=click.Choice(_STATES, case_sensitive=False), help="Only cases in this state."),
        click.option("--rule", help="Only cases that have broken this rule."),
    ):
        command = option(command)
    return command


@click.group()
def quarantine() -> None:
    """Work on rows that were not loaded: see them, release them once a rule has changed, or reject them.

    A case is one raw row that breaks one rule; delivered again, it is the same case, seen again. It is WAITING until somebody
    releases or rejects it. The rows themselves stay in TABLE_quarantine, whatever is decided.

    \b
      backfill quarantine list bronze.meter_readings --state waiting
      backfill quarantine show bronze.meter_readings 3f2a9c0e
      backfill quarantine release bronze.meter_readings --rule "watt_hours: not int" --by NAME --reason TEXT
      backfill quarantine reject bronze.meter_readings 3f2a9c0e --by NAME --reason TEXT
      backfill quarantine reopen bronze.meter_readings 3f2a9c0e --by NAME --reason TEXT
      backfill quarantine export bronze.meter_readings cases.csv
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph


@quarantine.command("list")
@click.argument("table")
@_filters
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=_LISTED, show_default=True, help="At most so many cases."
)
@json_option
def list_cases(
    table: str, rule: str | None, state: str | None, since: datetime | None, limit: int, as_json: bool
) -> None:
    """List the cases of the input TABLE, those seen last first, and count them by rule.

    A rule's share is that of its quarantined rows among all that the table's loads have delivered.
    """
    from backfill_assets.ingestion.case_export import is_withheld
    from backfill_assets.ingestion.releases import quarantined_table
    from backfill_assets.planning.quarantine_cases import cases_of

    with opened_platform() as platform:
        declared = quarantined_table(platform, table)
        cases = cases_of(platform, declared)
        withheld, at = is_withheld(platform, declared), platform.ledger.now()
    found = _chosen(cases, rule, state, since)
    shown, rules = sorted(found, key=lambda case: case.last_seen, reverse=True)[:limit], cases.by_rule()
    if as_json:
        say(
            {
                "table": table,
                "rules": [_rule_told(one, at) for one in rules],
                "total": len(found),
                "cases": [_told(case, withheld=withheld) for case in shown],
            }
        )
    elif not rules:
        tell(f"{table}: no quarantined rows")
    else:
        show(_by_rule(table, rules, at), _listed(table, shown, len(found), withheld=withheld))
        if withheld:
            tell("values are withheld, because the policy protects columns of this table")


def _chosen(cases: Cases, rule: str | None, state: str | None, since: datetime | None) -> list[Case]:
    from backfill_assets.ingestion.case_names import require_rule

    if rule is not None:
        require_rule(cases, rule)
    return [
        case
        for case in cases.all.values()
        if (rule is None or case.rule == rule)
        and (state is None or case.state.value == state.upper())
        and (since is None or case.last_seen.date() >= since.date())
    ]


def _told(case: Case, *, withheld: bool) -> dict[str, Any]:
    from backfill_assets.declarations.quarantine import WITHHELD
    from manifests.canonical import plain

    told: dict[str, Any] = plain(case)
    return told | {"detail": WITHHELD} if withheld else told


def _rule_told(one: RuleSummary, at: datetime) -> dict[str, Any]:
    from manifests.canonical import plain

    told: dict[str, Any] = plain(one)
    return told | {"oldest_waiting_seconds": _age(one, at)}


def _age(one: RuleSummary, at: datetime) -> float | None:
    return None if one.oldest_waiting is None else max(0.0, (at - one.oldest_waiting).total_seconds())


def _by_rule(table: str, rules: Sequence[RuleSummary], at: datetime) -> object:
    from backfill_assets.cli.terminal import Table

    shown = Table(title=f"quarantine of {table} by rule", title_justify="left")
    shown.add_column("rule", overflow="fold")
    for column in ("waiting", "released", "rejected", "rows", "share", "oldest waits"):
        shown.add_column(column, justify="right")
    for one in rules:
        age = _age(one, at)
        waits = "" if age is None else f"{age / 86_400:,.1f} days"
        numbers = (f"{number:,}" for number in (one.waiting, one.released, one.rejected, one.rows))
        shown.add_row(visible(one.rule), *numbers, f"{one.share:.2%}", waits)
    return shown


def _listed(table: str, cases: Sequence[Case], total: int, *, withheld: bool) -> object:
    from backfill_assets.cli.terminal import Table

    shown = Table(title=f"{len(cases):,} of {total:,} cases of {table}", title_justify="left")
    for column in ("case", "state", "rule", "detail", "file"):
        shown.add_column(column, overflow="fold")
    for column in ("row", "rows"):
        shown.add_column(column, justify="right")
    for column in ("last seen (UTC)", "decided by"):
        shown.add_column(column)
    for case in cases:
        shown.add_row(
            case.short,
            case.state.value,
            visible(case.rule),
            "" if withheld else visible(case.detail),
            visible(case.source_file),
            f"{case.source_row:,}",
            f"{case.rows:,}",
            f"{case.last_seen:%Y-%m-%d %H:%M}",
            visible(case.decided_by),
        )
    return shown


@quarantine.command("show")
@click.argument("table")
@click.argument("case_id", metavar="CASE")
@json_option
def show_case(table: str, case_id: str, as_json: bool) -> None:
    """Show a CASE of the input TABLE: the rule, the raw row, where it came from, and what was decided.

    CASE is its id, or a beginning of 4 characters or more that no other case of the table has.
    """
    from backfill_assets.cli.console import facts
    from backfill_assets.ingestion.case_views import view_of
    from backfill_assets.ingestion.releases import quarantined_table

    with opened_platform() as platform:
        view = view_of(platform, quarantined_table(platform, table), case_id)
    if as_json:
        say(view)
        return
    case = view.case
    pairs: list[tuple[str, object]] = [
        ("case", case.case_id),
        ("state", case.state.value),
        ("rule", visible(case.rule)),
        ("detail", visible(case.detail)),
        (
            "first seen",
            f"{case.first_seen:%Y-%m-%d %H:%M:%S} UTC, row {case.source_row:,} of {visible(case.source_file)}",
        ),
        ("last seen", f"{case.last_seen:%Y-%m-%d %H:%M:%S} UTC"),
        ("loads", f"{case.rows:,} row(s) in {', '.join(load or 'of another program' for load in case.loads)}"),
    ]
    pairs += [
        (one.decision.lower(), f"by {visible(one.decided_by)}, {one.at:%Y-%m-%d %H:%M:%S} UTC: {visible(one.reason)}")
        for one in view.decisions
    ]
    pairs += [("came in by load", case.released_by)] if case.released_by else []
    pairs += [("read by run", f"{run_id} ({state})") for run_id, state in view.runs.items()]
    pairs += [("same row", f"case {one.short}, {one.state.value}: {visible(one.rule)}") for one in view.siblings]
    show(facts(pairs, f"case {case.short} of {table}"))
    tell(f"the raw row:\n{_indented(view.record)}")


def _indented(record: str) -> str:
    try:
        return json.dumps(json.loads(record), indent=2, ensure_ascii=False)
    except ValueError:
        return record


@quarantine.command("release")
@_chooses
@click.option("--beside-equal", is_flag=True, help="Bring a row in although the table has an equal one.")
@click.option("--plan", "plans", is_flag=True, help="Write the manifests of the proposed runs, and plan them.")
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Folder of the manifests. Default: here.",
)
@json_option
def release_cases(
    table: str,
    cases: tuple[str, ...],
    rule: str | None,
    everything: bool,
    by: str | None,
    reason: str,
    beside_equal: bool,
    plans: bool,
    folder: Path,
    as_json: bool,
) -> None:
    """Bring quarantined rows into the input TABLE that pass its rules of today, by a load of their own.

    Rows that do not pass stay WAITING, each with the rule that it breaks now; so does one of which the table has an equal row, or a
    row with the same unique key. `backfill unload TABLE LOAD` takes a release back. Safe to repeat: the same rows come in once.

    Published chunks that read the rows were computed without them: a REPAIR of exactly those is proposed for each target, as a
    manifest. With --plan it is written and planned.
    """
    from backfill_assets.defs.launch import report_inputs
    from backfill_assets.ingestion.case_names import Choice
    from backfill_assets.ingestion.releases import release
    from backfill_assets.ingestion.repairs import repairs_of
    from resources.ledger.facade import operator

    with opened_platform() as platform, opened_instance(platform.settings) as instance:
        choice = Choice(cases, rule, everything)
        done = release(platform, table, choice, by=by, reason=reason, beside_equal=beside_equal)
        report_inputs(platform, instance)
        proposed = (
            repairs_of(platform, table, done.loads, requested_by=by or operator(), reason=reason) if done.loads else []
        )
        planned = _plan(platform, proposed, folder) if plans else {}
    if as_json:
        runs = [
            {"target": one.target, "chunks": one.chunks, "manifest": one.data} | planned.get(one.manifest.run_id, {})
            for one in proposed
        ]
        say({"release": done, "proposed": runs})
    else:
        _tell_release(done)
        _tell_proposed(proposed, planned)
    if any("refused" in one for one in planned.values()):
        raise SystemExit(EXIT_FAILED)


def _plan(platform: Platform, proposed: Sequence[Repair], folder: Path) -> dict[str, dict[str, Any]]:
    """Write the manifests and plan them; return by run id the file, and the state, or why planning was refused."""
    from backfill_assets.planning.resolve import plan_run
    from manifests.errors import Refused
    from resources.files.whole_files import write_whole

    told: dict[str, dict[str, Any]] = {}
    for one in proposed:
        file = folder / f"{one.manifest.run_id}.yaml"
        write_whole(file, one.as_yaml(), make_folder=True)
        told[one.manifest.run_id] = {"file": str(file)}
        try:
            told[one.manifest.run_id] |= {"state": plan_run(platform, one.manifest).state.value}
        except Refused as refusal:
            told[one.manifest.run_id] |= {"refused": [f"{problem.what}: {problem.fix}" for problem in refusal.problems]}
    return told


def _tell_release(done: Released) -> None:
    for load, cases in done.before.items():
        tell(f"{done.table}: {len(cases):,} case(s) were released before, as load {load}")
    if done.load_id:
        tell(
            f"{done.table}: {len(done.released):,} case(s) released, {done.rows:,} row(s), snapshot {done.snapshot_id}"
        )
        tell(
            f"  load {done.load_id}; to take it back: backfill unload {done.table} {done.load_id} --by NAME --reason TEXT"
        )
    elif not done.before:
        tell(f"{done.table}: nothing was released{'' if done.waiting else '; no case waits'}")
    by_rule: dict[str, list[Case]] = {}
    for case, rule in done.waiting:
        by_rule.setdefault(rule, []).append(case)
    for rule, waiting in sorted(by_rule.items()):
        some = ", ".join(case.short for case in waiting[:5]) + (", …" if len(waiting) > 5 else "")  # noqa: PLR2004 - as many as fit
        tell(f"  {len(waiting):,} wait(s) on, {visible(rule)}: {some}")


def _tell_proposed(proposed: Sequence[Repair], planned: dict[str, dict[str, Any]]) -> None:
    for one in proposed:
        told = planned.get(one.manifest.run_id)
        tell(f"proposed: {one.describe()}")
        if told is None:
            tell(one.as_yaml())
        elif "refused" in told:
            tell(f"  {told['file']}: written, and not planned: {'; '.join(told['refused'])}")
        else:
            tell(f"  {told['file']}: {told['state']}; then: backfill approve {one.manifest.run_id} --by NAME")


@quarantine.command("reject")
@_chooses
@json_option
def reject_cases(
    table: str, cases: tuple[str, ...], rule: str | None, everything: bool, by: str | None, reason: str, as_json: bool
) -> None:
    """Decide that quarantined rows of the input TABLE are not to come in. They stay in the quarantine, and no release takes them."""
    from backfill_assets.ingestion.case_names import Choice
    from backfill_assets.ingestion.releases import reject

    with opened_platform() as platform:
        done = reject(platform, table, Choice(cases, rule, everything), by=by, reason=reason)
    if as_json:
        say(done)
        return
    tell(f"{table}: {len(done.rejected):,} case(s) rejected")
    if done.before:
        tell(f"  {len(done.before):,} had been before")


@quarantine.command("reopen")
@_chooses
@json_option
def reopen_cases(
    table: str, cases: tuple[str, ...], rule: str | None, everything: bool, by: str | None, reason: str, as_json: bool
) -> None:
    """Take the rejection of quarantined rows of the input TABLE back: they wait again, and can be released.

    With --rule or --all, every rejected case; those that wait, or were released, stay as they are.
    """
    from backfill_assets.ingestion.case_names import Choice
    from backfill_assets.ingestion.releases import reopen

    with opened_platform() as platform:
        done = reopen(platform, table, Choice(cases, rule, everything), by=by, reason=reason)
    if as_json:
        say(done)
        return
    tell(f"{table}: {len(done.reopened):,} case(s) wait again")
    if done.before:
        tell(f"  {len(done.before):,} waited before")


@quarantine.command("export")
@click.argument("table")
@click.argument("file", type=click.Path(path_type=Path))
@_filters
@json_option
def export_cases(
    table: str, file: Path, rule: str | None, state: str | None, since: datetime | None, as_json: bool
) -> None:
    """Write the cases of the input TABLE to FILE (.csv or .parquet), each with its raw row and what was decided.

    Values are withheld where the policy protects columns of the table.
    """
    from backfill_assets.ingestion.case_export import export
    from backfill_assets.ingestion.releases import quarantined_table
    from backfill_assets.planning.quarantine_cases import cases_of

    with opened_platform() as platform:
        declared = quarantined_table(platform, table)
        written = export(platform, declared, _chosen(cases_of(platform, declared), rule, state, since), file)
    if as_json:
        say({"file": str(file), "cases": written})
    else:
        tell(f"{file}: {written:,} case(s) of {table}")
