"""Who decides about the steps of a migration, and what they ask for: held against policy, declaration and tables.

Put here refusals of a decision before anything of the migration is looked at. What must hold for a step is `gates`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from backfill_assets.declarations.migrations import Migration
from backfill_assets.installation import Platform
from backfill_assets.planning.live_names import name_problems
from backfill_assets.who_decides import who_decides
from manifests.errors import DecisionRefused, InputRefused, Problem
from manifests.migration_steps import OVER
from manifests.model import SHORTEST_REASON, Kind
from manifests.policy import Policy, Role, same_name
from manifests.text import seen
from manifests.who_may import role_problems
from resources import actors
from resources.actors import Actor
from resources.ledger.migration_steps import PLAN, MigrationStep


@contextmanager
def deciding(
    platform: Platform,
    migration: Migration,
    by: str | None,
    reason: str,
    over: MigrationStep | None,
    *,
    undoing: bool = False,
) -> Iterator[tuple[str, Policy]]:
    """Have the body decide in the name of who acts; yield the name and the policy.

    Where readers go `over`, that is a publisher's decision, and another's than who has planned the migration, if the policy wants
    four eyes; back in haste anybody goes who may publish.

    Raises:
        DecisionRefused: if they may not.
    """
    platform.ledger.policies.require_explained()
    platform.ledger.migrations.require_explained()
    policy = platform.policy
    decides, problems = who_decides(by)
    problems += actors.no_reason(reason)
    if not problems:
        problems += name_problems(platform, decides.name)
        # readers of one table become readers of the other: those of both have a say
        for table in (migration.new,) if over is None else (migration.new, migration.old):
            problems += _against(platform, migration, policy, table, decides, over, undoing=undoing)
    if problems:
        raise DecisionRefused(dict.fromkeys(problems))
    with actors.acting(decides):
        yield decides.name, policy


def _against(
    platform: Platform,
    migration: Migration,
    policy: Policy,
    table: str,
    decides: Actor,
    over: MigrationStep | None,
    *,
    undoing: bool,
) -> list[Problem]:
    problems: list[Problem] = []
    rule = policy.rule_for_people(table, Kind.MIGRATION)
    if rule.authenticated and not decides.is_authenticated:
        problems.append(
            Problem(
                f"nothing but the name shows that '{decides.name}' decides about migration {migration.name}",
                f"the policy '{policy.name}' wants authenticated decisions for {table}",
                "decide as the user that the policy's `identity` knows, without --by",
            )
        )
    role = Role.REQUESTER if over is None else Role.PUBLISHER
    problems += role_problems(policy, rule, role, decides.name, table)
    if over is None or undoing or not rule.four_eyes:
        return problems
    began = [one for one in platform.ledger.migrations.steps(migration.name) if one.action == PLAN][-1]
    if same_name(began.decided_by) == same_name(decides.name):
        problems.append(
            Problem(
                f"'{decides.name}' has planned migration {migration.name}",
                f"the policy '{policy.name}' wants somebody else to let readers go over",
                "ask another",
            )
        )
    return problems


def require_reason(reason: str) -> None:
    """Refuse a step that nobody has given a reason for.

    Raises:
        InputRefused: saying how long one is.
    """
    if len(seen(reason)) < SHORTEST_REASON:
        raise InputRefused(
            Problem(
                f"the reason '{reason}' is too short",
                "who begins or undoes something says why",
                f"give --reason at least {SHORTEST_REASON} visible characters",
            )
        )


def require_slices(platform: Platform, migration: Migration, slices: Sequence[str]) -> None:
    """Refuse a slice of which neither table has a row: a name that was mistyped would move nobody."""
    column = migration.slice_column
    sides = ((migration.old, column), (migration.new, migration.columns.get(column, column)))
    unknown = [one for one in slices if not any(platform.lakehouse.has_value(*side, one) for side in sides)]
    if unknown:
        raise InputRefused(
            Problem(
                f"{migration.old} and {migration.new} have no row with {column} {', '.join(map(repr, unknown))}",
                "a slice is a value of the slice_column",
                "correct it",
            )
        )


def require_free(platform: Platform, migration: Migration) -> None:
    """Refuse to begin a migration of tables of which another one is under way."""
    for table in (migration.old, migration.new):
        for step in platform.ledger.migrations.of_table(table):
            if step.migration != migration.name and step.step not in OVER:
                raise DecisionRefused(
                    Problem(
                        f"{table} is a table of migration {step.migration}, which is {step.step}",
                        "a table moves once at a time",
                        f"take that one to its end, or undo it (`backfill migration status {step.migration}`)",
                    )
                )


def require_something_to_move(platform: Platform, migration: Migration) -> None:
    """Refuse a migration of a table that nobody has anything of.

    Raises:
        InputRefused: naming it.
    """
    if platform.ledger.accepted(migration.old):
        return
    raise InputRefused(
        Problem(
            f"nothing of {migration.old} is published",
            "a migration moves what readers have",
            f"publish {migration.new} as a table of its own",
        )
    )


def known_readers(
    platform: Platform, migration: Migration, consumers: Sequence[str], slices: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the readers that are meant, or None where all are.

    Raises:
        InputRefused: if a consumer is not declared, or there are no slices.
    """
    problems = [
        Problem(
            f"'{name}' is no consumer of {migration.name}",
            f"declared are {', '.join(migration.consumers) or 'none'}",
            "declare it in `consumers` of the migration",
        )
        for name in consumers
        if name not in migration.consumers
    ]
    if slices and migration.slice_column not in platform.products.target(migration.old).key:
        problems.append(
            Problem(
                f"migration {migration.name} has no slices that its readers could go over by",
                "slices are values of a slice_column that is part of the key: a row is in one slice of either table",
                "let consumers go over, or all at once",
            )
        )
    if problems:
        raise InputRefused(problems)
    return (tuple(consumers), tuple(slices)) if consumers or slices else None
