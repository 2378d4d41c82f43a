"""The mends of losses of data that `taken_back` takes back: each with the texts of the code that undo it.

Put here what is known of a mend: the defect that is back without it, and which schedules of `interleavings` it concerns. Those
named K are of runs that know different things (`known`). How a mend is tried is `taken_back`'s.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """A text of a file, which is there exactly once, and what takes its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mend:
    """A mend.

    Attributes:
        name: what it is asked for by.
        finding: the defect that is back without it.
        only: which schedules the defect concerns, as the campaign's option says it.
        schedules: how many of them are played: the more, the fewer of them the defect makes wrong.
        edits: what takes the mend back.
        places: at which of the first actor's places it is stopped: the first so many; 0: at any.
    """

    name: str
    finding: str
    only: str
    schedules: int
    edits: tuple[Edit, ...]
    places: int = 0


DERIVE = "backfill_assets/worker/chunk_merge.py"
DERIVATION, COMPUTE, ROWS = (f"backfill_assets/staging/{name}.py" for name in ("derivation", "compute", "rows"))
CHANGE, COMMITS, REFERENCES, LEASING, ACCEPTING = (
    f"backfill_assets/publication/{name}.py"
    for name in ("change", "table_by_table", "move_references", "leasing", "accepting")
)
DOCTOR_OF_PUBLICATIONS, DOCTOR_OF_EVIDENCE = (
    f"backfill_assets/operations/doctor/{name}.py" for name in ("publications", "evidence")
)
GARBAGE = "backfill_assets/operations/garbage.py"
ASKED_AGAIN, UNDOING = (f"backfill_assets/publication/{name}.py" for name in ("asked_again", "undoing"))
BASE = "backfill_assets/planning/accepted_base.py"
LIVE_PROBLEMS, KINDS = (f"manifests/{name}.py" for name in ("live_problems", "kinds"))
COMMANDS = (
    "from backfill_assets.publication.accepting import accept\n"
    "from backfill_assets.publication.publisher import publish\n"
    "from backfill_assets.publication.undoing import reinstate, rollback\n"
    '_COMMANDS = {"publish": publish, "accept": accept, "rollback": rollback, "reinstate": reinstate}\n'
)
"""What gives the doctor the commands back, by the action that each one makes."""
REPLACEMENTS, LOADS = (f"resources/lakehouse/{name}.py" for name in ("replacements", "load_commits"))
RUNS, APPROVALS, ACCEPTED, PUBLICATIONS = (
    f"resources/ledger/{name}.py" for name in ("runs", "approvals", "accepted_versions", "publications")
)

