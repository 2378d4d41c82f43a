"""The policy: who may decide about a run, how old it may become, and which old data it may use.

Put here the vocabulary of the policy file and what can be judged from it and plain facts. Where the file lies is
`resources.policies`'; who has decided what is the ledger's; how rows are left out is `backfill_assets.planning.old_data`'s.
Unknown keys are refused everywhere. Of rules and sources, the first that fits is the one that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from manifests.canonical import sha256_of
from manifests.chunks import Chunking, aligned, following
from manifests.errors import EnvironmentRefused, Problem
from manifests.model import Day, DayRange, Kind, Mode, Name, RunManifest, _Part, _StrictLoader
from manifests.rules import problems_of
from manifests.text import NAME_RULE, TEXT_RULE, not_a_name, not_text, same_text

OLD_DATA_GATE = "old_data_policy"
"""Run-level gate of every plan that leaves rows out: counts them, and looks for erased subjects in what was staged."""
_FREE_TEXT = frozenset({"constant", "command", "file"})
"""Fields whose texts are no names."""
_NAMED_ONLY = frozenset({Kind.LIVE, Kind.RECONCILIATION})
GROUP, TEAM = "group:", "team:"
"""What an entry begins with that names a group of people; Dagster writes owners with `team:`."""

Who = Annotated[str, Field(min_length=1, max_length=200)]
Glob = Annotated[str, Field(pattern=r"^[a-z0-9_.*?]{1,200}$")]
Purpose = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
Column = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


class Role(StrEnum):
    """What somebody does about a run."""

    REQUESTER = "requester"
    REVIEWER = "reviewer"
    APPROVER = "approver"
    PUBLISHER = "publisher"
    OWNER = "owner"


class OnForbidden(StrEnum):
    """What becomes of a run that would read rows it may not use."""

    REFUSE = "REFUSE"
    FILTER = "FILTER"
    """They are left out before any transform sees them."""


class Otherwise(StrEnum):
    """What becomes of a run that may not read a column."""

    REFUSE = "REFUSE"
    MASK = "MASK"


class Mask(StrEnum):
    """What stands in the place of a value."""

    HASH = "HASH"
    """SHA-256 of the text: equal values stay equal. A pseudonym; whoever can guess a value can find its hash."""
    NULL = "NULL"
    CONSTANT = "CONSTANT"


class Authenticate(StrEnum):
    """What says who somebody is at the command."""

    OPERATING_SYSTEM = "OPERATING_SYSTEM"
    """The operating system's user of the process."""
    COMMAND = "COMMAND"
    """A command that prints a name."""


class Identity(_Part):
    """How the installation knows people at the command; without it, a name is a claim.

    `names` are what people are called here, by the name that system or command gives.
    """

    authenticate: Authenticate
    command: tuple[Annotated[str, Field(min_length=1, max_length=1_000)], ...] = ()
    names: dict[Who, Who] = Field(default={})

    @model_validator(mode="after")
    def _command_fits(self) -> Self:
        if (self.authenticate is Authenticate.COMMAND) != bool(self.command):
            raise ValueError("command belongs to authenticate: COMMAND, and is needed there")
        if self.command and not self.command[0].startswith("/"):
            raise ValueError("command begins with a whole path: what a search finds, whoever asks chooses")
        return self


class MaxAge(_Part):
    """How many days after its planning, and after its approval, a run may still be computed and published."""

    since_planning: Annotated[float, Field(gt=0, le=3_650, strict=True)] | None = None
    since_approval: Annotated[float, Field(gt=0, le=3_650, strict=True)] | None = None


