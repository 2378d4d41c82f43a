"""What gates have not passed of a run, chunk by chunk and as a whole, as its ledger has it.

Put here what verdicts say against a run, whether it is to be published or is a dry run that an approval rests on. How a gate judges is
`backfill_assets.gates`'.
"""

from __future__ import annotations

from collections.abc import Sequence

from backfill_assets.installation import Platform
from manifests.chunks import CHUNK_GATE, in_words
from manifests.errors import Problem
from manifests.plan import Plan
from resources.ledger import judged
from resources.ledger.facade import ChunkRecord, ChunkStanding, ChunkState


def gate_problems(
    platform: Platform, run_id: str, plan: Plan, chunks: Sequence[ChunkRecord | ChunkStanding]
) -> list[Problem]:
    """Return each gate that has not passed, or has judged other files than those that are staged."""
    problems: list[Problem] = []
    verdicts = platform.ledger.standing_verdicts(run_id)
    judged_as_staged = {
        chunk.chunk: verdict.passed
        for chunk in chunks
        if (verdict := verdicts.get((chunk.chunk, CHUNK_GATE))) is not None and verdict.attempt == chunk.attempt
    }
    open_chunks = [
        chunk.chunk
        for chunk in chunks
        if chunk.state is not ChunkState.PASSED or not judged_as_staged.get(chunk.chunk, False)
    ]
    if open_chunks or len(chunks) != len(plan.chunks):
        what = f"{len(open_chunks)} chunk(s) have not passed their gate: {in_words(open_chunks)}"
        way_out = (
            f"`backfill run {run_id}` computes and gates what is left; `backfill status {run_id}` says what failed, and why"
            if all(judged_as_staged.values())
            else f"`backfill exceptions {run_id}` shows rows that break the rules; correct the transform or its input, and plan "
            "the change under a new run id"
        )
        problems.append(Problem(what, "every planned chunk is staged and has passed", way_out))
    missing = [gate for gate in plan.gates if ("", gate) not in verdicts]
    accepted = platform.ledger.accepted_gates(run_id)
    not_passed = [gate for gate in plan.gates if ("", gate) in verdicts and not verdicts["", gate].passed]
    failed = [gate for gate in not_passed if gate not in accepted]
    staged = judged.name_of(chunks)
    older = [
        gate for gate in plan.gates if ("", gate) in verdicts and not judged.is_about(verdicts["", gate].judged, staged)
    ]
    if older:
        problems.append(
            Problem(
                f"{', '.join(older)} judged other files than those that are staged",
                "a verdict counts for the files it was made of",
                f"`backfill run {run_id}` judges what is staged",
            )
        )
    if missing:
        problems.append(
            Problem(
                f"no verdict of {', '.join(missing)}",
                "every run-level gate has judged",
                f"`backfill run {run_id}` runs the gates",
            )
        )
    if failed:
        problems.append(
            Problem(
                f"not passed: {', '.join(failed)}",
                "every run-level gate passes",
                f"`backfill status {run_id}` says what each found; `backfill exceptions {run_id}` lists the rows, where it keeps them",
            )
        )
    return problems
