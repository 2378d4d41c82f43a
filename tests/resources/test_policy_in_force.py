"""The policy in force is the installation's: decisions on record put it there, and a file or variable only proposes."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from support import a_manifest, planned

from manifests.canonical import canonical_json, canonical_json_of_plain
from manifests.errors import EnvironmentRefused, InputRefused, TransitionRefused
from manifests.model import Kind, RunManifest
from manifests.policy import parse_policy, shown
from resources.evidence.chain import Chain
from resources.ledger import policy_in_force
from resources.ledger.facade import Ledger
from resources.ledger.policy_in_force import install
from resources.ledger.tables import journal, policies, policy_decisions
from resources.policies import SHIPPED
from resources.settings import Settings, load_settings

AT = datetime(2024, 5, 1, 12, tzinfo=UTC)
LATER = AT + timedelta(hours=1)
CLI = {"channel": "CLI", "proof": "CLAIMED"}
OPEN = {"name": "open", "rules": [{"fourEyes": False}]}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    return load_settings(home=tmp_path / "home")


@pytest.fixture
def installed(ledger: Ledger, settings: Settings) -> Ledger:
    with ledger.engine.begin() as connection:
        install(connection, settings, upgraded=False, by="root", at=AT)
    return ledger


def write(settings: Settings, text: dict[str, Any], name: str = "policy.yaml") -> Path:
    file = settings.home / name
    file.write_text(yaml.safe_dump(text))
    return file


def proposed(ledger: Ledger, settings: Settings, text: dict[str, Any], by: str = "ada") -> str:
    at = max(one.at for one in ledger.policies.history())
    return ledger.policies.propose(settings, write(settings, text), by=by, comment="wanted", at=at, who=CLI)


def adopted(ledger: Ledger, policy_hash: str, by: str = "grace", origin: str = "") -> str:
    return ledger.policies.adopt(policy_hash, by=by, comment="agreed", at=LATER, who=CLI, origin=origin)


def names(ledger: Ledger) -> list[tuple[str, str, str]]:
    return [(one.decision, one.name, one.by) for one in ledger.policies.history()]


def test_a_new_installation_has_the_shipped_policy_whatever_file_lies_there(ledger: Ledger, settings: Settings) -> None:
    with pytest.raises(EnvironmentRefused, match="no policy is in force"):
        ledger.policies.in_force(settings.home)
    write(settings, OPEN)
    for by in ("root", "somebody else"):
        with ledger.engine.begin() as connection:
            install(connection, settings, upgraded=False, by=by, at=AT)
    found = ledger.policies.in_force(settings.home)
    assert found.policy == parse_policy(SHIPPED.read_text())
    assert names(ledger) == [("INSTALLED", "four eyes", "root")]
    said = ledger.policies.disagreement(settings)
    assert said.startswith(f"{settings.home / 'policy.yaml'} says ")
    assert said.endswith(f"in force is {found.hash[:12]}, and that alone counts")


def test_an_installation_of_before_keeps_the_policy_that_it_had(ledger: Ledger, settings: Settings) -> None:
    write(settings, OPEN | {"sources": [{"table": "a.b", "erasure": {"column": "c", "file": "erased.csv"}}]})
    with ledger.engine.begin() as connection:
        install(connection, settings, upgraded=True, by="root", at=AT)
    found = ledger.policies.in_force(settings.home)
    assert (found.decision, found.policy.name, found.origin) == ("INHERITED", "open", "policy.yaml")
    assert found.folder == settings.home  # where the lists lie that it names; it moves with the home
    assert ledger.policies.disagreement(settings) == ""
    write(settings, {"name": "closed"})
    assert ledger.policies.in_force(settings.home).policy.name == "open"


def test_what_cannot_be_read_is_not_inherited_as_if_it_were_not_there(ledger: Ledger, settings: Settings) -> None:
    (settings.home / "policy.yaml").write_text("name: test\nrule: []\n")
    with pytest.raises(EnvironmentRefused, match="rule: is an unknown key"), ledger.engine.begin() as connection:
        install(connection, settings, upgraded=True, by="root", at=AT)
    assert ledger.policies.history() == []


def test_a_policy_is_proposed_by_one_and_adopted_by_another(installed: Ledger, settings: Settings) -> None:
    before = installed.policies.in_force(settings.home)
    found = proposed(installed, settings, OPEN)
    assert installed.policies.in_force(settings.home) == before
    with pytest.raises(TransitionRefused, match="who adopts a policy differs from who proposes it"):
        adopted(installed, found, by=" Ada")
    assert adopted(installed, found[:12]) == found
    now = installed.policies.in_force(settings.home)
    assert (now.hash, now.decided_by, now.at, now.policy.rules[0].four_eyes) == (found, "grace", LATER, False)
    assert names(installed) == [
        ("INSTALLED", "four eyes", "root"),
        ("PROPOSED", "open", "ada"),
        ("ADOPTED", "open", "grace"),
    ]
    assert [(one.before, one.channel, one.proof) for one in installed.policies.history()][1:] == [
        (before.hash, "CLI", "CLAIMED"),
        (before.hash, "CLI", "CLAIMED"),
    ]
    with pytest.raises(TransitionRefused, match="a proposal changes something"):
        proposed(installed, settings, OPEN)


def test_what_was_proposed_against_another_policy_is_proposed_again(installed: Ledger, settings: Settings) -> None:
    one, other = proposed(installed, settings, OPEN), proposed(installed, settings, {"name": "closed"})
    adopted(installed, other)
    with pytest.raises(TransitionRefused, match="who adopts a policy knows what it takes the place of"):
        adopted(installed, one)
    assert adopted(installed, proposed(installed, settings, OPEN)) == one


def elsewhere(ledger: Ledger, settings: Settings, text: dict[str, Any], by: str, at: datetime = AT) -> str:
    """Propose the same policy from a folder of one's own."""
    folder = settings.home.parent / by
    folder.mkdir(exist_ok=True)
    (folder / "policy.yaml").write_text(yaml.safe_dump(text))
    return ledger.policies.propose(settings, folder / "policy.yaml", by=by, comment="", at=at, who=CLI)


