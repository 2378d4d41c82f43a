"""The run manifest: the contract of one run, as its author writes it.

Put here what can be judged from the text alone: fields, and the rules between them. Types that fields share are in
`fields`, how text becomes a manifest is `reading`'s. What needs a table, a catalog or a clock, the planner judges. Unknown keys are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from manifests.canonical import canonical_json, sha256_of
from manifests.chunks import EVER
from manifests.compaction import FILE_SIZES, REWRITING, REWRITING_VERSION, compaction_problem
from manifests.division import MOST_VALUES
from manifests.fields import Day, Name, Part, PartName, SnapshotId, TableName, Version, whole_number
from manifests.limits import Limits, Safety
from manifests.merge_policy import StricterPolicy
from manifests.run_terms import Evidence, Freeze, Validation, WarmUp
from manifests.source_pins import ChangedSource, FurtherPin, SourceLog, StartFrom
from manifests.steps import Progressive, Sample, Series

RUN_ID_RULE = (
    "3 to 64 characters of a-z, 0-9, '-', '_' and '.', beginning and ending with a letter or digit, "
    "without '..' and not ending in '.lock' (it names folders, tags and partitions)"
)
_RUN_ID = re.compile(r"[a-z0-9][a-z0-9._-]{1,62}[a-z0-9]")
MAX_RUN_ID = 64
SHORTEST_REASON = 10
"""How many characters of a reason are seen at least: of a manifest's, and of a decision that wants one."""


class Kind(StrEnum):
    """Why history is touched."""

    BACKFILL = "BACKFILL"
    REPROCESSING = "REPROCESSING"
    RESTATEMENT = "RESTATEMENT"
    REPAIR = "REPAIR"
    MIGRATION = "MIGRATION"
    BOOTSTRAP = "BOOTSTRAP"
    REPLAY = "REPLAY"
    RECONCILIATION = "RECONCILIATION"
    LIVE = "LIVE"
    COMPACTION = "COMPACTION"
    """Nothing of it: the same rows in fewer files, of about the size that is declared."""


class Mode(StrEnum):
    """Under which rules code runs: what it may reach, and which sinks exist for it."""

    LIVE = "LIVE"
    """The newest days, by the target's own policy."""
    BACKFILL = "BACKFILL"
    """History is computed, and readers see it once it is published; also of a reprocessing, restatement, repair, ..."""
    REPLAY = "REPLAY"
    """History is computed again, as it was."""
    DRY_RUN = "DRY_RUN"
    """Everything but the publication."""
    RECONCILIATION = "RECONCILIATION"
    """What is published is held against the source; nothing is written."""

    @property
    def publishes(self) -> bool:
        """Whether a run of it may ever be published: a dry run and a reconciliation only look."""
        return self not in {Mode.DRY_RUN, Mode.RECONCILIATION}


class PublishMode(StrEnum):
    """How a publication changes its tables: by one commit of each."""

    APPEND_ONLY = "APPEND_ONLY"
    """First rows of a target or of empty partitions."""
    REPLACE_PARTITIONS = "REPLACE_PARTITIONS"
    """The files of the publish range are replaced by the staged ones."""
    MERGE_BY_KEY = "MERGE_BY_KEY"
    """Changed rows of chosen entities are merged by key into copies of the files that hold them."""
    SHADOW_SWAP = "SHADOW_SWAP"
    """The candidate waits on a branch, for anybody to query; publication makes it main."""
    VERSIONED = "VERSIONED"
    """The candidate stays under a name of its own beside earlier versions; main is the accepted one."""
    CORRECTION_EVENTS = "CORRECTION_EVENTS"
    """Differences to the accepted rows are appended to the corrections table."""

    @property
    def adds_to_files_that_stay(self) -> bool:
        """Whether readers of a chunk have its derived files beside those that the run leaves; else its computed ones alone."""
        return self is PublishMode.MERGE_BY_KEY

    @property
    def rows_after(self) -> str:
        """What readers have of the publish range once a run is published, in words."""
        match self:
            case PublishMode.MERGE_BY_KEY:
                return "the rows after the merge"
            case PublishMode.CORRECTION_EVENTS:
                return "the rows with the corrections applied"
            case _:
                return "the staged rows"


class OlderVersion(StrEnum):
    """What becomes of a row that a merge would replace by one of an older version."""

    REFUSE = "REFUSE"
    """The run fails: somebody knows more than it does."""
    KEEP = "KEEP"
    """The newer row stays; the stale one loses."""
    OVERWRITE = "OVERWRITE"
    """The version goes backwards, because somebody decided so."""


class Acceptance(StrEnum):
    """When a version that was published under its own name becomes what main shows."""

    ON_PUBLICATION = "ON_PUBLICATION"
    LATER = "LATER"
    """By `backfill accept`; until then only those who ask for the version by name see it."""


