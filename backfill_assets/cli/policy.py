"""The commands of those who keep the policy: what is in force, `propose` and `adopt` another, and `history`.

Put here arguments and output; what comes into force, and by whose decision, is `resources.ledger.policy_in_force`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.base import json_option, opened_platform, say, show, tell
from backfill_assets.cli.decisions import by_option, reason_option, shown_actor

if TYPE_CHECKING:
    from manifests.policy import Policy
    from resources.actors import Actor


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def policy(context: click.Context, as_json: bool) -> None:
    """Show the policy in force: who may decide about runs, and which old data may be used.

    It is the installation's, and kept in the ledger. A file (`policy.yaml` in the home folder, or the setting policy_file)
    only proposes one: it counts once somebody has proposed it and somebody else has adopted it.

    \b
      backfill policy propose [FILE] --by NAME    put on record what you would like to be in force
      backfill policy adopt HASH --by NAME        put it in force; not by who has proposed it
      backfill policy history                     who proposed and adopted what, when
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph
    if context.invoked_subcommand is not None:
        return
    from backfill_assets.cli.console import facts
    from manifests.policy import shown

    with opened_platform() as platform:
        found = platform.policy_in_force
        other = platform.ledger.policies.disagreement(platform.settings)
    if as_json:
        told = {"hash": found.hash, "decision": found.decision, "by": found.decided_by, "at": found.at}
        say(told | {"file": found.origin, "fileDiffers": other, "policy": shown(found.policy)})
        return
    since = f"{found.decision} by {found.decided_by}, {found.at:%Y-%m-%d %H:%M} UTC"
    pairs: list[tuple[str, object]] = [("hash", found.hash), ("since", since), ("from", found.origin)]
    if other:
        pairs.append(("not in force", f"{other}; `backfill policy propose` proposes it"))
    show(facts(pairs + _described(found.policy), f"policy '{found.policy.name}'"))


@policy.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@by_option
@reason_option
@json_option
def propose(file: Path | None, by: str | None, comment: str, as_json: bool) -> None:
    """Propose the policy of FILE (by default the file that the settings name). Nothing changes before it is adopted."""
    from backfill_assets.decisions import decider
    from resources.policies import policy_path

    with opened_platform() as platform:
        settings, policies = platform.settings, platform.ledger.policies
        path, who = file or policy_path(settings), decider(platform, by)
        by = who.name
        found = policies.propose(settings, path, by=by, comment=comment, at=platform.ledger.now(), who=_columns(who))
        before = platform.policy_in_force.hash
    if as_json:
        say({"hash": found, "file": str(path), "inForce": before})
        return
    tell(f"{path}: proposed by {by} as {found[:12]}; {before[:12]} stays in force")
    tell(f"  somebody else puts it in force: backfill policy adopt {found[:12]} --by NAME")


@policy.command()
@click.argument("policy_hash", metavar="HASH")
@by_option
@reason_option
@click.option(
    "--from",
    "origin",
    default="",
    metavar="FILE",
    help="The file it was proposed from, as `history` shows it; needed where it was proposed from several.",
)
@json_option
def adopt(policy_hash: str, by: str | None, comment: str, origin: str, as_json: bool) -> None:
    """Put the proposed policy HASH (12 characters or all) in force. Plans that nobody has approved are made again under it.

    The lists of erased subjects that it names are read beside the file that it was proposed from.
    """
    from backfill_assets.decisions import decider

    with opened_platform() as platform:
        who = decider(platform, by)
        by = who.name
        columns = _columns(who)
        platform.ledger.policies.adopt(
            policy_hash, by=by, comment=comment, at=platform.ledger.now(), who=columns, origin=origin
        )
        found = platform.policy_in_force
    if as_json:
        say({"hash": found.hash, "name": found.policy.name, "file": found.origin})
        return
    tell(f"policy '{found.policy.name}' ({found.hash[:12]}), from {found.origin}, is in force, adopted by {by}")


@policy.command()
@json_option
def history(as_json: bool) -> None:
    """Show every decision about the policy: which was proposed and adopted, by whom, when, from which file."""
    from backfill_assets.cli.terminal import Table

    with opened_platform() as platform:
        found = platform.ledger.policies.history()
    if as_json:
        say(found)
        return
    table = Table(title="decisions about the policy", title_justify="left")
    for name in ("decision", "policy", "name", "by", "at", "file", "why"):
        table.add_column(name)
    for one in found:
        at = f"{one.at:%Y-%m-%d %H:%M:%S}"
        by = shown_actor(one.by, one.proof)
        row = (one.decision, one.policy[:12], one.name, by, at, one.origin, one.comment)
        table.add_row(*row)
    show(table)


def _columns(who: Actor) -> dict[str, str]:
    return {"channel": who.channel.value, "proof": who.proof.value}


def _described(found: Policy) -> list[tuple[str, object]]:
    """Say in pairs of a name and a text what a policy says."""
    pairs: list[tuple[str, object]] = []
    if found.identity is not None:
        how = found.identity.authenticate
        pairs.append(("people are known by", " ".join(found.identity.command) or how.value.lower().replace("_", " ")))
    if found.keepers is not None:
        pairs.append(("keepers", ", ".join(found.keepers) or "nobody"))
    for number, rule in enumerate(found.rules, start=1):
        kinds = "all but LIVE" if rule.kinds is None else ", ".join(rule.kinds)
        said = [
            f"{', '.join(rule.tables)}; kinds {kinds}",
            "four eyes" if rule.four_eyes else "own runs may be approved",
        ]
        for name, people in (
            ("requesters", rule.requesters),
            ("reviewers", rule.reviewers),
            ("approvers", rule.approvers),
            ("publishers", rule.publishers),
            ("owners", rule.owners),
            ("break-glass", rule.break_glass or None),
        ):
            said += [] if people is None else [f"{name}: {', '.join(people) or 'nobody'}"]
        said += [f"{rule.reviews_required} review(s) first"] if rule.reviews_required else []
        said += ["authenticated decisions only"] if rule.authenticated else []
        said += ["publisher differs from approver"] if rule.publisher_differs_from_approver else []
        said += [] if rule.dry_run is None else [rule.dry_run.describe()]
        for since, limit in (
            ("planning", rule.max_age_days.since_planning),
            ("approval", rule.max_age_days.since_approval),
        ):
            said += (
                []
                if limit is None
                else [f"at most {limit:g} day{'' if limit == 1 else 's'} from {since} to publication"]
            )
        pairs.append((f"rule {number}", "; ".join(said)))
    for source in found.sources:
        said = [f"for {', '.join(source.targets)}"]
        said += [] if source.purposes is None else [f"purposes {', '.join(source.purposes)}"]
        said += [] if source.retention is None else [f"retention {shown_retention(source.retention)}"]
        said += [] if source.erasure is None else [f"erased: {source.erasure.table or source.erasure.file}"]
        said += [f"{name} is {column.classification}" for name, column in source.columns.items()]
        pairs.append((f"source {source.table}", "; ".join(said)))
    return pairs


def shown_retention(retention: object) -> str:
    """Say in a few words what a retention keeps."""
    days, before = getattr(retention, "days", None), getattr(retention, "before", None)
    return f"{days} day{'' if days == 1 else 's'}" if days is not None else f"from {before} on"
