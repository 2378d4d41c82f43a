"""Commands about logs: `land` (bring ranges of one into its table) and `logs` (which ranges are there).

Put here arguments, output and exit codes. How a topic is read is `backfill_assets.extraction`'s; what of it is landed, `ingestion`'s.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.base import json_option, opened_instance, opened_platform, say, show, tell
from manifests.errors import EnvironmentRefused, InputRefused, Problem, Refused

if TYPE_CHECKING:
    from backfill_assets.declarations.topics import Topic
    from backfill_assets.ingestion.landed_commits import LoadLanded
    from backfill_assets.ingestion.landing import Landed
    from backfill_assets.ingestion.topic_ranges import Resolved, Wanted
    from backfill_assets.installation import Platform
    from manifests.log_ranges import LogRange

_OFFSETS = re.compile(r"\d{1,10}:\d{1,19}")
_SHOWN = 20
"""Ranges that a person is shown; `--json` has all of them."""


@click.command()
@click.argument("log")
@click.argument("folder", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--new", is_flag=True, help="Land whatever is not landed yet, of every partition.")
@click.option("--from-offsets", metavar="P:O,...", help="By partition the first offset: 0:1500,1:0.")
@click.option(
    "--until-offsets",
    metavar="P:O,...",
    help="By partition the offset that ends the range, which is not in it. One that has only a first offset is landed to its end.",
)
@click.option(
    "--from-time", metavar="T", help="Begin with the first record of this day or instant (UTC), or a later one."
)
@click.option("--until-time", metavar="T", help="End before the first record of this day or instant, or a later one.")
@click.option(
    "--accept-gap",
    metavar="REASON",
    help="Leave out what is missing before the range; which, who and why is on record.",
)
@click.option("--by", metavar="NAME", help="Who accepts the gap. Default: who runs the command.")
@click.option(
    "--archive", metavar="PLACE", help="Land what a Parquet file, a folder or a table of the catalog has of it."
)
@click.option("--prove-overlap", is_flag=True, help="Read what is landed already again, and hold it against the table.")
@json_option
def land(
    log: str,
    folder: Path | None,
    new: bool,
    from_offsets: str | None,
    until_offsets: str | None,
    from_time: str | None,
    until_time: str | None,
    accept_gap: str | None,
    by: str | None,
    archive: str | None,
    prove_overlap: bool,
    as_json: bool,
) -> None:
    """Land ranges of a LOG in its table: each record a row, as it came, with its place.

    \b
      backfill land orders --new                                    what is not landed yet
      backfill land orders --from-offsets 0:0,1:0 --until-offsets 0:5000,1:4800
      backfill land orders --from-time 2026-01-01 --until-time 2026-02-01
      backfill land orders --archive /archive/orders                what retention has taken since
      backfill land bank_changes delivered/                         the changes of a database

    The range is resolved into offsets before anything is read, and is on record with the table's snapshot: cluster, topic id, offsets by
    partition. What is landed already is not landed again, so that the same command goes on after a crash. The topic is read without
    a group, and no offset is committed: who reads it live notices nothing.

    Refused before anything is written: offsets that retention has taken, a log that was truncated or made anew, another cluster, a
    partition that is gone, a gap after what is landed; of an archive, records that differ from those that are landed.

    The changes of a database come as a FOLDER: files *.jsonl of Debezium's messages, and log.json beside them, which says which log it is
    ({"system_identifier": "…", "timeline": 1, "database": "…", "slot": "…"}). Whole transactions are landed, each once; an open one is kept.
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph
    from backfill_assets.defs.launch import report_inputs

    _require_reason(accept_gap, by)
    if folder is not None:
        _require_alone(new, from_offsets, until_offsets, from_time, until_time, archive, prove_overlap)
        _land_changes(log, folder, accept_gap, by, as_json=as_json)
        return
    wanted = _wanted(log, new, from_offsets, until_offsets, from_time, until_time, archive, prove_overlap=prove_overlap)
    from backfill_assets.ingestion.archived_topics import land_archive
    from backfill_assets.ingestion.landing import land as landed

    with opened_platform() as platform, opened_instance(platform.settings) as instance:
        topic = platform.products.topic(log)
        told = (lambda _: None) if as_json else (lambda resolved: _tell_resolved(topic, resolved, proves=prove_overlap))
        try:
            done = (
                landed(platform, topic, wanted, accept_gap=accept_gap, by=by, prove_overlap=prove_overlap, tell=told)
                if archive is None
                else land_archive(platform, topic, archive, accept_gap=accept_gap, by=by, tell=told)
            )
        finally:  # loads before one that is refused are landed
            report_inputs(platform, instance)
    if as_json:
        found = {"log": done.resolved.log, "there": done.resolved.there, "loads": done.loads, "gap": done.resolved.gap}
        say(found | {"proven": done.proven})
        return
    _tell_landed(topic, done, accept_gap)


