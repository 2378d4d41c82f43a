"""Settings come from arguments, the environment and a file, in this order; none of them shows a secret."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from manifests.errors import EnvironmentRefused
from manifests.model import Mode
from resources.ledger.facade import Ledger
from resources.settings import REDACTED, Settings, load_settings


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, with no setting in the environment."""
    for name in list(os.environ):
        if name.startswith("BACKFILL_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def toml(folder: Path, text: str) -> None:
    (folder / "backfill.toml").write_text(text, encoding="utf-8")


def text_of(settings: Settings) -> str:
    return json.dumps(settings.shown())


# --- where settings come from -----------------------------------------------------------------------------------------


def test_without_settings_everything_lives_below_one_home_folder(elsewhere: Path) -> None:
    settings = load_settings()

    assert settings.home == elsewhere / ".backfill"
    assert settings.ledger_url == f"sqlite:///{elsewhere}/.backfill/ledger.db"
    assert settings.catalog == {
        "type": "sql",
        "uri": f"sqlite:///{elsewhere}/.backfill/catalog.db",
        "warehouse": f"file://{elsewhere}/.backfill/warehouse",
    }
    assert settings.evidence_folder == elsewhere / ".backfill" / "evidence"
    assert settings.dagster_home == elsewhere / ".backfill" / "dagster"
    assert settings.self_approval is False
    assert settings.notification_webhook.get_secret_value() == ""
    assert not (elsewhere / ".backfill").exists(), "settings make nothing"


@pytest.mark.parametrize(
    "text", ['home = "/srv/b#1"', 'home = "/srv/what?"', '[catalog]\ntype = "sql"\nwarehouse = "s3://lake/c#/w"']
)
def test_a_place_whose_name_is_cut_where_it_is_read_as_a_uri_is_refused(elsewhere: Path, text: str) -> None:
    toml(elsewhere, text + "\n")
    with pytest.raises(EnvironmentRefused, match=r"would end its path where it is read as a URI"):
        load_settings()


@pytest.mark.parametrize("left_out", ["\t", "\n", "\r"], ids=ascii)
@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("home", {"home": Path("/srv/a{}b")}),
        (
            "catalog.warehouse",
            {"catalog": {"type": "sql", "uri": "sqlite:////srv/c.db", "warehouse": "file:///srv/a{}b"}},
        ),
        ("catalog.uri", {"catalog": {"type": "sql", "uri": "sqlite:////srv/pass{}word.db"}}),
        ("ledger_url", {"ledger_url": "postgresql+psycopg2://u:pass{}word@host/ledger"}),
        ("dagster_storage_url", {"dagster_storage_url": "postgresql+psycopg2://u:pass{}word@host/d"}),
    ],
)
def test_a_place_with_what_is_left_out_of_a_uri_is_refused(name: str, where: dict[str, Any], left_out: str) -> None:
    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(one) for key, one in value.items()}
        return type(value)(str(value).format(left_out))

    with pytest.raises(EnvironmentRefused, match=rf"{name} has '\{ascii(left_out)[1:-1]}' in it") as refused:
        load_settings(**filled(where))
    assert "pass" not in str(refused.value)


@pytest.mark.parametrize(
    "place",
    [
        "https://[heads.example", "http://[::1", "//[", "https://", "http:///heads", "https://heads.example:99999999/",
        "https://heads.example:x/", "ftp://heads.example/", "https://heads example/", "", " ", "disk", "./disk", "~", "~/disk",
        "git:", "git:-C", "git:repository", "git://heads.example/repository", "git:https://heads.example/r",
        "/x\0y", "/x\ny", "/x\ry", "git:/x\ny", "git:/x\0y", "https://heads.example/\0",
    ],
)  # fmt: skip
def test_a_place_that_no_head_could_be_kept_in_is_refused_before_one_has_to_be(place: str) -> None:
    with pytest.raises(
        EnvironmentRefused, match=r"head_places: .*a folder from the root, git:/path of a rep"
    ) as refusal:
        load_settings(head_places=["/mnt/disk", place])
    assert load_settings(head_places=["/mnt/disk", "git:/srv/r", "https://heads.example:8443/?token=x"]).head_places
    assert "what to do" in str(refusal.value)


