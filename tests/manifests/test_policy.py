"""The policy's text, and what it says of people, ages and data, judged from plain facts."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import RUN_CLOCK, a_contract, a_manifest, a_plan, a_source, monthly_files, publishing

from manifests.data_terms import OLD_DATA_GATE, ErasedList, SourceColumn, SourceFacts
from manifests.errors import EnvironmentRefused, PlanRefused
from manifests.model import Kind
from manifests.plan import Plan, plan_from_json
from manifests.policy import Mask, Policy, Role, Rule, parse_policy, same_name
from manifests.who_may import age_problems, break_glass_problems, role_problems
from resources.policies import SHIPPED

TABLE, SOURCE = "silver.case_sla_daily", "bronze.case_events"
DOCS = Path(__file__).resolve().parents[2] / "docs" / "policy.md"
ERASED = ErasedList("erased.csv", None, 2, "a" * 64, 300)
FACTS = SourceFacts(
    {
        "case_id": SourceColumn("string", required=True),
        "amount": SourceColumn("decimal(12, 2)", required=False),
        "officer": SourceColumn("string", required=False),
        "event_at": SourceColumn("timestamptz", required=True),
    },
    "event_at",
    frozenset({"case_id", "business_date"}),
    "case_id",
    ERASED,
)


def a_policy(**fields: Any) -> Policy:
    return parse_policy(yaml.safe_dump({"name": "test", **fields}))


def of_source(**says: Any) -> Policy:
    return a_policy(sources=[{"table": SOURCE, **says}])


def planned(
    policy: Policy, facts: SourceFacts = FACTS, *, contract: dict[str, Any] | None = None, **changes: Any
) -> Plan:
    contract_ = a_contract(warm_up_days=60, **(contract or {}))
    return a_plan(a_manifest(**changes), policy=policy, facts=facts, contract=contract_)


def why(policy: Policy, facts: SourceFacts = FACTS, **changes: Any) -> str:
    with pytest.raises(PlanRefused) as refusal:
        planned(policy, facts, **changes)
    return str(refusal.value)


# --- the text ---------------------------------------------------------------------------------------------------------


def test_the_shipped_policy_is_four_eyes_for_everybody():
    policy = parse_policy(SHIPPED.read_text())
    rule = policy.rule_for(TABLE, Kind.RESTATEMENT)
    assert rule == Rule()
    assert rule.four_eyes
    assert all(rule.of(role) is None for role in Role)
    assert policy.source_rule(SOURCE, TABLE) is None


def test_the_example_of_the_docs_is_a_policy():
    texts = re.findall(r"```yaml\n(apiVersion: backfill-policy.*?)```", DOCS.read_text(), re.DOTALL)
    policy, *others = [parse_policy(text) for text in texts]
    assert others
    assert policy.rule_for(TABLE, Kind.RESTATEMENT).reviews_required == 1
    assert policy.source_rule(SOURCE, TABLE) is not None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"approvers": ["bob"]}, "approvers: is an unknown key"),
        ({"rules": [{"approver": ["bob"]}]}, "rules.0.approver: is an unknown key"),
        ({"rules": [{"approvers": ["group:owners"]}]}, "group:owners is no group; groups are none"),
        ({"groups": {"a": ["group:b"], "b": ["bob"]}}, "group a names another group"),
        ({"rules": [{"maxAgeDays": {"sincePlanning": 0}}]}, "greater than 0"),
        ({"rules": [{"maxAgeDays": {"sincePlanning": "30"}}]}, "sincePlanning: is '30'"),
        ({"sources": [{"table": SOURCE, "retention": {}}]}, "give days or before, one of them"),
        ({"sources": [{"table": SOURCE, "erasure": {"column": "case_id"}}]}, "give table or file, one of them"),
        ({"sources": [{"table": SOURCE, "columns": {"amount": {"classification": "secret"}}}]}, "unknown class secret"),
        (
            {
                "classifications": {"personal": {"purposes": [], "otherwise": "MASK"}},
                "sources": [{"table": SOURCE, "columns": {"amount": {"classification": "personal"}}}],
            },
            "has no mask",
        ),
        (
            {
                "classifications": {"personal": {}},
                "sources": [
                    {
                        "table": SOURCE,
                        "erasure": {"column": "case_id", "file": "erased.csv"},
                        "columns": {"case_id": {"classification": "personal", "mask": "HASH"}},
                    }
                ],
            },
            "it cannot be masked",
        ),
    ],
)
def test_a_policy_that_says_what_cannot_be_is_refused(fields: dict[str, Any], says: str):
    with pytest.raises(EnvironmentRefused, match=re.escape(says)):
        a_policy(**fields)


@pytest.mark.parametrize(
    "text", ["rules: [{fourEyes: off}]", "rules: [{maxAgeDays: {sinceApproval: 010}}]", "groups: {no: [ada]}"]
)
def test_a_policy_that_the_two_versions_of_yaml_read_differently_is_refused(text: str):
    with pytest.raises(EnvironmentRefused, match=r"is one value by YAML 1\.1 and another by YAML 1\.2"):
        parse_policy(f"name: open\n{text}\n")


def test_equal_policies_have_equal_hashes_whatever_their_layout():
    one = parse_policy("name: a\nrules:\n  - approvers: [bob]\n    tables: ['*']\n")
    other = parse_policy('{"rules": [{"approvers": ["bob"]}], "name": "a"}')
    assert one.hash == other.hash
    assert one.hash != parse_policy("name: a\n").hash


# --- people -----------------------------------------------------------------------------------------------------------


def test_the_first_rule_that_fits_counts_and_live_is_only_held_to_rules_that_name_it():
    policy = a_policy(
        rules=[
            {"tables": ["silver.*"], "kinds": ["RESTATEMENT", "REPAIR"], "approvers": ["bob"]},
            {"tables": ["silver.case_*"], "approvers": ["eve"]},
            {"tables": ["*"], "kinds": ["LIVE"], "approvers": ["policy:live-daily"]},
        ]
    )
    assert policy.rule_for(TABLE, Kind.REPAIR).approvers == ("bob",)
    assert policy.rule_for(TABLE, Kind.REPLAY).approvers == ("eve",)
    assert policy.rule_for("gold.other", Kind.REPLAY) == Rule()
    assert policy.rule_for(TABLE, Kind.LIVE).approvers == ("policy:live-daily",)


def test_a_kind_that_no_rule_names_is_held_to_all_rules_of_its_table():
    policy = a_policy(
        groups={"owners": ["Grace", "bob"]},
        rules=[
            {
                "tables": ["silver.*"],
                "kinds": ["RESTATEMENT"],
                "approvers": ["group:owners"],
                "publishers": ["ops"],
                "reviewsRequired": 2,
                "breakGlass": ["ops", "eve"],
                "maxAgeDays": {"sincePlanning": 14, "sinceApproval": 3},
            },
            {
                "tables": ["silver.case_*"],
                "kinds": ["REPAIR", "LIVE"],
                "approvers": ["bob", "eve"],
                "fourEyes": False,
                "publisherDiffersFromApprover": True,
                "breakGlass": ["ops"],
                "maxAgeDays": {"sincePlanning": 7},
            },
            {"tables": ["*"], "kinds": ["LIVE"], "approvers": ["policy:live-daily"], "reviewsRequired": 9},
            {"tables": ["gold.*"], "approvers": ["zoe"]},
        ],
    )
    for kind in (Kind.BACKFILL, Kind.MIGRATION, Kind.BOOTSTRAP, Kind.REPLAY, Kind.REPROCESSING):
        rule = policy.rule_for(TABLE, kind)
        assert rule.approvers == ("bob",)  # the one person whom both rules name, one of them by a group
        assert (rule.publishers, rule.requesters, rule.break_glass) == (("ops",), None, ("ops",))
        assert (rule.four_eyes, rule.publisher_differs_from_approver, rule.reviews_required) == (True, True, 2)
        assert (rule.max_age_days.since_planning, rule.max_age_days.since_approval) == (7, 3)
    assert policy.rule_for("silver.other", Kind.BACKFILL) == policy.rules[0]  # its only rule
    assert policy.rule_for("bronze.other", Kind.BACKFILL) == Rule()
    assert policy.rule_for(TABLE, Kind.RECONCILIATION) == Rule()  # it changes nothing


def test_a_rule_without_kinds_is_for_every_kind_but_live():
    policy = a_policy(rules=[{"approvers": ["bob"]}])
    assert {kind for kind in Kind if policy.rule_for(TABLE, kind).approvers != ("bob",)} == {Kind.LIVE}


def test_where_nobody_is_on_every_list_nobody_may():
    policy = a_policy(
        rules=[
            {"kinds": ["RESTATEMENT"], "approvers": ["bob"]},
            {"kinds": ["REPAIR"], "approvers": ["eve"]},
        ]
    )
    rule = policy.rule_for(TABLE, Kind.BACKFILL)
    (problem,) = role_problems(policy, rule, Role.APPROVER, "bob", TABLE)
    assert "names nobody" in problem.rule


def test_a_policy_tells_kinds_apart_by_its_rules_and_by_what_may_be_read():
    reads = {"table": SOURCE, "kinds": ["RESTATEMENT"]}
    for fields, apart in (
        ({}, False),
        ({"rules": [{"kinds": ["RESTATEMENT"], "approvers": ["bob"]}]}, False),  # the other one is held to it as well
        ({"rules": [{"kinds": ["BACKFILL"], "reviewsRequired": 1}, {"approvers": ["bob"]}]}, True),
        ({"sources": [reads]}, True),
        ({"sources": [reads | {"kinds": ["RESTATEMENT", "BACKFILL"]}]}, False),
    ):
        assert a_policy(**fields).tells_apart(SOURCE, TABLE, Kind.RESTATEMENT, Kind.BACKFILL) is apart


def test_people_are_named_by_themselves_by_a_group_or_by_a_team_however_spelt():
    policy = a_policy(groups={"owners": ["Grace"]}, rules=[{"approvers": ["group:owners", "bob"]}])
    assert policy.includes(("group:owners", "bob"), " grace ")
    assert policy.includes(("group:owners", "bob"), "BOB")
    assert policy.includes(("team:owners",), "grace")
    assert not policy.includes(("group:owners", "bob"), "eve")
    assert not policy.includes((), "eve")


@pytest.mark.parametrize("name", ["group:owners", "GROUP: owners", "team:owners", "team:unknown", "\uff47roup:owners"])
def test_a_group_is_nobody_who_could_decide(name: str):
    policy = a_policy(
        groups={"owners": ["grace"]}, rules=[{"approvers": ["group:owners"], "breakGlass": ["team:unknown"]}]
    )
    rule = policy.rules[0]
    assert not policy.includes(("group:owners", "team:owners", "team:unknown"), name)
    assert role_problems(policy, rule, Role.APPROVER, name, TABLE)
    assert break_glass_problems(policy, rule, name, "the office is closed", TABLE)


def test_what_lists_have_in_common_is_people():
    policy = a_policy(
        groups={"owners": ["grace", "bob"], "others": ["grace"]},
        rules=[
            {"kinds": ["RESTATEMENT"], "approvers": ["group:owners", "team:unknown"]},
            {"kinds": ["REPAIR"], "approvers": ["group:others", "group:owners", "team:unknown"]},
        ],
    )
    assert policy.rule_for(TABLE, Kind.BACKFILL).approvers == ("grace", "bob")


@pytest.mark.parametrize(
    "fields",
    [
        {"groups": {"owners": ["grac\u0435"]}},
        {"groups": {"own\u200bers": ["grace"]}},
        {"rules": [{"approvers": ["gr\u00adace"]}]},
        {"rules": [{"approvers": ["grace\nbob"]}]},
        {"keepers": ["grace\u2028"]},
        {"keepers": ["grace\U00016fe4"]},
        {"rules": [{"approvers": ["gr\u2b24ace"]}]},
        {"name": "of the \u202eoffice"},
        {"identity": {"authenticate": "OPERATING_SYSTEM", "names": {"al": "ad\u0430"}}},
        {
            "sources": [
                {"table": SOURCE, "columns": {"a": {"classification": "p", "mask": "CONSTANT", "constant": "\u0007"}}}
            ]
        },
    ],
)
def test_a_policy_names_nobody_whom_its_reader_would_take_for_another(fields: dict[str, Any]):
    text = json.dumps({"name": "a policy", **fields})
    with pytest.raises(EnvironmentRefused, match=r"is not seen|mixes letters|U\+"):
        parse_policy(text)


def test_one_person_in_two_spellings_is_one_person():
    policy = a_policy(rules=[{"approvers": ["Zo\u00eb", "\uff47\uff52\uff41\uff43\uff45"]}])
    assert policy.includes(policy.rules[0].approvers, "ZOE\u0308")
    assert policy.includes(policy.rules[0].approvers, "grace")
    assert same_name("gr\u200bace") == same_name("Grace") != same_name("gr ace")


def test_who_may_not_act_is_told_who_may():
    policy = a_policy(rules=[{"approvers": ["bob"], "publishers": [], "breakGlass": ["ops"]}])
    rule = policy.rules[0]
    assert role_problems(policy, rule, Role.APPROVER, "bob", TABLE) == []
    assert "names bob" in str(role_problems(policy, rule, Role.APPROVER, "eve", TABLE)[0])
    assert "names nobody" in str(role_problems(policy, rule, Role.PUBLISHER, "eve", TABLE)[0])
    assert role_problems(policy, rule, Role.REVIEWER, "eve", TABLE) == []
    assert break_glass_problems(policy, rule, "ops", "the house is on fire", TABLE) == []
    assert len(break_glass_problems(policy, rule, "eve", "quick", TABLE)) == 2
    assert len(break_glass_problems(policy, rule, "ops", "\u200b" * 12, TABLE)) == 1


@pytest.mark.parametrize(
    ("keepers", "members"),
    [
        (["Group:docks"], ["ada"]),
        (["TEAM:docks"], ["ada"]),
        (["\uff47roup:docks", "team:unknown"], ["ada"]),
        (["group:docks"], ["Team:x"]),
        (["group:docks"], ["policy:live"]),
        (["policy:live"], ["ada"]),
        (["group:docks"], []),
    ],
)
def test_keepers_who_are_no_person_are_refused(keepers: list[str], members: list[str]):
    said = {"name": "locked", "groups": {"docks": members}, "keepers": keepers}
    with pytest.raises(EnvironmentRefused, match="which is no person"):
        parse_policy(json.dumps(said))
    assert parse_policy(json.dumps(said | {"keepers": [*keepers[1:], "ada"]})).keepers


def test_nobody_is_told_to_ask_one_of_those_whom_the_policy_names_where_it_names_nobody():
    named, nobody = (
        a_policy(groups={"none": []}, rules=[{"approvers": who, "breakGlass": [*who]}])
        for who in (["bob"], ["group:none", "team:unknown"])
    )
    for policy, asks in ((named, True), (nobody, False), (a_policy(rules=[{"approvers": []}]), False)):
        rule = policy.rules[0]
        (approver,) = role_problems(policy, rule, Role.APPROVER, "eve", TABLE)
        (glass,) = break_glass_problems(policy, rule, "eve", "the house is on fire", TABLE)
        assert ("ask one of them" in approver.fix, "ask one of them" in glass.fix) == (asks, asks)
        assert approver.fix.endswith("have the policy changed (approvers of the rule for *)")
        assert glass.fix.endswith("wait for those who may decide without it")


def test_only_a_requester_of_the_policy_may_have_a_run_planned():
    policy = a_policy(rules=[{"requesters": ["eve"]}])
    assert "'ada' is no requester of silver.case_sla_daily" in why(policy)
    assert planned(policy, requestedBy="Eve").policy == policy.hash


def test_named_publishers_make_every_publication_one_by_hand():
    assert planned(a_policy(rules=[{"publishers": ["bob"]}])).manual_publish
    assert not planned(a_policy(rules=[{"approvers": ["bob"]}])).manual_publish


def test_a_run_grows_old_from_its_planning_and_from_its_approval():
    at = datetime(2024, 5, 10, tzinfo=UTC)
    rule = a_policy(rules=[{"maxAgeDays": {"sincePlanning": 7, "sinceApproval": 1.5}}]).rules[0]

    def ages(planned_days: float, approved_days: float | None) -> list[str]:
        approved = None if approved_days is None else at - timedelta(days=approved_days)
        found = age_problems(rule, "r", planned_at=at - timedelta(days=planned_days), approved_at=approved, at=at)
        return [one.what for one in found]

    assert ages(7, 1.5) == []
    assert ages(6, None) == []
    assert "was planned 7.1 days ago" in ages(7.1, 1)[0]
    assert "was approved 2.0 days ago" in ages(3, 2)[0]
    assert len(ages(8, 2)) == 2
    assert age_problems(Rule(), "r", planned_at=RUN_CLOCK, approved_at=RUN_CLOCK, at=at) == []


# --- data -------------------------------------------------------------------------------------------------------------


def test_a_plan_says_which_policy_was_in_force_and_nothing_else_where_that_asks_nothing():
    policy = a_policy()
    plan = planned(policy)
    assert (plan.policy, plan.data) == (policy.hash, None)
    assert plan.gates == a_plan().gates
    assert '"policy"' not in a_plan().to_json()


def test_a_purpose_must_be_one_that_the_policy_allows():
    policy = of_source(purposes=["enforcement"], kinds=["RESTATEMENT"])
    assert "purpose is not given" in why(policy)
    assert "purpose is marketing" in why(policy, purpose="marketing")
    assert "kind is REPAIR" in why(policy, kind="REPAIR", purpose="enforcement")
    assert planned(policy, purpose="enforcement").data is None
    assert planned(of_source(purposes=["x"], targets=["gold.*"])).data is None


def test_rows_that_are_too_old_are_refused_with_their_number_unless_the_policy_leaves_them_out():
    text = why(of_source(retention={"before": "2010-03-01"}))
    assert "up to 200 rows of bronze.case_events from before 2010-03-01" in text  # a file of 100 rows a month

    plan = planned(of_source(retention={"before": "2010-03-01", "onExpired": "FILTER"}))
    assert plan.data is not None
    assert plan.data.not_before == datetime(2010, 3, 1, tzinfo=UTC)
    assert plan.data.expired_rows == 200
    assert plan.gates[-1] == OLD_DATA_GATE
    assert plan_from_json(plan.to_json()) == plan
    assert "up to 200" in dict(plan.data.describe())["retention"]


def test_days_whose_warm_up_is_too_old_are_never_published_as_if_they_were_whole():
    policy = of_source(retention={"before": "2011-12-15", "onExpired": "FILTER"})
    # 60 days of warm-up and a day of margin before 2012-01-01; from 2011-12-15 they end on 2012-02-14
    assert "begin the publish range on 2012-03-01 or later" in why(policy)
    assert planned(policy, target=publishing("2012-03-01", "2012-03-31")).data is not None
    assert "begin the publish range on" in why(policy, target=publishing("2012-02-01", "2012-03-31"))


def test_days_of_retention_are_counted_back_from_the_run_clock():
    days = (RUN_CLOCK.date() - date(2010, 3, 1)).days
    plan = planned(of_source(retention={"days": days, "onExpired": "FILTER"}))
    assert plan.data is not None
    assert plan.data.not_before == datetime(2010, 3, 1, tzinfo=UTC)


def test_a_source_without_old_rows_or_a_target_that_does_not_read_them_is_left_alone():
    policy = of_source(retention={"before": "2010-03-01"})
    young = a_source(monthly_files(date(2010, 3, 1), 40))
    plan = a_plan(a_manifest(), policy=policy, facts=FACTS, source=young)
    assert plan.data is None
    assert planned(policy, contract={"reads_look_back": False}).data is None


def test_erased_subjects_are_pinned_by_the_hash_of_their_list():
    erasure = {"column": "case_id", "file": "erased.csv"}
    plan = planned(of_source(erasure=erasure))
    assert plan.data is not None
    assert plan.data.erasure is not None
    assert (plan.data.erasure.hash, plan.data.erasure.target_column) == ("a" * 64, "case_id")
    assert plan.gates[-1] == OLD_DATA_GATE
    assert plan_from_json(plan.to_json()) == plan
    assert "2 erased subjects" in dict(plan.data.describe())["erasure"]
    assert "may be in files with 300 rows" in why(of_source(erasure=erasure | {"onErased": "REFUSE"}))
    assert "bronze.case_events.person does not exist" in why(of_source(erasure=erasure | {"column": "person"}))
    assert "silver.case_sla_daily.person does not exist" in why(of_source(erasure=erasure | {"targetColumn": "person"}))


@pytest.mark.parametrize(
    ("column", "says", "masked"),
    [
        ({"officer": {"classification": "personal", "mask": "HASH"}}, None, Mask.HASH),
        ({"officer": {"classification": "personal", "mask": "CONSTANT", "constant": "x"}}, None, Mask.CONSTANT),
        ({"amount": {"classification": "personal", "mask": "NULL"}}, None, Mask.NULL),
        ({"amount": {"classification": "personal", "mask": "HASH"}}, "mask HASH is for text", None),
        ({"case_id": {"classification": "personal", "mask": "NULL"}}, "may be null", None),
        ({"event_at": {"classification": "personal", "mask": "NULL"}}, "places rows in time", None),
        ({"gone": {"classification": "personal", "mask": "NULL"}}, "does not exist", None),
    ],
)
def test_a_column_is_masked_for_runs_that_may_not_read_it(
    column: dict[str, Any], says: str | None, masked: Mask | None
):
    policy = a_policy(
        classifications={"personal": {"purposes": ["enforcement"], "otherwise": "MASK"}},
        sources=[{"table": SOURCE, "columns": column}],
    )
    if says is not None:
        assert says in why(policy)
        return
    plan = planned(policy)
    assert plan.data is not None
    assert [one.mask for one in plan.data.masks] == [masked]
    assert OLD_DATA_GATE not in plan.gates  # no row is left out
    assert planned(policy, purpose="enforcement").data is None


def test_a_personal_column_may_not_be_read_by_a_dry_run():
    policy = a_policy(
        classifications={"personal": {"modes": ["BACKFILL", "LIVE"]}},
        sources=[{"table": SOURCE, "columns": {"officer": {"classification": "personal"}}}],
    )
    assert "bronze.case_events.officer is personal; the run has mode DRY_RUN" in why(policy, mode="DRY_RUN")
    assert planned(policy).data is None


def test_a_merge_needs_its_entities_as_they_are():
    policy = a_policy(
        classifications={"personal": {"purposes": [], "otherwise": "MASK"}},
        sources=[{"table": SOURCE, "columns": {"case_id": {"classification": "personal", "mask": "HASH"}}}],
    )
    target = publishing("2012-01-01", "2012-03-31") | {"publishMode": "MERGE_BY_KEY", "merge": {"entities": ["A1"]}}
    assert "a merge finds its entities by it" in why(policy, contract={"entity": "case_id"}, target=target)


@pytest.mark.parametrize("directive", ["%YAML 1.1", "# c\n%YAML 1.1", "\n%TAG ! tag:yaml.org,2002:", "%NOBODY knows"])
def test_a_policy_with_a_directive_is_refused(directive: str) -> None:
    with pytest.raises(EnvironmentRefused, match="directives are refused"):
        parse_policy(f"{directive}\n---\nname: open\n")
    assert parse_policy("# c\n---\nname: open\n").name == "open"