class Corrections(StrEnum):
    """Whether correction events stand for the change, or go with a replacement of the rows."""

    INSTEAD = "INSTEAD"
    BESIDE = "BESIDE"


class OnConflict(StrEnum):
    """What becomes of a run when somebody else has changed part of its scope since it was planned."""

    REFUSE = "REFUSE"
    REPLAN = "REPLAN"
    """The chunks in conflict are planned on the table as it is now, computed and gated again."""
    WAIT = "WAIT"
    """The run waits for the other change to be undone."""


class FilesAcrossBorder(StrEnum):
    """What becomes of files of the target that hold rows of the publish range and others."""

    REFUSE = "REFUSE"
    """The plan is refused."""
    SPLIT = "SPLIT"
    """`backfill split-files` may write their rows again, unchanged, in files of their own on each side; then it is planned."""


class Semantics(StrEnum):
    """Which truth a reference table is read for."""

    AS_RECORDED_THEN = "AS_RECORDED_THEN"
    """The snapshot that the run accepted today for this scope was made with."""
    CORRECTED_TRUTH = "CORRECTED_TRUTH"
    """The newest snapshot, with its corrections to the past."""
    CURRENT_ACCEPTED = "CURRENT_ACCEPTED"
    """The snapshot that a person accepted last; of a table that nobody has accepted one of, the newest."""
    AS_DECIDED = "AS_DECIDED"
    """The snapshot or version that the manifest names, because somebody decided so."""


def mode_of(kind: Kind) -> Mode:
    """Return the mode that a kind of run has unless its manifest says DRY_RUN."""
    match kind:
        case Kind.LIVE:
            return Mode.LIVE
        case Kind.REPLAY:
            return Mode.REPLAY
        case Kind.RECONCILIATION:
            return Mode.RECONCILIATION
        case _:
            return Mode.BACKFILL


class DayRange(Part):
    """Days from `start` to `end`, both inclusive."""

    start: Day
    end: Day

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.end < self.start:
            raise ValueError(f"the range ends ({self.end}) before it starts ({self.start}); both ends are inclusive")
        return self


ALL_TIME = DayRange.model_construct(start=EVER[0], end=EVER[1])
"""The publish range of a target without time: its manifests name none."""


def days_in_words(days: DayRange) -> str:
    """Say which days are meant; of a target without time, that nothing is left out."""
    return "all of it" if days == ALL_TIME else f"{days.start} to {days.end}"


def scope_in_words(days: DayRange, values: Sequence[str] | None) -> str:
    """Say which part of a target may change: days, and values or buckets where not all of them may."""
    if days == ALL_TIME and values is not None:
        return ", ".join(values)
    return days_in_words(days) + ("" if values is None else f" of {', '.join(values)}")


class Source(Part):
    """What is read: without `snapshotId` the current snapshot, without `range` what is needed, without `log` all that was landed of one."""

    table: TableName
    snapshot_id: SnapshotId | None = None
    range: DayRange | None = None
    start_from: StartFrom | None = None
    log: SourceLog | None = None
    _later = frozenset({"start_from", "log"})


class Transform(Part):
    """Which code, by name and version."""

    name: Name
    version: Version


class ReferenceData(Part):
    """One reference table, and which truth of it is wanted."""

    name: TableName
    semantics: Semantics = Semantics.CURRENT_ACCEPTED
    version: Version | None = None
    snapshot_id: SnapshotId | None = None

    @model_validator(mode="after")
    def _one_pin(self) -> Self:
        if self.version is not None and self.snapshot_id is not None:
            raise ValueError("name a version or a snapshotId, not both")
        named = self.version is not None or self.snapshot_id is not None
        if self.semantics is Semantics.AS_DECIDED and not named:
            raise ValueError("AS_DECIDED needs the version or the snapshotId that was decided")
        if self.semantics in {Semantics.CORRECTED_TRUTH, Semantics.CURRENT_ACCEPTED} and named:
            raise ValueError(f"{self.semantics} says itself which snapshot it means; to name one, use AS_DECIDED")
        return self


VersionName = Annotated[str, Field(pattern=r"^v[0-9]{1,6}$", description="a version of the target is named v1, v2, …")]


