"""Which code Spark's Python workers are to be, and what is said of others."""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from manifests.errors import EnvironmentRefused
from resources.code.of_workers import differing, text_of
from resources.code.sources import Sources
from resources.spark import failures
from resources.spark.worker_daemon import other_code


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "our_tables_of_workers"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rules.sql").write_text("SELECT 1")
    monkeypatch.syspath_prepend(tmp_path)
    return package


def ours() -> Sources:
    return Sources("ours", ("our_tables_of_workers",))


def test_the_same_code_differs_in_nothing(product: Path) -> None:
    assert product.is_dir()
    assert differing(text_of([ours()])) == []
    assert differing(text_of()) == differing("") == []


def test_a_file_of_a_product_that_is_another_is_said_by_the_products_name(product: Path) -> None:
    text = text_of([ours()])
    (product / "rules.sql").write_text("SELECT 2")
    assert differing(text) == ["ours"]


def test_other_code_of_this_package_is_said() -> None:
    assert differing("backfill-assets=" + "0" * 64) == ["backfill-assets"]


def test_a_product_that_is_not_there_differs_from_nothing(product: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that only the driver searches: a worker that needs it says so."""
    text = text_of([ours()])
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(product.parent)])
    assert differing(text) == []


def test_a_product_of_which_a_part_is_there_differs_in_nothing_as_long_as_that_part_is_the_same(
    product: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "our_helpers_of_workers.py").write_text("RATE = 1")
    monkeypatch.syspath_prepend(beside)
    text = text_of([Sources("ours", ("our_helpers_of_workers", "our_tables_of_workers"))])
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(beside)])
    assert differing(text) == []
    (product / "rules.sql").write_text("SELECT 2")
    assert differing(text) == ["ours"]


def test_a_module_that_lies_in_an_archive_is_another_than_that_of_a_folder(
    product: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = text_of([ours()])
    archive = tmp_path / "elsewhere.zip"
    with ZipFile(archive, "w") as opened:
        opened.write(product / "__init__.py", "our_tables_of_workers/__init__.py")
    monkeypatch.setattr(sys, "path", [str(archive), *(entry for entry in sys.path if entry != str(product.parent))])
    assert differing(text) == ["ours"]


class _Code:
    name = "UNAVAILABLE"


class _LostError(Exception):
    def getGrpcStatusCode(self) -> _Code:  # noqa: N802 - as PySpark calls it
        return _Code()


def test_a_server_that_does_not_answer_is_a_refusal_with_what_grpc_says() -> None:
    said = '<_MultiThreadedRendezvous of RPC that terminated with:\n\tdetails = "Connection refused"\n>'
    refusal = failures.refusal(_LostError(said))
    assert isinstance(refusal, EnvironmentRefused)
    assert refusal.problems[0].what == "the Spark server has gone: Connection refused"
    assert failures.refusal(Exception(said)) is None


def test_what_a_worker_of_other_code_says_becomes_a_refusal() -> None:
    said = f"PythonException: Traceback\n  RuntimeError: {other_code(['ours', 'backfill-assets'], 'there')}\n\tat org.apache.spark"
    refusal = failures.refusal(RuntimeError(said))
    assert isinstance(refusal, EnvironmentRefused)
    assert refusal.problems[0].what.startswith("the code of ours, backfill-assets in ")
    assert refusal.problems[0].what.endswith(" is not the driver's")
    assert failures.refusal(RuntimeError("something else")) is None
