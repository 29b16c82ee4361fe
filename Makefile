# Two commands matter: `make serve` runs Frazil, `make test` tests it. Both set everything up first.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# mkfs and losetup, which some tests use, are not on every user's PATH.
export PATH := $(PATH):/usr/sbin:/sbin

# Compiling all that is imported would take more than half of the time that a server needs to start.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
# Twice as many as cores: half of the time a test waits for what it has started.
WORKERS ?= 4
# Tests that share an expensive part are a group, and run on one worker. Groups keep their order: quick tests first.
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

.PHONY: help
help: ## Show what can be made
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

.PHONY: setup
setup: ## Make .venv from the locked versions; quick when nothing has changed
	@sh scripts/setup.sh

.PHONY: serve
serve: setup ## Run Frazil on ./frazil-data, with its admin page at 127.0.0.1:6680
	@$(BIN)/frazil serve

.PHONY: cluster
cluster: setup ## Run three brokers with etcd and an S3 server on this machine, for trial, in ./frazil-cluster
	@sh scripts/parts.sh cluster
	@$(BIN)/python scripts/cluster.py

.PHONY: parts
parts: setup ## Get the real servers that tests run against; quick when they are there
	@sh scripts/parts.sh

.PHONY: test
test: setup parts ## Run the linters, then all tests but the long ones, quick tests first
	@$(MAKE) -j2 lint rewritten
	@$(PYTEST) -m "not long"

# pytest rewrites the assertions of each module when it is first imported, and keeps the result. Done here once, beside mypy,
# which uses one core: otherwise each worker does it for all modules, at the same time. What fails here fails again in the tests.
.PHONY: rewritten
rewritten: setup
	-@$(BIN)/pytest --collect-only -qq > /dev/null

.PHONY: test-long
test-long: setup parts ## Run the long crash and soak rounds, and the property tests with more examples
	@$(PYTEST) -m "long or hypothesis" --hypothesis-profile=long --timeout=3600

.PHONY: lint
lint: setup ## Check style, types and layers
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: format
format: setup ## Put the code in order
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

.PHONY: bench
bench: setup ## Measure the log beside the limits of this machine's disk, the mover beside Spark's own append and on S3 beside local files, reading beside PyArrow and DuckDB, the broker beside bare gRPC, the client beside Redis and NATS, security beside none, the object tier beside its store, a cluster whose owners change
	@sh scripts/parts.sh bench
	@$(BIN)/python bench/log.py
	@$(BIN)/python bench/lake.py
	@$(BIN)/python bench/lake.py --s3
	@$(BIN)/python bench/reading.py
	@$(BIN)/python bench/spark_source.py
	@$(BIN)/python bench/broker.py
	@$(BIN)/python bench/client.py
	@$(BIN)/python bench/security.py
	@$(BIN)/python bench/objects.py
	@$(BIN)/python bench/cluster.py
	@$(BIN)/python bench/telemetry.py
	@$(BIN)/python bench/telemetry_decode.py
	@$(BIN)/python bench/telemetry_flight.py
	@$(BIN)/python bench/telemetry_move.py

.PHONY: soak
soak: setup ## Publish and move for an hour, and see whether anything grows
	@$(BIN)/python bench/soak.py

.PHONY: docs
docs: ## Build the documentation into site/
	@sh scripts/setup.sh docs
	@NO_MKDOCS_2_WARNING=1 .uv/docs/bin/mkdocs build --strict --quiet

# Pins that still fit are kept; `make lock UPGRADE=--upgrade` takes the newest versions. No address is written.
COMPILE := sh scripts/setup.sh uv pip compile --quiet --generate-hashes --no-header --python-version 3.11 $(UPGRADE)

.PHONY: lock
lock: ## Resolve the dependencies again and write requirements*.lock
	@$(COMPILE) --no-annotate --group pyproject.toml:uv --output-file requirements-uv.lock
	@$(COMPILE) pyproject.toml --extra all --output-file requirements.lock
	@$(COMPILE) pyproject.toml --extra all --group dev --output-file requirements-dev.lock
	@$(COMPILE) --group pyproject.toml:docs --output-file requirements-docs.lock

.PHONY: messages
messages: ## Make etcd_pb2 and flight_pb2 again, after a change of their .proto files
	@sh scripts/messages.sh

.PHONY: clean
clean: ## Remove what can be made again (never your data)
	@rm -rf .venv .uv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage* build dist site
