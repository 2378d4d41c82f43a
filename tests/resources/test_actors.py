"""Who acts is on record with what shows it: a typed name is a claim, whatever else is known."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest
from support import APPROVER, REQUESTER, approved, planned

from manifests.errors import EnvironmentRefused, TransitionRefused
from manifests.policy import Identity
from resources import actors
from resources.actors import Actor, Channel, Proof, acting, current, identified
from resources.ledger.facade import Ledger, operator

OLGA = Actor("olga", Channel.UI, Proof.PROXY)


def identity(**fields: Any) -> Identity:
    return Identity.model_validate(fields)


def saying(tmp_path: Path, text: str) -> Identity:
    """Return an identity that a command says: here, what a file holds."""
    (tmp_path / "name").write_text(text)
    return identity(authenticate="COMMAND", command=["/bin/cat", str(tmp_path / "name")])


def test_a_name_from_a_variable_is_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_OPERATOR", "grace")
    assert current() == Actor("grace", Channel.API, Proof.CLAIMED)
    assert identified(None, Channel.CLI) == Actor("grace", Channel.CLI, Proof.CLAIMED)
    assert not current().is_authenticated


def test_the_operating_system_is_asked_and_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BACKFILL_OPERATOR", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "grace")
    user = pwd.getpwuid(os.getuid()).pw_name
    known = identity(authenticate="OPERATING_SYSTEM")
    assert identified(known, Channel.CLI) == Actor(user, Channel.CLI, Proof.OPERATING_SYSTEM)
    named = identity(authenticate="OPERATING_SYSTEM", names={user: "Ada L."})
    assert identified(named, Channel.CLI) == Actor("Ada L.", Channel.CLI, Proof.OPERATING_SYSTEM)


def test_a_command_says_who_somebody_is_or_nobody_is_anybody(tmp_path: Path) -> None:
    assert identified(saying(tmp_path, "ada\n"), Channel.CLI) == Actor("ada", Channel.CLI, Proof.COMMAND)
    for text in ("", "ada\ngrace\n"):
        with pytest.raises(EnvironmentRefused, match="it prints one name"):
            identified(saying(tmp_path, text), Channel.CLI)
    gone = identity(authenticate="COMMAND", command=["/bin/cat", str(tmp_path / "gone")])
    with pytest.raises(EnvironmentRefused, match="does not say who you are"):
        identified(gone, Channel.CLI)


@pytest.mark.parametrize(
    "fields",
    [
        {"authenticate": "COMMAND"},
        {"authenticate": "OPERATING_SYSTEM", "command": ["/bin/true"]},
        {"authenticate": "COMMAND", "command": ["whoami"]},
    ],
)
def test_an_identity_that_says_nothing_certain_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="command"):
        identity(**fields)


def test_another_name_than_ones_own_is_a_claim_and_ones_own_is_not() -> None:
    assert OLGA.under(" Olga ") is OLGA
    assert OLGA.under("victor") == Actor("victor", Channel.UI, Proof.CLAIMED)


def test_who_acts_is_asked_once_and_only_when_it_is_needed() -> None:
    asked: list[int] = []

    def who() -> Actor:
        asked.append(1)
        return OLGA

    with acting(who):
        assert (asked, actors.is_known()) == ([], True)
        assert [operator(), operator(), current()] == ["olga", "olga", OLGA]
        with acting(Actor("grace", Channel.CLI)):
            assert operator() == "grace"
    assert asked == [1]
    assert not actors.is_known()


def test_decisions_and_transitions_say_through_what_and_what_shows_it(ledger: Ledger) -> None:
    with acting(Actor(REQUESTER, Channel.CLI, Proof.OPERATING_SYSTEM)):
        record = planned(ledger, "known")
    with acting(Actor(APPROVER, Channel.UI, Proof.PROXY)):
        ledger.decide("known", approve=True, by=APPROVER, comment="", self_approval=False, plan_hash=record.plan_hash)
        approved(ledger, "claimed-too")  # requested by another name than who is logged in
    (decision,) = ledger.approvals("known")
    assert (decision.decided_by, decision.channel, decision.proof) == (APPROVER, "UI", "PROXY")
    said = [(one.actor, one.channel, one.proof) for one in ledger.history("known")]
    assert said == [(REQUESTER, "CLI", "OPERATING_SYSTEM"), (APPROVER, "UI", "PROXY")]
    assert [one.proof for one in ledger.history("claimed-too")] == ["CLAIMED", "PROXY"]


@pytest.mark.parametrize("name", ["grac\u0435", "gr\u200bace", "grace\nada", "\u2028", "grace\u3164"])
def test_nobody_decides_under_a_name_that_looks_like_anothers(ledger: Ledger, name: str) -> None:
    record = planned(ledger, "asked")
    with pytest.raises(TransitionRefused, match=r"is no name|no name is given"):
        ledger.decide("asked", approve=True, by=name, comment="", self_approval=False, plan_hash=record.plan_hash)
    with pytest.raises(TransitionRefused, match=r"is no name|no name is given"):
        ledger.stops.stop("asked", by=name, through="a test")
    assert ledger.approvals("asked") == []


def test_a_requester_in_other_letters_is_the_requester(ledger: Ledger) -> None:
    record = planned(ledger, "asked")
    wide = "".join(chr(ord(letter) + 0xFEE0) for letter in REQUESTER)
    with pytest.raises(TransitionRefused, match="requested run 'asked'"):
        ledger.decide("asked", approve=True, by=wide, comment="", self_approval=False, plan_hash=record.plan_hash)


def test_a_reason_with_a_line_end_is_shown_in_one_line_and_one_that_turns_text_round_is_refused(ledger: Ledger) -> None:
    approved(ledger, "going")
    with pytest.raises(TransitionRefused, match=r"U\+202E"):
        ledger.stops.stop("going", by=APPROVER, through="a test", reason="\u202e")
    done = ledger.stops.stop("going", by=APPROVER, through="a test", reason="late\nAPPROVED by ada")
    assert str(done).endswith(r"late\nAPPROVED by ada")


def test_a_command_that_says_no_name_is_nobody(tmp_path: Path) -> None:
    said = saying(tmp_path, "gr\u200bace")
    with pytest.raises(EnvironmentRefused, match="it prints one name"):
        identified(said, Channel.CLI)
