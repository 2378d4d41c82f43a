"""The address of a Spark Connect server, of which nobody is shown a user, a password or a parameter."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from manifests.errors import EnvironmentRefused
from manifests.model import Mode
from manifests.server_address import shown_address, without_secrets, wrong_address
from resources.settings import load_settings
from resources.spark import connected

SECRET = "hunter2"
AT = "sc://spark.example.com:15002"
WRONG = [
    f"{AT};token={SECRET}",
    f"{AT}/x;token={SECRET}",
    f"{AT}/;token={SECRET};bad",
    f"{AT}/;token={SECRET}==",
    f"{AT}/;authorization=Bearer {SECRET}",
    f"{AT}/;token={SECRET}\n",
    f"{AT}/?token={SECRET}",
    f"{AT}/#{SECRET}",
    f"{AT}#{SECRET}",
    f"{AT}/{SECRET}",
    f"sc://spark.example.com:{SECRET}/",
    "sc://spark.example.com:99999/",
    f"sc://me:{SECRET}@spark.example.com:15002/",
    f"sc://me:12/{SECRET}@spark.example.com:15002/",
    f"sc://me:{SECRET}/@spark.example.com:15002/;token=x",
    f"spark.example.com:15002/;token={SECRET}",
    f"SC://spark.example.com/;token={SECRET}",
    f"sc:///;token={SECRET}",
    f"sc://;token={SECRET}",
    f"https://spark.example.com/;token={SECRET}",
    SECRET,
]
RIGHT = [
    AT,
    f"{AT}/",
    "sc://there",
    "sc://[::1]:15002",
    f"{AT}/;token={SECRET}",
    f"{AT}/;use_ssl=true;token={SECRET}",
    f"{AT}/;x-api={SECRET}",
    f"{AT}/;authorization=Bearer%20{SECRET}%3D%3D",
    f"{AT}/;user_id={SECRET}@example.com",
]


@pytest.mark.parametrize("address", WRONG)
def test_an_address_that_is_none_is_refused_with_the_settings_and_not_repeated(address: str) -> None:
    for settings in ({"spark": {"spark.remote": address}}, {"spark_by_mode": {"LIVE": {"spark.remote": address}}}):
        with pytest.raises(EnvironmentRefused, match=r"spark\.remote") as refused:
            load_settings(**settings)
        assert SECRET not in str(refused.value)
        assert "sc://host:port" in str(refused.value)
    assert SECRET not in shown_address(address)


@pytest.mark.parametrize("address", RIGHT)
def test_of_an_address_the_host_and_the_port_are_shown_and_nothing_else(address: str) -> None:
    assert wrong_address(address) == ""
    settings = load_settings(spark={"spark.remote": address}, spark_by_mode={"LIVE": {"spark.remote": address}})
    assert settings.server_of(Mode.LIVE) == address
    shown = settings.shown()
    assert SECRET not in json.dumps(shown)
    host = address.partition("/;")[0].removesuffix("/")
    assert (
        shown_address(address)
        == shown["spark"]["spark.remote"]
        == shown["spark_by_mode"]["LIVE"]["spark.remote"]
        == host
    )


def test_a_mode_without_a_server_says_so_with_an_empty_address() -> None:
    settings = load_settings(spark={"spark.remote": AT}, spark_by_mode={"LIVE": {"spark.remote": ""}})
    assert settings.shown()["spark_by_mode"]["LIVE"]["spark.remote"] == ""
    assert settings.server_of(Mode.LIVE) == ""


def test_what_a_library_says_of_an_address_has_no_value_of_it() -> None:
    address = f"{AT}/;token=Bearer%20{SECRET};use_ssl=true"
    said = f"no '{address}': metadata was invalid: [('authorization', 'Bearer {SECRET}')]"
    assert without_secrets(said, address) == f"no '{AT}': metadata was invalid: [('authorization', '***')]"


@pytest.mark.parametrize("address", [*WRONG, *RIGHT])
def test_no_refusal_of_a_session_has_a_secret_of_its_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("pyspark.sql.connect.client", reason="the extra connect is not installed")

    def unreachable(builder: object) -> None:
        raise OSError(f"nothing at {vars(builder)} {address}")

    monkeypatch.setattr(client.DefaultChannelBuilder, "toChannel", unreachable)
    with pytest.raises(EnvironmentRefused) as refused:
        connected.session_at(address, retries=0, seconds=0.1)
    error: BaseException | None = refused.value
    while error is not None:  # Dagster shows what an error came from as well
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert shown_address(address) in str(refused.value)


def test_no_child_of_a_process_that_computes_on_a_server_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connected.pyspark_private, "make_default", lambda _: None)
    monkeypatch.setattr(connected, "_first", [])
    for name in ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    connected.of_this_process(None)  # type: ignore[arg-type]
    script = "import os; print([name for name in os.environ if name.startswith('SPARK_')])"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    try:
        assert os.environ["SPARK_CONNECT_MODE_ENABLED"] == "1"  # PySpark asks for it
        assert "SPARK_REMOTE" not in said
        assert "SPARK_CONNECT_MODE_ENABLED" not in said
    finally:
        for name in ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"):
            os.environ.pop(name, None)
