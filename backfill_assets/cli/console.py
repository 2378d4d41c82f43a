"""What the command prints for people: tables, the chunk grid, bars. No decisions, and nothing a script should read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from backfill_assets.cli.cost_view import takes
from backfill_assets.cli.terminal import Table
from backfill_assets.gates.exception_words import worded
from backfill_assets.review.wording import failed_chunks, of_kind
from manifests.chunks import Chunking, cell_of, in_words
from manifests.errors import Refused
from manifests.expected import Expected
from manifests.lifecycle import RunState
from manifests.model import Mode, days_in_words
from manifests.plan import Plan
from manifests.run_terms import Freeze
from manifests.stages import Publish, Stage
from resources.ledger.facade import ChunkRecord, ChunkState, RunRecord, Verdict
from resources.ledger.launches import HELD

if TYPE_CHECKING:  # a refusal is shown also where a product, which these import, cannot be imported
    from backfill_assets.audit.first_difference import RowDifference
    from backfill_assets.audit.reproduce import ChunkComparison, Reproduction
    from backfill_assets.operations.doctor.disagreements import Disagreement, Repaired
    from backfill_assets.operations.garbage_found import TableGarbage
    from backfill_assets.operations.runbook import Step

STATE_STYLE: Mapping[str, str] = {
    RunState.PUBLISHED: "green",
    RunState.VALIDATED: "green",
    RunState.STAGED: "cyan",
    RunState.RUNNING: "cyan",
    RunState.APPROVED: "blue",
    RunState.PLANNED: "blue",
    RunState.FAILED: "red",
    RunState.REJECTED: "red",
    RunState.ROLLED_BACK: "yellow",
    RunState.SUPERSEDED: "dim",
    RunState.CANCELLED: "dim",
    RunState.DRAFT: "dim",
}
_CELL = {
    ChunkState.PLANNED: ("·", "dim"),
    ChunkState.STAGED: ("▢", "cyan"),
    ChunkState.PASSED: ("■", "green"),
    ChunkState.FAILED: ("✗", "bold red"),
}
_BAR = 40
_SLICES_SHOWN = 5
_KEYS_SHOWN = 6
_SHORTEST_HASH = 12


def refusal(error: Refused) -> RenderableType:
    """Show every reason of a refusal: what, which rule, what to do."""
    lines = Text()
    for problem in error.problems:
        lines.append(f"{problem.where}: " if problem.where else "", "bold")
        lines.append(f"{problem.what}\n")
        if problem.rule:
            lines.append("  rule        ", "dim")
            lines.append(f"{problem.rule}\n")
        if problem.fix:
            lines.append("  what to do  ", "dim")
            lines.append(f"{problem.fix}\n")
    lines.rstrip()
    return Panel(lines, title=error.headline, border_style="red", title_align="left")


def facts(pairs: Iterable[tuple[str, object]], title: str) -> Table:
    """Show pairs of names and values."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    return table


def entries(texts: Iterable[str], *, numbered: bool = False) -> Table:
    """Show texts as a list below what was printed before, each wrapped beside its dash or number."""
    table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for number, text in enumerate(texts, start=1):
        table.add_row(f"  {number}." if numbered else "  -", Text(text))
    return table


def _may_change(planned: Plan, program: Sequence[Stage]) -> str:
    if not planned.mode.publishes:
        chunks = f"{len(planned.chunks)} chunk(s)"
        return f"nothing that readers of {planned.target} see: a {planned.mode} run stages {chunks} and publishes none"
    commits = [commit.table for stage in program if isinstance(stage, Publish) for commit in stage.commits]
    tables = " and ".join(dict.fromkeys(commits)) or planned.target
    return f"{tables}, {planned.scope} ({planned.publish_mode})"


def output_checked(planned: Plan) -> str:
    """Say whether a plan was made with a look at what its transform returns."""
    if planned.output_checked:
        return "has the declared columns, in types that fit: checked when planned"
    return "not checked: `backfill plan --check-transform` asks before anybody approves, staging in any case"


_FIGURES = 12


def figures_expected(expected: Expected) -> list[str]:
    """Return each figure that a manifest expects, a line for the whole and for each chunk; of many chunks the first."""
    lines = [f"the whole publish range: {expected.whole.in_words()}"] if expected.whole is not None else []
    lines += [f"{key}: {expected.chunks[key].in_words()}" for key in sorted(expected.chunks)[:_FIGURES]]
    more = len(expected.chunks) - _FIGURES
    return [*lines, f"and of {more:,} more chunks"] if more > 0 else lines