def test_the_refusal_of_a_place_does_not_show_what_is_secret_of_it() -> None:
    with pytest.raises(EnvironmentRefused) as refusal:
        load_settings(head_places=["https://me:hunter2@[heads.example/?token=hunter2"])
    assert "hunter2" not in str(refusal.value)


def test_a_log_file_is_a_file_and_nothing_that_waits_for_a_reader(elsewhere: Path) -> None:
    os.mkfifo(elsewhere / "pipe")
    for name in (elsewhere / "pipe", elsewhere, Path("/dev/full"), Path("~nobody123/x"), elsewhere / ("x" * 300)):
        with pytest.raises(EnvironmentRefused, match="log_file is "):
            load_settings(log_file=name)
    assert load_settings(log_file=Path("log")).log_file == elsewhere / "log"
    assert not (elsewhere / "log").exists()


@pytest.mark.parametrize("name", ["home", "policy_file", "log_file"])
@pytest.mark.parametrize("value", ["", " "])
def test_a_place_that_is_empty_is_not_the_working_folder(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"BACKFILL_{name.upper()}", value)
    with pytest.raises(EnvironmentRefused, match=rf"{name}: .*it is empty") as refusal:
        load_settings()
    assert "correct or unset it" in str(refusal.value)
    monkeypatch.delenv(f"BACKFILL_{name.upper()}")
    assert load_settings(home=Path()).home == Path.cwd(), "who names the working folder means it"


@pytest.mark.parametrize(
    ("name", "value", "way"),
    [
        ("products", "mine", """BACKFILL_PRODUCTS='["VALUE", "VALUE"]', or products = ["VALUE", "VALUE"] in"""),
        ("spark", "[]", """BACKFILL_SPARK='{"KEY": "VALUE"}', or spark = {"KEY" = "VALUE"} in"""),
    ],
)
def test_how_a_list_or_a_mapping_is_written_is_said(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, way: str
) -> None:
    monkeypatch.setenv(f"BACKFILL_{name.upper()}", value)
    with pytest.raises(EnvironmentRefused, match=re.escape(way)):
        load_settings()


def test_a_home_with_a_character_that_no_file_can_have_is_refused(elsewhere: Path) -> None:
    toml(elsewhere, 'home = "/srv/b\\u0000x"\n')
    with pytest.raises(EnvironmentRefused, match=r"home is '/srv/b\\x00x': U\+0000 at character 6"):
        load_settings()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite+pysqlite:///:memory:", "sqlite:///file::memory:?uri=true",
        "sqlite:///file::memory:?cache=shared&uri=true", "sqlite:///file:x?mode=memory&uri=true", "sqlite:///file:?uri=true",
        "sqlite:///file:/x?vfs=memdb&uri=true",
    ],
)  # fmt: skip
def test_a_ledger_or_catalog_that_is_gone_with_the_process_is_refused(url: str) -> None:
    for name, where in (("ledger_url", {"ledger_url": url}), ("catalog.uri", {"catalog": {"type": "sql", "uri": url}})):
        with pytest.raises(EnvironmentRefused, match=rf"{name} is a database that is gone with the process"):
            load_settings(**where)


@pytest.mark.parametrize(
    "url", ["sqlite:////srv/x.db", "sqlite:///x.db?timeout=5", "sqlite:///file:/x.db?mode=rw&uri=true"]
)
def test_a_ledger_or_catalog_in_a_file_is_taken(url: str) -> None:
    assert load_settings(ledger_url=url, catalog={"type": "sql", "uri": url}).ledger_url == url