class Rule(_Part):
    """Who may do what to runs of some tables and kinds.

    A list of None means anybody. An entry is a name, or `group:NAME`. Without `kinds` a rule is for every kind but LIVE,
    whose approval is the live policy's of its table: to hold LIVE to a rule, name it. A kind that no rule of its table is
    for is held to all of them: see `Policy.rule_for`.
    """

    _later = frozenset({"authenticated"})

    tables: tuple[Glob, ...] = Field(default=("*",), min_length=1)
    kinds: tuple[Kind, ...] | None = None
    requesters: tuple[Who, ...] | None = None
    reviewers: tuple[Who, ...] | None = None
    approvers: tuple[Who, ...] | None = None
    publishers: tuple[Who, ...] | None = None
    """Where it is given, nothing is published before one of them says so: the sensor waits."""
    owners: tuple[Who, ...] | None = None
    """Who answers for what the tables say; None: those whom the table's declaration names."""
    break_glass: tuple[Who, ...] = ()
    four_eyes: bool = True
    publisher_differs_from_approver: bool = False
    reviews_required: Annotated[int, Field(ge=0, le=20, strict=True)] = 0
    max_age_days: MaxAge = MaxAge()
    authenticated: bool = False
    """Decisions are made by people whom something else than their word shows: the UI's proxy, or what `identity` says."""

    def of(self, role: Role) -> tuple[str, ...] | None:
        """Return who may act in a role; None for anybody."""
        return {
            Role.REQUESTER: self.requesters,
            Role.REVIEWER: self.reviewers,
            Role.APPROVER: self.approvers,
            Role.PUBLISHER: self.publishers,
            Role.OWNER: self.owners,
        }[role]

    def fits(self, table: str, kind: Kind) -> bool:
        """Whether the rule is for runs of this kind of this table."""
        of_kind = kind is not Kind.LIVE if self.kinds is None else kind in self.kinds
        return of_kind and _any(self.tables, table)


class Retention(_Part):
    """Rows of a source older than so many days when the run is planned, or from before a day, may not be used."""

    days: Annotated[int, Field(ge=1, le=36_500, strict=True)] | None = None
    before: Day | None = None
    on_expired: OnForbidden = OnForbidden.REFUSE

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if (self.days is None) == (self.before is None):
            raise ValueError("give days or before, one of them")
        return self

    def begins(self, run_clock: datetime) -> date:
        """Return the first day that may be used."""
        if self.before is not None:
            return self.before
        assert self.days is not None
        return run_clock.astimezone(UTC).date() - timedelta(days=self.days)


class Erasure(_Part):
    """Subjects whose rows may not be used any more: from a table of the catalog, or a CSV file beside the policy.

    `column` of the source holds the subject; `targetColumn` is where the target does (the same name unless given).
    """

    column: Column
    target_column: Column | None = None
    table: Glob | None = None
    file: Annotated[str, Field(min_length=1, max_length=1_000)] | None = None
    key_column: Column = "subject"
    date_column: Column = "erased_on"
    on_erased: OnForbidden = OnForbidden.FILTER

    @model_validator(mode="after")
    def _one_list(self) -> Self:
        if (self.table is None) == (self.file is None):
            raise ValueError("give table or file, one of them: where the erased subjects are listed")
        return self


class ClassifiedColumn(_Part):
    """How a column is classified, and what stands in its place for those who may not read it."""

    classification: Name
    mask: Mask | None = None
    constant: str | None = None

    @model_validator(mode="after")
    def _constant_fits(self) -> Self:
        if (self.mask is Mask.CONSTANT) != (self.constant is not None):
            raise ValueError("constant belongs to mask CONSTANT, and is needed there")
        return self


class Classification(_Part):
    """Who may read a column as it is: runs in these modes, for these purposes (None: all, and none is needed)."""

    modes: tuple[Mode, ...] | None = None
    purposes: tuple[Purpose, ...] | None = None
    otherwise: Otherwise = Otherwise.REFUSE


class SourceRule(_Part):
    """What of a source may be used for which targets."""

    table: Glob
    targets: tuple[Glob, ...] = Field(default=("*",), min_length=1)
    kinds: tuple[Kind, ...] | None = None
    purposes: tuple[Purpose, ...] | None = None
    retention: Retention | None = None
    erasure: Erasure | None = None
    columns: dict[Column, ClassifiedColumn] = Field(default={})


