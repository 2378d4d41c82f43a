"""DuckDB with its Iceberg extension, in an environment of its own: tables that it writes, and rows as it reads them.

It writes through a REST catalog: the server here speaks as much of that protocol as DuckDB asks for, and has an installation's own
catalog do it. DuckDB comes from a package registry and is kept in the environment; where it cannot be had, tests say why they
are skipped.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import CommitTableRequest, Table

_PACKAGES = tuple(f"{name}==1.5.5" for name in ("duckdb", "duckdb-extensions", "duckdb-extension-iceberg"))
_BESIDE = ("duckdb-extension-avro==1.5.5", "duckdb-extension-httpfs==1.5.5")
_SCRIPT = """
import json, sys
import duckdb
from duckdb_extensions import import_extension

asked = json.loads(sys.stdin.read())
for name in ("avro", "httpfs", "iceberg"):
    import_extension(name)
connection = duckdb.connect()
connection.execute("LOAD httpfs; LOAD iceberg; SET TimeZone = 'UTC'")
connection.execute(f"ATTACH 'lake' AS ice (TYPE iceberg, ENDPOINT '{asked['endpoint']}', AUTHORIZATION_TYPE 'none')")
for statement in asked["statements"]:
    connection.execute(statement)
rows = {name: connection.execute(query).fetchall() for name, query in asked["queries"].items()}
print(json.dumps(rows, default=str))
"""


@cache
def packages() -> Path:
    """Return where DuckDB is, from a package registry; skips the test with the reason where it cannot be had."""
    kept = Path(sys.prefix) / ".duckdb"
    if not (kept / "duckdb_extension_httpfs").is_dir():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(kept),
            *_PACKAGES,
            *_BESIDE,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"DuckDB and its extensions could not be installed: {done.stderr.strip()[-300:]}")
    return kept


def in_duckdb(script: str, asked: Mapping[str, Any], seconds: float = 300) -> Any:
    """Run a script where DuckDB is installed, with what it is asked as JSON on its input; return the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(asked),
        env={"PYTHONPATH": str(packages()), "HOME": str(packages())},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def by_duckdb(
    endpoint: str, statements: Sequence[str] = (), queries: Mapping[str, str] | None = None
) -> dict[str, list[list[Any]]]:
    """Run SQL by DuckDB, with the catalog `ice` at an endpoint, then queries; return the rows of each by its name, as JSON has them."""
    asked = {"endpoint": endpoint, "statements": list(statements), "queries": dict(queries or {})}
    found: dict[str, list[list[Any]]] = in_duckdb(_SCRIPT, asked)
    return found


@contextmanager
def rest_catalog(catalog: Catalog) -> Iterator[str]:
    """Serve a catalog's tables on this machine, as Iceberg's REST protocol has it; yield the endpoint."""
    served = type("Served", (_Handler,), {"catalog": catalog})
    server = ThreadingHTTPServer(("127.0.0.1", 0), served)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


_CHANGES = TypeAdapter(list[CommitTableRequest])


class _Handler(BaseHTTPRequestHandler):
    catalog: Catalog

    def do_GET(self) -> None:
        self._answered(self._asked)

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answered(lambda path: self._changed(path, body))

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _asked(self, path: str) -> str | None:
        if path == "config":
            return json.dumps({"defaults": {}, "overrides": {}})
        if found := re.fullmatch(r"namespaces/([^/]+)/tables/([^/]+)", path):
            table = self.catalog.load_table((found[1], found[2]))
            return f'{{"metadata-location": {json.dumps(table.metadata_location)}, "metadata": {_metadata(table)}, "config": {{}}}}'
        if found := re.fullmatch(r"namespaces/([^/]+)", path):
            return json.dumps({"namespace": [found[1]], "properties": {}})
        return None

    def _changed(self, path: str, body: bytes) -> str | None:
        if path != "transactions/commit":
            return None
        (change,) = _CHANGES.validate_python(json.loads(body)["table-changes"])
        assert change.identifier is not None
        table = self.catalog.load_table((*change.identifier.namespace.root, change.identifier.name))
        self.catalog.commit_table(table, change.requirements, change.updates)
        return ""

    def _answered(self, answer: Any) -> None:
        try:
            said = answer(self.path.partition("?")[0].removeprefix("/v1/"))
            code = 404 if said is None else 200 if said else 204
        except (NoSuchNamespaceError, NoSuchTableError) as error:
            code, said = 404, str(error)
        except CommitFailedException as error:
            code, said = 409, str(error)
        if code >= 400:
            said = json.dumps({"error": {"message": said or "not served here", "type": "Refused", "code": code}})
        raw = (said or "").encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)


def _metadata(table: Table) -> str:
    return table.metadata.model_dump_json(by_alias=True)
