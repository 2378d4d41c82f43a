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
    ],
    ids=["a series", "a frame", "to pandas", "in another thread"],
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
