"""What decides the output of a recorded run, as its plan recorded it and as it is now: code, settings, pinned snapshots.

Put here another thing that a plan pins, with the cause that its change would be, and how to get it back. Nothing here
computes; what is made of the conditions is `reproduce`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from pyiceberg.expressions import BooleanExpression

from backfill_assets.installation import Platform
from backfill_assets.worker.digest import ALGORITHM
from manifests.code_identity import CodeIdentity, ProductCode
from manifests.errors import InputRefused, Refused
from manifests.plan import Plan, read_until
from resources.lakehouse.facade import before
from resources.lakehouse.metadata import UnreadableMetadata
from resources.ledger.facade import ChunkRecord

_SHORT_HASH = 12


class Cause(StrEnum):
    """Why a run does not come out as it did."""

    CODE = "code"
    CONFIGURATION = "configuration"
    REFERENCE_DATA = "reference data"
    SOURCE_DATA = "source data"
    RETIRED_SNAPSHOT = "retired snapshot"
    NOT_DETERMINISTIC = "not deterministic"
    ENGINE = "engine"


@dataclass(frozen=True)
class Condition:
    """One thing that decides the output: as the plan recorded it, and as it is now.

    `blocks`: without it nothing can be computed. `fix` says how to get the recorded state back.
    """

    name: str
    recorded: str
    present: str
    same: bool
    cause: Cause
    fix: str = ""
    blocks: bool = False


def conditions_of(platform: Platform, plan: Plan, recorded: Mapping[str, ChunkRecord]) -> tuple[Condition, ...]:
    """Compare everything that the plan pins with what is here now; computes nothing."""
    return (*_code_conditions(platform, plan, recorded), *_pins(platform, plan))


def _code_conditions(platform: Platform, plan: Plan, recorded: Mapping[str, ChunkRecord]) -> list[Condition]:
    then, now = plan.code, platform.code_of(plan.target)
    found = [*_of_code("code", "lock file", then, now)]
    if then.product is not None:
        found += _of_code("product's code", "product's lock file", then.product, now.product)
    fix = _get_back(then.product or then)
    configuration = platform.settings.output_hash()
    found.append(
        Condition(
            "configuration",
            plan.configuration_hash[:_SHORT_HASH],
            configuration[:_SHORT_HASH],
            plan.configuration_hash == configuration,
            Cause.CONFIGURATION,
            "restore the Spark settings that the run was planned with (`backfill config` shows today's)",
        )
    )
    try:
        versions = tuple(platform.products.target(plan.target).versions)
        is_there = plan.compaction is not None or plan.transform_version in versions  # a compaction has none
        wanting = "" if is_there else f"it has {', '.join(versions)}"
    except Refused as refusal:
        wanting = refusal.problems[0].what
    if wanting:
        wanted = f"{plan.transform} {plan.transform_version}"
        found.append(Condition("transform", wanted, wanting, False, Cause.CODE, fix, blocks=True))
    algorithms = sorted({(chunk.digest or "").partition(":")[0] for chunk in recorded.values()} - {ALGORITHM})
    if algorithms:
        found.append(Condition("digest", ", ".join(algorithms), ALGORITHM, False, Cause.CODE, fix, blocks=True))
    return found


def _of_code(
    name: str, of_lock: str, then: CodeIdentity | ProductCode, now: CodeIdentity | ProductCode | None
) -> Iterator[Condition]:
    """Yield whether code, and the lock file beside it, are what they were; `now` is None where nobody declares the target."""
    fix = _get_back(then)
    same = now is not None and then.content_hash == now.content_hash
    yield Condition(name, _shown_code(then), "not here" if now is None else _shown_code(now), same, Cause.CODE, fix)
    before, today = ((part and part.lock_hash) or "none" for part in (then, now))
    fix = f"{fix}, and install what its lock file names"
    yield Condition(of_lock, before[:_SHORT_HASH], today[:_SHORT_HASH], before == today, Cause.CODE, fix)


def _package(code: CodeIdentity | ProductCode) -> str:
    return (
        f"backfill-assets {code.package_version}" if isinstance(code, CodeIdentity) else code.distribution or code.name
    )


def _shown_code(code: CodeIdentity | ProductCode) -> str:
    commit = f"git {code.git_commit[:_SHORT_HASH]}" if code.git_commit else f"package {_package(code)}, no git"
    return f"{code.content_hash[:_SHORT_HASH]} ({commit}{', uncommitted changes' if code.dirty else ''})"


def _get_back(code: CodeIdentity | ProductCode) -> str:
    """Say how to get the code of a plan."""
    if code.git_commit is None:
        return f"install the package {_package(code)} whose content hash is {code.content_hash}"
    whose = "" if isinstance(code, CodeIdentity) else f" of product {code.name}"
    if code.dirty:
        return (
            f"check out git commit {code.git_commit}{whose} with the uncommitted changes that it then had: only whoever "
            f"made them has them; the content hash is {code.content_hash}"
        )
    return f"check out git commit {code.git_commit}{whose}"


def _pins(platform: Platform, plan: Plan) -> list[Condition]:
    """Return whether each pinned snapshot can be read as it was; of a reference also what it says today, to inform."""
    target = platform.products.find_target(plan.target)
    reads_itself = target is None or plan.compaction is not None
    read = None if target is None or reads_itself else before(target.window_column, plan.at(plan.read_until))
    found = [_pin(platform, plan.source, plan.source_snapshot_id, Cause.SOURCE_DATA, read)]
    if plan.merge is not None and plan.merge.changed_since is not None:  # what has changed is read from both
        found.append(_pin(platform, plan.source, plan.merge.changed_since, Cause.SOURCE_DATA, read))
    found += [
        _pin(platform, one.table, one.snapshot_id, Cause.SOURCE_DATA, before(one.time_column, read_until(plan, one)))
        for one in plan.sources
        if one.snapshot_id is not None
    ]
    columns = {one.table: one for one in plan.sources}
    found += [
        _pin(
            platform,
            one.table,
            one.snapshot_id,
            Cause.SOURCE_DATA,
            before(columns[one.table].time_column, read_until(plan, columns[one.table])),
        )
        for one in (() if plan.merge is None else plan.merge.sources)
    ]
    for pin in plan.references:
        version = f" ({pin.version})" if pin.version else ""
        condition = _pin(platform, pin.table, pin.snapshot_id, Cause.REFERENCE_DATA, None, version)
        if condition.same:
            state = platform.lakehouse.reference_state(pin.table, frozenset())
            condition = replace(
                condition, present=_present(pin.snapshot_id, pin.version, state.current, state.versions)
            )
        found.append(condition)
    return found


def _pin(
    platform: Platform, table: str, snapshot_id: int, changed: Cause, rows: BooleanExpression | None, version: str = ""
) -> Condition:
    pinned = f"snapshot {snapshot_id}{version}"
    retired = partial(
        Condition, table, pinned, same=False, cause=Cause.RETIRED_SNAPSHOT, blocks=True, fix=_keep(table, snapshot_id)
    )
    try:
        if platform.lakehouse.table(table).snapshot_by_id(snapshot_id) is None:
            return retired(f"there is no snapshot {snapshot_id} of {table} any more: it has expired")
    except (InputRefused, UnreadableMetadata) as refusal:  # the whole table is gone, or nothing says what is in it
        return retired(refusal.problems[0].what)
    try:
        gone, other = platform.lakehouse.unread(table, snapshot_id, rows)
    except UnreadableMetadata as refusal:
        return retired(refusal.problems[0].what)
    if gone:
        return retired(f"{len(gone)} file(s) of snapshot {snapshot_id} of {table} are gone, the first is {gone[0]}")
    if other:
        present = f"{len(other)} file(s) of the snapshot were changed in place, the first is {other[0]}"
        fix = f"restore the data files of {table} from a backup: files of a table are never changed in place"
        return Condition(table, pinned, present, same=False, cause=changed, fix=fix)
    return Condition(table, pinned, "can be read", same=True, cause=changed)


def _keep(table: str, snapshot_id: int) -> str:
    return (
        f"restore snapshot {snapshot_id} of {table} from a backup of the catalog and the warehouse; until then only the "
        "evidence proves this run. Snapshots that runs pin are kept by a tag"
    )


def _present(pinned: int, version: str | None, current: int | None, versions: Mapping[str, int]) -> str:
    """Say how a pinned reference stands to the table of today: for information, since the pinned snapshot is read."""
    if version is not None and versions.get(version) not in {None, pinned}:
        return f"can be read; version {version} is now snapshot {versions[version]}, which is not read"
    if current == pinned:
        return "can be read; it is still the newest"
    name = next((name for name, snapshot in versions.items() if snapshot == current), None)
    return f"can be read; the newest is snapshot {current}{f' ({name})' if name else ''}, which is not read"