@pytest.mark.parametrize("option", ["timeout=abc", "check_same_thread=x", "detect_types=x", "cached_statements=x"])
def test_an_option_of_the_ledgers_url_that_its_driver_cannot_read_is_refused(elsewhere: Path, option: str) -> None:
    url = load_settings(ledger_url=f"sqlite:///{elsewhere}/ledger.db?{option}").ledger_url
    with pytest.raises(EnvironmentRefused, match=r"correct BACKFILL_LEDGER_URL"):
        Ledger(url)


def test_a_file_in_the_working_folder_is_read(elsewhere: Path) -> None:
    toml(
        elsewhere,
        'home = "/srv/backfill"\nquarantine_limit = 0.5\n[spark]\n"spark.sql.shuffle.partitions" = "8"\n'
        '[spark_by_mode.LIVE]\n"spark.executor.memory" = "4g"\n',
    )
    settings = load_settings()

    assert settings.home == Path("/srv/backfill")
    assert settings.quarantine_limit == 0.5
    assert settings.spark == {"spark.sql.shuffle.partitions": "8"}
    assert settings.spark_by_mode == {Mode.LIVE: {"spark.executor.memory": "4g"}}


def test_a_file_that_the_environment_names_is_read_instead(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml(elsewhere, 'catalog_name = "here"\n')
    other = elsewhere / "other.toml"
    other.write_text('catalog_name = "there"\n')
    monkeypatch.setenv("BACKFILL_CONFIG", str(other))

    assert load_settings().catalog_name == "there"


def test_the_environment_wins_over_the_file_and_an_argument_over_both(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml(elsewhere, 'catalog_name = "file"\nledger_url = "sqlite:////file.db"\nhome = "/file"\n')
    monkeypatch.setenv("BACKFILL_CATALOG_NAME", "environment")
    monkeypatch.setenv("BACKFILL_HOME", "/environment")
    settings = load_settings(home=Path("/argument"))

    assert settings.home == Path("/argument")
    assert settings.catalog_name == "environment"
    assert settings.ledger_url == "sqlite:////file.db"


def test_one_property_of_the_environment_wins_and_the_files_others_stay(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml(elsewhere, '[catalog]\ntype = "rest"\nuri = "http://file"\n')
    monkeypatch.setenv("BACKFILL_CATALOG__URI", "http://environment")

    assert load_settings().catalog == {"type": "rest", "uri": "http://environment"}


def test_a_home_with_a_tilde_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert load_settings(home=Path("~/lake")).home == tmp_path / "lake"


@pytest.mark.parametrize(
    "place",
    [
        "s3://proofs",
        "s3://proofs/",
        "s3://Proofs/a",
        "s3://proofs/a//b",
        "s3://proofs/../b",
        "s3://proofs/a?b",
        "s3://proofs/a\tb",
        "/srv/evidence",
        "file:///srv/evidence",
        "gs://proofs/a",
        "s3://lake/warehouse",
        "s3://lake/warehouse/evidence",
        "s3://lake/proofs ",
        "s3://lake/proofs\\of",
        "s3://lake/" + "x" * 500,
        "s3://lake/ware/../warehouse",
    ],
)
def test_evidence_is_below_a_prefix_of_a_bucket_and_apart_from_the_warehouse(elsewhere: Path, place: str) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{elsewhere}/catalog.db", "warehouse": "s3://lake/warehouse"}
    with pytest.raises(EnvironmentRefused, match="evidence is"):
        load_settings(evidence=place, catalog=catalog)
    with pytest.raises(EnvironmentRefused, match="in or around the warehouse"):
        load_settings(evidence="s3://lake/warehouse/of", catalog=catalog | {"warehouse": "S3://lake/warehouse"})
    with pytest.raises(EnvironmentRefused, match=r"s3://\*\*\*@lake/proofs"):
        load_settings(evidence="s3://user:password-of-tests@lake/proofs", catalog=catalog)
    apart = load_settings(evidence="s3://lake/warehouse-of-proofs/", catalog=catalog)
    assert apart.evidence_place == "s3://lake/warehouse-of-proofs"
    assert apart.shown()["evidence_folder"] == apart.evidence_place
    assert load_settings(catalog=catalog).evidence_place == str(elsewhere / ".backfill" / "evidence")


def test_settings_are_not_changed_afterwards() -> None:
    settings = load_settings()

    with pytest.raises(ValueError, match="frozen"):
        settings.self_approval = True  # type: ignore[misc]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("surprise = 1\n", "surprise"),
        ("[surprise]\na = 1\n", "surprise"),
        ("quarantine_limit = 2\n", "quarantine_limit"),
        ("quarantine_limit = -0.1\n", "quarantine_limit"),
        ('self_approval = "perhaps"\n', "self_approval"),
        ('[spark_by_mode.SHADOW]\na = "b"\n', "spark_by_mode"),
        ("[spark]\na = 1\n", "spark.a"),
        ('ledger_url = "not a url"\n', "ledger_url"),
    ],
)
def test_a_wrong_or_unknown_setting_is_refused_by_name(elsewhere: Path, text: str, named: str) -> None:
    toml(elsewhere, text)

    with pytest.raises(EnvironmentRefused, match=named):
        load_settings()


def test_all_wrong_settings_are_named_at_once(elsewhere: Path) -> None:
    toml(elsewhere, 'surprise = 1\nquarantine_limit = 2\nself_approval = "perhaps"\n')

    with pytest.raises(EnvironmentRefused, match="for 3 reasons"):
        load_settings()


def test_the_variables_that_are_no_settings_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_OPERATOR", "ada")

    load_settings()


def test_a_file_that_is_no_toml_is_refused(elsewhere: Path) -> None:
    toml(elsewhere, "this is: not toml\n")

    with pytest.raises(EnvironmentRefused, match=r"backfill\.toml cannot be read"):
        load_settings()


def test_a_named_file_that_is_missing_is_refused(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_CONFIG", str(elsewhere / "missing.toml"))

    with pytest.raises(EnvironmentRefused, match=re.escape("BACKFILL_CONFIG names")):
        load_settings()


def test_a_variable_that_is_no_json_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_SPARK", "{not json hunter2")

    with pytest.raises(EnvironmentRefused, match="spark") as refused:
        load_settings()
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("name", ["BACKFILL_LEDGER_URL", "BACKFILL_QUARANTINE_LIMIT", "BACKFILL_SELF_APPROVAL"])
def test_a_refusal_does_not_repeat_the_value_it_refuses(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "ada:hunter2@host")

    with pytest.raises(EnvironmentRefused) as refused:
        load_settings()
    assert "hunter2" not in str(refused.value)


# --- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("catalog", "s3.secret-access-key"),
        ("catalog", "s3.access-key-id"),
        ("catalog", "s3.session-token"),
        ("catalog", "gcs.oauth2.token"),
        ("catalog", "adls.account-key"),
        ("catalog", "adls.sas-token"),
        ("catalog", "adls.client-secret"),
        ("catalog", "adls.connection-string"),
        ("catalog", "credential"),
        ("catalog", "token"),
        ("catalog", "header.Authorization"),
        ("spark", "spark.hadoop.fs.s3a.secret.key"),
        ("spark", "spark.hadoop.fs.s3a.access.key"),
        ("spark", "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net"),
        ("spark", "spark.ssl.keyStorePassword"),
        ("spark", "spark.authenticate.secret"),
    ],
)
def test_a_property_that_holds_a_secret_is_not_shown(field: str, key: str) -> None:
    settings = load_settings(**{field: {key: "hunter2"}})

    assert "hunter2" not in text_of(settings)
    assert settings.shown()[field][key] == REDACTED


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg2://ada:hunter2@host:5432/ledger",
        "postgresql+psycopg2://:hunter2@host/ledger",
        "postgresql+psycopg2://ada:hunter2%40x@host/ledger",
        "postgresql+psycopg2://ada:x@hunter2@host/ledger",
        "postgresql+psycopg2://ada:x/hunter2@host/ledger",
        "postgresql+psycopg2://host/ledger?user=ada&password=hunter2",
    ],
)
def test_the_password_of_a_url_is_not_shown_wherever_it_stands(url: str) -> None:
    settings = load_settings(ledger_url=url, catalog={"type": "sql", "uri": url})
    shown = settings.shown()

    assert "hunter2" not in text_of(settings)
    assert shown["ledger_url"].startswith("postgresql+psycopg2://")
    assert "host" in shown["ledger_url"], "what is no secret is shown"


