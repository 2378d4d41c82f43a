"""What in a manifest contradicts the target that it names: names, days, warm-up.

Put here what follows from the declaration (`facts.TargetContract`) and from the days that the source holds. What a publish mode
asks of the target is in `manifests.publish_mode_problems`, what a kind of run means in `manifests.kinds`.
"""

from __future__ import annotations

from collections import Counter
from datetime import date

from manifests.chunks import Chunking, aligned, key_of
from manifests.errors import Problem
from manifests.estimates import ZONE_MARGIN
from manifests.facts import SourceState, TargetContract
from manifests.model import ALL_TIME, DayRange, FilesAcrossBorder, Mode, RunManifest

_NOT_HELD = {Chunking.DAY: "a day that it does not hold", Chunking.HOUR: "an hour of a day that it does not hold"}
"""Which chunks are no longer than a day; of others there may be some days and others not."""


def name_problems(manifest: RunManifest, contract: TargetContract) -> list[Problem]:
    """Return the names in a manifest that its target does not declare."""
    problems = []
    if manifest.source.table != contract.source:
        problems.append(
            Problem(
                f"source.table is {manifest.source.table}",
                f"{contract.table} is computed from {contract.source}",
                "correct source.table",
            )
        )
    if manifest.transform.name != contract.transform:
        problems.append(
            Problem(
                f"transform.name is {manifest.transform.name}",
                f"{contract.table} is computed by {contract.transform}",
                "correct transform.name",
            )
        )
    elif manifest.transform.version not in contract.versions:
        problems.append(
            Problem(
                f"transform.version is {manifest.transform.version}",
                f"{contract.transform} can be run in {', '.join(contract.versions)}",
                "choose one of them, or add the version to the product",
            )
        )
    problems += _further_names(manifest, contract)
    gates = contract.published_gates if manifest.execution_mode is Mode.RECONCILIATION else contract.gates
    problems += [
        Problem(
            f"validation.gates names {gate}",
            f"{contract.table} declares {', '.join(gates)}",
            "correct the gate's name",
        )
        for gate in manifest.validation.gates or ()
        if gate not in gates
    ]
    problems += [
        Problem(
            f"validation.tolerances names {name}",
            f"{contract.table} declares {', '.join(contract.tolerances) or 'none'}",
            "correct the tolerance's name",
        )
        for name in manifest.validation.tolerances
        if name not in contract.tolerances
    ]
    problems += [
        Problem(
            f"referenceData names {reference.name}",
            f"{contract.table} reads {', '.join(contract.references) or 'none'}",
            "remove it or correct the name",
        )
        for reference in manifest.reference_data
        if reference.name not in contract.references
    ]
    return problems


def _further_names(manifest: RunManifest, contract: TargetContract) -> list[Problem]:
    """Return the sources beside the first that a manifest names and its target does not have, or has once."""
    further = [one.table for one in contract.sources]
    return [
        Problem(
            f"sources names {name}" + (f" {times} times" if times > 1 else ""),
            f"beside {contract.source}, {contract.table} is computed from {', '.join(further) or 'no other source'}",
            "name each of these once at most, with its snapshotId",
        )
        for name, times in Counter(one.table for one in manifest.sources).items()
        if name not in further or times > 1
    ]


def scope_problems(publish: DayRange, contract: TargetContract, source: SourceState) -> list[Problem]:
    """Return why a publish range is none of the target's: parts of chunks, chunks not declared, days the source has not."""
    if found := _without_time(publish, contract, source):
        return found
    if contract.chunking is Chunking.WHOLE:
        return []
    problems = []
    whole, by_hours = aligned(contract.chunking, publish.start, publish.end), contract.chunking is Chunking.HOUR
    if whole != (publish.start, publish.end):
        problems.append(
            Problem(
                f"target.publishRange is {publish.start} to {publish.end}",
                f"{contract.table} is published in whole {'day' if by_hours else contract.chunking.lower()}s",
                f"use {whole[0]} to {whole[1]}",
            )
        )
    begins, ends = key_of(contract.chunking, publish.start), key_of(contract.chunking, publish.end)
    if begins < (contract.first_chunk or begins) or ends > (contract.last_chunk or ends):
        problems.append(
            Problem(
                f"target.publishRange is {publish.start} to {publish.end}",
                f"{contract.table} is declared with chunks {contract.first_chunk} to {contract.last_chunk}",
                "narrow the range, or widen chunks_from and chunks_until in the product",
            )
        )
    if not source.files:
        return [*problems, no_rows(source)]
    first = min(file.first_day for file in source.files)
    last = max(file.last_day for file in source.files)
    # a source may hold days at the ends of the calendar, which have no margin
    earliest, latest = max(first, date.min + ZONE_MARGIN), min(last, date.max - ZONE_MARGIN)
    covered = (key_of(contract.chunking, earliest - ZONE_MARGIN), key_of(contract.chunking, latest + ZONE_MARGIN))
    if begins < covered[0] or ends > covered[1]:
        missing = _NOT_HELD.get(contract.chunking, f"a {contract.chunking.lower()} of which it holds no day")
        problems.append(
            Problem(
                f"target.publishRange is {publish.start} to {publish.end}",
                f"{source.table} holds {first} to {last}; {missing} cannot be published (a day before and after is allowed for time zones)",
                "narrow the range, or load the missing input",
            )
        )
    return problems


