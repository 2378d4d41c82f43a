"""The commands of those who decide: approve, reject, review, accept-change, decisions.

Put here arguments and output; whether somebody may decide is `backfill_assets.decisions`'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.base import F, json_option, opened_instance, opened_platform, say, show, tell
from backfill_assets.cli.cost_view import takes
from manifests.errors import InputRefused, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.text import Text

    from backfill_assets.installation import Platform


def decision_options(command: F) -> F:
    """Give a command `--by`, `--reason` and `--plan-hash`."""
    command = click.option("--plan-hash", help="Decide only if this is still the plan (12 characters or all).")(command)
    return by_option(reason_option(command))


def reason_option(command: F) -> F:
    """Give a command `--reason`, which scripts know as `--comment` and evidence as `comment`."""
    return click.option("--reason", "--comment", "comment", default="", help="Why.")(command)


def by_option(command: F) -> F:
    """Give a command `--by`."""
    default = "who you are by the policy's `identity`, else BACKFILL_OPERATOR or the operating system's user"
    return click.option(
        "--by",
        callback=named,
        help=f"Who decides, recorded as a claim if nothing else shows it; default: {default}.",
    )(command)


def named(_context: click.Context, option: click.Parameter, name: str | None) -> str | None:
    """Refuse a blank name: a variable that a script has left empty must not decide as somebody else."""
    if name is not None and not name.strip():
        fix = "give --by a name" + ("" if option.required else ", or leave it out")
        raise InputRefused(Problem("no name is given", "a decision has a name", fix))
    return name


def break_glass_option(command: F) -> F:
    """Give a command `--break-glass REASON`."""
    return click.option(
        "--break-glass",
        metavar="REASON",
        default="",
        help="In an emergency, for those whom the policy names: do not wait for roles and four eyes. Loud, and on record.",
    )(command)


def publisher_options(command: F) -> F:
    """Give a command `--by`, `--reason` and `--break-glass`: it is a publisher's."""
    return by_option(reason_option(break_glass_option(command)))


@click.command()
@click.argument("run_id")
@decision_options
@break_glass_option
def approve(run_id: str, by: str | None, comment: str, plan_hash: str | None, break_glass: str) -> None:
    """Approve the plan of RUN_ID. The approver differs from the requester; manifest and plan are immutable from here.

    The policy says who may (docs/policy.md), how many reviews come first, and from which size on a dry run does.
    """
    from backfill_assets import decisions
    from backfill_assets.cli.console import entries
    from backfill_assets.defs.decision_jobs import announce_break_glass
    from backfill_assets.defs.launch import announce_approval
    from backfill_assets.planning.planned_code import no_launch_here
    from backfill_assets.publication.dry_runs import dry_run_in_words
    from backfill_assets.publication.modes import stages_of
    from resources.ledger.facade import operator

    with opened_platform() as platform:
        by = by or operator()
        record = decisions.approve(
            platform, run_id, by=by, comment=comment, plan_hash=plan_hash, break_glass=break_glass
        )
        program = stages_of(platform.products, record.plan)
        rests_on = dry_run_in_words(platform, record)
        with opened_instance(platform.settings) as instance:
            announce_approval(platform, instance, record)
            if break_glass:
                announce_break_glass(instance, record, by, break_glass)
    if break_glass:
        loud(run_id, by, break_glass)
    tell(f"{run_id}: APPROVED by {by} (plan {record.plan_hash[:12]}); it will")
    if not record.plan.output_checked:
        tell("(what the transform returns was not checked when it was planned: staging refuses it if it does not fit)")
    show(entries((stage.describe() for stage in program), numbered=True))
    for name, said in takes(record.plan):
        tell(f"  {name}: {said}")
    if rests_on:
        tell(f"  dry run: {rests_on}")
    if other_code := no_launch_here(platform, record):
        tell(f"NOTE: {other_code}", err=True)


