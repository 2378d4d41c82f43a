"""The one settings object: where things live and how to reach them.

Put here what differs between installations (paths, catalog, ledger, Spark settings, policies). What a run may do is
in its manifest; what a table is, in its product. Environment variables `BACKFILL_*` win over `backfill.toml`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import unquote

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from manifests.canonical import sha256_of
from manifests.costs import Prices
from manifests.errors import EnvironmentRefused, Problem
from manifests.model import Mode
from manifests.server_address import require_addresses, shown_address
from manifests.text import TEXT_RULE, not_text
from manifests.trace_settings import Traces
from resources.files.head_places import is_place, shown
from resources.files.setting_places import (
    folders_of_tables,
    require_evidence_place,
    require_one_line,
    require_whole_in_uris,
)

CONFIG_FILE_VARIABLE = "BACKFILL_CONFIG"
DAGSTER_STORAGE_VARIABLE = "BACKFILL_DAGSTER_STORAGE_URL"
DEFAULT_CONFIG_FILE = "backfill.toml"
DEFAULT_MASTER = "local[2]"
"""What Spark's sessions connect to, unless the settings say otherwise."""
DRIVER_MEMORY_KEY, DEFAULT_MEMORY = "spark.driver.memory", "2g"
"""The Spark setting of what a local session computes in, and what that has unless the settings say otherwise."""
ROWS_PER_FILE_KEY, DEFAULT_ROWS_PER_FILE = "spark.sql.files.maxRecordsPerFile", 4_000_000
"""The Spark setting of the most rows of a file, which a gate takes into memory whole, and what that is unless the settings say otherwise."""
_POSTGRES_PORT = 5432
_MOST_DAYS, _MOST_SECONDS = 365_000, 30 * 86_400
"""A thousand years, and a month: more is a slip of the pen, and no calendar has it."""
_OF_STORES = ("s3.", "client.")
"""What the properties of a catalog begin with that say how a store is opened, and not which catalog it is."""
SERVER_KEY = "spark.remote"
"""The Spark setting that has the address of a Spark Connect server, `sc://host:port`."""
REDACTED = "***"
SINK_VARIABLES = "BACKFILL_SINKS"
"""What the environment variables of sinks begin with: BACKFILL_SINKS__<sink>__<setting>."""
API_VARIABLES = "BACKFILL_APIS"
"""What the environment variables of API feeds begin with: BACKFILL_APIS__<feed>__<setting>; only an extraction needs them."""
TOPIC_VARIABLES = "BACKFILL_TOPICS"
"""What the environment variables of topics begin with: BACKFILL_TOPICS__<topic>__<setting>; only a landing needs them."""
TRACE_VARIABLES = "BACKFILL_TRACES"
"""What the environment variables of traces begin with, the headers with the collector's credentials among them."""
WEBHOOK_VARIABLE = "BACKFILL_NOTIFICATION_WEBHOOK"
_FORMER_SINK = "breach_notifications"
"""The sink whose address is `notification_webhook`, as it was before sinks had settings of their own."""
_SECRET = re.compile(
    r"secret|passw|token|credential|private|access.?key|account.?key|connection.?string|authorization|\bsas\b|webhook",
    re.IGNORECASE,
)
_OTHER_VARIABLES = frozenset(
    {"BACKFILL_CONFIG", "BACKFILL_OPERATOR", "BACKFILL_FAULT", "BACKFILL_TEST_DATA", "BACKFILL_SCREENSHOTS"}
)
_OF_TESTS = "BACKFILL_TEST_"


