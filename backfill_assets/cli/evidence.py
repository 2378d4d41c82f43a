"""Commands for those who ask later: `verify`, `report` and `head`.

Put here arguments, output and exit codes. What is checked is `audit.verification`'s, what the report says
`audit.report`'s.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.base import EXIT_FAILED, json_option, opened_platform, say, show, tell
from manifests.errors import InputRefused
from manifests.errors import Problem as Wrong

if TYPE_CHECKING:
    from backfill_assets.audit.verification import Verification


@click.command()
@click.argument("run_id", required=False)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Every run that was planned. Of one without sealed evidence, its rows in the ledger are checked.",
)
@click.option("--data", is_flag=True, help="Read every published row again and compare the digest of each chunk.")
@click.option("--head", metavar="HASH", help="An earlier head of the chain, kept elsewhere: is it still in the chain?")
@json_option
def verify(run_id: str | None, everything: bool, data: bool, head: str | None, as_json: bool) -> None:
    """Check the evidence of RUN_ID, or of all runs, and name every byte's change: file or row and column, then and now.

    \b
    Checked are
      bundle      each file against the hash it was sealed with, the root against chain, ledger and snapshot
      records     each file against its link; the chain link by link
      ledger      each cell of the run's rows against the evidence
      tables      columns, partition specs, snapshots and manifests as the catalog has them now, and the files that
                  readers get of each accepted chunk; what has expired as policy allows is left out
      inputs      metadata of the sources and references that were read; their files with --data
      events      with --data: what topics have of the run, by number, offsets and hash; which topics were read is said
      rows        with --data: what readers get, found by field ids through the current metadata: every file's hash,
                  the digest of every chunk's rows computed again, bounds and partitions held against the rows

    Keep the printed head of the chain somewhere else: given back with --head it shows that nothing was cut off since.

    \b
      backfill verify restate-2012
      backfill verify --all --head 3f2a...
      backfill verify --all --data --json > checked.json

    Exit codes: 0 everything is as it was recorded, 1 something is not, 2 refused (unknown run, or one that was never planned).
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph
    from backfill_assets.audit.verification import COVERED, NOT_COVERED
    from backfill_assets.audit.verification import verify as check
    from backfill_assets.cli.console import entries

    if (run_id is None) is not everything:
        what = "give a RUN_ID or --all, one of them"
        raise InputRefused(Wrong(what, "a verification is of one run or of all", "see `backfill verify --help`"))
    with opened_platform() as platform:
        done = check(platform, None if run_id is None else [run_id], data=data, head=head)
    if as_json:
        from resources.evidence.heads import told

        say(
            {
                "ok": not done.everything,
                "chain": {"length": done.length, "head": done.head, "problems": done.problems},
                "runs": done.runs,
                "heads": told(done.heads),
                "covers": {
                    "checked": {what: _asked(how, data, head) for what, how in COVERED.items()},
                    "not": NOT_COVERED,
                },
            }
        )
    else:
        _show(done, data=data)
        left = [f"{what} (--{how})" for what, how in COVERED.items() if not _asked(how, data, head)]
        tell("not checked:")
        show(entries([*left, *NOT_COVERED]))
    if done.everything:
        sys.exit(EXIT_FAILED)