def plan(
    planned: Plan,
    state: str,
    program: Sequence[Stage],
    freeze: Freeze | None = None,
    expected: Expected | None = None,
    tells: Sequence[str] = (),
) -> RenderableType:
    """Show a plan: what it reads, with which code, what it may change, what must come out, whom it `tells`, and the stages that it is executed by."""
    references = [
        (
            f"reference {pin.table}",
            f"snapshot {pin.snapshot_id}{f' ({pin.version})' if pin.version else ''}, {pin.semantics}"
            + (f", accepted with run '{pin.accepted_with}'" if pin.accepted_with else ""),
        )
        for pin in planned.references
    ]
    schemas = ", ".join(f"{one.schema_id} of {one.table}" for one in planned.schemas)
    pairs: list[tuple[str, object]] = [
        ("state", Text(state, STATE_STYLE.get(state, ""))),
        ("may change", _may_change(planned, program)),
        (
            "base",
            f"snapshot {planned.base_snapshot_id}" if planned.base_snapshot_id else "the target has no snapshot yet",
        ),
        ("reads", f"{planned.source}, snapshot {planned.source_snapshot_id}"),
        *([("schemas", schemas)] if schemas else []),
        (
            "input range",
            days_in_words(planned.input_range)
            + ("" if planned.chunking is Chunking.WHOLE else f" ({planned.warm_up_days} days of warm-up)"),
        ),
        ("to read", f"{planned.reads.rows:,} rows, {planned.reads.bytes / 1e6:,.1f} MB, {planned.reads.files:,} files"),
        *_without_rows(planned),
        *_look_back(planned),
        *((f"source {one.table}", one.describe()) for one in planned.sources),
        *planned.of_logs(),
        *((f"made by run '{one.run_id}'", in_words(one.chunks)) for one in planned.upstream),
        *references,
        ("transform", f"{planned.transform} {planned.transform_version}, mode {planned.mode}"),
        *([] if planned.mode is Mode.RECONCILIATION else [("transform's output", output_checked(planned))]),
        ("code", f"backfill-assets {planned.code.package_version}, content {planned.code}"),
        *(planned.merge.describe() if planned.merge is not None else []),
        *(planned.compaction.describe() if planned.compaction is not None else []),
        *([("if chunks change meanwhile", planned.conflict.describe())] if planned.conflict is not None else []),
        *([("live writes", freeze.describe())] if freeze is not None else []),
        *(("tells", one) for one in tells),
        ("run clock", planned.run_clock.isoformat()),
        ("run-level gates", ", ".join(planned.gates)),
        *([] if expected is None else [("expected figures", one) for one in figures_expected(expected)]),
        *(planned.data.describe() if planned.data is not None else []),
        *((f"{one.table}: {name}", text) for one in planned.sources if one.data for name, text in one.data.describe()),
        *([("policy", planned.policy)] if planned.policy is not None else []),
        *takes(planned),
        *([] if planned.dry_run is None else [("dry run", planned.dry_run.describe())]),
        ("plan hash", planned.hash),
    ]
    return Group(facts(pairs, f"plan of {planned.run_id}"), Text(), _stages(program))


def _without_rows(planned: Plan) -> list[tuple[str, object]]:
    """Say for which chunks the source has no file: a gap that nobody meant, or days that only a wrong clock has reached."""
    found = [chunk.key for chunk in planned.chunks if not chunk.reads.rows]
    if not found or planned.compaction is not None:
        return []
    return [("nothing to read", f"for {len(found):,} of {len(planned.chunks):,} chunks: {in_words(found)}")]


def _look_back(planned: Plan) -> list[tuple[str, object]]:
    """Say what is seen of the rows before the input range, or that nothing is."""
    if (found := planned.look_back) is not None:
        return [("look-back", f"{found.rows:,} earlier rows, {found.files:,} files, few columns")]
    none = f"none declared: rows before {planned.input_range.start} are not seen"
    return [] if planned.chunking is Chunking.WHOLE else [("look-back", none)]