@pytest.mark.parametrize("url", ["https://hooks.example/T0/hunter2", "https://ada:hunter2@hooks.example/"])
def test_the_webhook_is_a_secret_as_a_whole(url: str) -> None:
    settings = load_settings(notification_webhook=url)

    assert settings.shown()["notification_webhook"] == REDACTED
    assert "hunter2" not in repr(settings)
    assert settings.notification_webhook.get_secret_value() == url


def test_a_secret_of_one_mode_is_not_shown() -> None:
    settings = load_settings(spark_by_mode={"LIVE": {"spark.hadoop.fs.s3a.secret.key": "hunter2"}})

    assert "hunter2" not in text_of(settings)


def test_what_is_no_secret_is_shown(elsewhere: Path) -> None:
    shown = load_settings(spark={"spark.sql.shuffle.partitions": "8"}).shown()

    assert shown["home"] == str(elsewhere / ".backfill")
    assert shown["spark"] == {"spark.sql.shuffle.partitions": "8"}
    assert shown["ledger_url"].startswith("sqlite:////")
    assert shown["evidence_folder"].endswith("evidence")
    assert shown["notification_webhook"] == ""


def test_a_secret_that_is_not_set_is_seen_not_to_be_set() -> None:
    assert load_settings().shown()["notification_webhook"] == ""


