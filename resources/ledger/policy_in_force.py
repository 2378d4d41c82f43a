"""Which policy an installation is held to: the one that decisions on record have put in force, whatever a file says today.

A file, or a variable that names one, only proposes a policy; it comes into force when somebody else adopts it. Put here
those decisions and what follows from them. Reading files is `resources.policies`', what a policy means is
`manifests.policy`'s, and who may decide about a run `backfill_assets.decisions`'.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from manifests.canonical import canonical_json
from manifests.errors import DecisionRefused, EnvironmentRefused, InputRefused, Problem
from manifests.policy import Policy, same_name, shown
from resources import actors
from resources.ledger.cells import parsed
from resources.ledger.explained import require_explained
from resources.ledger.instants import require_after_policy
from resources.ledger.locks import hold_policy, lock_policy
from resources.ledger.part import Part
from resources.ledger.tables import policies, policy_decisions
from resources.policies import SHIPPED, policy_path, read_policy
from resources.settings import Settings

INSTALLED, INHERITED, PROPOSED, ADOPTED = "INSTALLED", "INHERITED", "PROPOSED", "ADOPTED"
"""The first policy of an installation; that of one which an earlier version made; what somebody would like; what counts."""
_IN_FORCE = frozenset({INSTALLED, INHERITED, ADOPTED})
_SHORTEST_HASH = 12


@dataclass(frozen=True)
class InForce:
    """The policy in force, the decision that has put it in force, and the folder that lists it names lie in."""

    policy: Policy
    hash: str
    decision: str
    decided_by: str
    at: datetime
    origin: str
    folder: Path


@dataclass(frozen=True)
class PolicyDecision:
    """One decision about the policy: `policy` and `before` are hashes, `name` is what the policy calls itself."""

    decision: str
    policy: str
    name: str
    before: str
    by: str
    channel: str
    proof: str
    comment: str
    origin: str
    at: datetime


class Policies(Part):
    """The policies of an installation: what is in force, and the decisions that have put it there."""

    def in_force(self, home: Path) -> InForce:
        """Return the policy that counts.

        Raises:
            EnvironmentRefused: if none is on record, or its text is not the one that was adopted: nothing is decided then.
        """
        with self.engine.connect() as connection:
            found = _in_force(connection)
            text = None if found is None else _text(connection, found.policy_hash)
        if found is None or text is None:
            raise EnvironmentRefused(
                Problem("no policy is in force", "nothing is decided without a policy", "run `backfill init`")
            )
        policy = _parsed(text)
        if policy is None or policy.hash != found.policy_hash:
            raise EnvironmentRefused(
                Problem(
                    f"the text of the policy in force is not that of {found.policy_hash[:_SHORTEST_HASH]}",
                    "the ledger keeps what was adopted, and nothing changes it",
                    "the ledger was changed by hand; restore it from its backup",
                )
            )
        folder = (home / found.origin).parent
        return InForce(policy, found.policy_hash, found.decision, found.decided_by, found.at, found.origin, folder)

    def require_explained(self) -> None:
        """Refuse to decide by a policy that no decision of this project has put in force.

        Raises:
            EnvironmentRefused: naming the rows, and the entries of the journal, that were written, changed or removed by hand.
        """
        require_explained(
            self.engine,
            [policy_decisions.name],
            journal="the ledger's journal, which says what has put the policy in force, was changed by hand",
            rows="the decisions about the policy were changed by hand",
            rule="a policy is put in force by a decision on record, and nothing is decided by another one",
        )

    def propose(
        self, settings: Settings, path: Path, *, by: str, comment: str, at: datetime, who: Mapping[str, str]
    ) -> str:
        """Put on record that somebody wants the policy of a file in force; return its hash. Nothing else changes.

        Raises:
            EnvironmentRefused: if the file cannot be read or says what cannot be.
            DecisionRefused: if that policy is in force already.
        """
        policy = read_policy(path)
        with self.engine.begin() as connection:
            lock_policy(connection)
            now = _required(connection)
            if policy.hash == now.policy_hash and _origin(path, settings) == now.origin:
                raise DecisionRefused(
                    Problem(
                        f"the policy of {path} ({policy.hash[:_SHORTEST_HASH]}) is in force",
                        "a proposal changes something",
                        "see `backfill policy`",
                    )
                )
            _keep(connection, policy, at)
            _decide(
                connection,
                PROPOSED,
                policy.hash,
                now.policy_hash,
                by=by,
                comment=comment,
                origin=_origin(path, settings),
                at=at,
                **who,
            )
        return policy.hash

    def adopt(
        self,
        policy_hash: str,
        *,
        by: str,
        comment: str,
        at: datetime,
        who: Mapping[str, str],
        origin: str = "",
    ) -> str:
        """Put a proposed policy in force; return its hash.

        Args:
            policy_hash: what was proposed: at least its first 12 characters.
            by: who adopts it: somebody else than the proposer, and one of the keepers of the policy in force if it names any.
            comment: why.
            at: now.
            who: `channel` and `proof` of the decision.
            origin: the file that it was proposed from, as it is on record; needed where it was proposed from several.

        Raises:
            InputRefused: if no such policy is proposed, or not from that file, or from several and none is named.
            DecisionRefused: if it may not be adopted by them, or was proposed against another policy than is in force.
        """
        with self.engine.begin() as connection:
            lock_policy(connection)
            now = _required(connection)
            proposal = _proposal(connection, policy_hash, origin, now)
            text = _text(connection, now.policy_hash)
            before = None if text is None else _parsed(text)
            if problems := _against_adoption(proposal, now, before, by):
                raise DecisionRefused(problems)
            _decide(
                connection,
                ADOPTED,
                proposal.policy_hash,
                now.policy_hash,
                by=by,
                comment=comment,
                origin=proposal.origin,
                at=at,
                **who,
            )
        return str(proposal.policy_hash)

    def history(self) -> list[PolicyDecision]:
        """Return every decision about the policy, in order."""
        query = (
            sa.select(policy_decisions, policies.c.text)
            .join(policies, policies.c.hash == policy_decisions.c.policy_hash)
            .order_by(policy_decisions.c.id)
        )
        with self.engine.connect() as connection:
            rows = connection.execute(query).all()
        return [
            PolicyDecision(
                row.decision,
                row.policy_hash,
                parsed(policies.c.text, row.text, dict).get("name", ""),
                row.before_hash,
                row.decided_by,
                row.channel,
                row.proof,
                row.comment,
                row.origin,
                row.at,
            )
            for row in rows
        ]

    def disagreement(self, settings: Settings) -> str:
        """Say how the file that the settings name differs from what is in force; empty if it does not, or there is none."""
        found, path = self.in_force(settings.home), policy_path(settings)
        if path == SHIPPED and settings.policy_file is None:
            return ""  # nobody proposes anything
        try:
            proposed = read_policy(path).hash
        except EnvironmentRefused as refusal:
            return f"{path} is not read: {refusal.problems[0].what}"
        if proposed == found.hash:
            lists = any(one.erasure is not None and one.erasure.file is not None for one in found.policy.sources)
            if not lists or _origin(path, settings) == found.origin:
                return ""
            return f"{path} says the same as {found.origin}, which was adopted, and the lists beside that one count"
        return (
            f"{path} says {proposed[:_SHORTEST_HASH]}; in force is {found.hash[:_SHORTEST_HASH]}, and that alone counts"
        )

    def keep(self, policy_hash: str, text: Mapping[str, Any]) -> None:
        """Keep what a policy says under its hash; safe to repeat."""
        self._keep(policies, policy_hash, {"text": canonical_json(dict(text))})

    def text(self, policy_hash: str | None) -> dict[str, Any] | None:
        """Return what the policy of a hash says, or None where it was not kept."""
        query = sa.select(policies.c.text).where(policies.c.hash == policy_hash)
        with self.engine.connect() as connection:
            text = connection.execute(query).scalar()
        return None if text is None else parsed(policies.c.text, text, dict)


def require_still(connection: sa.Connection, policy_hash: str) -> None:
    """Let what was held against a policy be recorded only while that policy is in force, and until the transaction has ended.

    Raises:
        DecisionRefused: if another one was put in force since; nothing is recorded then.
    """
    hold_policy(connection)
    found = _required(connection)
    if found.policy_hash != policy_hash:
        raise DecisionRefused(
            Problem(
                f"policy {found.policy_hash[:_SHORTEST_HASH]} was put in force by {found.decided_by} while this was decided by "
                f"{policy_hash[:_SHORTEST_HASH]}",
                "a decision is held against the policy that is in force when it is recorded",
                "give the command again: the policy of now decides",
            )
        )


def install(connection: sa.Connection, settings: Settings, *, upgraded: bool, by: str, at: datetime) -> None:
    """Put the first policy of an installation in force, once; where one is in force nothing happens.

    A new installation has the shipped policy. One that was made before policies were kept in force keeps what it had: the
    text of the file that counted there.

    Args:
        connection: to the ledger, in a transaction.
        settings: where the installation is.
        upgraded: whether the ledger was made by an earlier version.
        by: who installs.
        at: now.

    Raises:
        EnvironmentRefused: if the policy that the installation had cannot be read.
    """
    lock_policy(connection)
    if _in_force(connection) is not None:
        return
    path = policy_path(settings) if upgraded else SHIPPED
    policy = read_policy(path)
    if not upgraded and settings.self_approval:
        own = tuple(rule.model_copy(update={"four_eyes": False}) for rule in policy.rules)
        policy = policy.model_copy(update={"name": "development: own runs may be approved", "rules": own})
    comment = "the policy that counted before policies were adopted" if upgraded else "the shipped policy"
    _keep(connection, policy, at)
    decision = INHERITED if upgraded else INSTALLED
    _decide(connection, decision, policy.hash, "", by=by, comment=comment, origin=_origin(path, settings), at=at)


def _in_force(connection: sa.Connection) -> Any:
    query = sa.select(policy_decisions).where(policy_decisions.c.decision.in_(_IN_FORCE))
    return connection.execute(query.order_by(policy_decisions.c.id.desc()).limit(1)).one_or_none()


def _required(connection: sa.Connection) -> Any:
    found = _in_force(connection)
    if found is None:
        raise EnvironmentRefused(
            Problem("no policy is in force", "a policy takes the place of another", "run `backfill init`")
        )
    return found


def _proposal(connection: sa.Connection, policy_hash: str, origin: str, now: Any) -> Any:
    """Return the newest proposal of a policy: from the file that is named, or from the only one since `now` began."""
    in_order = (
        sa.select(policy_decisions)
        .where(
            policy_decisions.c.decision == PROPOSED,
            policy_decisions.c.policy_hash.startswith(policy_hash, autoescape=True),
        )
        .order_by(policy_decisions.c.id)
    )
    found = [] if len(policy_hash) < _SHORTEST_HASH else list(connection.execute(in_order))
    if not found or len({row.policy_hash for row in found}) > 1:
        raise InputRefused(
            Problem(
                f"'{policy_hash}' names no proposed policy",
                f"it is the hash of one, at least {_SHORTEST_HASH} characters of it",
                "see `backfill policy history`; `backfill policy propose FILE --by NAME` proposes one",
            )
        )
    standing = {row.origin: row for row in found if row.id > now.id} or {found[-1].origin: found[-1]}
    named = found[-1].policy_hash[:_SHORTEST_HASH]
    told = " and ".join(f"from {where} (by {row.decided_by})" for where, row in sorted(standing.items()))
    if origin and origin not in standing:
        raise InputRefused(
            Problem(
                f"{named} was not proposed from {origin}",
                f"it was proposed {told}",
                "write the file as `backfill policy history` shows it",
            )
        )
    if not origin and len(standing) > 1:
        raise InputRefused(
            Problem(
                f"{named} was proposed {told}",
                "the lists that a policy names lie beside its file, so that the same text from another folder is another one",
                "look at each, and name the one that you mean: `--from FILE`, written as here",
            )
        )
    return standing[origin] if origin else next(iter(standing.values()))


def _against_adoption(proposal: Any, now: Any, before: Policy | None, by: str) -> list[Problem]:
    """Say why somebody may not put a proposal in the place of what is in force now, whose policy is `before`."""
    problems: list[Problem] = []
    if proposal.id < now.id or proposal.before_hash != now.policy_hash:
        problems.append(
            Problem(
                f"{proposal.policy_hash[:_SHORTEST_HASH]} was proposed before {now.policy_hash[:_SHORTEST_HASH]} was put "
                "in force",
                "who adopts a policy knows what it takes the place of",
                "propose it again",
            )
        )
    if same_name(by) == same_name(proposal.decided_by):
        problems.append(
            Problem(f"'{by}' proposed it", "who adopts a policy differs from who proposes it", "ask somebody else")
        )
    if before is not None and before.keepers is not None and not before.includes(before.keepers, by):
        problems.append(
            Problem(
                f"'{by}' is no keeper of the policy",
                f"'{before.name}' names {', '.join(before.keepers) or 'nobody'}",
                before.way_out(before.keepers, "leave the policy in force: it lets none but its keepers adopt another"),
            )
        )
    return problems


def _decide(
    connection: sa.Connection,
    decision: str,
    policy_hash: str,
    before: str,
    *,
    by: str,
    comment: str,
    origin: str,
    at: datetime,
    channel: str = "",
    proof: str = "",
) -> None:
    if problems := actors.no_name(by) + actors.no_reason(comment):
        raise DecisionRefused(problems)
    require_after_policy(connection, at)
    connection.execute(
        policy_decisions.insert().values(
            decision=decision,
            policy_hash=policy_hash,
            before_hash=before,
            decided_by=by,
            comment=comment,
            origin=origin,
            channel=channel,
            proof=proof,
            at=at,
        )
    )


def _keep(connection: sa.Connection, policy: Policy, at: datetime) -> None:
    if _text(connection, policy.hash) is None:
        connection.execute(policies.insert().values(hash=policy.hash, text=canonical_json(shown(policy)), at=at))


def _text(connection: sa.Connection, policy_hash: str) -> str | None:
    text: str | None = connection.execute(sa.select(policies.c.text).where(policies.c.hash == policy_hash)).scalar()
    return text


@lru_cache(maxsize=16)
def _parsed(text: str) -> Policy | None:
    try:
        return Policy.model_validate(json.loads(text))
    except ValueError:
        return None


def _origin(path: Path, settings: Settings) -> str:
    """Return a file's place: below the home folder relative to that, so that the home can be moved."""
    found = path.expanduser().absolute()
    return str(found.relative_to(settings.home)) if found.is_relative_to(settings.home) else str(found)