class Settings(BaseSettings):
    """Resolved settings of one installation; see the fields."""

    model_config = SettingsConfigDict(env_prefix="BACKFILL_", env_nested_delimiter="__", extra="forbid", frozen=True)

    home: Path = Field(Path(".backfill"), description="Everything the embedded default writes lives below this folder.")
    catalog_name: str = Field("lake", description="Name under which PyIceberg loads the catalog.")
    catalog: dict[str, str] = Field(
        default_factory=dict,
        description="PyIceberg catalog properties; default: SQLite and files under the home folder, also beside properties of S3 alone.",
    )
    ledger_url: str = Field("", description="SQLAlchemy URL of the ledger; default: SQLite under the home folder.")
    dagster_storage_url: str = Field(
        "", description="PostgreSQL URL of Dagster's runs, events and schedules; default: SQLite under the home folder."
    )
    products: list[str] | None = Field(
        None,
        description="Products that are served: names of entry points, or module:ATTRIBUTE; default: all that are installed.",
    )
    spark: dict[str, str] = Field(default_factory=dict, description="Spark settings for every mode.")
    spark_by_mode: dict[Mode, dict[str, str]] = Field(
        default_factory=dict, description="Spark settings of one mode, over those for every mode."
    )
    spark_server: Literal["never", "if_running", "always"] = Field(
        "never",
        description="Whether runs compute on the Spark server that `backfill spark` keeps for their mode: if it runs, or always.",
    )
    self_approval: bool = Field(
        False,
        description="Development only, and only when an installation is made: its first policy lets requesters approve.",
    )
    policy_file: Path | None = Field(
        None,
        description="File that proposes a policy; default: policy.yaml in the home folder. It counts once adopted.",
    )
    quarantine_limit: float = Field(
        0.05, ge=0, le=1, description="Share of a load's rows that may be quarantined before the load is refused."
    )
    prices: Prices = Field(
        Prices(),
        description="What a core-hour, a GB read and a GB written cost, in US dollars; without, runs cost nothing.",
    )
    lease_seconds: int = Field(
        120,
        ge=1,
        le=_MOST_SECONDS,
        description="How long a publisher that died on another machine keeps its scope; one here is seen at once.",
    )
    keep_superseded_days: int = Field(
        365,
        ge=0,
        le=_MOST_DAYS,
        description="Days for which a superseded run can be put back: its files and snapshots are kept.",
    )
    keep_dead_runs_days: int = Field(
        30,
        ge=0,
        le=_MOST_DAYS,
        description="Days for which a cancelled, rejected or rolled back run keeps its files and snapshots.",
    )
    keep_snapshots_days: int = Field(
        30,
        ge=0,
        le=_MOST_DAYS,
        description="Days for which every snapshot of a target is kept, whether or not a run needs it; at least one.",
    )
    tag_pinned_snapshots: bool = Field(
        True,
        description="Whether a snapshot that a plan reads is tagged in its table until `backfill gc` finds that no run needs it.",
    )
    log_format: Literal["text", "json"] = Field("text", description="How a log line looks.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] | None = Field(
        None, description="From which level on lines are written; by default WARNING on stderr and INFO in the file."
    )
    log_file: Path | None = Field(None, description="A file that log lines are appended to, beside stderr.")
    traces: Traces = Field(
        Traces(),
        description="Where spans of runs are sent (`endpoint`), of which share of the runs, and with which `headers`; without, nowhere.",
    )
    table_folders: list[str] = Field(
        default_factory=list,
        description="Local folders beside the warehouse that runs read and write, where tables of others lie. Each is an "
        "absolute path; none lies in another, or in the warehouse.",
    )
    evidence: str = Field(
        "",
        description="Where evidence, its chain and the reports are kept, as s3://bucket/prefix; default: under the home folder.",
    )
    head_places: list[str] = Field(
        default_factory=list,
        description="Where the chain's head is kept: folders on another disk, git:/path of a repository, https:// addresses.",
    )
    notification_webhook: SecretStr = Field(
        SecretStr(""), description="URL that LIVE posts breach notifications to; no other mode is given it."
    )
    sinks: dict[str, dict[str, SecretStr]] = Field(
        default_factory=dict,
        description="By sink that a product declares, the settings that it needs, by their names; none is ever shown.",
    )
    apis: dict[str, dict[str, SecretStr]] = Field(
        default_factory=dict,
        description="By API feed that a product declares, its address and credentials, by their names; none is ever shown.",
    )
    topics: dict[str, dict[str, SecretStr]] = Field(
        default_factory=dict,
        description="By topic that a product declares, addresses of its brokers and credentials, by their names; none is ever shown.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the TOML file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=_config_file())

    @field_validator("home", "policy_file", "log_file", mode="before")
    @classmethod
    def _is_named(cls, value: Any) -> Any:
        if isinstance(value, str) and not value.strip():
            raise ValueError("it is empty, which would be the working folder: name a place, the working folder as '.'")
        return value

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        home = _absolute("home", self.home)
        object.__setattr__(self, "home", home)
        require_whole_in_uris("home", str(home))
        require_whole_in_uris("catalog.warehouse", self.catalog.get("warehouse", ""))
        for name, place in (
            ("home", str(home)),
            ("catalog.warehouse", self.catalog.get("warehouse", "")),
            ("catalog.uri", self.catalog.get("uri", "")),
            ("ledger_url", self.ledger_url),
            ("dagster_storage_url", self.dagster_storage_url),
        ):
            require_one_line(name, place)
        if self.policy_file is not None:
            object.__setattr__(self, "policy_file", _absolute("policy_file", self.policy_file))
        if self.log_file is not None:
            object.__setattr__(self, "log_file", _regular("log_file", _absolute("log_file", self.log_file)))
        _require_places(self.head_places)
        if self.evidence:
            require_evidence_place(self.evidence, self.catalog.get("warehouse", ""))
        require_addresses(SERVER_KEY, self.spark, *self.spark_by_mode.values())
        if all(name.startswith(_OF_STORES) for name in self.catalog):
            embedded = {
                "type": "sql",
                "uri": f"sqlite:///{home / 'catalog.db'}",
                "warehouse": f"file://{home}/warehouse",  # PyIceberg takes a URI as it is written
            }
            object.__setattr__(self, "catalog", embedded | self.catalog)
        object.__setattr__(
            self, "table_folders", folders_of_tables(self.table_folders, home, self.catalog.get("warehouse", ""))
        )
        if not self.ledger_url:
            object.__setattr__(self, "ledger_url", f"sqlite:///{home / 'ledger.db'}")
        try:
            make_url(self.ledger_url)
        except ArgumentError as error:
            raise ValueError("ledger_url is not an SQLAlchemy URL such as postgresql+psycopg2://host/name") from error
        _require_kept("ledger_url", self.ledger_url)
        _require_kept("catalog.uri", self.catalog.get("uri", ""))
        if self.dagster_storage_url:
            _require_own_database(self.dagster_storage_url, self.ledger_url)
        return self

    @property
    def dagster_home(self) -> Path:
        """DAGSTER_HOME of this installation."""
        return self.home / "dagster"

    @property
    def responses_folder(self) -> Path:
        """Where answers of servers are kept, a folder a feed."""
        return self.home / "archive" / "responses"

    @property
    def evidence_folder(self) -> Path:
        """Where evidence bundles are kept, unless `evidence` names another place."""
        return self.home / "evidence"

    @property
    def evidence_place(self) -> str:
        """Where evidence bundles are kept: a local folder, or a prefix of a bucket."""
        return self.evidence.rstrip("/") or str(self.evidence_folder)

    @property
    def reachable_folders(self) -> list[str]:
        """The local folders that runs may reach: that of the warehouse, if it is one, and those of tables beside it."""
        warehouse = self.catalog.get("warehouse", "")
        own = [warehouse.removeprefix("file://").removeprefix("file:")] if warehouse.startswith("file:") else []
        return [folder.rstrip("/") for folder in (*own, *self.table_folders)]

    def of_sink(self, sink: str) -> dict[str, str]:
        """Return the values of the settings of a sink, as far as they are set."""
        former = self.notification_webhook.get_secret_value() if sink == _FORMER_SINK else ""
        own = {name: value.get_secret_value() for name, value in self.sinks.get(sink, {}).items()}
        return {name: value for name, value in ({"url": former} | own).items() if value}

    def of_api(self, feed: str) -> dict[str, str]:
        """Return the values of the settings of an API feed, as far as they are set."""
        own = {name: value.get_secret_value() for name, value in self.apis.get(feed, {}).items()}
        return {name: value for name, value in own.items() if value}

    def of_topic(self, topic: str) -> dict[str, str]:
        """Return the values of the settings of a topic, as far as they are set."""
        own = {name: value.get_secret_value() for name, value in self.topics.get(topic, {}).items()}
        return {name: value for name, value in own.items() if value}

    def output_hash(self) -> str:
        """Hash of the settings that could change what a run computes (Spark's), without where things live."""
        by_mode = {mode.value: _without_server(found) for mode, found in self.spark_by_mode.items()}
        return sha256_of({"spark": _without_server(self.spark), "spark_by_mode": by_mode})

    def server_of(self, mode: Mode) -> str:
        """Return the address of the Spark Connect server that sessions of a mode are a client's of; nothing where there is none."""
        return (self.spark | self.spark_by_mode.get(mode, {})).get(SERVER_KEY, "")

    def shown(self) -> dict[str, Any]:
        """Return the resolved settings as JSON-ready data, without secrets."""
        shown: dict[str, Any] = _redacted(self.model_dump(mode="json"))
        shown["dagster_home"] = str(self.dagster_home)
        shown["evidence_folder"] = self.evidence_place
        return shown


def _without_server(spark: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in spark.items() if name != SERVER_KEY}


def _absolute(name: str, path: Path) -> Path:
    """Return a path without `~` and from the root.

    Raises:
        ValueError: if nobody knows which folder `~` is, or no file can have the name.
    """
    if (wrong := not_text(str(path))) is not None:
        raise ValueError(f"{name} is {str(path)!a}: {wrong}, which no name of a file has")
    try:
        found = path.expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"{name} is {path}, and what ~ stands for is not known here: write the whole path") from error
    try:
        found.exists()
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise ValueError(f"{name} is {path}: {error.strerror}") from error
    return found