def _stages(program: Sequence[Stage]) -> Table:
    found = Table(title="stages", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    found.add_column(justify="right", style="dim")
    found.add_column()
    for number, stage in enumerate(program, start=1):
        found.add_row(str(number), stage.describe())
    return found


def grid(chunks: Sequence[ChunkRecord]) -> RenderableType:
    """Show every chunk as a cell: a row a year (months, weeks), a month (days), a day (hours), of each part of the table."""
    rows: dict[str, list[ChunkRecord]] = defaultdict(list)
    for chunk in chunks:
        rows[cell_of(chunk.chunk)[0]].append(chunk)
    text = Text()
    for name, members in rows.items():
        text.append(f"{name}  ", "dim")
        place = 1
        for chunk in members:
            own = cell_of(chunk.chunk)[1]  # a sample, or a repair, leaves out months between
            text.append("  " * (own - place))
            symbol, style = _CELL[chunk.state]
            text.append(f"{symbol} ", style)
            place = own + 1
        text.append("\n")
    counts = Counter(chunk.state for chunk in chunks)
    for state, (symbol, style) in _CELL.items():
        text.append(f"{symbol} ", style)
        text.append(f"{state.value.lower()} {counts[state]}   ")
    return text


def _waits(why: str) -> str:
    """A stop or a pause, and what a run waits for a launch of, say themselves that it waits."""
    return why if "waits for a launch" in why or "waits until somebody" in why else f"waits: {why}"


def failures(chunks: Sequence[ChunkRecord]) -> Table:
    """Show why chunks failed: the first line of each error once, with the chunks that have it."""
    by_error: dict[str, list[str]] = defaultdict(list)
    for chunk in chunks:
        if chunk.error:
            by_error[chunk.error.strip().partition("\n")[0]].append(chunk.chunk)
    pairs = [
        (keys[0] if len(keys) == 1 else f"{len(keys)} chunks", error if len(keys) == 1 else f"{_some(keys)}: {error}")
        for error, keys in by_error.items()
    ]
    return facts(pairs, "failed chunks")


def _some(keys: Sequence[str]) -> str:
    return ", ".join(keys[:_KEYS_SHOWN]) + (" …" if len(keys) > _KEYS_SHOWN else "")


def run_table(records: Sequence[RunRecord], waiting: Mapping[str, str]) -> Table:
    """Show runs, newest last; a run id is never cut, since it is what the next command takes.

    `waiting` has what a run waits for, which is then its reason.
    """
    table = Table(title="runs", title_justify="left")
    table.add_column("run", no_wrap=True, min_width=max((len(record.run_id) for record in records), default=3))
    table.add_column("state", no_wrap=True)
    table.add_column("what")
    table.add_column("why")
    for record in records:
        table.add_row(
            record.run_id,
            Text(f"{record.state}{_stopped(waiting.get(record.run_id, ''))}", STATE_STYLE.get(record.state, "")),
            f"{of_kind(record)} of {record.target}\n{record.manifest.target.scope}, {record.manifest.transform.version}",
            _waits(waiting[record.run_id]) if record.run_id in waiting else record.state_reason,
        )
    return table


def _stopped(why: str) -> str:
    return next((f", {word}" for word in HELD if why.startswith(f"{word} ")), "")


def gates(verdicts: Sequence[Verdict], chunk_gate: str, accepted: Collection[str] = ()) -> RenderableType:
    """Show the gates of a run: one line for all chunks, one a run-level gate, what disagrees, and where.

    `accepted` are those whose change an owner has accepted.
    """
    table = Table("gate", "verdict", "found", title="gates", title_justify="left")
    chunked = [verdict for verdict in verdicts if verdict.chunk]
    failed = failed_chunks(verdicts)
    if chunked:
        table.add_row(
            chunk_gate, _mark(not failed), f"{len(chunked) - len(failed)} of {len(chunked)} chunks pass every rule"
        )
    for verdict in failed[:10]:
        table.add_row(f"  {verdict.chunk}", _mark(passed=False), verdict.summary)
    for verdict in verdicts:
        if verdict.chunk:
            continue
        mark = _mark(verdict.passed)
        if verdict.asks and not verdict.passed:
            owned = verdict.gate in accepted
            mark = Text("accepted", "green") if owned else Text("asks for an owner", "bold yellow")
        table.add_row(verdict.gate, mark, verdict.summary)
        failing = list(verdict.details.get("slices", []))
        for row in failing[:_SLICES_SHOWN]:
            table.add_row("", "slice", Text(_named(row), "red"))
        more = int(verdict.details.get("failing_slices", len(failing))) - len(failing[:_SLICES_SHOWN])
        if more > 0:
            table.add_row("", "", Text(f"and {more:,} more slice(s)", "dim"))
        for row in list(verdict.details.get("sample", []))[:3]:
            table.add_row("", "", Text("  " + _named(worded(row)), "dim"))
    return Group(table, *_exceptions(verdicts))


def _exceptions(verdicts: Sequence[Verdict]) -> list[Text]:
    """Say where the rows that disagree are: a command a line, never broken, so that it can be copied."""
    lines = []
    for verdict in verdicts:
        if kept := verdict.details.get("exceptions"):
            cut = f" of {kept['disagree']:,}" if kept["cut"] else ""
            lines.append(Text(f"{verdict.gate}: {kept['rows']:,}{cut} row(s) that disagree", no_wrap=True))
            lines.append(Text(f"  {kept['command']}", "bold", no_wrap=True, overflow="ignore"))
    return lines


def _named(row: Mapping[str, Any]) -> str:
    words = {"expected", "found"} if "what" in row else set()
    shown = {name: value for name, value in row.items() if name not in words or value != ""}
    return ", ".join(
        f"{name} {_bracketed(value)}" if name in words else f"{name}={value}" for name, value in shown.items()
    )


def _bracketed(value: object) -> str:
    return f"({value})" if "=" in str(value) else str(value)


def _mark(passed: bool) -> Text:
    return Text("passed", "green") if passed else Text("NOT PASSED", "bold red")


def reproduction(done: Reproduction) -> RenderableType:
    """Show a reproduction: what the plan pinned and what is here, the chunks that differ, the first row, the cause."""
    from backfill_assets.audit.reproduce import Outcome

    conditions = Table("decides the output", "in the plan", "now", title="conditions", title_justify="left")
    for condition in done.conditions:
        present = Text(condition.present, "" if condition.same else "yellow")
        conditions.add_row(condition.name, condition.recorded, present)
    parts: list[RenderableType] = [conditions, *_unequal([one for one in done.chunks if one.outcome != Outcome.EQUAL])]
    if done.difference is not None and done.difference.row is not None:
        parts += [Text(), _row(done.difference.chunk, done.difference.row)]
    if done.difference is not None and done.difference.note:
        parts.append(Text(done.difference.note))
    pairs: list[tuple[str, object]] = [
        ("outcome", Text(done.outcome, "green" if done.outcome is Outcome.EQUAL else "bold red")),
        ("found", done.summary),
        *([("cause", Text(", ".join(done.causes), "bold"))] if done.causes else []),
        *(("what to do", text) for text in done.what_to_do),
        *([("engine", f"{done.engine.name} {done.engine.version}".strip())] if done.engine.notes else []),
        *(("note", text) for text in done.engine.notes),
        *([] if done.scratch is None else [("kept", done.scratch)]),
    ]
    return Group(*parts, Text(), facts(pairs, f"{done.run_id}: reproduction"))


def _unequal(chunks: Sequence[ChunkComparison]) -> list[RenderableType]:
    if not chunks:
        return []
    table = Table(title="chunks that are not equal", title_justify="left")
    for name in ("chunk", "rows then", "rows now", "digest then", "digest now", "found"):
        table.add_column(name, justify="right" if name.startswith("rows") else "left")
    for one in chunks[:10]:
        rows = "" if one.rows is None else f"{one.rows:,}"
        digests = _told_apart(*(digest.rpartition(":")[2] for digest in (one.recorded_digest, one.digest)))
        table.add_row(one.chunk, f"{one.recorded_rows:,}", rows, *digests, one.note or one.outcome)
    rest = [Text(f"… and {len(chunks) - 10} more; --json has all of them", "dim")] if len(chunks) > 10 else []  # noqa: PLR2004
    return [Text(), table, *rest]


def _told_apart(one: str, other: str) -> tuple[str, str]:
    """Return the beginnings of two hashes, as long as it takes to tell them apart."""
    differing = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    length = max(_SHORTEST_HASH, differing + 1)
    return one[:length], other[:length]


def _row(chunk: str, row: RowDifference) -> RenderableType:
    if row.recorded is None:
        what = "a row that the record does not have"
    else:
        what = "a row that is missing now" if row.reproduced is None else "the first row that differs"
    key = ", ".join(f"{name}={value}" for name, value in row.key.items())
    table = Table("column", "then", "now")
    for name in row.columns:
        values = ("" if side is None else side[name] for side in (row.recorded, row.reproduced))
        table.add_row(name, *("null" if value is None else str(value) for value in values))
    return Group(Text(f"{chunk}, {what}: {key}"), table)


def by_year(before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]) -> Table:
    """Show rows and breaches by year before and after, with a bar a year of the breaches that moved."""
    table = Table(title="what changed", title_justify="left")
    for name in ("year", "rows before", "rows after", "breaches before", "breaches after", "change"):
        table.add_column(name, justify="left" if name == "year" else "right", no_wrap=True)
    table.add_column("breaches after (bar)", max_width=_BAR)
    nothing = {"rows": 0, "breaches": 0}
    years = sorted(before.keys() | after.keys())
    most = max((after.get(year, nothing)["breaches"] for year in years), default=0) or 1
    for year in years:
        old, new = before.get(year, nothing), after.get(year, nothing)
        change = new["breaches"] - old["breaches"]
        table.add_row(
            year,
            f"{old['rows']:,}",
            f"{new['rows']:,}",
            f"{old['breaches']:,}",
            f"{new['breaches']:,}",
            Text(f"{change:+,}", "yellow" if change else "dim"),
            Bar(most, 0, new["breaches"], color="cyan"),
        )
    sums = {
        name: [sum(side.get(year, nothing)[name] for year in years) for side in (before, after)] for name in nothing
    }
    table.add_section()
    table.add_row(
        "all",
        *(f"{value:,}" for value in sums["rows"]),
        *(f"{value:,}" for value in sums["breaches"]),
        f"{sums['breaches'][1] - sums['breaches'][0]:+,}",
        "",
    )
    return table


