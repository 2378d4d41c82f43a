"""What a run may not see of its source by the policy: expired rows, masked columns, erased subjects.

Put here what is judged of old data from the policy and plain facts. How rows are left out is
`backfill_assets.planning.old_data`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta

from manifests.canonical import sha256_of
from manifests.chunks import Chunking, aligned, following
from manifests.errors import Problem
from manifests.model import DayRange, RunManifest
from manifests.policy import Erasure, Mask, OnForbidden, Otherwise, Policy, Retention, SourceRule

OLD_DATA_GATE = "old_data_policy"
"""Run-level gate of every plan that leaves rows out: counts them, and looks for erased subjects in what was staged."""


@dataclass(frozen=True)
class SourceColumn:
    """Type of a source's column, as Iceberg writes it, and whether it is required."""

    type: str
    required: bool


@dataclass(frozen=True)
class ErasedList:
    """The erased subjects as they are listed now.

    Attributes:
        origin: the table or file.
        snapshot_id: of the table; None for a file.
        subjects: how many are erased by now.
        hash: of their keys' hashes.
        possible_rows: rows of those source files that may hold one of them, by the files' bounds.
    """

    origin: str
    snapshot_id: int | None
    subjects: int
    hash: str
    possible_rows: int


@dataclass(frozen=True)
class SourceFacts:
    """What the policy must know of a source and the target, from metadata; `table` is the source."""

    columns: Mapping[str, SourceColumn]
    time_column: str
    target_columns: frozenset[str]
    entity: str | None = None
    erased: ErasedList | None = None
    table: str = ""


@dataclass(frozen=True)
class ErasurePin:
    """Which erased subjects a run leaves out. `target_column` is None where the target does not say whose a row is."""

    column: str
    target_column: str | None
    origin: str
    snapshot_id: int | None
    subjects: int
    hash: str
    possible_rows: int


@dataclass(frozen=True)
class MaskedColumn:
    """A column that a run does not see as it is."""

    column: str
    classification: str
    mask: Mask
    constant: str | None


@dataclass(frozen=True)
class DataTerms:
    """What a run may not see of its source: pinned, so that the same plan leaves out the same rows.

    `not_before` is the first instant whose rows are used; `expired_rows` are at most left out for it, by the files' bounds.
    """

    not_before: datetime | None
    expired_rows: int
    erasure: ErasurePin | None
    masks: tuple[MaskedColumn, ...]

    @property
    def leaves_out_rows(self) -> bool:
        """Whether rows are left out, not only masked."""
        return self.not_before is not None or self.erasure is not None

    def describe(self) -> list[tuple[str, str]]:
        """Say in pairs of a name and a text what is not used."""
        lines = []
        if self.not_before is not None:
            lines.append(
                (
                    "retention",
                    f"rows before {self.not_before:%Y-%m-%d} are not used: up to {self.expired_rows:,}, by file bounds",
                )
            )
        if self.erasure is not None:
            one = self.erasure
            where = f"in files of up to {one.possible_rows:,} rows; counted exactly when the run is gated"
            text = f"{one.subjects:,} erased subjects ({one.origin}) are not used, by {one.column}: {where}"
            lines.append(("erasure", text))
        lines += [
            (
                "masked",
                f"{one.column} ({one.classification}): {one.mask}{f' {one.constant!r}' if one.constant is not None else ''}",
            )
            for one in self.masks
        ]
        return lines


@dataclass(frozen=True)
class WantedRead:
    """What a run would read: its input range, and how many days of warm-up are in it."""

    inputs: DayRange
    warm_up_days: int
    margin: timedelta
    chunking: Chunking
    rows_before: Callable[[date], int]
    """From a day to the rows of those files, of what would be read, that begin before it."""


def data_terms(
    policy: Policy, manifest: RunManifest, facts: SourceFacts, wanted: WantedRead, run_clock: datetime
) -> tuple[DataTerms | None, list[Problem]]:
    """Return what a run may not see of a source (None: it may see everything), and why it may not be planned."""
    facts = facts if facts.table else replace(facts, table=manifest.source.table)
    rule = policy.source_rule(facts.table, manifest.target.table)
    if rule is None:
        return None, []
    problems = _use_problems(rule, manifest, facts.table)
    not_before, expired = None, 0
    if rule.retention is not None:
        not_before, expired, found = _retained(rule.retention, facts.table, wanted, run_clock)
        problems += found
    masks, found = _masks(policy, rule, manifest, facts)
    problems += found
    erasure, found = _erasure(rule.erasure, manifest, facts)
    problems += found
    terms = DataTerms(not_before, expired, erasure, masks)
    return (terms if terms.leaves_out_rows or masks else None), problems


def _use_problems(rule: SourceRule, manifest: RunManifest, source: str) -> list[Problem]:
    problems = []
    if rule.kinds is not None and manifest.kind not in rule.kinds:
        problems.append(
            Problem(
                f"kind is {manifest.kind}",
                f"the policy lets {source} be used by {', '.join(rule.kinds) or 'no run'}",
                "ask a keeper of the policy",
            )
        )
    if rule.purposes is not None and manifest.purpose not in rule.purposes:
        problems.append(
            Problem(
                f"purpose is {manifest.purpose or 'not given'}",
                f"the policy lets {source} be used for {', '.join(rule.purposes) or 'nothing'}",
                "state the purpose in the manifest, if it is one of these",
            )
        )
    return problems