def origins(ledger: Ledger, settings: Settings) -> tuple[str, Path]:
    now = ledger.policies.in_force(settings.home)
    return now.origin, now.folder


def test_a_policy_that_was_proposed_from_two_folders_is_adopted_from_the_one_that_is_named(
    installed: Ledger, settings: Settings
) -> None:
    found = proposed(installed, settings, OPEN)
    assert elsewhere(installed, settings, OPEN, "mallory") == found
    mallorys = str(settings.home.parent / "mallory" / "policy.yaml")
    for order in ("mallory's is the newest", "ada's is the newest"):
        with pytest.raises(InputRefused) as refusal:
            adopted(installed, found)
        (problem,) = refusal.value.problems
        assert (
            problem.what == f"{found[:12]} was proposed from {mallorys} (by mallory) and from policy.yaml (by ada)"
        ), order
        assert "the lists that a policy names lie beside its file" in problem.rule
        assert problem.fix == "look at each, and name the one that you mean: `--from FILE`, written as here"
        proposed(installed, settings, OPEN)
    with pytest.raises(InputRefused, match=r"was not proposed from nowhere\.yaml"):
        adopted(installed, found, origin="nowhere.yaml")
    with pytest.raises(TransitionRefused, match="'mallory' proposed it"):
        adopted(installed, found, by="mallory", origin=mallorys)
    assert adopted(installed, found, origin="policy.yaml") == found
    assert origins(installed, settings) == ("policy.yaml", settings.home)


def test_the_same_policy_from_another_folder_is_another_decision(installed: Ledger, settings: Settings) -> None:
    stale = elsewhere(installed, settings, OPEN, "mallory")
    adopted(installed, elsewhere(installed, settings, {"name": "closed"}, "ada", LATER))
    adopted(installed, installed.policies.propose(settings, SHIPPED, by="ada", comment="", at=LATER, who=CLI))
    # the policy that it was proposed against is in force again, and nobody has looked at it since
    with pytest.raises(TransitionRefused, match=r"was proposed before \w+ was put in force"):
        adopted(installed, stale)
    again = installed.policies.propose(settings, write(settings, OPEN), by="ada", comment="", at=LATER, who=CLI)
    assert adopted(installed, again) == stale
    assert origins(installed, settings) == ("policy.yaml", settings.home)
    # its lists may move, by a decision as any other
    elsewhere(installed, settings, OPEN, "ada", LATER)
    adopted(installed, again)
    assert origins(installed, settings)[1] == settings.home.parent / "ada"


def test_a_file_that_says_the_same_beside_other_lists_is_said_to_differ(installed: Ledger, settings: Settings) -> None:
    listing = {"name": "listing", "sources": [{"table": "a.b", "erasure": {"column": "c", "file": "erased.csv"}}]}
    for text, differs in ((OPEN, False), (listing, True)):
        write(settings, text)
        adopted(installed, elsewhere(installed, settings, text, "ada", LATER))
        said = installed.policies.disagreement(settings)
        assert bool(said) == differs
    assert said == (
        f"{settings.home / 'policy.yaml'} says the same as {settings.home.parent / 'ada' / 'policy.yaml'}, which was adopted, "
        "and the lists beside that one count"
    )


