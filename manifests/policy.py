"""The policy: who may decide about a run, how old it may become, and which old data it may use.

Put here the vocabulary of the policy file, and which of its rules counts. What follows for a run is `data_terms`' to say of old
data and `who_may`'s of people and age. Where the file lies is `resources.policies`'; who has decided what is the ledger's.
Unknown keys are refused everywhere. Of rules and sources, the first that fits is the one that counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from manifests.canonical import sha256_of
from manifests.dry_runs import DryRuns, strictest
from manifests.errors import EnvironmentRefused, Problem
from manifests.fields import Day, Name, Part
from manifests.limits import Pace
from manifests.model import Kind, Mode
from manifests.rules import problems_of
from manifests.text import NAME_RULE, TEXT_RULE, not_a_name, not_text, same_text

_FREE_TEXT = frozenset({"constant", "command", "file"})
"""Fields whose texts are no names."""
_NAMED_ONLY = frozenset({Kind.LIVE, Kind.RECONCILIATION})
GROUP, TEAM = "group:", "team:"
"""What an entry begins with that names a group of people; Dagster writes owners with `team:`."""
OF_A_POLICY = "policy:"
"""What the name of a policy that approves by itself begins with: the platform's, and no person's."""

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


class Identity(Part):
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


class MaxAge(Part):
    """How many days after its planning, and after its approval, a run may still be computed and published."""

    since_planning: Annotated[float, Field(gt=0, le=3_650, strict=True)] | None = None
    since_approval: Annotated[float, Field(gt=0, le=3_650, strict=True)] | None = None


class Proposals(Part):
    """What the platform may approve of the restatements that it has proposed itself, without a person."""

    approved_up_to_chunks: Annotated[int, Field(ge=1, le=10_000, strict=True)]
    """The most chunks that such a run may change; a person approves larger ones."""


class Rule(Part):
    """Who may do what to runs of some tables and kinds.

    A list of None means anybody. An entry is a name, or `group:NAME`. Without `kinds` a rule is for every kind but LIVE,
    whose approval is the live policy's of its table: to hold LIVE to a rule, name it. A kind that no rule of its table is
    for is held to all of them: see `Policy.rule_for`.
    """

    _later = frozenset({"authenticated", "proposals", "limits", "dry_run"})

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
    max_age_days: MaxAge = Field(default_factory=MaxAge)
    authenticated: bool = False
    """Decisions are made by people whom something else than their word shows: the UI's proxy, or what `identity` says."""
    proposals: Proposals | None = None
    """What of proposed restatements is approved by this rule, whoever the approvers are; None: nothing, a person approves them."""
    limits: Pace = Pace()
    """What each run may take at most, how fast and when; a manifest may ask for less."""
    dry_run: DryRuns | None = None
    """From which size on a person approves a run only after a dry run of some of its chunks; None: never."""

    @model_validator(mode="after")
    def _dry_runs_of_people(self) -> Self:
        if self.dry_run is not None and self.kinds is not None and set(self.kinds) <= _NAMED_ONLY:
            raise ValueError("dryRun is for changes of history: runs of LIVE and RECONCILIATION need no dry run")
        return self

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


class Retention(Part):
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


class Erasure(Part):
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


class ClassifiedColumn(Part):
    """How a column is classified, and what stands in its place for those who may not read it."""

    classification: Name
    mask: Mask | None = None
    constant: str | None = None

    @model_validator(mode="after")
    def _constant_fits(self) -> Self:
        if (self.mask is Mask.CONSTANT) != (self.constant is not None):
            raise ValueError("constant belongs to mask CONSTANT, and is needed there")
        return self


class Classification(Part):
    """Who may read a column as it is: runs in these modes, for these purposes (None: all, and none is needed)."""

    modes: tuple[Mode, ...] | None = None
    purposes: tuple[Purpose, ...] | None = None
    otherwise: Otherwise = Otherwise.REFUSE


class SourceRule(Part):
    """What of a source may be used for which targets."""

    table: Glob
    targets: tuple[Glob, ...] = Field(default=("*",), min_length=1)
    kinds: tuple[Kind, ...] | None = None
    purposes: tuple[Purpose, ...] | None = None
    retention: Retention | None = None
    erasure: Erasure | None = None
    columns: dict[Column, ClassifiedColumn] = Field(default={})


class Policy(Part):
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

    def rules_for(self, table: str, kind: Kind | str) -> tuple[Rule, ...]:
        """Return the rules that `rule_for` has its answer from: one, or all of a table where none names the kind."""
        if (found := next((rule for rule in self.rules if rule.fits(table, Kind(kind))), None)) is not None:
            return (found,)
        return () if Kind(kind) in _NAMED_ONLY else tuple(self._of_people(table))

    def _of_people(self, table: str) -> list[Rule]:
        """Return every rule for runs of a table, but for rules of LIVE and RECONCILIATION alone."""
        return [
            rule
            for rule in self.rules
            if _any(rule.tables, table) and (rule.kinds is None or not set(rule.kinds) <= _NAMED_ONLY)
        ]

    def rule_for_people(self, table: str, kind: Kind | str) -> Rule:
        """Return the rule for what people decide about a run: of LIVE, too, the strictest where none names the kind."""
        if Kind(kind) is Kind.LIVE and not any(rule.fits(table, Kind.LIVE) for rule in self.rules):
            return self.strictest(table)
        return self.rule_for(table, kind)

    def strictest(self, table: str) -> Rule:
        """Return what satisfies every rule for runs of a table, but for rules of LIVE and RECONCILIATION alone."""
        rules = self._of_people(table)
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
            proposals=_smallest([rule.proposals for rule in rules]),
            dry_run=strictest([rule.dry_run for rule in rules]),
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
        return f"ask one of them, or {otherwise}" if self.persons(entries) else otherwise

    def persons(self, entries: Sequence[str]) -> set[str]:
        """Return the people who are meant by `entries`, by name or by group, as `same_name` writes them.

        A group without members is none, and no person is called like a group.
        """
        named = {person for entry in entries for person in self._people(entry) if not names_group(person)}
        return {one for one in map(same_name, named) if not one.startswith(OF_A_POLICY)}


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
    import yaml  # noqa: PLC0415 - most commands read records, which are JSON, and no file

    from manifests.strict_text import StrictLoader, way_out_of  # noqa: PLC0415

    try:
        data = yaml.load(text, Loader=StrictLoader)  # noqa: S506 - a SafeLoader subclass
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise EnvironmentRefused(
            Problem(f"cannot be read: {error}", "a policy is YAML", way_out_of(error), where)
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
        policy = Policy.model_validate(data)
    except ValidationError as error:
        raise EnvironmentRefused(
            Problem(one.what, one.rule, one.fix.replace("manifests/*.yaml", "docs/policy.md"), one.where)
            for one in problems_of(error, Policy, where)
        ) from error
    if policy.keepers is not None and not policy.persons(policy.keepers):
        raise EnvironmentRefused(
            Problem(
                f"names {', '.join(policy.keepers) or 'nobody'}, which is no person",
                "keepers are the people who may adopt another policy: without one, this one stays in force for ever",
                "name somebody, or leave keepers out, for anybody else than who proposes",
                f"{where}: keepers",
            )
        )
    return policy


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


def _smallest(allowed: Sequence[Proposals | None]) -> Proposals | None:
    """Return what every rule approves of proposals; None where one approves nothing."""
    given = [one for one in allowed if one is not None]
    return min(given, key=lambda one: one.approved_up_to_chunks) if len(given) == len(allowed) else None


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