def _regular(name: str, file: Path) -> Path:
    """Return a file that is regular, or not there yet.

    Raises:
        ValueError: if it is anything else: a folder, a device, a pipe that waits until somebody reads it.
    """
    if file.exists() and not file.is_file():
        raise ValueError(f"{name} is {file}, which is no regular file: name one that lines can be appended to")
    return file


def _require_places(places: list[str]) -> None:
    """Refuse a place that no head of the chain could be kept in: what came before it would have landed by then."""
    if wrong := [place for place in places if not is_place(place)]:
        raise ValueError(
            f"head_places: {', '.join(ascii(shown(place)) for place in wrong)} cannot keep a head: a place is a folder from "
            "the root, git:/path of a repository, or an address (https://host/...)"
        )


def _require_kept(name: str, url: str) -> None:
    """Refuse a database that SQLite keeps in memory, or in a file that it deletes: what is on record would be gone with the process."""
    try:
        said = make_url(url)
    except ArgumentError:  # of a catalog that is reached in another way
        return
    if said.get_backend_name() != "sqlite":
        return
    database = unquote(said.database or "")
    in_memory = database in {"", ":memory:", "file:"} or database.startswith("file::memory:")
    if in_memory or said.query.get("mode") == "memory" or said.query.get("vfs") == "memdb":
        raise ValueError(f"{name} is a database that is gone with the process: name a file, sqlite:////path/of/the.db")


