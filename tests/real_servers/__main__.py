"""Fetch what the real servers need, and say what is missing: `make test-servers` begins with it.

It ends with 0 whatever is missing: the tests of what cannot be had are skipped, and give the same reasons.
"""

from __future__ import annotations

from collections.abc import Callable

from real_servers import rest_catalog
from real_servers.debezium import environment
from real_servers.kafka import jars
from real_servers.postgresql import binaries
from real_servers.processes import MissingServerError
from real_servers.s3 import gateway, moto_environment, spark_jars


def main() -> None:
    """Print a line for each server."""
    servers: dict[str, Callable[[], object]] = {
        "Kafka": jars,
        "PostgreSQL": binaries,
        "Debezium": environment,
        "Iceberg's REST catalog": rest_catalog.jars,
        "S3 (moto)": moto_environment,
        "S3 (Versity gateway)": gateway,
        "Spark's S3A": spark_jars,
    }
    for name, had in servers.items():
        try:
            print(f"{name}: {had()}")
        except MissingServerError as reason:
            print(f"{name} cannot be had, and what needs it is skipped: {reason}")


if __name__ == "__main__":
    main()