def _land_changes(log: str, folder: Path, accept_gap: str | None, by: str | None, *, as_json: bool) -> None:
    from backfill_assets.cli.changelogs import land_changelog

    land_changelog(log, folder, accept_gap=accept_gap, by=by, as_json=as_json)


def _require_reason(accept_gap: str | None, by: str | None) -> None:
    if by is not None and accept_gap is None:
        rule = "it names who accepts a gap, and no gap is accepted without a reason"
        raise InputRefused(Problem("--by without --accept-gap", rule, "add --accept-gap REASON, or leave it out"))


def _require_alone(*options: object) -> None:
    if any(options):
        rule = "changes of a database are landed as they are delivered, those of a topic by offsets or times"
        raise InputRefused(Problem("a folder and a range are given", rule, "give the one or the other"))


def require_client() -> None:
    """Refuse to ask brokers where their client is not installed.

    Raises:
        EnvironmentRefused: naming the extra.
    """
    if find_spec("confluent_kafka") is None:
        raise EnvironmentRefused(
            Problem(
                "confluent_kafka cannot be imported",
                "brokers are asked with what the extra `kafka` brings",
                "pip install 'backfill-assets[kafka]'",
            )
        )


def _wanted(
    log: str,
    new: bool,
    from_offsets: str | None,
    until_offsets: str | None,
    from_time: str | None,
    until_time: str | None,
    archive: str | None,
    *,
    prove_overlap: bool,
) -> Wanted:
    """Return what is asked for; refuse what does not go together, all of it at once, and all where brokers cannot be asked."""
    from backfill_assets.ingestion.topic_ranges import Wanted

    problems: list[Problem] = []
    by_offset = from_offsets is not None or until_offsets is not None
    by_time = from_time is not None or until_time is not None
    if [new, by_offset, by_time, archive is not None].count(True) != 1:
        what = (
            "what is to be landed is said in several ways"
            if new or by_offset
            else "it is not said what is to be landed"
        )
        rule = "a range is what is new, is said by offsets or by times, or is what an archive has"
        problems.append(
            Problem(
                what,
                rule,
                "give one of --new, --from-offsets with --until-offsets, --from-time with --until-time, --archive",
            )
        )
    if prove_overlap and (new or archive is not None):
        rule = "what is new overlaps nothing, and what an archive has is always held against the table"
        fix = "leave it out, or say by offsets or times what is read again"
        problems.append(Problem("--prove-overlap with --new or --archive", rule, fix))
    start, until = (
        _offsets("--from-offsets", from_offsets, problems),
        _offsets("--until-offsets", until_offsets, problems),
    )
    since, before = _time("--from-time", from_time, problems), _time("--until-time", until_time, problems)
    if problems:
        raise InputRefused(_of_a_changelog(log) or problems)
    require_client()
    return Wanted(new, start, until, since, before)


def _of_a_changelog(log: str) -> list[Problem]:
    """Return what is said of a changelog's name where a topic's belongs; nothing of any other, and where nobody can tell."""
    from backfill_assets.declarations.products import is_a_changelog

    try:
        with opened_platform() as platform:
            return [is_a_changelog(log)] if log in platform.products.changelogs else []
    except Refused:  # without an installation the arguments are wrong all the same
        return []


def _offsets(option: str, text: str | None, problems: list[Problem]) -> dict[int, int]:
    if text is None:
        return {}
    parts = [one.strip() for one in text.split(",")]
    found = {int(one.partition(":")[0]): int(one.partition(":")[2]) for one in parts if _OFFSETS.fullmatch(one)}
    if len(found) != len(parts) or any(one >= 1 << 63 for one in found.values()):
        rule = "it gives each partition, once, its offset: PARTITION:OFFSET, with commas between them"
        problems.append(Problem(f"{option} is {text!a}", rule, "for example 0:1500,1:0"))
    return found


