"""Who acts, through what, and what shows that it is them: on record with every transition and decision.

Put here the words for it, and how the process at hand knows its actor. The command, the jobs of the UI, sensors and
schedules each say who acts (`acting`); what is recorded meanwhile is recorded in that name. Whether somebody may decide
is `backfill_assets.decisions`'.
"""

from __future__ import annotations

import getpass
import os
import pwd
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import StrEnum

from manifests.errors import EnvironmentRefused, Problem
from manifests.policy import Authenticate, Identity, same_name
from manifests.text import NAME_RULE, TEXT_RULE, not_a_name, not_text

_SECONDS = 10.0
OPERATOR_VARIABLE = "BACKFILL_OPERATOR"
SOMEBODY = "somebody in Dagster"
"""Who launches where no proxy asks people who they are."""
UNKNOWN = "somebody unknown"
"""Who ends what Dagster works at by Terminate, which does not say who it was."""
NOBODY_KNOWN = "nobody as far as is known"
"""Who ends a process of Dagster's by a signal: it may have been a person, or that what has started the process has ended."""


class Channel(StrEnum):
    """Through what somebody acts."""

    CLI = "CLI"
    UI = "UI"
    SENSOR = "SENSOR"
    SCHEDULE = "SCHEDULE"
    API = "API"
    """Python that nobody has said more about."""


class Proof(StrEnum):
    """What shows that an actor is who the record says."""

    CLAIMED = "CLAIMED"
    """Nothing: a name that was typed, or comes from a variable."""
    OPERATING_SYSTEM = "OPERATING_SYSTEM"
    """The operating system's user of the process."""
    COMMAND = "COMMAND"
    """The command that the policy names."""
    PROXY = "PROXY"
    """The proxy before the UI, which asks people who they are."""
    PLATFORM = "PLATFORM"
    """The platform itself, by a sensor or a schedule."""


@dataclass(frozen=True)
class Actor:
    """Who acts."""

    name: str
    channel: Channel = Channel.API
    proof: Proof = Proof.CLAIMED

    @property
    def is_authenticated(self) -> bool:
        """Whether something else than their word shows who they are."""
        return self.proof is not Proof.CLAIMED

    def under(self, name: str) -> Actor:
        """Return who acts under a name that was given: the same actor, or one whom nothing but the name shows."""
        if same_name(name) == same_name(self.name):
            return self
        return replace(self, name=name, proof=Proof.CLAIMED)


_acting: ContextVar[Callable[[], Actor] | None] = ContextVar("acting", default=None)


def current() -> Actor:
    """Return who acts here and now."""
    found = _acting.get()
    return Actor(claimed_name()) if found is None else found()


def is_known() -> bool:
    """Whether somebody has said who acts here."""
    return _acting.get() is not None


@contextmanager
def acting(actor: Actor | Callable[[], Actor]) -> Iterator[None]:
    """Have what the body records be recorded in somebody's name; a function is asked once, when the name is needed."""
    known: list[Actor] = [actor] if isinstance(actor, Actor) else []

    def who() -> Actor:
        if not known:
            assert not isinstance(actor, Actor)
            known.append(actor())
        return known[0]

    token = _acting.set(who)
    try:
        yield
    finally:
        _acting.reset(token)


def columns(name: str) -> dict[str, str]:
    """Return what a row says beside a name: through what they acted, and what shows that it was them."""
    actor = current().under(name)
    return {"channel": actor.channel.value, "proof": actor.proof.value}


def claimed_name() -> str:
    """Return whom the environment names: BACKFILL_OPERATOR, or the user as the shell calls them."""
    if named := os.environ.get(OPERATOR_VARIABLE):
        return named
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid-{os.getuid()}"


def identified(identity: Identity | None, channel: Channel) -> Actor:
    """Return who acts, as the installation says how people are known; without that, who they claim to be.

    Raises:
        EnvironmentRefused: if the command that says so fails: nobody is taken for somebody because of that.
    """
    if identity is None:
        return Actor(claimed_name(), channel)
    if identity.authenticate is Authenticate.COMMAND:
        found, proof = _said_by(identity.command), Proof.COMMAND
    else:
        found, proof = _user(), Proof.OPERATING_SYSTEM
    return Actor(identity.names.get(found, found), channel, proof)


def _user() -> str:
    """Return the operating system's name of the process's user, which no variable changes."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


def _said_by(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
        name = done.stdout.strip()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise EnvironmentRefused(
            Problem(
                f"`{' '.join(command)}` does not say who you are: {error}",
                "the policy has this command say who acts",
                "sign in as it asks for, or have the policy changed (identity)",
            )
        ) from error
    if not name or not_a_name(name) is not None:
        raise EnvironmentRefused(
            Problem(
                f"`{' '.join(command)}` says {name[:100]!a}",
                f"it prints one name; {NAME_RULE}",
                "have the policy changed (identity)",
            )
        )
    return name


def no_name(name: str) -> list[Problem]:
    """Say why nobody may decide under a name: there is none, or readers could take it for another."""
    if not name.strip():
        return [Problem("no name is given", "a decision has a name", "give --by")]
    if (wrong := not_a_name(name.strip())) is not None:
        return [Problem(f"{name[:200]!a} is no name: {wrong}", NAME_RULE, "give a name as people see it")]
    return []


def no_reason(text: str) -> list[Problem]:
    """Say why a text cannot be on record as a reason: it would show other text than there is."""
    if (wrong := not_text(text)) is not None:
        return [Problem(f"the reason is not text: {wrong}", TEXT_RULE, "remove the character")]
    return []
