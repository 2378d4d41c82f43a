"""How an explanation of a row is shown on a terminal. What is in it is `audit.explain`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from backfill_assets.audit.explain import Explanation, Producer, SourceRows
from backfill_assets.audit.key_history import Version
from backfill_assets.cli.console import facts
from backfill_assets.cli.terminal import Table
from backfill_assets.declarations.schema import LATER_LINEAGE_COLUMNS, LINEAGE_COLUMNS
from manifests.chunks import EVER, in_words

_MOST_ROWS = 12


def shown(found: Explanation) -> RenderableType:
    """Show an explanation: the answer first, then what it rests on."""
    pairs: list[tuple[str, object]] = [
        ("now", _headline(found)),
        *([] if found.chunk is None else [("chunk", f"{found.chunk}, held by {found.accepted_run or 'no run'}")]),
        *(("note", Text(note, "yellow")) for note in found.notes),
    ]
    parts: list[RenderableType] = [Text(f"{found.table}: {_text(found.key)}", "bold"), facts(pairs, "")]
    if found.row is not None:
        own = {name: value for name, value in found.row.items() if name not in LINEAGE_COLUMNS}
        parts += [Text(), facts(((name, _value(value)) for name, value in own.items()), "the row")]
    if found.versions:
        parts += [Text(), _history(found.versions)]
    if found.producer is not None:
        title = "the run that made it" if found.row is not None else "the run that made its last row"
        parts += [Text(), _producer(found.producer, title), Text(), _gates(found.producer.gates)]
    if found.source is not None and found.producer is not None:
        parts += [Text(), *_source(found.source, found.producer)]
    if found.corrections:
        parts += [Text(), _corrections(found.corrections)]
    return Group(*parts)


def _headline(found: Explanation) -> Text:
    if found.erased_since is not None:
        return Text("it is not shown, whether there is such a row or not", "yellow")
    if found.row is not None:
        made_by = found.accepted_run if found.producer is None else found.producer.run_id
        made_by = found.row.get("run_id") or made_by
        return Text(
            "it is there" + (f"; run '{made_by}' made it" if made_by else "; no run of this project made it"), "green"
        )
    if not found.versions:
        return Text("there is no such row, and none was ever published in the history that the table keeps", "yellow")
    gone = found.versions[0]
    return Text(f"it is not there any more: removed by {_by(gone)} on {_at(gone.at)}", "bold red")


def _by(version: Version) -> str:
    if not version.run_id:
        return f"somebody else (snapshot {version.snapshot_id} is of no run)"
    return f"the {version.action} of run '{version.run_id}'"


def _at(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"


def _text(key: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in key.items())


def _value(value: object) -> str:
    return "null" if value is None else str(value)


def _history(versions: Sequence[Version]) -> Table:
    table = Table(title="what it said, newest first", title_justify="left")
    for name in ("since", "by", "made by", "what changed", "because of"):
        table.add_column(name, overflow="fold")
    for number, version in enumerate(versions):
        earlier = versions[number + 1].row if number + 1 < len(versions) else None
        because = "\n".join(f"{name}: {old} -> {new}" for name, (old, new) in version.because.items())
        made = "" if version.row is None else version.made_by or ""
        if version.row is not None and "transform_version" in version.row:
            made += f" ({version.row['transform_version']})"
        by = f"{version.action or 'not of this project'} {version.run_id}\nsnapshot {version.snapshot_id}"
        table.add_row(_at(version.at), by, made, _what(version, earlier), because)
    return table


def _what(version: Version, earlier: Mapping[str, Any] | None) -> Text:
    if version.row is None:
        return Text("removed", "bold red")
    if earlier is None:
        # what its run says of itself is said once, of the row and of the run that made it
        of_run = (
            *LINEAGE_COLUMNS,
            *(LATER_LINEAGE_COLUMNS if set(LATER_LINEAGE_COLUMNS) <= version.row.keys() else ()),
        )
        own = {name: value for name, value in version.row.items() if name not in of_run and value is not None}
        return Text("first row: " if not version.changed else "", "green").append(_text(own), "dim")
    if not version.changed:
        return Text("the same values", "dim")
    lines = [f"{name}: {_value(old)} -> {_value(new)}" for name, (old, new) in version.changed.items()]
    return Text("\n".join(lines), "yellow")


def _producer(made: Producer, title: str) -> Table:
    decided = (
        f"{one['decision'].lower()} by {one['decided_by']}, {one['at']} {one['comment']}" for one in made.decisions
    )
    done = (f"{one['action']}, snapshot {one['snapshot_id']}, {one['ended_at']}" for one in made.publications)
    pairs: list[tuple[str, object]] = [
        ("run", f"{made.run_id} (kind {made.kind}, mode {made.mode}), {made.state}"),
        ("asked for by", made.requested_by),
        ("why", made.reason),
        *(("decision", text.strip()) for text in decided),
        *(("published", text) for text in done),
        ("code", f"{made.transform} {made.transform_version}" + (f", {made.written_in}" if made.written_in else "")),
        ("", f"backfill-assets {made.code.package_version}, content {made.code}"),
        ("read", f"{made.source}, snapshot {made.source_snapshot_id} of {_at(made.source_committed_at)}"),
        (
            "",
            "all of its rows"
            if made.input_from.date() < EVER[0]
            else f"events from {_at(made.input_from)} to {_at(made.input_until)}",
        ),
        *_upstream(made.source, made.upstream),
        *(pair for one in made.sources for pair in _further(one)),
        *(
            ("reference", f"{pin['table']}, snapshot {pin['snapshot_id']} {pin['version'] or ''}")
            for pin in made.references
        ),
        ("run clock", _at(made.run_clock)),
        ("evidence", made.evidence),
    ]
    return facts(pairs, title)


def _further(one: Mapping[str, Any]) -> list[tuple[str, object]]:
    pinned = "it had no snapshot" if one["snapshot_id"] is None else f"snapshot {one['snapshot_id']}"
    days = f"{'everything' if one['from'] is None else 'rows from ' + str(one['from'])} until {one['until']}"
    return [("read", f"{one['table']}, {pinned}"), ("", days), *_upstream(one["table"], one["upstream"])]


def _upstream(table: str, runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, object]]:
    """Show which runs of a target published what was read: its own rows are explained by its own key."""
    return [
        (
            "",
            f"{in_words(one['chunks'])} of {table} as run '{one['run_id']}' published it"
            + (f", {one['state']}" if "state" in one else "")
            + f"; evidence {one['evidence']}; its rows: `backfill explain {table} --key ...`",
        )
        for one in runs
    ]


def _gates(gates: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("gate", "of", "verdict", "found", title="what its gates said", title_justify="left")
    for gate in gates:
        verdict = Text("passed", "green") if gate["passed"] else Text("NOT PASSED", "bold red")
        if gate["accepted"]:
            verdict = Text(f"not passed, {gate['accepted']}")
        table.add_row(gate["gate"], gate["chunk"] or "the run", verdict, gate["summary"])
    return table


def _source(source: SourceRows, made: Producer) -> list[RenderableType]:
    if source.missing:
        return [Text(f"source rows: {source.missing}", "yellow")]
    parts: list[RenderableType] = []
    if source.erased:
        parts.append(Text(f"source rows: {_rows(source.erased)} of erased subjects not shown", "yellow"))
    earlier = f"{_rows(source.earlier, 'earlier ')}, of which few columns were read"
    for name, rows, total, day in (
        (f"{_rows(source.total)} in the input range", source.rows, source.total, source.day),
        (earlier, source.look_back, source.earlier, source.look_back_day),
    ):
        shown = _which(day, total)
        title = f"{made.source}, {_text(source.entity)}: {name}{shown}"
        if not rows:
            parts.append(Text(title, "dim"))
            continue
        table = Table(title=title, title_justify="left")
        names = [column for column in rows[0] if column not in source.entity]
        for column in names:
            table.add_column(column, overflow="fold")
        for row in rows[:_MOST_ROWS]:
            table.add_row(*(_value(row[column]) for column in names))
        parts.append(table)
    return parts


def _which(day: date | None, total: int) -> str:
    """Say how many of several rows are shown, and in which order."""
    if day is None or total <= 1:
        return f", the first {_MOST_ROWS} shown" if total > _MOST_ROWS else ""
    if total <= _MOST_ROWS:
        return f", nearest to {day} first"
    return f", the {_MOST_ROWS} nearest to {day} shown, nearest first"


def _rows(number: int, which: str = "") -> str:
    return f"{number:,} {which}row{'' if number == 1 else 's'}"


def _corrections(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="corrections issued for it", title_justify="left")
    for name in ("run", "kind", "before", "after", "reason"):
        table.add_column(name, overflow="fold")
    for row in rows:
        values = (_value(row[name]) for name in ("old_values", "new_values", "reason"))
        table.add_row(row["run_id"], row["event_type"], *values)
    return table