def _time(option: str, text: str | None, problems: list[Problem]) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        rule = "it is a day or an instant, as 2026-01-31 or 2026-01-31T08:30:00+01:00; without an offset it is UTC"
        problems.append(Problem(f"{option} is {text!a}", rule, "correct it"))
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _tell_resolved(topic: Topic, resolved: Resolved, *, proves: bool) -> None:
    from manifests.log_gaps import positions_in_words
    from manifests.log_ranges import in_words, positions

    tell(f"{resolved.log}")
    if resolved.there:
        then = "are read again and held against it" if proves else "are not read again"
        tell(f"  landed before: {positions(resolved.there):,} offsets, which {then}")
    for partition in resolved.new_partitions:
        tell(f"  nothing is landed yet of partition {partition}")
    for partition in sorted(resolved.begins):
        begins = resolved.begins[partition]
        firsts = [one.start for one in resolved.missing if one.partition == partition]
        if begins and not resolved.there and min(firsts, default=begins) == begins:
            tell(f"  partition {partition} begins with offset {begins:,}: earlier ones are not in the topic any more")
    if resolved.gap:
        tell(f"  left out, and accepted as missing: {positions_in_words(resolved.gap, most=_SHOWN)}")
    if resolved.missing:
        tell(f"  to land: {positions(resolved.missing):,} offsets: {in_words(resolved.missing, _SHOWN)}")
    elif resolved.there:
        tell(f"  nothing to land: {topic.table} has all that the topic has of it")
    else:
        tell("  nothing to land: the topic has no offset of that range now")


def _tell_landed(topic: Topic, done: Landed, accept_gap: str | None) -> None:
    if done.proven is not None:
        removed = f"; {done.proven.removed:,} records were removed by compaction since" if done.proven.removed else ""
        tell(f"  proven equal: {done.proven.rows:,} records landed before, {done.proven.digest}{removed}")
    for one in done.loads:
        _tell_load(one)
    if done.loads:
        rows = sum(one.rows for one in done.loads)
        tell(f"{topic.table}: {rows:,} records landed, snapshot {done.loads[-1].snapshot_id}")
        if topic.event_time is not None:
            untimed = sum(one.untimed for one in done.loads)
            tell(
                f"  without an event time: {untimed:,} of them" + (", which no chunk of days reads" if untimed else "")
            )
    if accept_gap is not None and not (done.loads and done.resolved.gap):
        tell("  no gap was accepted: that is done with the landing of what comes after one")


def _tell_load(one: LoadLanded) -> None:
    from manifests.log_ranges import in_words

    ranges = [landed.range for landed in one.landed.ranges]
    tell(f"  load {one.load_id}: {one.rows:,} records of {in_words(ranges, _SHOWN)}")


@click.command(name="logs")
@click.argument("log", required=False)
@click.option("--offline", is_flag=True, help="Do not ask brokers how far the log is by now.")
@json_option
def logs_command(log: str | None, offline: bool, as_json: bool) -> None:
    """Show which ranges of a LOG (of all, without one) are landed: by partition, with times, and how far behind they are.

    What is missing is shown with the command that lands it, and each gap that was accepted with who did, when and why.

    How far behind is asked of the brokers, where they answer.
    """
    from backfill_assets.cli.changelogs import changelog_shown, show_changelog

    with opened_platform() as platform:
        changelogs = [one for one in platform.products.changelogs if log in {None, one}]
        named = [] if log is None or changelogs else [platform.products.topic(log)]
        topics = [*platform.products.topics.values()] if log is None else named
        found = [_of_topic(platform, one, offline=offline) for one in topics]
        found += [changelog_shown(platform, one) for one in changelogs]
    if as_json:
        say(found)
    elif not found:
        tell("no product declares a log")
    else:
        for one in found:
            if "partitions" in one:
                _show_topic(one)
            else:
                show_changelog(one)


