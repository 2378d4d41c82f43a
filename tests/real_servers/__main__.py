"""Fetch what the real servers need, and say what is missing: `make test-servers` and `make test-cluster` begin with it.

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
from real_servers.spark import require_spark


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
        "Spark's cluster and Spark Connect": require_spark,
    }
    for name, had in servers.items():
        try:
            print(f"{name}: {had() or 'here'}")
        except MissingServerError as reason:
            print(f"{name} cannot be had, and what needs it is skipped: {reason}")


if __name__ == "__main__":
    main()