def _without_time(publish: DayRange, contract: TargetContract, source: SourceState) -> list[Problem]:
    """Return why a manifest has a publish range, or none, that its target has no use for, or needs."""
    timeless, named = contract.chunking is Chunking.WHOLE, publish != ALL_TIME
    if timeless and named:
        return [
            Problem(
                f"target.publishRange is {publish.start} to {publish.end}",
                f"{contract.table} has no time: its chunks are parts ({contract.division}) alone",
                "leave it out; target.values names the parts that may change, where not all of them may",
            )
        ]
    if timeless:
        return [] if source.files else [no_rows(source)]
    if not named:
        return [
            Problem(
                "target.publishRange is missing",
                f"{contract.table} is published by {contract.chunking.lower()}s: a run names its first and last day",
                "for example `publishRange: {start: 2024-01-01, end: 2024-12-31}`",
            )
        ]
    return []


def time_problems(manifest: RunManifest, contract: TargetContract) -> list[Problem]:
    """Return what a manifest says of days, where its target has no time: nothing of it is passed over in silence."""
    if contract.chunking is not Chunking.WHOLE:
        return []
    said = {
        "cutLine": manifest.cut_line is not None,
        "freeze": manifest.freeze is not None,
        "warmUp": manifest.warm_up is not None,
        "source.range": manifest.source.range is not None,
        "target.filesAcrossBorder": manifest.target.files_across_border is not FilesAcrossBorder.REFUSE,
    }
    return [
        Problem(
            f"{field} is given",
            f"it is about days, and {contract.table} has no time: its source is read whole, and its parts are published whole",
            "leave it out",
        )
        for field, there in said.items()
        if there
    ]


def no_rows(source: SourceState) -> Problem:
    """Say that a source has nothing that a run could read."""
    what = f"{source.table} holds no rows at snapshot {source.snapshot_id} that a run could read"
    rule = "a run reads existing input; rows without a value in the column by which days are told are read by no chunk"
    return Problem(what, rule, "load the source first")


def value_problems(manifest: RunManifest, contract: TargetContract) -> list[Problem]:
    """Return which values a manifest names that its target is not divided by."""
    steps = manifest.progressive.values if manifest.progressive is not None else None
    named = {"target.values": manifest.target.values or ()}
    named["progressive.values"] = tuple(name for step in steps or () if step != "rest" for name in step)
    problems = []
    left = [name for name in contract.parts(manifest.target.values) if name not in named["progressive.values"]]
    if steps and "rest" not in steps and left:
        problems.append(
            Problem(
                f"no step of progressive.values publishes {', '.join(left[:_SHOWN])}"
                + (", …" if left[_SHOWN:] else ""),
                "the steps publish the whole change, one part after the other",
                "name them, or give `rest` as the last step; or narrow target.values",
            )
        )
    for field, values in named.items():
        if not values and not (field == "progressive.values" and steps):
            continue
        if contract.division is None:
            problems.append(
                Problem(
                    f"{field} names {', '.join(values) or 'the rest'}",
                    f"{contract.table} is cut into chunks by its {contract.chunking.lower()}s alone",
                    f"leave {field} out, or declare `chunk_values` in the product",
                )
            )
        elif unknown := [value for value in values if value not in contract.parts(manifest.target.values)]:
            problems.append(
                Problem(
                    f"{field} names {', '.join(unknown)}",
                    f"{contract.table} is divided by {contract.division}: {', '.join(contract.parts(None)[:_SHOWN])}"
                    + (", …" if len(contract.parts(None)) > _SHOWN else ""),
                    "correct the values; those of steps are among target.values, if these are given",
                )
            )
    return problems


_SHOWN = 20


def warm_up_problems(manifest: RunManifest, contract: TargetContract) -> list[Problem]:
    """Return why the warm-up that a manifest asks for is too short."""
    if manifest.warm_up is None or manifest.warm_up.days >= contract.warm_up_days:
        return []
    return [
        Problem(
            f"warmUp.days is {manifest.warm_up.days}",
            f"{contract.table} needs at least {contract.warm_up_days} days (its longest clock) to be right at the range's edge",
            "leave warmUp out, or raise it",
        )
    ]


def source_range_problems(manifest: RunManifest, inputs: DayRange, source: SourceState) -> list[Problem]:
    """Return why the source range that a manifest names leaves out days that the run needs."""
    given = manifest.source.range
    if given is None or not source.files:
        return []
    first = min(file.first_day for file in source.files)
    if given.start <= max(inputs.start, first) and given.end >= inputs.end:
        return []
    return [
        Problem(
            f"source.range is {given.start} to {given.end}",
            f"the publish range with its warm-up needs {max(inputs.start, first)} to {inputs.end}",
            "leave source.range out, or widen it",
        )
    ]