def _of_topic(platform: Platform, topic: Topic, *, offline: bool) -> dict[str, Any]:
    """Return what is landed of a topic, as plain data."""
    from backfill_assets.cli.log_gaps import accepted_as_data, missing_as_data, not_accepted
    from manifests.log_ranges import LogKind, gaps, joined
    from resources.lakehouse.landed_logs import accepted_gaps, landed_loads

    loads = landed_loads(platform.lakehouse.table(topic.table))
    ranges = [one for load in loads for one in load.landed.ranges]
    holes = gaps(one.range for one in ranges)
    state, why = (None, "") if offline else _asked_of_brokers(platform, topic)
    left: dict[int, int] = {}
    lost: tuple[LogRange, ...] = ()
    if state is not None:
        from backfill_assets.ingestion.topic_ranges import behind, gone

        left, lost = dict(behind(state, loads)), gone(state, loads)
    partitions = []
    for partition in sorted({one.range.partition for one in ranges} | set(left)):
        own = [one for one in ranges if one.range.partition == partition]
        times = [at for one in own for at in (one.first_time, one.last_time) if at is not None]
        partitions.append(
            {
                "partition": partition,
                "ranges": [[one.start, one.until] for one in joined(landed.range for landed in own)],
                "gaps": [[one.start, one.until] for one in holes if one.partition == partition],
                "records": sum(one.rows for one in own),
                "first_time": min(times, default=None),
                "last_time": max(times, default=None),
                "behind": left.get(partition),
                "gone": [[one.start, one.until] for one in lost if one.partition == partition],
            }
        )
    accepted = accepted_gaps(topic.table, loads)
    now = None if topic.event_time is None else platform.lakehouse.snapshot_id(topic.table)
    return {
        "log": topic.name,
        "without_event_time": None if now is None else platform.lakehouse.nulls_in(topic.table, now, "event_time"),
        "topic": topic.topic,
        "table": topic.table,
        "identity": loads[-1].landed.log if loads else None,
        "is_this_log": None if state is None or not loads else state.log == loads[-1].landed.log,
        "loads": len(loads),
        "partitions": partitions,
        "missing": missing_as_data(not_accepted(holes, accepted), loads, LogKind.KAFKA),
        "accepted_gaps": accepted_as_data(accepted, loads),
        "not_asked": why,
    }


def _asked_of_brokers(platform: Platform, topic: Topic) -> tuple[Any, str]:
    """Return what brokers say of a topic, or why they do not: what is landed can be shown without."""
    try:
        require_client()
        from backfill_assets.extraction.brokers import Brokers

        with Brokers(topic, platform.settings.of_topic(topic.name)) as brokers:
            return brokers.state(), ""
    except Refused as refusal:
        return None, "; ".join(one.what for one in refusal.problems)


def _show_topic(found: dict[str, Any]) -> None:
    from backfill_assets.cli.log_gaps import tell_accepted, tell_missing
    from backfill_assets.cli.terminal import Table
    from manifests.log_gaps import positions_in_words
    from manifests.log_ranges import LogKind, LogRange

    shown = Table(title=f"{found['log']}: topic {found['topic']} in {found['table']}", title_justify="left")
    for column in ("partition", "landed", "gaps"):
        shown.add_column(column)
    shown.add_column("records", justify="right")
    for column in ("first record_time", "last record_time"):  # UTC
        shown.add_column(column)
    shown.add_column("behind", justify="right")
    for one in found["partitions"]:
        shown.add_row(
            str(one["partition"]),
            _ranges(one["ranges"]),
            _ranges(one["gaps"]),
            f"{one['records']:,}",
            *("" if at is None else f"{at:%Y-%m-%d %H:%M:%S}" for at in (one["first_time"], one["last_time"])),
            "" if one["behind"] is None else f"{one['behind']:,}",
        )
    show(shown)
    if found["identity"] is not None:
        tell(f"  {found['identity']}, {found['loads']:,} load(s)")
    for one in found["partitions"]:
        if one["gone"]:
            gone = positions_in_words(LogRange(one["partition"], *gap) for gap in one["gone"])
            tell(f"  missing: {gone}: retention has removed them from the topic before they were landed")
            tell(
                f"    land them from an archive: `backfill land {found['log']} --archive PLACE`; if nobody has them, go on without "
                f"them, on record: `backfill land {found['log']} --new --accept-gap REASON`"
            )
    if found["without_event_time"]:
        tell(f"  without an event time: {found['without_event_time']:,} records, which no chunk of days reads")
    tell_missing(found["missing"], LogKind.KAFKA, found["log"])
    tell_accepted(found["accepted_gaps"], LogKind.KAFKA)
    if found["is_this_log"] is False:
        tell("  the topic is another one by now: it was made anew, or the brokers are those of another cluster")
    if found["not_asked"]:
        tell(f"  not known how far behind: {found['not_asked']}")


def _ranges(ranges: list[list[int]]) -> str:
    more = f" and {len(ranges) - _SHOWN:,} more" if len(ranges) > _SHOWN else ""
    shown = (f"{start:,}" if until - start == 1 else f"{start:,} to {until - 1:,}" for start, until in ranges[:_SHOWN])
    return ", ".join(shown) + more