class Merge(Part):
    """Which entities a merge recomputes: those with rows that came after `changedSince` (of each further source: `sources`), or named ones."""

    _later = frozenset({"sources", "policy"})

    policy: StricterPolicy | None = None
    changed_since: SnapshotId | None = None
    sources: tuple[ChangedSource, ...] = ()
    entities: (
        tuple[
            Annotated[str, Field(min_length=1, max_length=200, description="an entity is text of 1 to 200 characters")],
            ...,
        ]
        | None
    ) = Field(default=None, max_length=10_000)
    on_older_version: OlderVersion = OlderVersion.REFUSE

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if (self.changed_since is None) == (self.entities is None):
            raise ValueError("give changedSince or entities, one of them: a merge recomputes chosen entities")
        if self.entities == ():
            raise ValueError("entities has at least one: a merge of none changes nothing")
        if self.entities is not None and len(set(self.entities)) != len(self.entities):
            raise ValueError("an entity is named once")
        if self.sources and self.changed_since is None:
            raise ValueError("sources of a merge say since when rows have changed: they come with changedSince")
        if len({one.table for one in self.sources}) != len(self.sources):
            raise ValueError("a source of a merge is named once")
        return self


class Target(Part):
    """What may change, and how.

    `merge` belongs to MERGE_BY_KEY, `version` and `acceptance` to VERSIONED, `corrections` to CORRECTION_EVENTS. `values` are those
    (or the buckets) of the publish range that may change, of a table that is divided by them; all of them, if left out. A table
    without time has no publish range.
    """

    table: TableName
    publish_mode: PublishMode = PublishMode.REPLACE_PARTITIONS
    publish_range: DayRange = ALL_TIME
    _later = frozenset(
        {"publish_range", "merge", "version", "acceptance", "corrections", "files_across_border", "values"}
        | {"file_size_bytes"}
    )

    merge: Merge | None = None
    version: VersionName | None = None
    acceptance: Acceptance | None = None
    corrections: Corrections | None = None
    files_across_border: FilesAcrossBorder = FilesAcrossBorder.REFUSE
    values: Annotated[tuple[PartName, ...], Field(min_length=1, max_length=MOST_VALUES)] | None = None
    file_size_bytes: Annotated[int, whole_number(*FILE_SIZES, "how many bytes a file has about")] | None = None

    @field_validator("values")
    @classmethod
    def _each_value_once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and len(set(value)) != len(value):
            raise ValueError("a value is named once")
        return value

    @model_validator(mode="after")
    def _options_fit_mode(self) -> Self:
        mode = self.publish_mode
        for name, value, owner in (
            ("merge", self.merge, PublishMode.MERGE_BY_KEY),
            ("version", self.version, PublishMode.VERSIONED),
            ("acceptance", self.acceptance, PublishMode.VERSIONED),
            ("corrections", self.corrections, PublishMode.CORRECTION_EVENTS),
        ):
            if value is not None and mode is not owner:
                raise ValueError(f"{name} belongs to publishMode {owner}, not {mode}")
        if mode is PublishMode.MERGE_BY_KEY and self.merge is None:
            raise ValueError("MERGE_BY_KEY needs merge: which entities it recomputes")
        if mode is PublishMode.VERSIONED and self.version is None:
            raise ValueError("VERSIONED needs version, a name like v3")
        return self

    @property
    def scope(self) -> str:
        """What may change, in words: the days, and of a table that is divided beside time the values, where not all may."""
        return scope_in_words(self.publish_range, self.values)

    @property
    def correction_events(self) -> Corrections | None:
        """Whether correction events stand for the change or go with it; None where there are none."""
        if self.publish_mode is not PublishMode.CORRECTION_EVENTS:
            return None
        return self.corrections or Corrections.INSTEAD

    @property
    def derives(self) -> bool:
        """Whether what is published is derived from the computed rows and those that the target holds."""
        return self.merge is not None or self.correction_events is not None

    @property
    def first_rows_only(self) -> bool:
        """Whether rows come into empty days only, and replace nobody's."""
        return self.publish_mode is PublishMode.APPEND_ONLY


class Conflict(Part):
    """What to do when live or another run has changed part of the scope."""

    on_conflict: OnConflict = OnConflict.REFUSE
    max_replans: Annotated[int, whole_number(1, 20, "how often the run may be planned again")] = 3
    wait_minutes: Annotated[int, whole_number(1, 10_080, "how many minutes the run waits")] = 60


