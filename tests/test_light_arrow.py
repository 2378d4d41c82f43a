"""PyArrow is imported without pandas, and knows it once there is pandas; PyIceberg's models are built when used: `light_arrow`."""

import subprocess
import sys

import pytest

LIGHT = """
import sys
import backfill_assets
import pyarrow as arrow, pyarrow.compute, pyarrow.dataset, pyarrow.parquet
assert arrow.array([1.5, None]).null_count == 1 and arrow.scalar("a").as_py() == "a"
assert "pandas" not in sys.modules
"""
A_SERIES = """
import pandas
print(arrow.array(pandas.Series([1.5, float("nan")])).to_pylist())
"""
A_FRAME = """
import pandas
table = arrow.Table.from_pandas(pandas.DataFrame({"at": pandas.to_datetime(["2024-01-01"]), "name": ["a"]}))
print(table.column_names, table.to_pandas()["at"].dt.year.to_list(), arrow.lib._pandas_api.is_series(pandas.Series([1])))
"""
TO_PANDAS = """
print(type(arrow.table({"n": [1]}).to_pandas()).__module__.partition(".")[0], arrow.lib._pandas_api.have_pandas)
"""
IN_ANOTHER_THREAD = """
import threading
thread = threading.Thread(target=__import__, args=("pandas",))
thread.start()
thread.join()
print(arrow.array(sys.modules["pandas"].Series([float("nan")])).to_pylist())
"""
FOUND_BY_ANOTHER = """
from importlib.machinery import PathFinder
usual = PathFinder.find_spec
class Editable:
    def find_spec(self, name, path, target=None):
        return usual(name, path, target) if name == "pandas" else None
def find_spec(name, path=None, target=None):
    return None if name == "pandas" else usual(name, path, target)
PathFinder.find_spec = find_spec
sys.meta_path.append(Editable())
"""
BEGUN_MEANWHILE = """
import sys, threading, time
from contextlib import contextmanager
import backfill_assets, numpy, polars
from backfill_assets.declarations import light_arrow
thread = threading.Thread(target=__import__, args=("pandas",))
usual = light_arrow.hidden
@contextmanager
def hidden(name):
    def begin():
        thread.start()
        until = time.monotonic() + 60
        while name not in sys.modules and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.5)  # it comes to where it waits for PyArrow
    if WHEN == "before":
        begin()
    with usual(name):
        yield
    if WHEN == "after":
        begin()
light_arrow.hidden = hidden
import pyarrow as arrow
thread.join(60)
"""
MODELS = """
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataV2
from pyiceberg.table.update import AddSchemaUpdate, TableUpdate
from pyiceberg.types import LongType, NestedField
print(TableMetadataV2.__pydantic_complete__, AddSchemaUpdate.__pydantic_complete__, end=" ")
text = Schema(NestedField(1, "n", LongType(), required=True), identifier_field_ids=[1]).model_dump_json()
again = Schema.model_validate_json(text)
print(again.find_type("n"), AddSchemaUpdate(schema=again).model_dump_json()[:22])
try:
    TableMetadataUtil.parse_raw("{}")
except Exception as error:
    print(type(error).__name__)
"""


def printed(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (A_SERIES, "[1.5, None]"),
        (A_FRAME, "['at', 'name'] [2024] True"),
        (TO_PANDAS, "pandas True"),
        (IN_ANOTHER_THREAD, "[None]"),
        (FOUND_BY_ANOTHER + A_SERIES, "[1.5, None]"),
    ],
    ids=["a series", "a frame", "to pandas", "in another thread", "found by another finder"],
)
def test_arrow_without_pandas_knows_it_once_somebody_imports_it(code: str, said: str) -> None:
    assert printed(LIGHT + code) == said


@pytest.mark.parametrize(
    "first",
    [
        "import pandas, backfill_assets, pyarrow as arrow",
        "import pyarrow as arrow, backfill_assets",
        "import pyarrow as arrow, backfill_assets, pyarrow.dataset",
    ],
)
def test_arrow_is_left_as_it_is_where_it_or_pandas_is_there_already(first: str) -> None:
    assert printed(first + A_SERIES) == "[1.5, None]"


@pytest.mark.parametrize("when", ["before", "after"])
def test_neither_waits_for_the_other_where_two_threads_import_arrow_and_pandas(when: str) -> None:
    assert printed(f"WHEN = {when!r}" + BEGUN_MEANWHILE + A_SERIES) == "[1.5, None]"


def test_other_finders_and_loaders_of_these_libraries_are_asked_as_ever() -> None:
    script = """
import importlib.util, pkgutil, sys
asked = []
class Watches:
    def find_spec(self, name, path, target=None):
        asked.append(name)
        if name == "pandas" and asked.count(name) == 1:
            return importlib.util.find_spec(name)
sys.meta_path.insert(0, Watches())
import backfill_assets
print(len(pkgutil.get_data("pyarrow", "__init__.py")) > 0, importlib.util.find_spec("pandas").loader.is_package("pandas"))
import pandas, pandera
print({"pandas", "pandera", "pyarrow"} <= set(asked), type(pandas.__loader__).__name__)
"""
    assert printed(script).splitlines() == ["True True", "True SourceFileLoader"]


def test_pandas_that_arrow_cannot_use_is_imported_all_the_same() -> None:
    script = """
class Refuses:
    def find_spec(self, name, path, target=None):
        if name == "pyarrow.pandas_compat":
            raise ImportError("pyarrow requires another pandas")
sys.meta_path.insert(0, Refuses())
import pandas
print(pandas.Series([1]).sum(), arrow.lib._pandas_api.have_pandas)
"""
    assert printed(LIGHT + script) == "1 False"


def test_what_checks_models_of_pyiceberg_is_built_when_one_is_made() -> None:
    script = "import backfill_assets" + MODELS
    assert printed(script).splitlines() == ['False False long {"action":"add-schema"', "ValidationError"]


def test_models_are_built_at_once_where_pydantic_would_build_one_in_two_threads() -> None:
    script = "import pydantic; pydantic.VERSION = '2.13.4'; import backfill_assets" + MODELS
    assert printed(script).startswith("True True")