def _retained(
    retention: Retention, source: str, wanted: WantedRead, run_clock: datetime
) -> tuple[datetime | None, int, list[Problem]]:
    begins = retention.begins(run_clock)
    reads_expired = begins > wanted.inputs.start - wanted.margin
    expired = wanted.rows_before(begins)
    if not expired:
        return None, 0, []
    if retention.on_expired is OnForbidden.REFUSE:
        return (
            None,
            0,
            [
                Problem(
                    f"the run would read up to {expired:,} rows of {source} from before {begins}",
                    f"the policy keeps {source} for use from {begins} on",
                    "load a source without them; or let the policy leave them out (onExpired: FILTER)",
                )
            ],
        )
    problems = []
    if wanted.chunking is Chunking.WHOLE:
        problems.append(
            Problem(
                f"up to {expired:,} rows of {source} are older than {begins}, or have no day that is known",
                "a target without time is computed from all rows of its source: leaving out some would publish wrong rows",
                "load a source without them, and declare source_time_column, which says how old its rows are",
            )
        )
    elif reads_expired:
        first = begins + wanted.margin + timedelta(days=wanted.warm_up_days)
        start, _ = aligned(wanted.chunking, first, first)
        usable = start if start == first else following(wanted.chunking, start)
        problems.append(
            Problem(
                f"the publish range with its warm-up needs {source} from {wanted.inputs.start} on: up to {expired:,} rows "
                f"are older than {begins}",
                "what may not be read any more cannot be computed again; leaving it out would publish wrong rows",
                f"begin the publish range on {usable} or later",
            )
        )
    return datetime.combine(begins, time.min, UTC), expired, problems


def _masks(
    policy: Policy, rule: SourceRule, manifest: RunManifest, facts: SourceFacts
) -> tuple[tuple[MaskedColumn, ...], list[Problem]]:
    masks, problems = [], []
    for name, column in sorted(rule.columns.items()):
        found = policy.classifications[column.classification]
        where = f"{facts.table}.{name}"
        known = facts.columns.get(name)
        if known is None:
            problems.append(
                Problem(f"{where} does not exist", "a policy classifies columns of the table", "correct the policy")
            )
            continue
        in_mode = found.modes is None or manifest.execution_mode in found.modes
        for_purpose = found.purposes is None or manifest.purpose in found.purposes
        if in_mode and for_purpose:
            continue
        modes = "any mode" if found.modes is None else f"mode {', '.join(found.modes) or 'none'}"
        purposes = "" if found.purposes is None else f" for {', '.join(found.purposes) or 'no purpose'}"
        if found.otherwise is Otherwise.REFUSE:
            problems.append(
                Problem(
                    f"{where} is {column.classification}; the run has mode {manifest.execution_mode} and purpose "
                    f"{manifest.purpose or 'none'}",
                    f"it is read in {modes}{purposes}",
                    "state the purpose in the manifest, or ask a keeper of the policy",
                )
            )
            continue
        assert column.mask is not None
        problem = _mask_problem(where, column.mask, known)
        if name == facts.time_column:
            problem = Problem(f"{where} places rows in time", "it cannot be masked", "correct the policy")
        if manifest.target.merge is not None and name == facts.entity:
            problem = Problem(
                f"{where} would be masked", "a merge finds its entities by it", "replace partitions instead"
            )
        if problem is not None:
            problems.append(problem)
        masks.append(MaskedColumn(name, column.classification, column.mask, column.constant))
    return tuple(masks), problems


def _mask_problem(where: str, mask: Mask, column: SourceColumn) -> Problem | None:
    if mask is Mask.NULL and column.required:
        return Problem(f"{where} is required", "mask NULL is for columns that may be null", "choose another mask")
    if mask is not Mask.NULL and column.type != "string":
        return Problem(f"{where} is {column.type}", f"mask {mask} is for text", "choose mask NULL")
    return None


def _erasure(
    erasure: Erasure | None, manifest: RunManifest, facts: SourceFacts
) -> tuple[ErasurePin | None, list[Problem]]:
    if erasure is None or facts.erased is None:
        return None, []
    where = f"{facts.table}.{erasure.column}"
    if erasure.column not in facts.columns:
        return None, [Problem(f"{where} does not exist", "erased subjects are told by it", "correct the policy")]
    named = erasure.target_column
    if named is not None and named not in facts.target_columns:
        return None, [
            Problem(
                f"{manifest.target.table}.{named} does not exist",
                "targetColumn is a column of it",
                "correct the policy",
            )
        ]
    found = facts.erased
    problems = []
    if erasure.on_erased is OnForbidden.REFUSE and found.possible_rows:
        problems.append(
            Problem(
                f"{found.subjects:,} erased subjects ({found.origin}) may be in files with {found.possible_rows:,} rows "
                f"of {facts.table}, by the files' bounds",
                "the policy refuses a source that may hold them",
                "erase them from the source; or let the policy leave them out (onErased: FILTER)",
            )
        )
    same = erasure.column if erasure.column in facts.target_columns else None
    pin = ErasurePin(
        erasure.column,
        named or same,
        found.origin,
        found.snapshot_id,
        found.subjects,
        found.hash,
        found.possible_rows,
    )
    return pin, problems


def hash_of_subjects(hashes: Collection[str]) -> str:
    """Return the hash of a list of subjects, from the hashes of their keys."""
    return sha256_of(sorted(hashes))