class RunManifest(Part):
    """The contract of one run: what, why, by whom, from which input, with which code, allowed to change what."""

    _later = frozenset({"conflict", "freeze", "sample", "progressive", "series", "cut_line", "overlap_days", "purpose"})
    _later |= {"evidence", "sources"}

    api_version: Literal["backfill/v1"] = "backfill/v1"
    run_id: Annotated[str, Field(description=RUN_ID_RULE)]
    kind: Kind
    mode: Mode | None = None
    requested_by: Annotated[
        str, Field(min_length=1, max_length=200, description="who asks for the run: a name of 1 to 200 characters")
    ]
    reason: Annotated[
        str,
        Field(
            min_length=SHORTEST_REASON,
            max_length=4_000,
            description="why history is rewritten, for an auditor a year from now: text of 10 to 4,000 visible characters",
        ),
    ]
    source: Source
    sources: tuple[FurtherPin, ...] = ()
    transform: Transform
    reference_data: tuple[ReferenceData, ...] = ()
    target: Target
    warm_up: WarmUp | None = None
    safety: Safety = Field(default_factory=Safety)
    validation: Validation = Field(default_factory=Validation)
    limits: Limits = Field(default_factory=Limits)
    conflict: Conflict = Field(default_factory=Conflict)
    freeze: Freeze | None = None
    sample: Sample | None = None
    progressive: Progressive | None = None
    series: Series | None = None
    cut_line: Day | None = None
    """The run owns the days before it, LIVE owns it and those after."""
    overlap_days: Annotated[int, whole_number(0, 36_500, "how many days from the cut line on the run may publish")] = 0
    """How many days from the cut line on the run may publish all the same."""
    purpose: (
        Annotated[
            str,
            Field(
                pattern=r"^[a-z][a-z0-9_-]{0,63}$",
                description="a purpose is text of lower case letters, digits, '_' and '-', at most 64 of them, a letter first",
            ),
        ]
        | None
    ) = None
    """What the source is used for, where the policy asks."""
    evidence: Evidence = Field(default_factory=Evidence)
    development: bool = False

    @field_validator("run_id")
    @classmethod
    def _safe_run_id(cls, value: str) -> str:
        if not _RUN_ID.fullmatch(value) or ".." in value or value.endswith(".lock"):
            raise ValueError(RUN_ID_RULE)
        return value

    @field_validator("reference_data")
    @classmethod
    def _references_once(cls, value: tuple[ReferenceData, ...]) -> tuple[ReferenceData, ...]:
        names = [reference.name for reference in value]
        if len(set(names)) != len(names):
            raise ValueError("a reference table is named once")
        return value

    @model_validator(mode="before")
    @classmethod
    def _reads_its_own_rows(cls, said: Any) -> Any:
        """Fill in what a compaction has no choice of: it reads its own target, and rewrites files."""
        if not isinstance(said, Mapping) or said.get("kind") != Kind.COMPACTION:
            return said
        target = said.get("target")
        own = target.get("table") if isinstance(target, Mapping) else getattr(target, "table", None)
        rewriting = {"name": REWRITING, "version": REWRITING_VERSION}
        return {"transform": rewriting, **({} if own is None else {"source": {"table": own}}), **said}

    @model_validator(mode="after")
    def _mode_fits_kind(self) -> Self:
        natural = mode_of(self.kind)
        if self.mode not in {None, natural, Mode.DRY_RUN}:
            raise ValueError(f"a run of kind {self.kind} has mode {natural} or DRY_RUN, not {self.mode}")
        if self.safety.side_effects_allowed and self.execution_mode is not Mode.LIVE:
            raise ValueError(f"sideEffectsAllowed is for LIVE only; this run's mode is {self.execution_mode}")
        if self.sample is not None and self.execution_mode is not Mode.DRY_RUN:
            raise ValueError(f"sample is for mode DRY_RUN; this run's mode is {self.execution_mode}")
        if self.validation.expected is not None and self.execution_mode is Mode.RECONCILIATION:
            raise ValueError("validation.expected is for runs that compute rows; a reconciliation computes none")
        if self.cut_line is not None and self.kind is Kind.LIVE:
            raise ValueError(
                "cutLine is for runs over the history before LIVE; LIVE goes on from the target's watermark"
            )
        if self.overlap_days and self.cut_line is None:
            raise ValueError("overlapDays is counted from cutLine, which is missing")
        if problem := compaction_problem(self):
            raise ValueError(problem)
        return self

    @property
    def pins_a_source(self) -> bool:
        """Whether it names the snapshot of a source: none is read at a newer one then."""
        return self.source.snapshot_id is not None or bool(self.sources)

    @property
    def execution_mode(self) -> Mode:
        """The mode the run executes in."""
        return self.mode or mode_of(self.kind)

    def as_data(self) -> dict[str, Any]:
        """Return it as data that reads back as the same contract: what it leaves to the plan is not in it, though it is in its text."""
        data: dict[str, Any] = self.model_dump(mode="json", by_alias=True)
        if self.limits.leaves_batches_to_the_plan:
            del data["limits"]["maxChunksPerJob"]
        return data

    def canonical(self) -> str:
        """Return the canonical JSON text: equal contracts give equal texts, whatever their layout was."""
        return canonical_json(self.model_dump(mode="json", by_alias=True))

    @property
    def hash(self) -> str:
        """SHA-256 (hex) of the canonical text."""
        return sha256_of(self.model_dump(mode="json", by_alias=True))
