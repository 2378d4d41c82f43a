"""One PyIceberg catalog: opening it, and its tables with fresh metadata.

Put here what is said of a catalog that cannot be reached and of a table that is not there. What is asked of a table, or
done to it, is for the rooms that get it from here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from sqlalchemy.engine import make_url

from manifests.errors import EnvironmentRefused, InputRefused, Problem
from resources.files.sqlite_files import require_files
from resources.files.stores import StoreAccess
from resources.lakehouse.catalog_errors import reachable, words
from resources.lakehouse.declared_tables import require_as_declared
from resources.lakehouse.file_access import TABLE_FILE_IO, access_to
from resources.lakehouse.metadata import readable_table, require_single_ids
from resources.lakehouse.pyiceberg_private import dated_by, open_as_the_catalog_says


class Tables:
    """The tables of one catalog, each read anew whenever it is asked for."""

    def __init__(self, name: str, properties: Mapping[str, str], clock: Callable[[], datetime] | None = None) -> None:
        """Remember how the catalog is opened; commits are dated by `clock`, or by this machine's."""
        self._name, self._clock = name, clock
        self._properties = dict(properties)
        self._catalog: Catalog | None = None
        self._handed_out: dict[str, Mapping[str, str]] = {}

    @property
    def access(self) -> StoreAccess:
        """What opens the files of the tables, for whoever is sent their names: as the catalog says, and its server for single tables.

        What a server hands out for a table ends some time: ask for the table, and then for this.
        """
        return access_to(self.catalog.properties, dict(self._handed_out))

    @property
    def catalog(self) -> Catalog:
        """The PyIceberg catalog, opened at first use.

        Raises:
            EnvironmentRefused: if it cannot be reached.
        """
        if self._catalog is None:
            self._require_database()
            try:
                # its own tables are made by `backfill init` only: a refused command leaves nothing behind
                properties = {"init_catalog_tables": "false", PY_IO_IMPL: TABLE_FILE_IO} | _patient(self._properties)
                catalog = open_as_the_catalog_says(load_catalog(self._name, **properties))
                self._catalog = catalog if self._clock is None else dated_by(catalog, self._clock)
            except Exception as error:
                raise EnvironmentRefused(
                    Problem(
                        f"the catalog '{self._name}' cannot be opened: {words(error)}",
                        "the catalog properties are those of a reachable PyIceberg catalog",
                        "see `backfill config`; for the embedded default, run `backfill init`",
                    )
                ) from error
        return self._catalog

    def _require_database(self) -> None:
        """Refuse a SQLite catalog whose file is missing (opening it would create it), or whose files are none."""
        if self._properties.get("uri", "").startswith("sqlite"):
            require_files(self._properties["uri"], f"the catalog '{self._name}'")
        file = self._properties.get("uri", "").partition("sqlite:///")[2]
        if file and self._properties.get("init_catalog_tables") != "true" and not Path(file).exists():
            raise EnvironmentRefused(
                Problem(
                    f"the catalog '{self._name}' cannot be used: {file} does not exist",
                    "the catalog exists and can be reached",
                    "see `backfill config`; for the embedded default, run `backfill init`",
                )
            )

    def create_catalog(self) -> None:
        """Create what the catalog itself needs (a SQL catalog's own tables); safe to repeat.

        Raises:
            EnvironmentRefused: if it cannot be reached.
        """
        self._properties["init_catalog_tables"] = "true"
        self._catalog = None
        with reachable(self._name):
            self.catalog.list_namespaces()

    def ensure(
        self,
        name: str,
        schema: Schema,
        spec: PartitionSpec,
        properties: Mapping[str, str],
        *,
        any_partitions: bool = False,
    ) -> Table:
        """Create a table if it does not exist, and return it; with `any_partitions` one that exists may have others than `spec`.

        Raises:
            EnvironmentRefused: if it exists and is not as declared, see `require_as_declared`.
        """
        with reachable(self._name):
            with suppress(NamespaceAlreadyExistsError):  # somebody made it before us, which is all that is wanted
                self.catalog.create_namespace(name.rpartition(".")[0])
            try:
                return self.catalog.create_table(name, schema, partition_spec=spec, properties=dict(properties))
            except TableAlreadyExistsError:
                table = self.table(name)
        require_as_declared(table, schema, spec, properties, any_partitions=any_partitions)
        return table

    def table(self, name: str) -> Table:
        """Return a table with fresh metadata.

        Raises:
            InputRefused: if there is none.
            UnreadableMetadata: if its metadata file is missing or damaged.
        """
        try:
            with reachable(self._name), readable_table(name):
                table = self.catalog.load_table(name)
                require_single_ids(table)
        except NoSuchTableError as error:
            raise InputRefused(
                Problem(f"table {name} does not exist", "tables are made by `backfill init`", "run it, then load data")
            ) from error
        if table.io.properties == self.catalog.properties:
            self._handed_out.pop(table.location(), None)
        else:
            self._handed_out[table.location()] = table.io.properties
        return table

    def exists(self, name: str) -> bool:
        """Tell whether there is a table of a name.

        Raises:
            UnreadableMetadata: if there is, and its metadata file is missing or damaged.
        """
        # the table itself is asked for: that it is not there says the catalog, and no server between, only with a body
        try:
            with reachable(self._name), readable_table(name):
                self.catalog.load_table(name)
        except NoSuchTableError:
            return False
        return True

    def beside(self, name: str) -> list[str]:
        """Return the names of the other tables of a table's namespace, in order."""
        with reachable(self._name):
            listed = self.catalog.list_tables(tuple(name.split("."))[:-1])
        return sorted({".".join(one) for one in listed} - {name})

    def location(self, name: str) -> str:
        """Return the folder below which the table's data files live."""
        return posixpath.join(self.table(name).location(), "data")


def _patient(properties: Mapping[str, str]) -> dict[str, str]:
    """Let a SQLite catalog wait for its lock as long as the ledger does; the driver's own 5 s are short for a crowd."""
    uri = properties.get("uri", "")
    if not uri.startswith("sqlite") or "timeout" in make_url(uri).query:
        return dict(properties)
    return {
        **properties,
        "uri": make_url(uri).update_query_dict({"timeout": "60"}).render_as_string(hide_password=False),
    }