def _require_own_database(storage: str, ledger: str) -> None:
    """Refuse a Dagster storage that is no PostgreSQL database, or is the ledger's: both have a table `runs`."""
    try:
        url, other = make_url(storage), make_url(ledger)
    except ArgumentError as error:
        raise ValueError("dagster_storage_url is not a URL such as postgresql+psycopg2://host/name") from error
    if url.get_backend_name() != "postgresql":
        raise ValueError(
            "dagster_storage_url is a PostgreSQL URL; without it, Dagster keeps SQLite under the home folder"
        )
    if other.get_backend_name() == "postgresql" and _place(url) == _place(other):
        raise ValueError("dagster_storage_url is the database of ledger_url: give Dagster a database of its own")


def _place(url: URL) -> tuple[str, int, str, dict[str, Any]]:
    return url.host or "", url.port or _POSTGRES_PORT, url.database or "", dict(url.query)


def load_settings(**overrides: Any) -> Settings:
    """Resolve the settings.

    Raises:
        EnvironmentRefused: naming each wrong value and where it can come from.
    """
    named = os.environ.get(CONFIG_FILE_VARIABLE)
    _refuse_what_is_no_text()
    if named is not None and not _is_file(Path(named)):
        raise EnvironmentRefused(
            Problem(f"{CONFIG_FILE_VARIABLE} names '{named}'", "it names a readable TOML file", "correct or unset it")
        )
    _refuse_misspelt()
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise EnvironmentRefused(
            Problem(
                f"{'.'.join(str(part) for part in detail['loc']) or 'settings'}: {detail['msg'].removeprefix('Value error, ')}",
                f"settings come from BACKFILL_* variables and {_config_file()}; unknown keys of the file are refused",
                _form(str(detail["loc"][0]), detail["type"]) if detail["loc"] else "correct or unset it",
            )
            for detail in error.errors(include_url=False, include_input=False)
        ) from error
    except SettingsError as error:
        raise EnvironmentRefused(
            Problem(f"{error}", "a BACKFILL_* variable that holds a list or a mapping is JSON", "correct or unset it")
        ) from error
    except (ValueError, OSError, RecursionError) as error:
        raise EnvironmentRefused(
            Problem(f"{_config_file()} cannot be read: {error}", "it is valid TOML", "correct the file")
        ) from error


