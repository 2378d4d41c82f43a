"""The runbook of one run: each step from the reason to the archive, with what is on record of it and what is next.

Put here what a step says in which state. The steps are those of `docs/runbook.md`, by the same titles; what is on record is
looked up in `run_on_record`, and what a command does is nobody's business here. Nothing is changed, and nothing is said that
the ledger, the evidence or the target does not say: a step is done if something on record shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import starmap

from backfill_assets.evidence.record_damage import harmed_of
from backfill_assets.installation import Platform
from backfill_assets.operations.garbage import lapsed
from backfill_assets.operations.run_on_record import (
    SHOWN,
    RunOnRecord,
    Said,
    StepState,
    first_line,
    instant_text,
    some,
)
from backfill_assets.publication.dry_runs import dry_run_in_words
from backfill_assets.publication.leasing import held
from backfill_assets.publication.modes import change_of, publication_in_words, strategy_of
from backfill_assets.publication.requirements import shown_by_others, waits_for
from backfill_assets.review.markdown import block, escaped
from manifests.chunks import Chunking
from manifests.errors import Refused
from manifests.lifecycle import ACCEPT, ENDED, PUBLISH, REINSTATE, ROLLBACK, WAS_PUBLISHED, RunState
from manifests.model import OnConflict
from manifests.series import step_id
from resources.actors import Proof
from resources.lakehouse.storage import Storage, place_of
from resources.ledger import launches
from resources.ledger.facade import (
    RAISED,
    STAGED,
    ChunkState,
    PublicationRecord,
    RunRecord,
    chunks_of,
)

TITLES = (
    "Write the manifest",
    "Plan",
    "Approve",
    "Launch",
    "Watch",
    "Judge",
    "Review",
    "Publish",
    "Tell",
    "Undo",
    "Prove",
    "Archive",
)
"""The steps, in order; `docs/runbook.md` has the same."""


@dataclass(frozen=True)
class Step:
    """A step: where the run stands with it, what is on record, and the commands to go on with, if any."""

    title: str
    state: StepState
    facts: tuple[str, ...]
    commands: tuple[str, ...] = ()


def steps(platform: Platform, run_id: str) -> list[Step]:
    """Return the steps of a run, in order.

    Raises:
        InputRefused: if the ledger holds no such run.
    """
    book = _Book(platform, platform.ledger.run(run_id))
    said = (
        book.manifest(),
        book.planned(),
        book.approved(),
        book.launched(),
        book.watched(),
        book.judged(),
        book.reviewed(),
        book.published(),
        book.told(),
        book.undone(),
        book.proven(),
        book.archived(),
    )
    return [
        Step(title, state, tuple(facts), tuple(commands))
        for title, (state, facts, commands) in zip(TITLES, said, strict=True)
    ]


def markdown(record: RunRecord, why: str, found: Sequence[Step]) -> str:
    """Return the steps as a Markdown list, for a ticket; `why` the run is in its state."""
    lines = [f"# Runbook of {escaped(record.run_id)}", ""]
    lines += [f"{escaped(record.target)}, {record.state}: {escaped(why)}", ""]
    for number, step in enumerate(found, start=1):
        lines.append(f"{number}. **{step.title}**: {step.state}")
        lines += [f"   - {escaped(fact)}" for fact in step.facts]
        lines += ["", *block(step.commands, "bash", "   "), ""] if step.commands else []
    return "\n".join(lines).rstrip() + "\n"


class _Book(RunOnRecord):
    """What each step says of one run; a method a step."""

    def manifest(self) -> Said:
        text = self._record.manifest
        facts = [
            f"{text.kind}, requested by {text.requested_by}: {text.reason}",
            f"manifest {self._record.manifest_hash}, first recorded {instant_text(self._record.created_at)}",
        ]
        if text.development:
            facts.append("development: it may be computed by code that is not committed, on record")
        if text.series is not None:
            facts.append(f"step {text.series.step} of the series '{text.series.of}'")
        return StepState.DONE, facts, []

    def planned(self) -> Said:
        plan = self._plan
        reads = plan.reads
        facts = [
            f"plan {self._record.plan_hash}, run clock {instant_text(plan.run_clock)}",
            f"transform {plan.transform} {plan.transform_version}, mode {plan.mode}",
            f"may change {plan.target}, {plan.scope} ({plan.publish_mode}), {len(plan.chunks)} chunks",
            f"reads {reads.rows:,} rows of {plan.source}, snapshot {plan.source_snapshot_id}"
            + (", all of it" if plan.chunking is Chunking.WHOLE else f", from {plan.input_range.start}"),
            *(f"reads {one.table}, {one.describe()}" for one in plan.sources),
            f"base snapshot {plan.base_snapshot_id or 'none: the table was empty'}; code {plan.code}",
        ]
        facts += [
            f"planned anew, time {one.number}, {instant_text(one.at)}: {one.reason}"
            for one in self._platform.ledger.amendments(self._id)
        ]
        return StepState.DONE, facts, []

    def approved(self) -> Said:
        facts = []
        for one in self._platform.ledger.decisions(self._id):
            own = " (claimed)" if one.proof == Proof.CLAIMED else ""
            own += ", who requested it" if one.self_approved else ""
            comment = f": {one.comment}" if one.comment else ""
            facts.append(f"{one.decision} by {one.by}{own}, {instant_text(one.at)}{comment}")
        facts += [
            f"LIVE does not publish into {one.start_day} to {one.end_day}, at most until {instant_text(one.until_at)}"
            for one in self._platform.ledger.repairs.open_freezes()
            if one.run_id == self._id
        ]
        if self._state is RunState.PLANNED:
            by = ("--by NAME", "--reason WHY", f"--plan-hash {self._record.plan_hash}")
            facts.append(f"no decision yet; the approver cannot be {self._record.requested_by}")
            facts += [*self._on_dry_run, *([self._other_code] if self._other_code else [])]
            return StepState.NOW, facts, [self._command("approve", *by), self._command("reject", *by)]
        return (StepState.DONE, [*facts, *self._on_dry_run], []) if facts else self._later("not decided")

    @property
    def _on_dry_run(self) -> list[str]:
        said = dry_run_in_words(self._platform, self._record)
        return [f"dry run: {said}"] if said else []

    def launched(self) -> Said:
        state, facts, commands = self._launched()
        if state is StepState.NOW and (other := self._other_code):
            return state, [*facts, other], [one for one in commands if one == self._reject]
        return state, facts, commands

    def _launched(self) -> Said:
        facts = list(starmap(self._of_attempts, Counter(one.state for one in self._attempts).items()))
        missing = [one.chunk for one in self._chunks if one.state not in STAGED]
        launch = [self._command("run")]
        facts += [str(one) + (f"; {one.note}" if one.note else "") for one in self._stops]
        if self._waiting is not None and self._waiting.stop is not None:
            left = f"left to compute: {some(missing)}" if missing else "every chunk is staged"
            why = ("--by NAME", "--reason WHY") if self._waiting.stop.is_pause else ()
            return StepState.NOW, [*facts, left], [self._command("resume", *why)]
        if self._state is RunState.PLANNED:
            return self._later("after its approval")
        if self._state is RunState.APPROVED:
            what = f"nothing is computed yet; in the UI, materialise {self._plan.target} for backfill '{self._id}'"
            return StepState.NOW, [what], launch
        if self._state is RunState.RUNNING:
            busy = [one for one in self._attempts if one.is_running]
            alive = [one for one in busy if launches.under_way(one)]
            facts += [
                f"attempt {one.attempt}, {len(chunks_of(one))} chunks, process {one.pid} on {one.host}, "
                f"since {instant_text(one.started_at)}" + ("" if one in alive else ": that process is no more")
                for one in busy
            ]
            if alive:
                return StepState.DONE, facts, []
            facts.append(str(self._waiting or "no process is computing"))
            return StepState.NOW, facts, launch
        if self._state is RunState.FAILED and not self._failed_gates:
            facts += [
                f"{one.chunk}: {first_line(one.error)}" for one in self._failed_chunks if not self._gate_failed(one)
            ]
            if not self._failed_chunks:
                facts.append(self._last_move)
            if not self._failed_chunks or any(not self._gate_failed(one) for one in self._failed_chunks):
                facts.append(
                    "launch again if the cause was outside code and data; else end it, and plan under a new id"
                )
                return StepState.NOW, facts, [*launch, self._reject]
        return (StepState.DONE, facts, []) if self._attempts else self._later("after its approval")

    def watched(self) -> Said:
        counts = Counter(one.state for one in self._chunks)
        rows = sum(one.rows or 0 for one in self._chunks if one.state in STAGED)
        said = ", ".join(f"{state.value.lower()} {counts[state]}" for state in ChunkState if counts[state])
        facts = [f"chunks: {said}; {rows:,} rows staged"]
        if not self._attempts:
            return self._later("chunk by chunk, once it is launched")
        if counts[ChunkState.PASSED] == len(self._chunks):
            return StepState.DONE, facts, []
        if self._state in ENDED:
            return StepState.NEVER, [*facts, f"the run ended before: {self._last_move}"], []
        failed = [one for one in self._failed_chunks if self._gate_failed(one)]
        facts += [f"{one.chunk}: {first_line(one.error)}" for one in failed[:SHOWN]]
        if failed and self._state is RunState.FAILED:
            facts.append(
                "the same plan and code give the same rows: correct data, code or rule, and plan under a new id"
            )
            return StepState.NOW, facts, [self._command("status"), self._reject]
        if counts[ChunkState.STAGED] and not counts[ChunkState.PLANNED] and not counts[ChunkState.FAILED]:
            return StepState.NOW, [*facts, "staged chunks wait for their gate"], [self._command("run")]
        computed = self._state is RunState.RUNNING and self._waiting is None
        watch = [self._command("status", "--watch")] if computed else []
        return (StepState.NOW if watch else StepState.LATER), facts, watch

    def judged(self) -> Said:
        found = {one.gate: one for one in self._verdicts if not one.chunk and one.gate in self._plan.gates}
        accepted = self._platform.ledger.accepted_changes(self._id)
        said = {gate: f"not passed, {one}" for gate, one in accepted.items()}
        facts = [
            f"{gate} {'passed' if one.passed else said.get(gate, 'NOT PASSED')}: {one.summary}"
            for gate, one in found.items()
        ]
        if self._state in {RunState.VALIDATED, *WAS_PUBLISHED}:
            return StepState.DONE, facts, []
        if self._state is RunState.FAILED and any(RAISED in one.details for one in self._failed_gates):
            facts.append(
                "what could not judge has found nothing: launch again if the cause was outside the gate (nothing is computed "
                "again); else correct the gate, and plan the change under a new id"
            )
            launch = [] if self._other_code else [self._command("run")]
            facts += [self._other_code] if self._other_code else []
            return StepState.NOW, facts, [*launch, self._command("status"), self._reject]
        if self._state is RunState.FAILED and self._failed_gates:
            facts.append("it is not published; the same plan and code give the same verdict: plan under a new id")
            return StepState.NOW, facts, [self._command("status"), self._reject]
        all_passed = all(one.state is ChunkState.PASSED for one in self._chunks)
        if waiting := self._platform.ledger.asking(self._id) if self._state is RunState.STAGED else []:
            facts.append("an owner of the table says whether the change is right; nothing is published before")
            given = ("--by OWNER", "--reason WHY")
            accept = [self._command("accept-change", f"--gate {one.gate}", *given) for one in waiting]
            return StepState.NOW, facts, [self._command("diff"), *accept, self._command("cancel", "--by NAME")]
        if self._state is RunState.STAGED and all_passed:
            return StepState.NOW, ["every chunk has passed, and nothing has judged the run yet"], [self._command("run")]
        if self._state in ENDED and len(found) == len(self._plan.gates):
            return StepState.DONE, facts, []
        return self._later(f"{len(self._plan.gates)} gates of the whole run, once every chunk has passed")

    def reviewed(self) -> Said:
        facts = [self._rows_against_accepted] if self._state is RunState.VALIDATED else []
        if strategy_of(self._plan).waits_on_branch and self._state is RunState.VALIDATED:
            facts.append(f"the candidate can be queried on branch candidate-{self._id} once it is prepared")
        if not self._plan.publishes:
            if self._state is RunState.VALIDATED:
                facts.append(
                    f"mode {self._plan.mode}: its numbers are its result; ending it lets its files be collected"
                )
                return StepState.NOW, facts, [self._command("status"), self._command("cancel", "--by NAME")]
            return self._later(f"its numbers are the result of a {self._plan.mode}")
        if not self._plan.manual_publish:
            return StepState.NEVER, ["requiresManualPublish is not set: no manual decision is needed"], []
        if self._state is RunState.VALIDATED:
            facts.append("requiresManualPublish: it is published when somebody says so")
            return StepState.NOW, facts, [self._command("diff"), self._command("review", "--by NAME"), self._reject]
        if self._state in WAS_PUBLISHED:
            done = next((one for one in self._committed if one.action == PUBLISH), None)
            return StepState.DONE, [f"published by {done.actor}"] if done else [], []
        return self._later("requiresManualPublish: somebody looks before it is published")

    @property
    def _rows_against_accepted(self) -> str:
        keys = [one.key for one in self._plan.chunks]
        rows = sum(one.rows or 0 for one in self._chunks)
        holders = self._platform.ledger.accepted(self._plan.target, keys)
        if not holders:
            return f"{rows:,} rows staged; no run holds any of its chunks today"
        if any(self._platform.ledger.run(one).plan.derives for one in {*holders.values()}) or self._plan.derives:
            return f"{rows:,} rows computed; {len(holders)} of {len(keys)} chunks are held by {some(sorted(set(holders.values())))}"
        before = sum(
            one.rows or 0
            for holder in set(holders.values())
            for one in self._platform.ledger.chunks(holder)
            if holders.get(one.chunk) == holder
        )
        return f"{rows:,} rows staged, against {before:,} accepted today ({some(sorted(set(holders.values())))})"

    def published(self) -> Said:
        facts = [self._of_publication(one) for one in self._publications if one.action in {PUBLISH, ACCEPT}]
        if not self._plan.publishes:
            return StepState.NEVER, [f"mode {self._plan.mode} publishes nothing"], []
        accepted = any(one.action == ACCEPT for one in self._committed)
        if self._state is RunState.PUBLISHED and strategy_of(self._plan).accepted_later and not accepted:
            facts.append(f"readers of main do not see it; its version is {self._plan.version}")
            return StepState.NOW, facts, [self._command("accept")]
        if self._state in WAS_PUBLISHED:
            return StepState.DONE, facts, []
        if self._state is RunState.VALIDATED:
            return self._to_publish(facts)
        if facts and self._state in ENDED:
            return StepState.NEVER, [*facts, self._last_move], []
        return self._later(f"{publication_in_words(self._platform.products, self._plan)}, once every gate has passed")

    def _of_publication(self, one: PublicationRecord) -> str:
        when = f"{one.action} by {one.actor}, {instant_text(one.started_at)}"
        if one.has_landed:
            took = f"snapshot {one.base_snapshot_id or 'none'} -> {one.snapshot_id}"
            return f"{when}: {took}, {one.files_added} files added, {one.files_removed} removed"
        if one.is_intent:
            return f"{when}: what came of it is not on record; the next one looks before it does anything"
        why = " ".join(line.strip(" -") for line in one.note.split("\n")[:2])
        return f"{when}: {one.state}" + (f", {first_line(why)}" if why else "")

    def _to_publish(self, facts: list[str]) -> Said:
        """Say of a validated run what its publication waits for, or how it is made."""
        record, publish = self._record, self._command("publish")
        change = change_of(self._platform, record, self._chunks)
        if other := shown_by_others(change):
            return StepState.NOW, [*facts, other.what, other.fix], [self._command("cancel", "--by NAME")]
        if change.has_landed:
            return (
                StepState.NOW,
                [*facts, "it has landed in the target and is not on record: publishing records it"],
                [publish],
            )
        frozen = self._platform.ledger.freezes.waiting().get(self._id)
        if frozen is not None:
            by = sorted(
                one.run_id for one in self._platform.ledger.repairs.open_freezes() if f"{one.run_id} (" in frozen
            )
            facts += [f"waits: {frozen}", "it goes on by itself when that has ended"]
            return StepState.NOW, facts, [f"backfill runbook {one}" for one in by]
        if conflicts := change.strategy.conflicts(change):
            return self._in_conflict(facts, conflicts)
        if why := waits_for(self._platform, record):
            before = record.manifest.series
            facts.append(f"waits: {why}")
            commands = [] if before is None else [f"backfill runbook {step_id(before.of, before.step - 1)}"]
            return StepState.NOW, facts, commands
        if self._plan.manual_publish:
            facts.append("nothing stands against it: the target still is what the plan was made on")
        else:
            facts.append("the sensor publishes it while Dagster's daemon runs; without it, the command does")
        return StepState.NOW, facts, [publish]

    def _in_conflict(self, facts: list[str], conflicts: Sequence[str]) -> Said:
        facts.append(
            f"{len(conflicts)} chunk(s) of {self._plan.target} have changed since it was planned: {some(conflicts)}"
        )
        terms = self._plan.conflict
        policy = OnConflict.REFUSE if terms is None else terms.on_conflict
        if terms is not None and policy is OnConflict.WAIT:
            until = self._record.updated_at + timedelta(minutes=terms.wait_minutes)
            if self._platform.ledger.now() < until:
                facts.append(
                    f"onConflict WAIT: until {instant_text(until)} for the other change to be undone, then it is rejected"
                )
                return StepState.NOW, facts, ["backfill status"]
        if terms is not None and policy is OnConflict.REPLAN:
            done = len(self._platform.ledger.amendments(self._id))
            if done < terms.max_replans and not self._record.manifest.pins_a_source:
                facts.append(
                    f"onConflict REPLAN: those are planned anew and computed again ({done} of {terms.max_replans} times)"
                )
                manual = [self._command("publish")] if self._plan.manual_publish else []
                return StepState.NOW, facts, [*manual, self._command("run")]
        facts.append("its publication would be refused and the run rejected: plan the change again under a new run id")
        return StepState.NOW, facts, [self._reject]

    def told(self) -> Said:
        if not self._plan.publishes:
            return StepState.NEVER, [f"mode {self._plan.mode} publishes nothing"], []
        last = self._committed[-1].action if self._committed else PUBLISH
        sinks = self._platform.sinks
        granted = [name for name in self._record.manifest.safety.sinks if sinks.is_told_of(name, last)]
        if self._state not in WAS_PUBLISHED:
            return self._later(
                f"the evidence and the sinks {', '.join(granted)}" if granted else "the evidence; no sink is granted"
            )
        number = len(self._committed)
        plain = number <= 2 or last == ACCEPT  # noqa: PLR2004 - as they are told
        names = {last, f"{last}-{number}"} if plain else {f"{last}-{number}"}
        records = self._platform.evidence.folder / self._id / "records"
        written = any((records / f"{name}.json").is_file() for name in names)
        facts = [f"evidence of the {last}: {'on record' if written else 'MISSING'} ({records})"]
        untold = []
        for sink in granted:
            tries = [
                one
                for one in self._platform.ledger.sink_attempts(self._id)
                if one.sink == sink and one.action in names and one.decision in {"SENT", "FAILED"}
            ]
            sent = next((one for one in tries if one.decision == "SENT"), None)
            failed = "not told" + (f": {first_line(tries[-1].reason)}" if tries else "")
            facts.append(f"sink {sink}: " + (f"told of the {last}, {instant_text(sent.at)}" if sent else failed))
            untold += [] if sent else [sink]
        if not written and (harmed := harmed_of(self._platform, self._id)):
            gone = ", ".join(one.name for one in harmed)
            facts.append(f"the chain vouches for records that are not as they were written ({gone}): restore them")
            return StepState.NOW, facts, [self._command("verify")]
        if untold or not written:
            return StepState.NOW, facts, [self._command(last)]
        return StepState.DONE, facts, []

    def undone(self) -> Said:
        facts = [self._of_publication(one) for one in self._publications if one.action in {ROLLBACK, REINSTATE}]
        if self._state is RunState.ROLLED_BACK:
            return StepState.DONE, facts, [self._command("reinstate")]
        if self._state is RunState.SUPERSEDED:
            return StepState.NEVER, [*facts, f"{self._last_move}; that one is rolled back first"], []
        if self._state is RunState.PUBLISHED:
            mine = held(self._platform, change_of(self._platform, self._record, self._chunks))
            holders = self._platform.ledger.accepted(self._plan.target, mine)
            if later := sorted({one for one in holders.values() if one != self._id}):
                facts.append(f"part of its scope is held by later runs: roll back {some(later)} first")
                return StepState.LATER, facts, []
            facts.append("only if it has to be: the files from before come back, as a new snapshot")
            return StepState.LATER, facts, [self._command("rollback")]
        if self._state in ENDED:
            return StepState.NEVER, ["readers have seen nothing of it"], []
        if not self._plan.publishes:
            return StepState.NEVER, [f"mode {self._plan.mode} publishes nothing"], []
        return StepState.LATER, ["readers have seen nothing of it yet"], []

    def proven(self) -> Said:
        gated = sum(bool(one.digest) for one in self._chunks)
        facts = [f"{gated} of {len(self._chunks)} chunks have a recorded digest"]
        published = self._state in WAS_PUBLISHED
        if published:
            try:
                facts.append(
                    f"evidence {self._platform.evidence.verify(self._id)}, unharmed: {self._platform.evidence.path(self._id)}"
                )
            except Refused as refusal:
                return StepState.NOW, [*facts, refusal.problems[0].what], [self._command("verify"), "backfill doctor"]
        if not self._chunks or gated < len(self._chunks):
            return self._later("once every chunk has a digest")
        return (
            StepState.LATER,
            [*facts, "whenever somebody asks whether it is as it was, or would still come out as it did"],
            [self._command("verify"), self._command("reproduce")] if published else [self._command("reproduce")],
        )

    def archived(self) -> Said:
        record, settings = self._record, self._platform.settings
        facts = [f"evidence stays: {self._platform.evidence.folder / self._id}"] if self._state in WAS_PUBLISHED else []
        if self._state is RunState.PUBLISHED:
            facts.append("what it published and what it replaced is kept while it is accepted")
            return StepState.LATER, facts, [self._command("report")]
        if self._state not in {*ENDED, RunState.SUPERSEDED, RunState.ROLLED_BACK}:
            return StepState.LATER, ["once the run is over"], []
        superseded = self._state is RunState.SUPERSEDED
        days = settings.keep_superseded_days if superseded else settings.keep_dead_runs_days
        if not lapsed(record, settings, self._platform.ledger.now()):
            until = record.updated_at + timedelta(days=days)
            return (
                StepState.LATER,
                [
                    *facts,
                    f"its files are kept until {instant_text(until)} ({days} days), then `backfill gc` takes them",
                ],
                [],
            )
        left = self._files_left()
        if not left:
            return StepState.DONE, [*facts, "none of its files is left; what is on record stays"], []
        facts.append(f"kept for {days} days, which are over; {left} of its files are left")
        return StepState.NOW, facts, ["backfill gc", "backfill gc --delete"]

    def _files_left(self) -> int:
        """Return how many files lie in the folder of the run."""
        if not self._attempts:
            return 0
        storage = Storage(self._platform.lakehouse.table(self._plan.target))
        return len(storage.files(place_of(self._attempts[0].prefix.rpartition("/")[0])))