@click.command()
@click.option("--publish", is_flag=True, help="Write it to every place that the setting head_places names.")
@json_option
def head(publish: bool, as_json: bool) -> None:
    """Print the chain's head, and what the places that keep it have of it.

    Who owns this machine can rebuild everything on it; a head that is kept where they cannot write gives them away.
    `head_places` names folders on another disk, git repositories (git:/path) and addresses (https://...): each publication
    and decision writes its head there, and `backfill verify` asks them by itself.

    \b
      backfill head
      backfill head --publish --json

    Exit codes: 0 done, 1 a place could not be written or asked, or has a head that the chain does not go on from.
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph
    from backfill_assets.publication.heads import keep
    from resources.evidence.heads import kept_heads, not_extended, told

    with opened_platform() as platform:
        chain = platform.evidence.chain.read()
        written = keep(platform) if publish else []
        asked = kept_heads(platform.settings.head_places)
    wrong = not_extended(asked, chain)
    if as_json:
        facts = {"length": len(chain.links), "head": chain.head, "written": told(written), "places": told(asked)}
        say(facts | {"problems": wrong})
    else:
        tell(f"link {len(chain.links)}: {chain.head}")
        for one in asked:
            tell(f"  {one.place}: {one.trouble or f'has heads up to link {one.newest}'}")
        for failed in (one for one in written if one.trouble):
            tell(f"  {failed.place}: not written: {failed.trouble}")
        for problem in wrong:
            tell(f"  {problem.where}: {problem.what} (kept {problem.expected}, found {problem.found})")
    if wrong or any(one.is_down for one in (*written, *asked)):
        sys.exit(EXIT_FAILED)


@click.command()
@click.argument("run_id")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="Where to write it; default: beside the bundle."
)
@json_option
def report(run_id: str, output: Path | None, as_json: bool) -> None:
    """Write one self-contained page about RUN_ID: why, who, what changed, gates, lineage, how to reproduce and undo it.

    Made from the evidence, the same from the same evidence; it opens without network access. A publication writes it
    beside the bundle by itself. A run that is not published yet has a page, too, from the ledger: for those who review it.

    Exit codes: 0 written, 1 written, and the evidence is not what was sealed (page and terminal name the files), 2 refused.
    """
    from backfill_assets.audit.report import write_report
    from backfill_assets.evidence.record_damage import damaged_files

    with opened_platform() as platform:
        file = write_report(platform, run_id, output)
        where = str(file.absolute() if isinstance(file, Path) else file)
        damaged = damaged_files(platform, run_id)
    if as_json:
        say({"runId": run_id, "report": where, "damaged": damaged})
    else:
        tell(f"{run_id}: {where}")
        for name in damaged:
            tell(f"the evidence is not what was sealed: {name}; see `backfill verify {run_id}`")
    if damaged:
        sys.exit(EXIT_FAILED)


def _asked(how: str, data: bool, head: str | None) -> bool:
    """Whether something was checked, by how it is asked for."""
    return how == "always" or (how == "data" and data) or (how == "head" and head is not None)


def _show(done: Verification, *, data: bool) -> None:
    from rich.text import Text

    from backfill_assets.cli.console import facts
    from backfill_assets.cli.terminal import Table

    table = Table("run", "evidence root", "links", "found", title="evidence", title_justify="left")
    for run in done.runs:
        links = ", ".join(map(str, run.links)) or "none"
        said = Text(f"{len(run.problems)} problem(s)", "bold red") if run.problems else Text("as recorded", "green")
        if data and run.chunks_read:
            said.append(f"; {run.chunks_read} chunk(s) read again", "dim")
        table.add_row(run.run_id, run.root[:16], links, said)
    if done.runs:
        show(table)
    for problem in done.everything:
        pairs = [("what", problem.what)]
        pairs += [("expected", problem.expected)] if problem.expected else []
        pairs += [("found", problem.found)] if problem.found else []
        title = f"{problem.run_id}: {problem.where}" if problem.run_id else problem.where
        show(Text(title, "bold red"), facts(pairs, ""))
    for run in done.runs:
        checked = [one.describe() for one in run.topics]
        for line in (one for one in checked if one not in run.notes):
            show(Text(f"{run.run_id}: {line}", "dim"))
        for note in run.notes:
            show(Text(f"{run.run_id}: {note}", "dim"))
    for one in done.heads:
        kept = one.trouble or f"keeps heads up to link {one.newest}, and the chain was held against each"
        show(Text(f"{one.place}: {kept}", "dim"))
    show(facts([("links", done.length), ("head", done.head)], "chain"))