def disagreements(found: Sequence[Disagreement], repaired: Sequence[Repaired]) -> RenderableType:
    """Show what the doctor repaired, and what disagrees."""
    parts: list[RenderableType] = []
    if repaired:
        table = Table("where", "what disagreed", "repaired", title="repaired", title_justify="left")
        for item in repaired:
            table.add_row(item.found.where, item.found.what, Text(item.done, "green"))
        parts.append(table)
    if found:
        title = "what disagrees" if not repaired else "what is left"
        table = Table(title=title, title_justify="left")
        for name in ("where", "what", "sure", "what to do", "repair"):
            table.add_column(name, overflow="fold")  # a path is never cut
        for one in found:
            loud = "bold red" if one.kind == "DATA-LOSS" else ""
            can = Text("--repair", "cyan") if one.repair else Text("people", "dim")
            table.add_row(Text(one.where, loud), Text(one.what, loud), one.sure.value, Text(one.fix), can)
        parts.append(table)
    else:
        parts.append(Text("ledger, tables, staged files and evidence agree", "green"))
    return Group(*parts)


def garbage(found: Sequence[TableGarbage]) -> RenderableType:
    """Show what nothing needs any more, by table, run and kind."""
    table = Table(title="what nothing needs any more", title_justify="left")
    for name in ("table", "of", "kind"):
        table.add_column(name)
    table.add_column("how many", justify="right")
    table.add_column("MB", justify="right")
    for item in found:
        for kind, names in (("ref", item.refs), ("snapshot", item.snapshots)):
            if names:
                table.add_row(item.table, "its history", kind, f"{len(names):,}", "")
        for (owner, kind), (files, size) in item.sums().items():
            table.add_row(item.table, owner or "its history", kind, f"{files:,}", f"{size / 1e6:,.3f}")
    files, size = sum(len(item.files) for item in found), sum(item.bytes for item in found)
    parts: list[RenderableType] = [table] if table.row_count else []
    parts.append(Text(f"{files:,} files, {size / 1e6:,.3f} MB"))
    parts += [Text(f"left alone: {path}: {why}", "dim") for item in found for path, why in item.left.items()]
    return Group(*parts)


_STEP_STYLE = {"done": "green", "now": "bold yellow", "later": "dim", "does not apply": "dim"}


def runbook(record: RunRecord, why: str, steps: Sequence[Step]) -> RenderableType:
    """Show each step of a run's runbook: where it stands (`why` it is there), what is on record, the commands to go on with."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="dim")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number, step in enumerate(steps, start=1):
        style = _STEP_STYLE[step.state]
        text = Text("\n".join(step.facts), "dim" if style == "dim" else "")
        for command in step.commands:
            text.append(f"\n$ {command}", "cyan")
        table.add_row(str(number), Text(step.title, style), Text(step.state, style), text)
    head = Text(f"{record.run_id}: ")
    head.append(record.state, STATE_STYLE.get(record.state, ""))
    head.append(f" ({why})" if why else "")
    return Group(head, Text(), table)
