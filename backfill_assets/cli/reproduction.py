"""The command that computes a recorded run again: `reproduce`.

Put here arguments and output; what is compared is `audit.reproduce`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.bars import bars
from backfill_assets.cli.base import (
    EXIT_FAILED,
    json_option,
    opened_platform,
    say,
    show,
)
from backfill_assets.cli.launching import select_chunks

if TYPE_CHECKING:
    from backfill_assets.audit.reproduce import Reproduction
    from resources.ledger.facade import RunRecord


@click.command()
@click.argument("run_id")
@click.option(
    "--chunks", "ranges", multiple=True, metavar="FROM[..TO]", help="Only these chunks; may be repeated. Default: all."
)
@click.option("--keep", is_flag=True, help="Leave what was computed in its scratch folder, and say where that is.")
@click.option(
    "--engine",
    type=click.Choice(["spark", "sail"]),
    default="spark",
    show_default=True,
    help="What computes it. sail: another engine, to check Spark's results.",
)
@json_option
def reproduce(run_id: str, ranges: tuple[str, ...], keep: bool, engine: str, as_json: bool) -> None:
    """Compute the recorded RUN_ID again from its plan, into scratch, and compare the digest of every chunk.

    Read are the snapshots that the plan pinned; "now" is the plan's run clock. Nothing is published, and the ledger and
    the tables stay as they are. Whatever state the run is in: what counts is that its chunks were staged and gated.

    \b
    Equal digests prove that plan, code and pinned data still give the recorded rows. Otherwise the first chunk
    and row that differ are named, and the cause:
      code                this code is not the plan's: the commit to check out is named
      configuration       the Spark settings are not the plan's
      reference data      files of a pinned reference snapshot were changed in place
      source data         files of the pinned source snapshot were changed in place
      retired snapshot    a pinned snapshot has expired, or files of it are gone: nothing is computed
      not deterministic   none of these: the transform itself gives other rows for the same plan
      engine              with --engine sail: Sail may compute something else than Spark

    Other code or configuration does not stop it: equal digests are then a proof all the same, and say so. `--engine sail`
    needs the extra `sail`; what Sail does not know is named, and nothing that it computes is ever published.

    \b
    Exit codes: 0 equal, 1 different or not computable, 2 refused (unknown run, chunks without a recorded digest).

    \b
      backfill reproduce restate-2012
      backfill reproduce restate-2012 --chunks 2012-03..2012-05
      backfill reproduce restate-2012 --json > proof.json
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph
    from backfill_assets.audit import reproduce as again
    from backfill_assets.audit.second_engine import EngineName
    from backfill_assets.staging.progress import written_chunks

    computed: set[str] = set()
    compared: set[str] = set()
    folders: list[str] = []

    def tell(event: str, chunks: Sequence[str], folder: str) -> None:
        if event == "computing":
            folders.append(folder)
            return
        computed.update(chunks)
        if event == "compared":
            compared.update(chunks)

    def look() -> tuple[int, int] | None:
        return (len(computed) + len(written_chunks(folders[-1])), len(compared)) if folders else None

    with opened_platform() as platform:
        record = platform.ledger.run(run_id)
        keys = select_chunks(record, ranges)
        with nullcontext() if as_json else bars(len(keys), look):
            done = again.reproduce(platform, run_id, keys, keep=keep, engine=EngineName(engine), tell=tell)
    if as_json:
        say(_as_data(record, done))
    else:
        from backfill_assets.cli.console import reproduction

        show(reproduction(done))
    if done.outcome is not again.Outcome.EQUAL:
        sys.exit(EXIT_FAILED)


def _as_data(record: RunRecord, done: Reproduction) -> dict[str, Any]:
    """Return what `--json` prints."""
    return {
        "runId": record.run_id,
        "target": record.target,
        "state": record.state,
        "planHash": record.plan_hash,
        "outcome": done.outcome,
        "found": done.summary,
        "causes": done.causes,
        "whatToDo": done.what_to_do,
        "engine": done.engine,
        "conditions": done.conditions,
        "chunks": done.chunks,
        "firstDifference": done.difference,
        "scratch": done.scratch,
    }
