"""A gate that raises has not passed: its run fails with the gate's name and the error, and says what to do about it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pytest
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType
from test_pages import page
from worlds import World, declare, make_world

from backfill_assets.declarations.exception_texts import exception_rows
from backfill_assets.declarations.places import place as place_of
from backfill_assets.declarations.reconciliations import state_level
from backfill_assets.declarations.target import (
    EXCEPTION_COLUMNS,
    Finding,
    Level,
    Reconciliation,
    TargetTable,
    TransformVersion,
)
from backfill_assets.defs.addresses import run_path
from backfill_assets.gates import exception_table
from backfill_assets.installation import Platform
from backfill_assets.operations.run_on_record import StepState
from backfill_assets.operations.runbook import steps
from backfill_assets.products.enforcement import CASE_SLA_DAILY
from backfill_assets.reconciliation.manifest import manifest_of, plan_reconciliation
from backfill_assets.reconciliation.reconcile import reconcile
from backfill_assets.staging import executor
from backfill_assets.staging.raised import finding_of, found_or_raised, words
from benchmarks import small_table
from manifests.errors import InputRefused, Problem, TransformRefused
from manifests.lifecycle import AttemptState, ChunkState, RunState
from manifests.model import Mode
from resources.ledger.facade import RunRecord, Verdict

GATE = "meters_agree"
ZONE = "spark.sql.session.timeZone"
UNKNOWN = "AnalysisException: [UNRESOLVED_COLUMN"


@pytest.fixture(scope="module")
def one_month(tmp_path_factory: pytest.TempPathFactory) -> World:
    home = tmp_path_factory.mktemp("raised") / "home"
    return make_world(home, cases=30, start=date(2010, 1, 1), end=date(2010, 1, 31), gates=[GATE])


def with_gate(check: Any) -> TargetTable:
    gate = Reconciliation(GATE, Level.RECORD, "The meters agree.", check)
    return replace(CASE_SLA_DAILY, reconciliations=(*CASE_SLA_DAILY.reconciliations, gate))


def declared(monkeypatch: pytest.MonkeyPatch, check: Any) -> None:
    declare(monkeypatch, with_gate(check))


def raises(context: Any) -> Finding:
    return Finding(context.source.select("metre").count() == 0, "never said")


def lines_of(*texts: str) -> list[int]:
    """The lines of this file that begin with these texts."""
    own = [line.strip() for line in Path(__file__).read_text(encoding="utf-8").splitlines()]
    return [own.index(text) + 1 for text in texts]


@F.udf(IntegerType())
def share(_value: Any) -> int:
    none = 0
    return 1 // none


def raises_in_a_worker(context: Any) -> Finding:
    return Finding(context.source.limit(1).select(share("case_id")).collect() == [], "never said")


def raises_in_spark(context: Any) -> Finding:
    rows = context.source.limit(1)
    shares = rows.select(F.lit(1) / (F.length("case_id") - F.length("case_id")))
    return Finding(shares.collect() == [], "never said")


def passes(_context: Any) -> Finding:
    return Finding(True, "they agree")


def cannot_list(context: Any) -> Finding:
    return Finding(False, "one differs", exceptions=lambda: context.source.select(F.col("metre").alias("key")))


def in_another_zone(context: Any) -> Finding:
    SparkSession.builder.config("spark.executor.memory", "2g").config(ZONE, "Europe/Oslo").getOrCreate()
    assert context.source.sparkSession.conf.get(ZONE) == "Europe/Oslo"
    return Finding(True, "they agree")


def lists_in_another_zone(context: Any) -> Finding:
    def listed() -> Any:
        in_another_zone(context)
        return exception_rows(context.source.sparkSession, [{"what": "one"}])

    return Finding(False, "they differ", exceptions=listed)


def verdict(world: World, record: RunRecord) -> Verdict:
    found: Mapping[str, Verdict] = {one.gate: one for one in world.platform.ledger.verdicts(record.run_id)}
    return found[GATE]


def test_a_gate_that_raises_fails_its_run_and_a_launch_lets_it_judge_again(
    one_month: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(monkeypatch, raises)
    record = one_month.ran(one_month.manifest())
    assert record.state is RunState.FAILED
    assert record.state_reason.startswith(f"gate(s) not passed: {GATE}; {GATE} raised {UNKNOWN}")
    assert "\n" not in record.state_reason
    found = verdict(one_month, record)
    assert not found.passed
    assert found.summary.startswith(f"could not judge: {UNKNOWN}")

    judged = {step.title: step for step in steps(one_month.platform, record.run_id)}["Judge"]
    assert judged.state is StepState.NOW
    assert "launch again" in judged.facts[-1]
    assert judged.commands[0] == f"backfill run {record.run_id}"
    assert "a gate could not judge" in page(one_month.platform, run_path(record.run_id))

    declared(monkeypatch, passes)
    again = one_month.stage(record)
    assert again.computed == []
    assert one_month.platform.ledger.run(record.run_id).state is RunState.VALIDATED


def test_a_gate_changes_no_setting_of_those_that_judge_after_it(
    one_month: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(monkeypatch, in_another_zone)
    spark = one_month.platform.spark
    before = spark.session(Mode.BACKFILL).conf.getAll
    assert one_month.ran(one_month.manifest()).state is RunState.VALIDATED
    assert spark.session(Mode.BACKFILL).conf.getAll == before
    declared(monkeypatch, lists_in_another_zone)
    assert one_month.ran(one_month.manifest()).state is RunState.FAILED
    assert spark.session(Mode.BACKFILL).conf.getAll == before
    declared(monkeypatch, passes)
    one_month.published(one_month.manifest())
    declared(monkeypatch, in_another_zone)
    manifest = manifest_of(one_month.platform, CASE_SLA_DAILY, gates=[GATE])
    assert reconcile(one_month.platform, plan_reconciliation(one_month.platform, manifest).run_id)[0].passed
    assert spark.session(Mode.RECONCILIATION).conf.get(ZONE) == "UTC"


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ((None, "{}"), {}),
        (("NO", "{}"), {"slice": "NO"}),
        (("[1]", '{"id":"A1"}'), {"slice": "[1]", "id": "A1"}),
        (("{}", '{"p":NaN}'), {"p": "NaN"}),
        (("{}", '{"p":1e999}'), {"key": '{"p":1e999}'}),
        (("{}", r'{"p":"\ud800"}'), {"key": r'{"p":"\ud800"}'}),
    ],
    ids=str,
)
def test_a_row_that_disagrees_is_shown_whatever_its_slice_and_key_are(
    one_month: World, monkeypatch: pytest.MonkeyPatch, where: tuple[str | None, str], shown: dict[str, str]
) -> None:
    def lists(context: Any) -> Finding:
        columns = ", ".join(f"{name} string" for name in EXCEPTION_COLUMNS)
        rows = [(*where, "{}", "{}", "another")]
        return Finding(False, "one", exceptions=lambda: context.source.sparkSession.createDataFrame(rows, columns))

    declared(monkeypatch, lists)
    record = one_month.ran(one_month.manifest())
    assert record.state is RunState.FAILED
    (row,) = verdict(one_month, record).details["sample"]
    assert row == shown | {"expected": "{}", "found": "{}", "what": "another"}


@pytest.mark.parametrize("place", [float("nan"), float("inf"), float("-inf")])
def test_a_slice_that_is_no_number_is_put_on_record(
    one_month: World, monkeypatch: pytest.MonkeyPatch, place: float
) -> None:
    gate = state_level(
        GATE,
        "They agree.",
        slices=("place",),
        measures=("sum",),
        expected=lambda _: [{"place": place, "sum": 1.0}],
        found=lambda _: [{"place": place, "sum": float("nan")}],
    )
    declared(monkeypatch, gate.check)
    record = one_month.ran(one_month.manifest())
    assert record.state is RunState.FAILED
    (row,) = verdict(one_month, record).details["sample"]
    word = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(place)]
    assert (row["place"], row["expected"], row["found"]) == (word, '{"sum":1.0}', '{"sum":"NaN"}')


def test_of_a_gate_that_raises_the_line_is_said_and_the_whole_traceback_kept(
    one_month: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, worker, spark = lines_of(
        'return Finding(context.source.select("metre").count() == 0, "never said")',
        "return 1 // none",
        'shares = rows.select(F.lit(1) / (F.length("case_id") - F.length("case_id")))',
    )
    declared(monkeypatch, raises)
    record = one_month.approved(one_month.manifest())
    for check, error, place, quoted in (
        (raises, UNKNOWN, f"tests/test_raised.py:{python}, in raises", "raises"),
        (raises_in_a_worker, "ZeroDivisionError: ", f"tests/test_raised.py:{worker}, in share", "return 1 // none"),
        (
            raises_in_spark,
            "ArithmeticException: [DIVIDE_BY_ZERO]",
            f"tests/test_raised.py:{spark}",
            "DIVIDE",
        ),
    ):
        declared(monkeypatch, check)
        one_month.stage(record)
        found, why = verdict(one_month, record), one_month.platform.ledger.run(record.run_id).state_reason
        for text in (found.summary, why):
            assert f": {error}" in text or f" {error}" in text, text
            assert f"({place})" in text, text
            assert str(Path(__file__).parent) not in text
            assert str(one_month.home) not in text
        assert "\n" not in found.summary
        name = found.details["traceback"]
        assert f"traceback: {name} in the home folder" in found.summary
        kept = (one_month.home / name).read_text(encoding="utf-8")
        assert "Traceback (most recent call last)" in kept
        assert quoted in kept
        assert (one_month.home / name).stat().st_mode & 0o077 == 0


def test_rows_that_cannot_be_listed_do_not_hide_what_the_gate_has_found(
    one_month: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(monkeypatch, cannot_list)
    record = one_month.ran(one_month.manifest())
    assert (record.state, record.state_reason) == (RunState.FAILED, f"gate(s) not passed: {GATE}")
    summary = verdict(one_month, record).summary
    assert summary.startswith(f"one differs; the rows that disagree could not be listed: {UNKNOWN}")
    (line,) = lines_of(
        'return Finding(False, "one differs", exceptions=lambda: context.source.select(F.col("metre").alias("key")))'
    )
    assert f"(tests/test_raised.py:{line}, in <lambda>)" in summary


def test_what_is_judged_again_is_listed_whatever_was_listed_before(
    one_month: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, world = "clocks_agree", replace(one_month, gates=["clocks_agree", GATE])

    def differs(context: Any) -> Finding:
        row = [
            F.lit(text).alias(name) for name, text in zip(EXCEPTION_COLUMNS, ("{}", "{}", "1", "2", "x"), strict=True)
        ]
        return Finding(False, "one differs", exceptions=lambda: context.source.limit(1).select(*row))

    def gates(check: Any) -> None:
        both = [Reconciliation(name, Level.RECORD, "They agree.", by) for name, by in ((other, differs), (GATE, check))]
        declare(monkeypatch, replace(CASE_SLA_DAILY, reconciliations=(*CASE_SLA_DAILY.reconciliations, *both)))

    gates(raises)
    record = world.ran(world.manifest())
    gates(cannot_list)
    world.stage(record)
    assert "could not be listed" in verdict(world, record).summary
    gates(differs)
    world.stage(record)
    assert world.platform.ledger.run(record.run_id).state is RunState.FAILED
    found = {one.gate: one for one in world.platform.ledger.verdicts(record.run_id)}
    for gate in (other, GATE):
        pointer = found[gate].details["exceptions"]
        listed = exception_table.rows(world.platform, record.run_id, {gate: pointer["judgement"]}, 10)
        assert (pointer["rows"], [row["what"] for row in listed]) == (1, ["x"])


def test_a_reconciliation_of_what_is_published_fails_by_a_gate_that_raises(
    one_month: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(monkeypatch, passes)
    one_month.published(one_month.manifest())
    declared(monkeypatch, raises)
    manifest = manifest_of(one_month.platform, CASE_SLA_DAILY, gates=[GATE])
    record = plan_reconciliation(one_month.platform, manifest)
    assert not reconcile(one_month.platform, record.run_id)[0].passed
    assert one_month.platform.ledger.run(record.run_id).state is RunState.FAILED
    assert verdict(one_month, record).summary.startswith(f"could not judge: {UNKNOWN}")


def of_a_worker(said: str = "ZeroDivisionError: integer division or modulo by zero") -> PythonException:
    where = f'  File "{__file__}", line 7, in fare\n    return 1 // none\n           ~~^^~~~~~~'
    return PythonException(
        f"\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
        f"Traceback (most recent call last):\n{where}\n{said}\n"
    )


def test_what_a_worker_refuses_is_told_with_its_reasons_and_what_to_do() -> None:
    refused = InputRefused([Problem("version 3 is unknown", "each is a file", "put it there"), Problem("and so is 4")])
    told = words(of_a_worker(f"manifests.errors.InputRefused: {refused}"))
    head = "manifests.errors.InputRefused: the input is refused, for 2 reasons"
    assert told.startswith(f"{head}: version 3 is unknown; what to do: put it there; and so is 4 (")
    assert "  - other lines" not in words(of_a_worker("ValueError: mine\n  - other lines"))


class DivideByZero(PySparkException):
    def getSqlState(self) -> str:  # noqa: N802 - Spark's name for it
        return "22012"


@pytest.fixture
def a_year(tmp_path: Path) -> Iterator[Platform]:
    """A run of twelve months, approved and computed by nobody."""
    with small_table.declared():
        platform = small_table.opened(tmp_path / "home")
        small_table.initialise(platform)
        scope = ("2020-01-01", "2020-12-31")
        small_table.planned(platform, small_table.manifest("run", "REPLACE_PARTITIONS", scope))
        yield platform
        small_table.closed(platform)


def failing(errors: Mapping[str, Exception]) -> Any:
    """Return what computes a batch, but for one that has any of these chunks."""

    def computes(run: Any, batch: Sequence[Any], *rest: Any) -> Any:
        for chunk in batch:
            if chunk.key in errors:
                raise errors[chunk.key]
        return small_table.compute(run, batch, *rest)

    return mock.patch.object(executor, "compute_batch", computes)


MONTHS = [f"2020-{month:02}" for month in range(1, 13)]


@pytest.mark.parametrize("error", [of_a_worker(), DivideByZero("[DIVIDE_BY_ZERO] no")], ids=["worker", "value"])
def test_what_fails_alike_at_the_ends_and_in_the_middle_is_not_halved(a_year: Platform, error: Exception) -> None:
    with (
        failing(dict.fromkeys(MONTHS, error)),
        pytest.raises(TransformRefused, match="fails alike in 2020-01, 2020-07 and 2020-12: ") as refused,
    ):
        executor.stage_chunks(a_year, "run", MONTHS)
    assert str(error).strip().splitlines()[-1] in str(refused.value)
    attempts = a_year.ledger.attempts("run")
    assert [json.loads(one.chunks) for one in attempts] == [MONTHS, ["2020-01"], ["2020-07"], ["2020-12"]]
    assert {one.state for one in attempts} == {AttemptState.FAILED}
    record = a_year.ledger.run("run")
    assert record.state is RunState.FAILED
    assert "fails alike" in record.state_reason
    failed = {one.chunk for one in a_year.ledger.chunks("run") if one.state is ChunkState.FAILED}
    assert failed == {"2020-01", "2020-07", "2020-12"}
    outcome = executor.stage_chunks(a_year, "run", MONTHS)  # once more, where it can be computed
    assert (len(outcome.computed), outcome.failed) == (12, {})


@pytest.mark.parametrize(
    "errors",
    [
        {"2020-03": of_a_worker()},
        dict.fromkeys(("2020-01", "2020-07"), of_a_worker()),
        dict.fromkeys(("2020-01", "2020-07"), of_a_worker()) | {"2020-12": DivideByZero("[DIVIDE_BY_ZERO] no")},
        dict.fromkeys(("2020-01", "2020-07", "2020-12"), RuntimeError("a machine is gone")),
        dict.fromkeys(("2020-01", "2020-07", "2020-12"), of_a_worker("MemoryError")),
    ],
    ids=["one", "two", "another", "not of a row", "not of a transform"],
)
def test_chunks_that_fail_by_themselves_stand_alone_and_the_others_are_staged(
    a_year: Platform, errors: dict[str, Exception]
) -> None:
    with failing(errors):
        outcome = executor.stage_chunks(a_year, "run", MONTHS)
    assert outcome.failed.keys() == errors.keys()
    assert sorted(outcome.computed) == sorted(set(MONTHS) - errors.keys())


def test_of_what_a_task_of_spark_raises_the_error_and_its_line_are_said_first(tmp_path: Path) -> None:
    def fails(*_: Any) -> Any:
        raise of_a_worker()

    with small_table.declared():
        platform = small_table.opened(tmp_path / "home")
        small_table.initialise(platform)
        small_table.planned(platform, small_table.manifest("run", "REPLACE_PARTITIONS", small_table.SCOPE))
        with mock.patch.object(executor, "compute_batch", fails):
            outcome = executor.stage_chunks(platform, "run", ["2020-02", "2020-03"])
        said = "ZeroDivisionError: integer division or modulo by zero (tests/test_raised.py:7, in fare)"
        assert {why.partition("\n")[0] for why in outcome.failed.values()} == {said}
        assert all("Traceback (most recent call last)" in why for why in outcome.failed.values())
        shown = page(platform, run_path("run"))
        assert said in html.unescape(shown)
        assert "see the gates below" not in shown
        small_table.closed(platform)


def test_a_name_that_a_function_of_spark_s_workers_does_not_find_stops_the_run_at_the_first_batch(
    one_month: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    @F.udf(IntegerType())
    def doubled(value: int) -> int:
        return twice(value)  # type: ignore[name-defined,no-any-return] # noqa: F821 - the slip

    @F.udf(IntegerType())
    def divided(value: int) -> int:
        return value // 0

    def run_of(name: str, column: Any) -> tuple[str, Any]:
        rows_of = CASE_SLA_DAILY.versions["3.1.0"].function
        slip = TransformVersion(
            lambda inputs, context: rows_of(inputs, context).withColumn("days_open", column("days_open"))
        )
        declare(monkeypatch, replace(with_gate(raises), versions={**CASE_SLA_DAILY.versions, "3.1.0": slip}))
        run_id = one_month.approved(one_month.manifest(run_id=name)).run_id
        return run_id, [chunk.key for chunk in one_month.platform.ledger.run(run_id).plan.chunks]

    run_id, keys = run_of("slip", doubled)
    with pytest.raises(
        TransformRefused, match=r"raises NameError: name 'twice' is not defined \(tests/test_raised.py:\d+, in"
    ):
        executor.stage_chunks(one_month.platform, run_id, keys)
    assert len(one_month.platform.ledger.attempts(run_id)) == 1
    run_id, keys = run_of("rows", divided)  # which may well be one row's: it is looked for
    assert set(executor.stage_chunks(one_month.platform, run_id, keys).failed) == set(keys)
    run_id, keys = run_of("expression", lambda name: (F.lit(1) / (F.col(name) - F.col(name))).cast("int"))
    (why,) = executor.stage_chunks(one_month.platform, run_id, keys).failed.values()
    assert re.search(r"DIVIDE_BY_ZERO.*\(tests/test_raised.py:\d+\)", why), (
        why
    )  # the platform's own expressions know no line


def test_a_value_that_an_expression_cannot_take_is_said_with_the_line_of_the_expression() -> None:
    """Spark says the line where it has noted it: the words are those of 4.1."""
    said = "[DIVIDE_BY_ZERO] Division by zero.\n== DataFrame ==\n"
    written = f'{said}"__rtruediv__" was called from\n{__file__}:7\n'
    assert words(PySparkException(written)).endswith("(tests/test_raised.py:7)")
    # where it has not, no line of the platform is blamed, which has only started the job
    unknown = f'{said}"cast" was called from\njava.base/jdk.internal.reflect.NativeMethodAccessorImpl.invoke0(Native Method)\n'
    assert words(PySparkException(unknown)) == "PySparkException: [DIVIDE_BY_ZERO] Division by zero."
    with pytest.raises(PySparkException) as raised:
        exec(compile("raise error", executor.__file__, "exec"), {"error": PySparkException(unknown)})
    assert raised.tb.tb_next is not None
    assert place_of(raised.value.with_traceback(raised.tb.tb_next)) == ""


def test_each_reason_why_a_transform_is_refused_stays_on_record(tmp_path: Path) -> None:
    reasons = [f"column {name} is a string" for name in ("exits", "fare", "plate")]

    def refuses(*_: Any) -> Any:
        raise TransformRefused(
            [Problem(reason, "types are not bent", "return the declared type") for reason in reasons]
        )

    with small_table.declared():
        platform = small_table.opened(tmp_path / "home")
        small_table.initialise(platform)
        small_table.planned(platform, small_table.manifest("run", "REPLACE_PARTITIONS", small_table.SCOPE))
        with mock.patch.object(executor, "compute_batch", refuses), pytest.raises(TransformRefused):
            executor.stage_chunks(platform, "run", ["2020-02", "2020-03"])
        record = platform.ledger.run("run")
        assert (record.state, record.state_reason) == (RunState.FAILED, "; ".join(reasons))
        assert all(reason in page(platform, run_path("run")) for reason in reasons)
        small_table.closed(platform)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "it returned nothing, and no Finding"),
        (True, "it returned a bool, and no Finding"),
        (Finding(F.lit, "x"), "the passed of its Finding is a function"),  # type: ignore[arg-type]
        (Finding(True, 3), "the summary of its Finding is a int"),  # type: ignore[arg-type]
        (Finding(True, "x", "text"), "the details of its Finding is a str"),  # type: ignore[arg-type]
        (Finding(True, "x", sample="text"), "the sample of its Finding is a str"),  # type: ignore[arg-type]
        (Finding(True, "x", compared="3"), "the compared of its Finding is a str"),  # type: ignore[arg-type]
        (Finding(True, "x", {"at": object()}), "the details of its Finding cannot be put on record: .*object"),
        (Finding(True, "x", {"at": [float("nan")]}), "the details of its Finding cannot be put on record: .*JSON"),
        (Finding(True, "\ud800"), r"the summary of its Finding cannot be put on record: .*surrogates"),
        (Finding(True, "x", sample=[1]), "the sample of its Finding has a int, where each row is a mapping"),  # type: ignore[list-item]
        (Finding(True, "x", {"raised": 1, "slices": 2}), "have raised, slices, which are the platform's own names"),
        (Finding(False, "x", exceptions="rows"), "the exceptions of its Finding are a str, and no function"),  # type: ignore[arg-type]
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_cannot_be_put_on_record_is_no_finding(returned: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        finding_of(returned)


def exits() -> Any:
    raise SystemExit(3)


def panics() -> Any:
    raise pl.exceptions.PanicException("index out of bounds")


def half() -> Any:
    raise ValueError("a half \ud800 of a character")


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (exits, "SystemExit: 3"),
        (panics, "PanicException: index out of bounds"),
        (half, r"ValueError: a half \ud800 of"),
    ],
)
def test_whatever_a_gate_raises_is_what_it_has_found(one_month: World, work: Any, said: str) -> None:
    found = found_or_raised(one_month.platform, "run", "gate", work)
    assert (found.passed, found.summary.startswith(f"could not judge: {said}")) == (False, True)
    assert finding_of(replace(found, details={})).summary == found.summary


def test_an_interrupt_is_a_persons_and_no_finding(one_month: World) -> None:
    def interrupted() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found_or_raised(one_month.platform, "run", "gate", interrupted)


def test_a_finding_has_plain_figures() -> None:
    found = finding_of(Finding(np.bool_(False), "two differ", compared=np.int64(3), disagreeing=np.int64(2)))  # type: ignore[arg-type]
    assert (found.passed, found.compared, found.disagreeing) == (False, 3, 2)
    assert found.passed is False


def returns_nothing(_context: Any) -> Any:
    return None


def test_a_gate_that_returns_no_finding_fails_its_run_by_name(
    one_month: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(monkeypatch, returns_nothing)
    record = one_month.ran(one_month.manifest())
    assert record.state is RunState.FAILED
    assert verdict(one_month, record).summary.startswith(
        "could not judge: it returned nothing, and no Finding; traceback"
    ), "no line of the platform is blamed"
