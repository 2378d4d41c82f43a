"""Real servers that tests start: a Kafka broker, a PostgreSQL that decodes its log, Debezium's engine that reads it, S3.

Put here how a server is had, started, stopped, killed and started again, and what is asked of it that no client library does;
what is tested with it is the tests'. `servers.py`, a module beside this package, has the servers that need nothing fetched.

- `kafka.py`: `kafka_broker()`, Apache Kafka in KRaft mode, its jars from Maven;
- `postgresql.py`: `logical_postgres()`, with `wal_level=logical`, by the PostgreSQL of the machine or of the Python package;
- `debezium.py`: `Debezium`, the embedded engine as a process in an environment of its own, which writes what it captures as files;
- `s3.py`: `moto()` and `store_on_disk()`, S3 in memory and on disk, and the jars with which Spark reaches one;
- `spark.py`: `cluster()`, a standalone master of Spark with workers, and `connect_server()`, by the package `pyspark`;
- `fixtures.py`: the fixtures of `conftest.py` that tests ask for, which skip where a server cannot be had and say why.

What is fetched is kept in `~/.cache/backfill-assets-tests` (or the folder that `BACKFILL_TEST_CACHE` names), once for all
checkouts. `python -m real_servers` fetches it and says what is missing; `make test-servers` begins with that. Tests that ask
for such a server are marked: `pytestmark = pytest.mark.servers`.

A server listens on a free port of the loopback interface, has a temporary folder of its own, and ends with the thread that
started it (the kernel sees to it): start it in the main thread of the tests.
"""