@click.command()
@click.argument("run_id")
@decision_options
def reject(run_id: str, by: str | None, comment: str, plan_hash: str | None) -> None:
    """Reject RUN_ID for good; the same change needs a new run id."""
    from backfill_assets import decisions
    from resources.ledger.facade import operator

    with opened_platform() as platform:
        by = by or operator()
        record = decisions.reject(platform, run_id, by=by, comment=comment, plan_hash=plan_hash)
    tell(f"{run_id}: REJECTED by {by} (plan {record.plan_hash[:12]})")


@click.command()
@click.argument("run_id")
@decision_options
def review(run_id: str, by: str | None, comment: str, plan_hash: str | None) -> None:
    """Record that you have reviewed RUN_ID: its plan, or what it has computed. The policy may want reviews first."""
    from backfill_assets import decisions
    from resources.ledger.facade import operator

    with opened_platform() as platform:
        by = by or operator()
        record = decisions.review(platform, run_id, by=by, comment=comment, plan_hash=plan_hash)
    tell(f"{run_id}: REVIEWED by {by} (plan {record.plan_hash[:12]})")


@click.command("accept-change")
@click.argument("run_id")
@click.option("--gate", required=True, help="The gate that asks for an owner (see `backfill status RUN`).")
@by_option
@click.option("--reason", required=True, help="Why the change is right.")
@click.option("--plan-hash", help="Accept only if this is still the plan (12 characters or all).")
def accept_change(run_id: str, gate: str, by: str | None, reason: str, plan_hash: str | None) -> None:
    """Accept, as an owner, an unusual change that RUN_ID waits with; on record with the numbers, and void if they change."""
    from backfill_assets import decisions
    from backfill_assets.defs.launch import tell_dagster
    from resources.ledger.facade import operator

    with opened_platform() as platform:
        by = by or operator()
        record = decisions.accept_change(platform, run_id, gate, by=by, reason=reason, plan_hash=plan_hash)
        waiting = [verdict.gate for verdict in decisions.asking(platform, run_id)]
        untold = tell_dagster(platform, record.target, judged=run_id)
    tell(f"{run_id}: {gate} accepted by {by} (plan {record.plan_hash[:12]}); the run is {record.state}")
    if waiting:
        tell(f"  still waits for an owner: {', '.join(waiting)}")
    if untold:
        tell(untold, err=True)


@click.command()
@click.argument("run_id", required=False)
@click.option("--break-glass", is_flag=True, help="Only those for which somebody broke the glass.")
@json_option
def decisions(run_id: str | None, break_glass: bool, as_json: bool) -> None:
    """Show every decision (of RUN_ID, if given): who, in which role, when, about which plan, and why.

    A decision about a plan, or about numbers, that the run no longer has is void, and stays on record. Stops are decisions,
    too, and so are the launches that ended them.
    """
    from rich.text import Text

    from backfill_assets.cli.terminal import Table

    with opened_platform() as platform:
        if run_id is not None:
            platform.ledger.run(run_id)
        found = _of_runs(platform, run_id, break_glass=break_glass)
        if not break_glass:
            found = sorted([*found, *_of_stops(platform, run_id)], key=lambda one: (one["at"], one["runId"]))
    if as_json:
        say(found)
        return
    if not found:
        tell("no decision is on record" if not break_glass else "no break-glass decision is on record")
        return
    table = Table(title="decisions", title_justify="left")
    for name in ("run", "decision, plan", "by", "at", "why"):
        table.add_column(name, no_wrap=name in {"decision, plan", "at"})
    for one in found:
        said = Text(one["decision"], "dim" if one["void"] else "")
        if one["void"]:
            said.append(" (void)", "yellow")
        said.append(f"\n{one['planHash'][:12]}", "dim")
        by = "\n".join((shown_actor(one["by"], one["proof"]), ", ".join(filter(None, (one["role"], one["channel"])))))
        at = f"{one['at']:%Y-%m-%d\n%H:%M:%S}"
        table.add_row(one["runId"], said, by, at, _why(one))
    show(table)


