"""pandera is imported without pandas, and has all of it once somebody asks: what `declarations.light_pandera` leans on."""

import os
import subprocess
import sys

import pytest

LIGHT = """
import sys
import backfill_assets
import pandera.polars as pa
import polars as pl
assert not {"pandas", "pyspark", "pandera.engines.pandas_engine"} & set(sys.modules)
class Model(pa.DataFrameModel):
    number: pl.Int64 = pa.Field(ge=1)
"""
OF_POLARS = """
try:
    Model.validate(pl.DataFrame({"number": [0]}), lazy=True)
except pa.errors.SchemaErrors as error:
    print(error.failure_cases["failure_case"].to_list())
assert not {"hypothesis", "pandas", "pandera.engines.pandas_engine"} & set(sys.modules)
"""
MADE_UP = (
    OF_POLARS
    + """
import warnings
import pandera.pandas as pp
from pandera.strategies.base_strategies import SearchStrategy, composite
class Frame(pp.DataFrameModel):
    number: pp.typing.Series[int] = pp.Field(ge=1, le=3)
warnings.simplefilter("ignore")
print(len(Frame.example(size=2)), SearchStrategy.__module__.partition(".")[0], composite.__module__.partition(".")[0])
"""
)
OF_PANDAS = """
import pandas
import pandera.pandas as pp
class Frame(pp.DataFrameModel):
    number: pp.typing.Series[int] = pp.Field(ge=1)
try:
    Frame.validate(pandas.DataFrame({"number": [0]}), lazy=True)
except pp.errors.SchemaErrors as error:
    print(list(error.failure_cases["failure_case"]))
print(pl.from_pandas(pandas.DataFrame({"number": [7]})).to_dicts())
"""
BY_ITS_OLD_NAME = """
import pandera
print(pandera.DataFrameModel.__module__, hasattr(pandera, "nothing"), hasattr(pandera.typing, "nothing"))
"""
OF_PYSPARK = """
import pandera.pyspark as ps
from pyspark.sql import types
class Frame(ps.DataFrameModel):
    number: types.IntegerType = ps.Field(ge=1)
print(list(Frame.to_schema().columns))
"""
ITS_FILES = """
from importlib.resources import files
print(files("pandera").joinpath("polars.py").is_file(), type(sys.modules["pandera"].__loader__).__name__)
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param(OF_POLARS, "['0']", id="a model of Polars"),
        pytest.param(MADE_UP, "['0']\n2 hypothesis hypothesis", id="rows that are made up"),
        pytest.param(OF_PANDAS, "[0]\n[{'number': 7}]", id="a model of pandas"),
        pytest.param(BY_ITS_OLD_NAME, "pandera.api.pandas.model False False", id="its old names"),
        pytest.param(OF_PYSPARK, "['number']", id="a model of PySpark"),
        pytest.param(ITS_FILES, "True SourceFileLoader", id="its files"),
    ],
)
def test_pandera_without_pandas_has_all_of_it_once_somebody_asks(code: str, said: str) -> None:
    environment = os.environ | {"DISABLE_PANDERA_IMPORT_WARNING": "True"}
    done = subprocess.run(
        [sys.executable, "-c", LIGHT + code], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.stdout.strip(), done.returncode) == (said, 0), done.stderr


def test_pandera_is_left_as_it_is_where_pandas_is_there_already() -> None:
    script = "import pandas, backfill_assets, pandera, sys; print('pandera.engines.pandas_engine' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_pandas_is_hidden_from_the_thread_alone_that_imports_pandera() -> None:
    script = """
import threading
from importlib.util import find_spec
from backfill_assets.declarations import light_imports
found = []
with light_imports.hidden("pandas"):
    thread = threading.Thread(target=lambda: found.append(find_spec("pandas") is not None))
    thread.start()
    thread.join()
    try:
        find_spec("pandas")
    except ModuleNotFoundError:
        found.append("hidden")
print(found)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, 'hidden']"