def test_a_policy_may_name_who_keeps_it(installed: Ledger, settings: Settings) -> None:
    kept = {"name": "kept", "keepers": ["group:office"], "groups": {"office": ["hedy"]}}
    adopted(installed, proposed(installed, settings, kept))
    wanted = proposed(installed, settings, OPEN)
    with pytest.raises(TransitionRefused, match="'kept' names group:office") as refused:
        adopted(installed, wanted)
    assert refused.value.headline == "the decision is refused"
    assert refused.value.problems[0].fix.startswith("ask one of them, or ")
    adopted(installed, wanted, by="hedy")
    with pytest.raises(EnvironmentRefused, match="group:nobody is no group"):
        proposed(installed, settings, {"name": "a", "keepers": ["group:nobody"]})


@pytest.mark.parametrize("keepers", [[], ["group:office"], ["team:unknown"]])
def test_a_policy_that_nobody_could_ever_replace_is_not_proposed(
    installed: Ledger, settings: Settings, keepers: list[str]
) -> None:
    with pytest.raises(EnvironmentRefused, match="stays in force for ever"):
        proposed(installed, settings, {"name": "locked", "keepers": keepers, "groups": {"office": []}})
    assert proposed(installed, settings, {"name": "open", "groups": {"office": []}})


def test_a_policy_without_keepers_has_the_hash_that_it_always_had() -> None:
    assert parse_policy(SHIPPED.read_text()).hash == "2bd2d07f9e8b8dfbea736536cac407a6bb0952e9f24b2efca92a120bdd317b7c"


@pytest.mark.parametrize("named", ["", "0" * 64, "%", "abc"])
def test_only_what_is_proposed_is_adopted(installed: Ledger, settings: Settings, named: str) -> None:
    proposed(installed, settings, OPEN)
    with pytest.raises(InputRefused, match="names no proposed policy"):
        adopted(installed, named)


def test_a_clock_that_was_set_back_decides_nothing(installed: Ledger, settings: Settings) -> None:
    found = proposed(installed, settings, OPEN)
    with pytest.raises(TransitionRefused, match="nothing is decided before what it is about"):
        installed.policies.adopt(found, by="grace", comment="", at=AT - timedelta(days=10), who=CLI)
    assert installed.policies.in_force(settings.home).decision == "INSTALLED"


def test_nobody_decides_without_a_name(installed: Ledger, settings: Settings) -> None:
    with pytest.raises(TransitionRefused, match="no name is given"):
        proposed(installed, settings, OPEN, by=" ")


def test_a_text_that_was_changed_by_hand_decides_nothing(installed: Ledger, settings: Settings) -> None:
    with installed.engine.begin() as connection:
        connection.execute(sa.update(policies).values(text='{"name":"open","rules":[{"fourEyes":false}]}'))
    with pytest.raises(EnvironmentRefused, match="the ledger was changed by hand"):
        installed.policies.in_force(settings.home)
    with installed.engine.begin() as connection:
        connection.execute(sa.delete(policy_decisions))
    with pytest.raises(EnvironmentRefused, match="nothing is decided without a policy"):
        installed.policies.in_force(settings.home)


def test_own_approvals_are_allowed_by_the_setting_only_where_the_installation_is_made_with_it(
    ledger: Ledger, settings: Settings
) -> None:
    own = settings.model_copy(update={"self_approval": True})
    with ledger.engine.begin() as connection:
        policy_in_force.install(connection, own, upgraded=False, by="root", at=AT)
    found = ledger.policies.in_force(settings.home).policy
    assert (found.name, found.rules[0].four_eyes) == ("development: own runs may be approved", False)


# --- rows, and entries of the journal, of somebody who does not go through this project ---------------------------------


@pytest.fixture
def chained(ledger: Ledger, settings: Settings) -> Ledger:
    """A ledger whose entries have links, with a policy in force."""
    ledger.journal.chain = Chain(settings.home / "chain")
    with ledger.engine.begin() as connection:
        install(connection, settings, upgraded=False, by="root", at=AT)
    return ledger


def by_hand(ledger: Ledger, *statements: sa.Executable) -> None:
    other = sa.create_engine(ledger.url)
    with other.begin() as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount == 1
    other.dispose()


def adopt_by_hand(ledger: Ledger) -> None:
    """Put a policy in force that nobody has proposed, with the entry that a transaction would have written, but no link."""
    lax = parse_policy(yaml.safe_dump(OPEN))
    other = Ledger(ledger.url)
    with other.engine.begin() as connection:
        before = connection.execute(sa.select(policy_decisions.c.policy_hash)).scalars().all()[-1]
        connection.execute(policies.insert().values(hash=lax.hash, text=canonical_json(shown(lax)), at=AT))
        connection.execute(
            policy_decisions.insert().values(
                decision="ADOPTED",
                policy_hash=lax.hash,
                before_hash=before,
                decided_by="grace",
                comment="",
                origin="",
                at=AT,
                **CLI,
            )
        )
    other.engine.dispose()


