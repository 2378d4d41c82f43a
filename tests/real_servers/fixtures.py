"""Fixtures of the real servers: one of each a test process; a test that kills or stops one takes one of its own.

A test that asks for a server that cannot be had is skipped, and the reason names the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

import pytest

from real_servers.kafka import Broker, kafka_broker
from real_servers.postgresql import LogicalPostgres, logical_postgres
from real_servers.processes import MissingServerError
from real_servers.rest_catalog import RestCatalog, rest_catalog
from real_servers.s3 import Store, moto, store_on_disk

_Server = TypeVar("_Server")


def _served(start: Callable[[], AbstractContextManager[_Server]], what: str) -> Iterator[_Server]:
    """Yield a server, or skip where it cannot be had."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(start())
        except MissingServerError as reason:
            pytest.skip(f"nothing is tested on {what}: {reason}")
        yield server


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A Kafka broker of this test process: topics are a test's own."""
    yield from _served(kafka_broker, "a Kafka broker")


@pytest.fixture(scope="session")
def logical_server() -> Iterator[LogicalPostgres]:
    """A PostgreSQL of this test process whose log can be decoded: databases are a test's own."""
    yield from _served(logical_postgres, "PostgreSQL's log")


@pytest.fixture(scope="session")
def rest_server() -> Iterator[RestCatalog]:
    """A REST catalog of this test process: a test makes its tables anew."""
    yield from _served(rest_catalog, "a REST catalog")


@pytest.fixture(scope="session")
def debezium_environment() -> None:
    """Skip where Debezium's engine cannot be had."""
    from real_servers.debezium import environment

    try:
        environment()
    except MissingServerError as reason:
        pytest.skip(f"nothing is tested with Debezium: {reason}")


@pytest.fixture(scope="session")
def moto_store() -> Iterator[Store]:
    """A moto server of this test process: buckets are a test's own."""
    yield from _served(moto, "moto")


@pytest.fixture(scope="session")
def disk_store() -> Iterator[Store]:
    """A server of S3 of this test process that keeps its objects on disk: buckets are a test's own."""
    yield from _served(store_on_disk, "a store that keeps its objects on disk")