MENDS = (
    Mend(
        "A1",
        "a merge drops rows without an entity, and its judge, which parts rows as the merge does, passes it",
        "MERGE_BY_KEY, of nobody: ",
        12,
        (
            Edit(
                DERIVE,
                ".is_in(entities[spec.entity].implode()).fill_null(value=False)",
                ".is_in(entities[spec.entity].implode())",
            ),
            Edit(
                DERIVE,
                'return rows.join(entities, on=spec.entity, how="anti"), rows.join(entities, on=spec.entity, how="semi")',
                "return _parted(spec, rows, entities)",
            ),
            Edit(
                DERIVE,
                "wrong = _misplaced(before, others, old) or _misplaced(after, others_after, mine) or _differ(others, others_after)",
                "wrong = _differ(others, others_after)",
            ),
        ),
    ),
    Mend(
        "A2",
        "a publication deletes whole files that hold days outside its range, too",
        "REPLACE_PARTITIONS, coarse: ",
        12,
        (
            Edit(REPLACEMENTS, "        require_in_scope(table, scope, going)\n", ""),
            Edit(
                REPLACEMENTS,
                "        require_in_scope(table, scope, gone.values())\n",
                "",
            ),
            Edit(
                REPLACEMENTS,
                "            require_in_scope(table, scope, files if replaced else ())\n",
                "",
            ),
            Edit(
                "backfill_assets/planning/resolve.py",
                "files_beyond=tuple(lakehouse.files_beyond(target.name, scope, chunk_of, target.chunk_values))",
                "files_beyond=()",
            ),
        ),
    ),
    Mend(
        "A3",
        "the doctor, asked to record what landed, gives the command again: it rolls back what came back since it looked",
        "REPLACE_PARTITIONS, undone: doctor | rollback, reinstate",
        60,
        (
            Edit(
                DOCTOR_OF_PUBLICATIONS,
                "from backfill_assets.publication.modes import change_of\n",
                f"{COMMANDS}from backfill_assets.publication.modes import change_of\n",
            ),
            Edit(
                DOCTOR_OF_PUBLICATIONS,
                "recorded = record_landed(view.platform, record.run_id, action, landed.number)",
                "recorded = _COMMANDS[action](view.platform, record.run_id).snapshot_id",
            ),
            Edit(
                DOCTOR_OF_EVIDENCE,
                "from backfill_assets.publication.recording import tell_again\n",
                f"{COMMANDS}from backfill_assets.publication.recording import tell_again\n",
            ),
            Edit(
                DOCTOR_OF_EVIDENCE,
                "tell_again(platform, run_id, done[-1].action, len(done))",
                "_COMMANDS[done[-1].action](platform, run_id)",
            ),
            Edit(
                DOCTOR_OF_EVIDENCE,
                "told = tell_again(platform, run_id, action, number)",
                "told = _COMMANDS[action](platform, run_id)",
            ),
        ),
    ),
    Mend(
        "A4",
        "two processes that load the same at once both append it: only the first look asks for the load's id",
        "REPLACE_PARTITIONS, validated: load | load",
        30,
        (
            Edit(
                LOADS,
                "new = _load_once(tables, name, properties, lambda table: commit_append(table, files, said, token))\n",
                "retry(tables, name, lambda table: commit_append(table, files, said, token), table)\n"
                "    new = landed(tables, name, LOAD_PROPERTY, properties[LOAD_PROPERTY])\n",
            ),
        ),
    ),
    Mend(
        "A5",
        "a collection that keeps snapshots for no day deletes manifests of a commit that is under way",
        "REPLACE_PARTITIONS, validated: live | collect",
        40,
        (
            Edit(
                GARBAGE,
                "return at - max(timedelta(days=settings.keep_snapshots_days), GRACE)",
                "return at - timedelta(days=settings.keep_snapshots_days)",
            ),
        ),
    ),
    Mend(
        "A6",
        "a publisher of whose commit nothing is known gives its lease back unfenced: a cancelled run becomes visible",
        "REPLACE_PARTITIONS, validated: publish | cancel",
        120,
        (Edit(LEASING, "            leases.lose(lease)\n", "            leases.release(lease)\n"),),
    ),
    Mend(
        "A7",
        "a run is cancelled from whatever state it has come to since it was looked at: also one that has landed",
        "REPLACE_PARTITIONS, staged: cancel | judge, land",
        30,
        (
            Edit(
                RUNS,
                "            require_state(record, expected, wanted)\n"
                "            if plan_hash is not None:\n"
                "                require_plan(record, plan_hash)\n"
                "            move_run(connection, run_id, expected, wanted, actor, reason)\n",
                "            move_run(connection, run_id, record.state, wanted, actor, reason)\n",
            ),
            Edit(
                APPROVALS,
                "require_state(record, expected, wanted)",
                "require_state(record, record.state, wanted)",
            ),
            Edit(
                APPROVALS,
                "move_run(connection, run_id, expected, wanted, by, comment)",
                "move_run(connection, run_id, record.state, wanted, by, comment)",
            ),
        ),
    ),
    Mend(
        "A8",
        "corrections are announced before the target's change, and nobody takes them back where it never comes",
        "CORRECTION_EVENTS beside, half: ",
        24,
        (
            Edit(
                COMMITS,
                "        for table in change.tables:\n"
                "            if commits:\n"
                '                faults.reach("publishing.halfway")\n'
                "            commits.append(self.landed(change, table, PUBLISH, 1) or self.commit_to(change, table, root))\n"
                "        return commits[0]\n",
                "        for table in reversed(change.tables):\n"
                "            if commits:\n"
                '                faults.reach("publishing.halfway")\n'
                "            commits.append(self.landed(change, table, PUBLISH, 1) or self.commit_to(change, table, root))\n"
                "        return commits[-1]\n",
            ),
            Edit(  # by it nothing is taken back, either: half is taken for landed
                COMMITS,
                "return change.own(change.tables[0]) is not None",
                "return any(change.own(table) is not None for table in change.tables)",
            ),
        ),
    ),
    Mend(
        "A9",
        "a merge leaves the originals beside their copies where the catalog writes a file's name otherwise",
        "MERGE_BY_KEY, named otherwise: ",
        12,
        (
            Edit(
                DERIVATION,
                "tuple(named[path] for path in result.replaced),",
                'tuple(f"{scheme}{path}" for path in result.replaced),',
            ),
            Edit(REPLACEMENTS, "    require_present(name, replaced or (), old)\n", ""),
        ),
    ),
    Mend(
        "A10",
        "a batch whose files are not where the driver looks is taken for one without rows: its days are emptied",
        "REPLACE_PARTITIONS, usual: ",
        12,
        (
            Edit(
                "backfill_assets/staging/folders.py",
                "pafs.FileSelector(folder, recursive=True)",
                "pafs.FileSelector(folder, recursive=True, allow_not_found=True)",
            ),
            Edit(COMPUTE, "    require_arrived(rows, _written(counted), files, prefix)\n", ""),
        ),
    ),
    Mend(
        "A11",
        "a version that was taken back and brought back before it was accepted is taken back from nobody who reads main",
        "VERSIONED, accepted later, brought back: accept, rollback",
        12,
        (
            Edit(
                REFERENCES,
                "        return had_by_name and undone_by([one.change for one in done]) != ROLLBACK\n",
                "        undone = next(one.action for one in reversed(done) if one.action != ACCEPT)\n"
                "        return change.last(name, undone) is None\n",
            ),
        ),
    ),
    Mend(
        "A12",
        "a version is given the name of one that was rolled back, whose reinstatement lands then and is never recorded",
        "VERSIONED, name set free: publish twin, reinstate",
        12,
        (
            Edit(
                REFERENCES,
                "if had := [ref for ref in expected if lakehouse.snapshot_of(name, ref) is not None]:",
                "expected.pop(withdrawn(self.version), None)\n        if had := list[str]():",
            ),
            Edit(
                REFERENCES,
                "        if self.named(change, old) is not None and self.is_taken(change, new):\n",
                "        if self.named(change, old) is None and self.is_taken(change, old):\n",
            ),
            Edit(
                REFERENCES,
                "return landed and self.named(change, old) is not None and not self.is_taken(change, new)",
                "return landed and self.named(change, old) is not None",
            ),
            Edit(REFERENCES, "if snapshot is not None and not self.is_taken(change, new):", "if snapshot is not None:"),
        ),
    ),
    Mend(
        "A13",
        "a chunk that nobody held goes back to a run that is rolled back, and nothing published into it can be recorded",
        "REPLACE_PARTITIONS, above nothing: unwind",
        12,
        (
            Edit(ACCEPTED, "    since = connection.execute(rolled_back).scalar()\n", "    since = None\n"),
            Edit(ACCEPTED, "runs.c.state.in_([RunState.PUBLISHED, RunState.SUPERSEDED]),", "sa.true(),"),
            Edit(
                PUBLICATIONS,
                "if published and not accepted_versions.still_holds(connection, holder):",
                "if not accepted_versions.still_holds(connection, holder):",
            ),
        ),
    ),
    Mend(
        "A14",
        "a run that was planned anew on the rows of another one is rolled back to no rows once its base has expired",
        "REPLACE_PARTITIONS, planned anew: expire, rollback",
        12,
        (
            Edit(COMMITS, "plans = [change.plan, *change.plans.values()]", "plans = [change.plan]"),
            Edit(
                CHANGE,
                "bases = {plan.base_snapshot_id for plan in self.plans.values()} - {approved, None}",
                "bases = {self.plan.base_snapshot_id} - {approved, None}",
            ),
            Edit(REPLACEMENTS, "    _require_taken_out(table, from_snapshot_id, wanted.coming)\n", ""),
        ),
    ),
    Mend(
        "A15",
        "a version that others accept before somebody has the lease is accepted twice: its rollback gives chunks to itself",
        "VERSIONED, accepted later, brought back: accept, rollback | accept",
        60,
        (
            Edit(
                ACCEPTING,
                "            is_done = last_committed(platform, run_id, {ACCEPT}) is not None\n",
                "            is_done = False\n",
            ),
            Edit(ACCEPTING, "    require_unchanged_since(change, ACCEPT, after)\n", ""),
            Edit(
                PUBLICATIONS,
                "            recorded = _is_accepted(connection, run_id)\n",
                "            recorded = False\n",
            ),
            Edit(ACCEPTED, "accepted_versions.c.run_id != run_id,", "sa.true(),"),
        ),
        places=12,
    ),
    Mend(
        "K1",
        "what was accepted, or rolled back, since a plan was made is not asked again: LIVE leaves out what was complete before it",
        "known*load*; live: rollback | *",
        12,
        (Edit(ASKED_AGAIN, "    return list(dict.fromkeys(found))\n", "    return []\n"),),
    ),
    Mend(
        "K2",
        "what LIVE has shown, and is not on record yet, is unknown to a plan and its publication: older knowledge replaces it",
        "known*load 5; live, publish (dies at publishing.committed): plan RESTATEMENT * back |",
        24,
        (
            Edit(
                BASE,
                "    for run_id, action, _ in unrecorded_at(",
                "    for run_id, action, _ in () and unrecorded_at(",
            ),
            Edit(
                ASKED_AGAIN,
                "    yield from live_problems(manifest, replace(target, warm_up_days=no_warm_up).contract({}), source, known, further)\n",
                "",
            ),
        ),
    ),
    Mend(
        "K3",
        "a chunk that others have accepted without rows since is taken from them, as its files are the same",
        "known*load 6; plan BACKFILL 5; live, publish: publish |",
        12,
        (
            Edit(
                CHANGE,
                "found |= {key: today[key] for key in keys if key in today and then.get(key) != today[key]}",
                "found |= {}",
            ),
            Edit(ASKED_AGAIN, "    return list(dict.fromkeys(found))\n", "    return []\n"),
        ),
    ),
    Mend(
        "K4",
        "a run that was rolled back is reinstated over what others have accepted without rows since",
        "known*load 6; plan, publish BACKFILL 5; rollback; live, publish: reinstate |",
        12,
        (Edit(UNDOING, "        _require_left_alone(platform, change)\n", ""),),
    ),
    Mend(
        "K5",
        "a chunk that was planned anew counts by the source of the first plan: what is older than it is let in",
        "known*plan RESTATEMENT 5 REPLAN; plan, publish RESTATEMENT 5; load 5: publish | plan, publish RESTATEMENT 5* back",
        60,
        (
            Edit(
                BASE,
                "made_by = {key: terms[run_id].of(key) for key, run_id in holders.items()}",
                "made_by = {key: terms[run_id].approved for key, run_id in holders.items()}",
            ),
        ),
    ),
    Mend(
        "K6",
        "older knowledge replaces what LIVE has published",
        "known*load*; live, publish: plan, publish RESTATEMENT * back | *",
        12,
        (
            Edit(
                LIVE_PROBLEMS,
                "    if newest is not None and source.committed_at < newest:\n",
                "    if newest is None and source.committed_at is None:\n",
            ),
        ),
    ),
    Mend(
        "K7",
        "a run that fills what is missing replaces what is there",
        "known*load*; live, publish: plan, publish BACKFILL * | *",
        12,
        (Edit(KINDS, "        case Kind.BACKFILL if found:\n", "        case Kind.BACKFILL if found and not held:\n"),),
    ),
    Mend(
        "K8",
        "the watermark stays with a run that was rolled back",
        "known*load*; live, publish: rollback | *",
        12,
        (Edit(PUBLICATIONS, "            watermarks.withdraw(connection, plan, at)\n", ""),),
    ),
    Mend(
        "K9",
        "LIVE does not go on from the month that it holds where those before it were rolled back",
        "known, rewind 0, load 5; live, publish: rollback #1 | ",
        12,
        (
            Edit(
                ASKED_AGAIN,
                "any(key <= change.plan.chunks[0].key for key in known.accepted)",
                "any(key < change.plan.chunks[0].key for key in known.accepted)",
            ),
        ),
    ),
)