class Policy(_Part):
    """Everything the policy file says."""

    _later = frozenset({"keepers", "identity"})

    api_version: Literal["backfill-policy/v1"] = "backfill-policy/v1"
    name: Annotated[str, Field(min_length=1, max_length=200)]
    groups: dict[str, tuple[Who, ...]] = Field(default={})
    rules: tuple[Rule, ...] = ()
    classifications: dict[Name, Classification] = Field(default={})
    sources: tuple[SourceRule, ...] = ()
    identity: Identity | None = None
    keepers: tuple[Who, ...] | None = None
    """Who may adopt another policy in place of this one, if somebody else has proposed it; None: anybody else."""

    @field_validator("groups")
    @classmethod
    def _flat(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, members in value.items():
            if any(_group(member) is not None for member in members):
                raise ValueError(f"group {name} names another group: groups hold people")
        return value

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        for rule in self.rules:
            self._require_groups([*map(rule.of, Role), rule.break_glass])
        self._require_groups([self.keepers])
        for source in self.sources:
            for column, found in source.columns.items():
                classification = self.classifications.get(found.classification)
                if classification is None:
                    raise ValueError(f"column {column} of {source.table} has the unknown class {found.classification}")
                if classification.otherwise is Otherwise.MASK and found.mask is None:
                    raise ValueError(f"column {column} of {source.table} is masked for some runs, and has no mask")
                if found.mask is not None and source.erasure is not None and source.erasure.column == column:
                    raise ValueError(f"column {column} of {source.table} tells erased subjects: it cannot be masked")
        return self

    def _require_groups(self, lists: Sequence[tuple[str, ...] | None]) -> None:
        for entry in (entry for one in lists for entry in one or ()):
            if entry.startswith(GROUP) and entry.removeprefix(GROUP) not in self.groups:
                raise ValueError(f"{entry} is no group; groups are {', '.join(sorted(self.groups)) or 'none'}")

    @property
    def hash(self) -> str:
        """SHA-256 (hex) of what the policy says, whatever its layout is."""
        return sha256_of(self.model_dump(mode="json", by_alias=True))

    def rule_for(self, table: str, kind: Kind | str) -> Rule:
        """Return the first rule for runs of a kind of a table; where none names the kind, the strictest of the table's.

        So that a kind that nobody thought of opens nothing. LIVE, which the platform writes, is held to a rule only where one
        names it; RECONCILIATION, which changes nothing, only where one names it or names no kinds. A table of no rule has
        four eyes and anybody.
        """
        found = next((rule for rule in self.rules if rule.fits(table, Kind(kind))), None)
        if found is not None:
            return found
        return Rule() if Kind(kind) in _NAMED_ONLY else self.strictest(table)

    def rule_for_people(self, table: str, kind: Kind | str) -> Rule:
        """Return the rule for what people decide about a run: of LIVE, too, the strictest where none names the kind."""
        if Kind(kind) is Kind.LIVE and not any(rule.fits(table, Kind.LIVE) for rule in self.rules):
            return self.strictest(table)
        return self.rule_for(table, kind)

    def strictest(self, table: str) -> Rule:
        """Return what satisfies every rule for runs of a table, but for rules of LIVE and RECONCILIATION alone."""
        rules = [
            rule
            for rule in self.rules
            if _any(rule.tables, table) and (rule.kinds is None or not set(rule.kinds) <= _NAMED_ONLY)
        ]
        if len(rules) <= 1:
            return rules[0] if rules else Rule()
        people = {role: self._in_all([rule.of(role) for rule in rules]) for role in Role}
        ages = [rule.max_age_days for rule in rules]
        return Rule.model_construct(
            tables=(table,),
            kinds=None,
            requesters=people[Role.REQUESTER],
            reviewers=people[Role.REVIEWER],
            approvers=people[Role.APPROVER],
            publishers=people[Role.PUBLISHER],
            owners=people[Role.OWNER],
            break_glass=self._in_all([rule.break_glass for rule in rules]) or (),
            four_eyes=any(rule.four_eyes for rule in rules),
            publisher_differs_from_approver=any(rule.publisher_differs_from_approver for rule in rules),
            reviews_required=max(rule.reviews_required for rule in rules),
            authenticated=any(rule.authenticated for rule in rules),
            max_age_days=MaxAge.model_construct(
                since_planning=min((one.since_planning for one in ages if one.since_planning), default=None),
                since_approval=min((one.since_approval for one in ages if one.since_approval), default=None),
            ),
        )

    def tells_apart(self, source: str, table: str, kind: Kind, other: Kind) -> bool:
        """Whether it treats runs of two kinds over a table differently."""
        use = self.source_rule(source, table)
        kinds = None if use is None else use.kinds
        reads_one_only = kinds is not None and (kind in kinds) != (other in kinds)
        return reads_one_only or self.rule_for(table, kind) != self.rule_for(table, other)

    def _in_all(self, lists: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
        """Return who is on every list; None, which is anybody, only where all of them are."""
        named = [entries for entries in lists if entries is not None]
        if not named:
            return None
        first, *others = named
        if all(set(entries) == set(first) for entries in others):
            return first
        people = dict.fromkeys(person for entries in named for entry in entries for person in self._people(entry))
        return tuple(person for person in people if all(self.includes(entries, person) for entries in named))

    def _people(self, entry: str) -> tuple[str, ...]:
        group = _group(entry)
        return (entry,) if group is None else self.groups.get(group, ())

    def source_rule(self, source: str, target: str) -> SourceRule | None:
        """Return the first rule about a source for a target."""
        return next((one for one in self.sources if fnmatchcase(source, one.table) and _any(one.targets, target)), None)

    def protects(self, source: str) -> bool:
        """Whether a rule, for whatever target, says of columns of a source who may read them, or whose rows are erased."""
        return any(fnmatchcase(source, one.table) and (one.columns or one.erasure is not None) for one in self.sources)

    def includes(self, entries: Sequence[str], name: str) -> bool:
        """Whether a person is one of `entries`, by name or by group; a group is its members, and no person itself."""
        wanted = same_name(name)
        if names_group(name):
            return False
        return any(wanted == same_name(person) for entry in entries for person in self._people(entry))

    def way_out(self, entries: Sequence[str], otherwise: str) -> str:
        """Say what somebody can do who is none of `entries`: ask one of them, where they stand for any person, or `otherwise`."""
        anybody = any(self._people(entry) for entry in entries)
        return f"ask one of them, or {otherwise}" if anybody else otherwise


def same_name(name: str) -> str:
    """Return what two spellings of a person's name have in common: what differs only in case, width or space is one person."""
    return same_text(name)


def names_group(name: str) -> bool:
    """Return whether a name has the form of an entry for a group of people, in whatever spelling."""
    return same_name(name).startswith((GROUP, TEAM))


def parse_policy(text: str, *, where: str = "policy") -> Policy:
    """Parse and validate a policy's YAML text.

    Raises:
        EnvironmentRefused: with every problem of the text at once.
    """
    try:
        data = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader subclass
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise EnvironmentRefused(
            Problem(f"cannot be read: {error}", "a policy is YAML", "correct the text", where)
        ) from error
    if not isinstance(data, dict):
        raise EnvironmentRefused(
            Problem(
                f"holds {type(data).__name__}, not a mapping of fields",
                "a policy is one YAML mapping",
                "see docs/policy.md for an example",
                where,
            )
        )
    if wrong := list(_unfit(data, "")):
        raise EnvironmentRefused(
            Problem(why, NAME_RULE if rule else TEXT_RULE, "write it as people see it", f"{where}: {field}")
            for field, why, rule in wrong
        )
    try:
        return Policy.model_validate(data)
    except ValidationError as error:
        raise EnvironmentRefused(
            Problem(one.what, one.rule, one.fix.replace("manifests/*.yaml", "docs/policy.md"), one.where)
            for one in problems_of(error, Policy, where)
        ) from error


def _unfit(value: Any, field: str, key: str = "") -> Iterator[tuple[str, str, bool]]:
    """Yield each text of a policy that is none, or is not fit to be a name: where, why, and whether it is a name."""
    if isinstance(value, str):
        is_name = key not in _FREE_TEXT
        if (wrong := (not_a_name if is_name else not_text)(value)) is not None:
            yield field, wrong, is_name
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _unfit(name, f"{field} (key)".strip())
            yield from _unfit(one, f"{field}.{ascii(name)[1:-1]}".strip("."), name)
    elif isinstance(value, list):
        for one in value:
            yield from _unfit(one, field, key)


# --- who may ----------------------------------------------------------------------------------------------------------


def role_problems(policy: Policy, rule: Rule, role: Role, by: str, table: str) -> list[Problem]:
    """Say why a person may not act in a role."""
    entries = rule.of(role)
    if entries is None or policy.includes(entries, by):
        return []
    return [
        Problem(
            f"'{by}' is no {role} of {table}",
            f"the policy '{policy.name}' names {', '.join(entries) or 'nobody'}",
            policy.way_out(entries, f"have the policy changed ({role}s of the rule for {', '.join(rule.tables)})"),
        )
    ]


def break_glass_problems(policy: Policy, rule: Rule, by: str, reason: str, table: str) -> list[Problem]:
    """Say why a person may not break the glass."""
    problems = []
    if len(reason.strip()) < 10:  # noqa: PLR2004 - as a manifest's reason
        problems.append(
            Problem(
                f"the reason '{reason}' is too short", "who breaks the glass says why", "give at least 10 characters"
            )
        )
    if not policy.includes(rule.break_glass, by):
        problems.append(
            Problem(
                f"'{by}' may not break the glass for {table}",
                f"the policy '{policy.name}' names {', '.join(rule.break_glass) or 'nobody'}",
                policy.way_out(rule.break_glass, "wait for those who may decide without it"),
            )
        )
    return problems


def age_problems(
    rule: Rule, run_id: str, *, planned_at: datetime, approved_at: datetime | None, at: datetime
) -> list[Problem]:
    """Say why a run is too old to be computed or published.

    Args:
        rule: the rule for the run.
        run_id: the run.
        planned_at: when its plan was made.
        approved_at: when that was approved; None if it is not.
        at: now; never before the newest instant on record, so that a clock set back makes nothing younger.
    """
    problems = []
    for what, since, limit in (
        ("planned", planned_at, rule.max_age_days.since_planning),
        ("approved", approved_at, rule.max_age_days.since_approval),
    ):
        if since is None or limit is None or at - since <= timedelta(days=limit):
            continue
        days = (at - since) / timedelta(days=1)
        problems.append(
            Problem(
                f"run '{run_id}' was {what} {days:,.1f} days ago ({since:%Y-%m-%d %H:%M} UTC)",
                f"the policy allows {limit:g} days from there to the publication",
                f"`backfill cancel {run_id} --by NAME`, and plan the change again under a new run id",
            )
        )
    return problems


# --- what may be read -------------------------------------------------------------------------------------------------


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
    """What the policy must know of source and target, from metadata."""

    columns: Mapping[str, SourceColumn]
    time_column: str
    target_columns: frozenset[str]
    entity: str | None = None
    erased: ErasedList | None = None


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


def request_problems(policy: Policy, manifest: RunManifest) -> list[Problem]:
    """Say why the policy does not let the requester ask for this run."""
    table = manifest.target.table
    rule = policy.rule_for(table, manifest.kind)
    return role_problems(policy, rule, Role.REQUESTER, manifest.requested_by, table)


def data_terms(
    policy: Policy, manifest: RunManifest, facts: SourceFacts, wanted: WantedRead, run_clock: datetime
) -> tuple[DataTerms | None, list[Problem]]:
    """Return what a run may not see of its source (None: it may see everything), and why it may not be planned."""
    rule = policy.source_rule(manifest.source.table, manifest.target.table)
    if rule is None:
        return None, []
    problems = _use_problems(rule, manifest)
    not_before, expired = None, 0
    if rule.retention is not None:
        not_before, expired, found = _retained(rule.retention, manifest, wanted, run_clock)
        problems += found
    masks, found = _masks(policy, rule, manifest, facts)
    problems += found
    erasure, found = _erasure(rule.erasure, manifest, facts)
    problems += found
    terms = DataTerms(not_before, expired, erasure, masks)
    return (terms if terms.leaves_out_rows or masks else None), problems


def _use_problems(rule: SourceRule, manifest: RunManifest) -> list[Problem]:
    problems = []
    source = manifest.source.table
    if rule.kinds is not None and manifest.kind not in rule.kinds:
        problems.append(
            Problem(
                f"kind is {manifest.kind}",
                f"the policy lets {source} be used by {', '.join(rule.kinds) or 'no run'}",
                "ask whoever keeps the policy",
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
    retention: Retention, manifest: RunManifest, wanted: WantedRead, run_clock: datetime
) -> tuple[datetime | None, int, list[Problem]]:
    begins = retention.begins(run_clock)
    source = manifest.source.table
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
    if reads_expired:
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
        where = f"{manifest.source.table}.{name}"
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
                    "state the purpose in the manifest, or ask whoever keeps the policy",
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
    where = f"{manifest.source.table}.{erasure.column}"
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
                f"of {manifest.source.table}, by the files' bounds",
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


def _any(globs: Sequence[str], name: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _group(entry: str) -> str | None:
    for prefix in (GROUP, TEAM):
        if entry.startswith(prefix):
            return entry.removeprefix(prefix)
    return None


def shown(policy: Policy) -> dict[str, Any]:
    """Return a policy as JSON-ready data, as its author could have written it."""
    return policy.model_dump(mode="json", by_alias=True, exclude_defaults=True)