def _why(one: Mapping[str, Any]) -> Text:
    """Return why something was decided, and why it was refused then."""
    from rich.text import Text

    why = Text(one["comment"])
    if one["breakGlass"]:
        why = Text(f"BREAK-GLASS: {one['breakGlass']} {one['comment']}".strip(), "bold red")
    if one["refused"]:
        why.append(f"{'; ' if why else ''}{one['refused']}", "red")
    if one["selfApproved"]:
        why.append(" (own run)", "yellow")
    if (rests_on := one.get("dryRun")) is not None:
        why.append(f"{'; ' if why else ''}on dry run {rests_on.describe()}", "dim")
    return why


def _of_runs(platform: Platform, run_id: str | None, *, break_glass: bool) -> list[dict[str, Any]]:
    """Return the decisions of runs, each with what is said where it was refused when it was acted on."""
    from backfill_assets.evidence.refusals import in_words, refusals_of

    found = platform.ledger.decisions(run_id, break_glass=break_glass)
    from manifests.policy import Role

    acted_on = {one.run_id for one in found if one.role == Role.PUBLISHER}
    why = {name: refusals_of(platform.ledger, platform.evidence, name) for name in acted_on}
    return [one.as_record() | {"refused": in_words(why.get(one.run_id, {}).get(one.approval or 0))} for one in found]


def _of_stops(platform: Platform, run_id: str | None) -> list[dict[str, Any]]:
    """Return the stops and pauses of runs, and what ended them, as decisions; they are about no plan, and take no role."""
    found: list[dict[str, Any]] = []
    same = {
        "role": "",
        "planHash": "",
        "breakGlass": "",
        "selfApproved": False,
        "policyHash": "",
        "proof": "",
        "refused": "",
    }
    for one in platform.ledger.stops.all_of(run_id):
        why = ". ".join(text for text in (one.reason, one.note) if text)
        stopped = {
            "decision": one.what.upper(),
            "by": one.stopped_by,
            "at": one.at,
            "channel": one.through,
            "comment": why,
        }
        found.append({"runId": one.run_id, **same, **stopped, "proof": one.proof, "void": False})
        if one.resumed_at is not None:
            what = "RESUMED" if one.is_pause else "LAUNCHED AGAIN"
            resumed = {"decision": what, "by": one.resumed_by, "at": one.resumed_at, "channel": one.resumed_channel}
            resumed |= {"comment": one.resume_reason, "proof": one.resumed_proof}
            found.append({"runId": one.run_id, **same, **resumed, "void": False})
    return found


def shown_actor(name: str, proof: str) -> str:
    """Return a name, and that nothing but the name shows who it was, where that is on record."""
    return f"{name} (claimed)" if proof == "CLAIMED" else name


def loud(run_id: str, by: str, reason: str) -> None:
    """Say on the terminal that the glass is broken."""
    from rich.panel import Panel

    text = f"{by} broke the glass for {run_id}: {reason}\nIt is in the ledger, in the evidence and in Dagster; see `backfill decisions --break-glass`."
    show(Panel(text, title="BREAK-GLASS", border_style="bold red", title_align="left"))


@click.command()
@click.argument("run_id")
@by_option
@reason_option
def cancel(run_id: str, by: str | None, comment: str) -> None:
    """End RUN_ID without a publication. What is computed of it ends within seconds.

    What is staged stays on disk and on record; readers have seen nothing of it.
    """
    from backfill_assets import decisions
    from resources.ledger.facade import operator

    with opened_platform() as platform:
        by = by or operator()
        decisions.cancel(platform, run_id, by=by, comment=comment)
    tell(f"{run_id}: CANCELLED by {by}")


COMMANDS = (approve, reject, review, accept_change, cancel, decisions)