def newest_entry(ledger: Ledger) -> sa.Row[Any]:
    with ledger.engine.connect() as connection:
        return connection.execute(sa.select(journal).order_by(journal.c.number.desc())).first()  # type: ignore[return-value]


def say_otherwise(ledger: Ledger, entry: sa.Row[Any], **said: Any) -> str:
    """Change what an entry says, and its hash with it; return the hash."""
    text = canonical_json_of_plain(json.loads(entry.said) | said)
    own = hashlib.sha256(text.encode()).hexdigest()
    by_hand(ledger, journal.update().where(journal.c.number == entry.number).values(said=text, hash=own))
    return own


def test_a_policy_whose_entry_of_the_journal_follows_no_entry_decides_nothing(
    chained: Ledger, settings: Settings
) -> None:
    chained.policies.require_explained()
    adopt_by_hand(chained)
    assert chained.policies.in_force(settings.home).policy.name == "open"
    say_otherwise(chained, newest_entry(chained), previous="f" * 64)
    with pytest.raises(EnvironmentRefused, match=r"changed by hand: ledger journal 2 names another entry before it"):
        chained.policies.require_explained()


def test_a_decision_about_the_policy_that_was_removed_with_its_entry_is_missed(
    chained: Ledger, settings: Settings
) -> None:
    adopted(chained, proposed(chained, settings, {"name": "closed"}))
    chained.policies.require_explained()
    by_hand(
        chained,
        journal.delete().where(journal.c.number == newest_entry(chained).number),
        policy_decisions.delete().where(policy_decisions.c.decision == "ADOPTED"),
    )
    assert chained.policies.in_force(settings.home).policy.name == "four eyes"
    with pytest.raises(EnvironmentRefused, match=r"ledger journal 3 is missing: link 3 of the chain vouches for it"):
        chained.policies.require_explained()


def test_entries_that_were_all_written_anew_are_not_what_the_newest_link_vouches_for(
    chained: Ledger, settings: Settings
) -> None:
    adopted(chained, proposed(chained, settings, {"name": "closed"}))
    before, follows = "0" * 64, {"follows": chained.journal.chain.length()}  # type: ignore[union-attr]
    with chained.engine.connect() as connection:
        entries = connection.execute(sa.select(journal).order_by(journal.c.number)).all()
    for entry in entries:
        before = say_otherwise(chained, entry, previous=before, **follows)
    with pytest.raises(
        EnvironmentRefused, match=r"is not the entry that link 3 of the chain vouches for|written after it"
    ):
        chained.policies.require_explained()


def test_a_decision_whose_process_died_before_its_link_decides(chained: Ledger, settings: Settings) -> None:
    other = Ledger(chained.url)
    adopted(other, proposed(other, settings, OPEN))
    other.engine.dispose()
    chained.policies.require_explained()
    assert chained.journal.catch_up()
    chained.policies.require_explained()


def test_one_entry_of_long_ago_that_was_changed_is_named(chained: Ledger) -> None:
    for run_id in ("one", "two", "three"):
        planned(chained, run_id)
    with chained.engine.connect() as connection:
        second = connection.execute(sa.select(journal).where(journal.c.number == 2)).one()
    changes = journal.update().where(journal.c.number == 2)
    for said in ({"said": second.said + " "}, {"said": "{"}):
        by_hand(chained, changes.values(**said))
        with pytest.raises(EnvironmentRefused, match="ledger journal 2 was changed after it was written"):
            chained.policies.require_explained()
    by_hand(chained, changes.values(said=second.said))
    chained.policies.require_explained()
    by_hand(chained, journal.delete().where(journal.c.number == 2))
    with pytest.raises(EnvironmentRefused, match="ledger journal 3 follows entries that are gone"):
        chained.policies.require_explained()


def a_tick(run_id: str) -> RunManifest:
    return a_manifest(run_id, kind=Kind.LIVE.value, safety={})


@pytest.mark.parametrize("run_is_known", [False, True])
def test_a_tick_whose_entry_of_the_journal_follows_no_entry_gives_no_rights(
    chained: Ledger, *, run_is_known: bool
) -> None:
    claimed, other = a_tick("mine"), Ledger(chained.url)
    if run_is_known:
        chained.record_sink_attempt(
            "mine", sink="a", sink_class="AUDIT", mode="LIVE", action="publish", decision="SENT", reason=""
        )
    planned(chained, "another")
    other.ticks.record(claimed, AT)
    other.engine.dispose()
    say_otherwise(chained, newest_entry(chained), previous="f" * 64)
    assert not chained.ticks.has_written(claimed)
    assert chained.ticks.problems(claimed) != []


def test_a_tick_gives_rights_whatever_is_written_before_and_after_it(chained: Ledger) -> None:
    planned(chained, "before")
    chained.ticks.record(a_tick("mine"), AT)
    planned(chained, "after")
    assert chained.ticks.has_written(a_tick("mine"))
