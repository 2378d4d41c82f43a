"""A run is computed by the code and the settings that its approved plan names, or it is not computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from checkouts import COMPUTE, TRANSFORMS, commit, compiled, forge, git, make_checkout, write
from click.testing import CliRunner

from backfill_assets.cli.command import cli
from backfill_assets.declarations import finding
from backfill_assets.defs.launch import initialise_instance
from backfill_assets.installation import Platform
from backfill_assets.planning.planned_code import other_code_problem
from backfill_assets.planning.resolve import plan_run
from backfill_assets.staging import executor
from benchmarks import small_table
from benchmarks.small_table import SCOPE, closed, declared, initialise, manifest_data, opened, planned, serves
from manifests.errors import EnvironmentRefused, PlanRefused, Refused, TransitionRefused
from manifests.lifecycle import RunState
from manifests.reading import manifest_from
from resources.code import identity
from resources.code.identity import code_identity, forget
from resources.code.sources import imported_beside

OWN = "tables_of_our_own"
RUN, DEVELOPED = "of-committed-code", "of-code-in-development"
OTHER = "VERSION = 2  # longer than before: Python compiles it again\n"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The code of this process: a checkout that is committed, compiled, and not looked at yet."""
    root = make_checkout(tmp_path / "code")
    compiled(root, COMPUTE)
    monkeypatch.setattr(identity, "_ROOT", root)
    forget()
    yield root
    forget()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The product's code: a module in a checkout of its own."""
    folder = tmp_path / "own"
    write(folder, f"{OWN}.py", "VERSION = 1\n")
    git(folder, "init", "--quiet")
    commit(folder, "first")
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def platform(code: Path, own: Path, tmp_path: Path) -> Iterator[Platform]:
    """Two approved runs that were planned with that code; one of them may be computed by uncommitted code."""
    product = replace(small_table.PRODUCT, code=(OWN,))
    with declared(), mock.patch.object(finding, "find_products", serves(product)):
        found = opened(tmp_path / "home")
        initialise(found)
        for run_id, development in ((RUN, False), (DEVELOPED, True)):
            planned(
                found,
                manifest_from(manifest_data(run_id, "REPLACE_PARTITIONS", SCOPE) | {"development": development}),
            )
        yield found
        closed(found)


def another_process() -> None:
    """Have the code looked at as a process does that begins now."""
    forget()


def launched(platform: Platform, run_id: str = RUN) -> list[str]:
    return executor.stage_chunks(
        platform, run_id, [one.key for one in platform.ledger.run(run_id).plan.chunks]
    ).computed


def refused(platform: Platform, run_id: str = RUN) -> Refused:
    """Return what a launch is refused with; nothing of it was begun."""
    with pytest.raises(Refused) as found:
        launched(platform, run_id)
    assert platform.ledger.attempts(run_id) == []
    assert platform.ledger.run(run_id).state is RunState.APPROVED
    return found.value


def test_a_process_of_other_committed_code_computes_no_run_that_was_planned_before(
    platform: Platform, code: Path
) -> None:
    plan = platform.ledger.run(RUN).plan.code
    text = (code / COMPUTE).read_text()
    write(code, COMPUTE, OTHER)
    newer = commit(code, "second")
    another_process()
    why = refused(platform)
    assert isinstance(why, TransitionRefused)
    record = platform.ledger.run(RUN)
    assert other_code_problem(platform, record) == why.problems[0], "who approves it is told so"
    assert other_code_problem(platform, platform.ledger.run(DEVELOPED)) is None
    assert why.problems[0].what == (
        f"run '{RUN}' was planned with code {plan}, and this is "
        f"{code_identity().content_hash[:12]} (git {newer[:12]}); {plan.product}"
    )
    assert launched(platform, DEVELOPED), "its manifest says that any code may compute it"
    write(code, COMPUTE, text)
    commit(code, "third, with the code of the first")
    another_process()
    assert launched(platform), "it is the code that counts, and not the commit"