def _form(name: str, kind: str) -> str:
    """Return what to do about a setting; of one that is a list or a mapping, how it is written in either place."""
    written = {
        "list_type": ('["VALUE", "VALUE"]', '["VALUE", "VALUE"]'),
        "dict_type": ('{"KEY": "VALUE"}', '{"KEY" = "VALUE"}'),
    }
    if kind not in written:
        return "correct or unset it"
    in_variable, in_file = written[kind]
    return f"BACKFILL_{name.upper()}='{in_variable}', or {name} = {in_file} in {_config_file()}; or unset it"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, or a folder that may not be entered
        return False


def _refuse_what_is_no_text() -> None:
    wrong = [
        (name, why)
        for name, value in os.environ.items()
        if name.startswith("BACKFILL_") and (why := not_text(name) or not_text(value))
    ]
    if wrong:
        raise EnvironmentRefused(
            Problem(f"the variable {ascii(name)[1:-1]} is not text: {why}", TEXT_RULE, "correct or unset it")
            for name, why in wrong
        )


def _refuse_misspelt() -> None:
    known = {f"BACKFILL_{field.upper()}" for field in Settings.model_fields}
    wrong = sorted(
        name
        for name in os.environ
        if name.startswith("BACKFILL_")
        and name not in _OTHER_VARIABLES
        and not name.startswith(_OF_TESTS)
        and name.split("__")[0] not in known
    )
    if wrong:
        raise EnvironmentRefused(
            Problem(
                f"the variable {name} is no setting", f"settings are {', '.join(sorted(known))}", "correct or unset it"
            )
            for name in wrong
        )


def _config_file() -> Path:
    return Path(os.environ.get(CONFIG_FILE_VARIABLE, DEFAULT_CONFIG_FILE))


def _redacted(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _redacted(item, name) for name, item in value.items()}
    if isinstance(value, str) and value:
        if key == SERVER_KEY or _SECRET.search(key):
            return shown_address(value) if key == SERVER_KEY else REDACTED
        shown = re.sub(r"(?<=://)([^:@/]*):.*@", rf"\1:{REDACTED}@", value)  # up to the last @: a password may hold one
        return re.sub(r"((?:passw|secret|token|key)[^=&]*=)[^&]*", rf"\1{REDACTED}", shown, flags=re.IGNORECASE)
    return value
