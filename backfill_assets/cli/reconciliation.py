"""The commands around reconciliation: hold what is published against its source, list what disagrees, show drift."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.base import EXIT_FAILED, json_option, opened_platform, say, show, tell
from manifests.errors import InputRefused, Problem

if TYPE_CHECKING:
    from backfill_assets.cli.terminal import Table
    from backfill_assets.declarations.target import TargetTable
    from backfill_assets.gates.broken_rules import BrokenRule
    from backfill_assets.installation import Platform
    from manifests.model import DayRange
    from resources.ledger.facade import RunRecord, Verdict

_BARS = "▁▂▃▄▅▆▇█"
_SLICES_SHOWN = 5


@click.command()
@click.argument("table", required=False)
@click.option("--range", "days", metavar="A..B", help="Only these days, whole chunks. Default: all that is published.")
@click.option(
    "--source-snapshot",
    type=click.IntRange(1, 2**63 - 1),
    help="Snapshot of the source to hold against. Default: the current one.",
)
@click.option("--gate", "gates", multiple=True, help="Only this gate; may be repeated. Default: all of the table's.")
@click.option("--manifest", type=click.Path(path_type=Path), help="A manifest of kind RECONCILIATION instead.")
@click.option("--run", "run_id", help="Go on with a reconciliation that was interrupted.")
@json_option
def reconcile(
    table: str | None,
    days: str | None,
    source_snapshot: int | None,
    gates: tuple[str, ...],
    manifest: Path | None,
    run_id: str | None,
    as_json: bool,
) -> None:
    """Hold the published rows of TABLE against its source. Changes nothing but the record.

    Each call is a run of its own (kind RECONCILIATION), approved by policy. Judged are the target's own row rules, the
    digests of the accepted rows, and the reconciliations that its product declares, by the transform version and
    reference data that the published rows were made with.

    TABLE may be left out where there is only one target. Exit codes: 0 everything agrees, 1 something does not.

    \b
      backfill reconcile
      backfill reconcile silver.meter_daily --range 2024-01-01..2024-12-31
      backfill exceptions RUN                 the rows that disagree
      backfill drift silver.meter_daily       how it was before
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph
    from backfill_assets.reconciliation import reconcile as reconciling
    from backfill_assets.reconciliation.manifest import manifest_of, plan_reconciliation
    from manifests.lifecycle import RunState
    from manifests.reading import load_manifest

    if sum(given is not None for given in (table, manifest, run_id)) > 1:
        raise InputRefused(
            Problem(
                "more than one of TABLE, --manifest and --run is given",
                "a reconciliation is of one thing",
                "give one of them",
            )
        )
    with opened_platform() as platform:
        if run_id is None:
            if manifest is not None:
                contract = load_manifest(manifest)
            else:
                contract = manifest_of(
                    platform,
                    target_of(platform, table),
                    days=None if days is None else range_of(days),
                    source_snapshot_id=source_snapshot,
                    gates=gates,
                )
            run_id = plan_reconciliation(platform, contract).run_id
        verdicts = reconciling.reconcile(platform, run_id)
        record = platform.ledger.run(run_id)
    if as_json:
        say(_as_data(record, verdicts))
    else:
        _show(record, verdicts)
    if record.state is not RunState.VALIDATED:
        sys.exit(EXIT_FAILED)


def target_of(platform: Platform, table: str | None) -> Any:
    """Return the target of a name; without one, the only target there is.

    Raises:
        InputRefused: if there is no such target, or more than one to choose from.
    """
    if table is not None:
        return platform.products.target(table)
    names = [target.name for target in platform.products.targets]
    if len(names) != 1:
        raise InputRefused(
            Problem("no table is named", "a reconciliation is of one table", f"name one of {', '.join(names)}")
        )
    return platform.products.target(names[0])


def range_of(text: str, option: str = "--range") -> DayRange:
    """Return the days of `A..B`, as an option of a command gives them.

    Raises:
        InputRefused: if they are no days, or in the wrong order.
    """
    from manifests.model import DayRange

    first, _, last = text.partition("..")
    try:
        start, end = date.fromisoformat(first), date.fromisoformat(last or first)
    except ValueError as error:
        raise InputRefused(
            Problem(f"{option} is {text}", "a range is two days, YYYY-MM-DD..YYYY-MM-DD", "correct it")
        ) from error
    if end < start:
        raise InputRefused(Problem(f"{option} is {text}", "a range ends on or after its first day", "turn it round"))
    return DayRange.model_construct(start=start, end=end)