def test_a_process_whose_sources_have_changed_since_it_began_computes_nothing(platform: Platform, code: Path) -> None:
    assert code_identity().dirty is False
    write(code, COMPUTE, OTHER)
    why = refused(platform)
    assert isinstance(why, TransitionRefused)
    assert why.problems[0].what == "the code's files have changed since this process began"
    assert "restart what launches" in why.problems[0].fix
    assert launched(platform, DEVELOPED)
    write(code, COMPUTE, "VERSION = 1\n")
    assert launched(platform)


def test_a_run_is_computed_by_the_code_of_its_product_that_its_plan_names(platform: Platform, own: Path) -> None:
    plan = platform.ledger.run(RUN).plan.code
    assert plan.product is not None
    assert (plan.product.packages, plan.product.git_commit) == ((OWN,), git(own, "rev-parse", "HEAD"))
    write(own, f"{OWN}.py", OTHER)
    assert "have changed since this process began" in refused(platform).problems[0].what
    another_process()
    why = refused(platform)
    assert why.problems[0].what.startswith(f"run '{RUN}' was planned with code {plan}, and this is {plan}"[:80])
    assert "with uncommitted changes" in why.problems[0].what.partition("this is")[2]
    with pytest.raises(PlanRefused, match=r"the code of product readings is git commit .* with uncommitted changes"):
        plan_run(platform, manifest_from(manifest_data("later", "REPLACE_PARTITIONS", SCOPE) | {"development": False}))
    assert launched(platform, DEVELOPED), "its manifest says that any code may compute it"
    git(own, "checkout", "--", ".")
    another_process()
    assert launched(platform)


@pytest.mark.parametrize("name", ["rates.txt", "RATES.CSV", "rates.sql.j2", "rates", "deep/rates.parquet"])
def test_a_file_of_any_kind_in_a_products_package_is_its_code_and_the_refusal_names_it(
    platform: Platform, own: Path, name: str
) -> None:
    (own / f"{OWN}.py").unlink()
    write(own, f"{OWN}/__init__.py", "def version():\n    return 1\n")
    write(own, f"{OWN}/{name}", "1\n")
    commit(own, "a package")
    another_process()
    later = manifest_from(manifest_data("later", "REPLACE_PARTITIONS", SCOPE) | {"development": False})
    planned(platform, later)
    for unasked in (".rates.txt.swp", "rates.txt~", "__pycache__/rates.txt", ".ipynb_checkpoints/rates.ipynb"):
        write(own, f"{OWN}/{unasked}", "2\n")
    another_process()
    assert launched(platform, "later")
    write(own, f"{OWN}/{name}", "2\n")
    another_process()
    with pytest.raises(PlanRefused) as why:
        plan_run(platform, later.model_copy(update={"run_id": "latest"}))
    assert why.value.problems[0].where == str(own / OWN / name)
    write(own, f"{OWN}/{name}", "1\n")
    write(own, f"{OWN}/beside.md", "2\n")
    another_process()
    with pytest.raises(PlanRefused, match=r"beside\.md"):
        plan_run(platform, later.model_copy(update={"run_id": "latest"}))


def test_a_helper_beside_the_products_package_is_its_code(platform: Platform, own: Path) -> None:
    write(own, f"{OWN}.py", "def version():\n    from helpers_of_ours import deep\n    return deep.VERSION\n")
    write(own, "helpers_of_ours/__init__.py", "import numpy, decimal, deeper_of_ours, not_there\n")
    write(own, "helpers_of_ours/deep.py", "VERSION = 1\n")
    write(own, "deeper_of_ours.py", "from . import nothing\nimport tables_of_our_own, backfill_assets.declarations\n")
    write(own, "imported_by_nobody.py", "VERSION = 1\n")
    commit(own, "helpers")
    another_process()
    refused(platform)  # the code is another one
    later = manifest_from(manifest_data("later", "REPLACE_PARTITIONS", SCOPE) | {"development": False})
    plan = planned(platform, later).plan.code
    assert plan.product is not None
    assert plan.product.packages == ("deeper_of_ours", "helpers_of_ours", OWN)
    write(own, "imported_by_nobody.py", OTHER)
    another_process()
    assert platform.code_of(small_table.TARGET.name).is_same(plan)
    write(own, "helpers_of_ours/deep.py", OTHER)
    another_process()
    why = refused(platform, "later").problems[0].what
    assert "with uncommitted changes" in why.partition("this is")[2]
    with pytest.raises(PlanRefused, match=r"the code of product readings is git commit .* with uncommitted changes"):
        plan_run(platform, later.model_copy(update={"run_id": "latest"}))
    git(own, "checkout", "--", ".")
    another_process()
    assert launched(platform, "later")