# --- what can change the output ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other", [{"spark": {"spark.sql.ansi.enabled": "false"}}, {"spark_by_mode": {"BACKFILL": {"a": "b"}}}]
)
def test_a_setting_of_spark_changes_the_configuration_hash(other: dict[str, Any]) -> None:
    assert load_settings(**other).output_hash() != load_settings().output_hash()


@pytest.mark.parametrize(
    "other",
    [
        {"home": Path("/elsewhere")},
        {"ledger_url": "sqlite:////elsewhere.db"},
        {"catalog": {"type": "rest"}},
        {"self_approval": True},
        {"notification_webhook": "https://hooks.example/x"},
    ],
)
def test_where_things_live_does_not_change_the_configuration_hash(other: dict[str, Any]) -> None:
    assert load_settings(**other).output_hash() == load_settings().output_hash()


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (["lake"], "absolute path"),
        (["/"], "in or around the home folder"),
        (["{home}/lake"], "in or around the home folder"),
        (["{home}/.."], "in or around the home folder"),
        (["{link}"], "in or around the home folder"),
        (["/lake", "/lake/x"], "in or around '/lake'"),
        (["s3://lake"], "absolute path"),
    ],
)
def test_folders_of_tables_lie_apart_from_home_warehouse_and_one_another(
    tmp_path: Path, folders: list[str], said: str
) -> None:
    home, link = tmp_path / "home", tmp_path / "link"
    home.mkdir()
    link.symlink_to(home)
    with pytest.raises(EnvironmentRefused, match=said):
        load_settings(home=home, table_folders=[one.format(home=home, link=link) for one in folders])


def test_folders_of_tables_are_reachable_beside_the_warehouse(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path / "home", table_folders=[f"{tmp_path}/lake/"])
    assert settings.reachable_folders == [f"{tmp_path}/home/warehouse", f"{tmp_path}/lake"]