def _as_data(record: RunRecord, verdicts: list[Verdict]) -> dict[str, Any]:
    return {
        "runId": record.run_id,
        "target": record.target,
        "targetSnapshot": record.plan.base_snapshot_id,
        "source": record.plan.source,
        "sourceSnapshot": record.plan.source_snapshot_id,
        "range": record.plan.publish_range,
        "state": record.state,
        "agrees": all(verdict.passed for verdict in verdicts),
        "gates": verdicts,
    }


def _show(record: RunRecord, verdicts: list[Verdict]) -> None:
    from backfill_assets.cli import console
    from manifests.chunks import CHUNK_GATE

    plan = record.plan
    show(
        console.facts(
            [
                ("table", f"{record.target}, snapshot {plan.base_snapshot_id}"),
                ("against", f"{plan.source}, snapshot {plan.source_snapshot_id}"),
                ("days", plan.scope),
                ("result", "everything agrees" if all(one.passed for one in verdicts) else record.state_reason),
            ],
            record.run_id,
        ),
        console.gates(verdicts, CHUNK_GATE),
    )


@click.command()
@click.argument("run_id")
@click.option("--gate", help="Only of this gate.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="The most rows shown.")
@json_option
def exceptions(run_id: str, gate: str | None, limit: int, as_json: bool) -> None:
    """List the rows that disagree, where gates of RUN_ID did not pass.

    Of a chunk that breaks a rule of its table: how many rows, and the first of them (gate chunk_rules). Of a gate of the
    whole run, they are in the table that is named, for any engine that reads the catalog; the query is shown.
    """
    from backfill_assets.gates import exception_table
    from backfill_assets.gates.broken_rules import broken_rules

    with opened_platform() as platform:
        kept = kept_exceptions(platform, run_id)
        broken = broken_rules(platform.ledger.verdicts(run_id))
        names = sorted({*kept, *(one.gate for one in broken)})
        broken = [one for one in broken if gate in {None, one.gate}]
        if gate is not None and gate not in names:
            _require_gate(platform, run_id, gate)
            raise InputRefused(
                Problem(
                    f"gate {gate} of '{run_id}' has no exceptions",
                    f"exceptions are kept of {', '.join(names) or 'no gate of this run'}",
                    f"see `backfill status {run_id}` for the gates and what they found",
                )
            )
        wanted = {name: one for name, one in kept.items() if gate in {None, name}}
        judgements = {name: one["judgement"] for name, one in wanted.items()}
        found = exception_table.rows(platform, run_id, judgements, limit)
        declared = platform.products.find_target(platform.ledger.run(run_id).target)
    if as_json:
        say({"runId": run_id, "gates": wanted, "shown": len(found), "exceptions": found, "brokenRules": broken})
        return
    if not wanted and not broken:
        tell(f"no gate of {run_id} has exceptions")
        return
    if broken:
        _show_broken(run_id, declared, broken, limit)
    if not wanted:
        return
    from backfill_assets.cli.terminal import Table
    from backfill_assets.gates.exception_words import worded

    table = Table("gate", "slice", "key", "expected", "found", "what", title=f"exceptions of {run_id}")
    for row in map(worded, found):
        table.add_row(*(str(row[name]) for name in ("gate", "slice", "key", "expected", "found", "what")))
    show(table)
    for name, one in wanted.items():
        cut = f", the first {one['rows']:,} of {one['disagree']:,}" if one["cut"] else ""
        tell(f"{name}: {one['rows']:,} row(s) in {one['table']}{cut}, snapshot {one['snapshot']}\n  {one['query']}")
    if sum(one["rows"] for one in wanted.values()) > len(found):
        tell(f"shown are {len(found):,}; more with --limit")


def _require_gate(platform: Platform, run_id: str, gate: str) -> None:
    from difflib import get_close_matches

    from manifests.chunks import CHUNK_GATE

    judged = (one.gate for one in platform.ledger.verdicts(run_id))
    there = list(dict.fromkeys([CHUNK_GATE, *platform.ledger.run(run_id).plan.gates, *judged]))
    if gate not in there:
        close = get_close_matches(gate, there, n=1)
        meant = f"; did you mean '{close[0]}'?" if close else ""
        rule = f"its gates are {', '.join(there)}"
        raise InputRefused(Problem(f"'{gate}' is no gate of run '{run_id}'{meant}", rule, "correct the name"))


def _show_broken(run_id: str, declared: TargetTable | None, broken: list[BrokenRule], limit: int) -> None:
    from rich.text import Text

    from backfill_assets.cli.terminal import Table
    from backfill_assets.gates.broken_rules import as_declared

    table = Table("chunk", "rule", "row", title=f"rows of {run_id} that break a rule", title_justify="left")
    rows = [(one, row) for one in broken for row in one.sample][:limit]
    for one, row in rows:
        cells = row if declared is None else as_declared(declared, row)
        table.add_row(one.chunk, one.rule, Text(", ".join(f"{name}={value}" for name, value in cells.items())))
    show(table)
    for one in broken:
        tell(f"{one.chunk} {one.rule}: {one.rows:,} row(s), {len(one.sample):,} of them on record")
    if sum(len(one.sample) for one in broken) > len(rows):
        tell(f"shown are {len(rows):,}; more with --limit")


def kept_exceptions(platform: Platform, run_id: str) -> dict[str, dict[str, Any]]:
    """Return where the exceptions of a run's gates are, by gate, from its newest verdicts."""
    platform.ledger.run(run_id)
    return {
        verdict.gate: dict(verdict.details["exceptions"])
        for verdict in platform.ledger.verdicts(run_id)
        if not verdict.chunk and "exceptions" in verdict.details
    }


@click.command()
@click.argument("table", required=False)
@click.option("--last", type=click.IntRange(1, 1_000), default=20, show_default=True, help="How many reconciliations.")
@json_option
def drift(table: str | None, last: int, as_json: bool) -> None:
    """Show how much of TABLE disagreed with its source, reconciliation by reconciliation, by gate and slice."""
    from backfill_assets.reconciliation import drift as history

    with opened_platform() as platform:
        target = target_of(platform, table)
        found = history.readings(platform, target.name, last)
        runs = history.reconciliations(platform, target.name, last)
    lines = history.series(found)
    if as_json:
        say(
            {
                "target": target.name,
                "reconciliations": [record.run_id for record in runs],
                "readings": found,
                "series": [
                    {"gate": one.gate, "slice": one.slice, "values": one.values, "change": one.change} for one in lines
                ],
            }
        )
        return
    if not found:
        tell(f"{target.name} was never reconciled: `backfill reconcile {target.name}` is the first")
        return
    show(_drift_table(target.name, runs, lines))


def _drift_table(name: str, runs: list[RunRecord], lines: list[Any]) -> Table:
    from rich.text import Text

    from backfill_assets.cli.terminal import Table

    first, last = (record.created_at for record in (runs[0], runs[-1]))
    table = Table(
        title=f"drift of {name}: {len(runs)} reconciliation(s), {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC",
        title_justify="left",
    )
    for column in ("gate", "slice"):
        table.add_column(column)
    for column in ("disagree", "of", "change"):
        table.add_column(column, justify="right")
    table.add_column("over time", no_wrap=True)
    shown: dict[str, int] = {}
    for one in lines:
        shown[one.gate] = shown.get(one.gate, -1) + 1
        if shown[one.gate] > _SLICES_SHOWN:
            continue
        style = "red" if one.values[-1] else "green"
        table.add_row(
            "" if one.slice else one.gate,
            one.slice or "all",
            Text(f"{one.values[-1]:,.0f}", style),
            "" if one.slice else f"{one.compared:,}",
            f"{one.change:+,.0f}" if one.change else "",
            sparkline(one.values),
        )
    return table


def sparkline(values: tuple[float, ...]) -> str:
    """Return values as bars, from nothing to the largest of them."""
    highest = max(values, default=0.0)
    if not highest:
        return _BARS[0] * len(values)
    # whatever is not nothing is seen
    return "".join(_BARS[0] if not one else _BARS[max(1, round(one / highest * (len(_BARS) - 1)))] for one in values)