def test_what_is_installed_is_not_counted_as_a_products_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    write(folder, "lib_of_somebody.py", "VERSION = 1\n")
    write(tmp_path, "uses_it.py", "import lib_of_somebody\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    assert imported_beside(("uses_it",), frozenset()) == ()
    forget()


def test_a_change_of_another_product_voids_nothing(platform: Platform, code: Path) -> None:
    write(code, TRANSFORMS, OTHER)
    another_process()
    assert platform.code_of(small_table.TARGET.name).is_same(platform.ledger.run(RUN).plan.code)
    assert launched(platform)


@pytest.mark.parametrize("run_id", [RUN, DEVELOPED])
def test_bytecode_that_is_altered_after_the_plan_is_computed_with_by_nobody(
    platform: Platform, code: Path, run_id: str
) -> None:
    cached = compiled(code, COMPUTE)
    own = cached.read_bytes()
    forge(cached, "VERSION = 9\n")
    why = refused(platform, run_id)
    assert isinstance(why, EnvironmentRefused)
    assert str(cached) in why.problems[0].what
    cached.write_bytes(own)
    assert launched(platform, run_id)


@pytest.mark.parametrize("run_id", [RUN, DEVELOPED])
@pytest.mark.parametrize(
    "settings",
    [
        {"spark": {"spark.sql.shuffle.partitions": "3"}},
        {"spark_by_mode": {"BACKFILL": {"spark.sql.ansi.enabled": "false"}}},
    ],
    ids=["of every session", "of a mode"],
)
def test_a_run_is_computed_with_the_spark_settings_that_it_was_planned_with_or_not_at_all(
    platform: Platform, settings: dict[str, object], run_id: str
) -> None:
    other = opened(platform.settings.home, **settings)
    try:
        why = refused(other, run_id)
    finally:
        closed(other)
    assert isinstance(why, TransitionRefused)
    assert why.problems[0].what == f"the Spark settings are not those that '{run_id}' was planned with"
    assert launched(platform, run_id)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda code: write(code, COMPUTE, OTHER), "have changed since this process began"),
        (lambda code: forge(compiled(code, COMPUTE), "VERSION = 9\n"), "the sources do not account for"),
    ],
    ids=["sources", "bytecode"],
)
def test_the_command_run_is_refused_before_it_launches_anything(
    platform: Platform, code: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], said: str
) -> None:
    initialise_instance(platform.settings)
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    change(code)
    done = CliRunner().invoke(cli, ["run", RUN])
    assert isinstance(done.exception, Refused)
    assert said in str(done.exception)
    assert platform.ledger.attempts(RUN) == []
    assert small_table.rows(platform) == []


@pytest.mark.parametrize("development", [False, True])
def test_who_approves_a_plan_of_other_code_is_told_that_it_is_not_computed_here(
    platform: Platform, code: Path, monkeypatch: pytest.MonkeyPatch, development: bool
) -> None:
    plan_run(
        platform, manifest_from(manifest_data("third", "REPLACE_PARTITIONS", SCOPE) | {"development": development})
    )
    initialise_instance(platform.settings)
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    write(code, COMPUTE, OTHER)
    commit(code, "second")
    another_process()
    before = CliRunner().invoke(cli, ["runbook", "third"], catch_exceptions=False)
    assert ("no launch here" in before.output) is not development, "before they decide"
    done = CliRunner().invoke(cli, ["approve", "third", "--by", "grace"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    said = " ".join(done.stderr.split())
    assert ("no launch here would compute it: run 'third' was planned with code" in said) is not development
    assert platform.ledger.run("third").state is RunState.APPROVED
