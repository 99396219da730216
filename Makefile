# Everything a developer runs. Needs Python >= 3.11 and make; the rest is installed into .venv by package name.
# `make help` lists the targets.

PYTHON ?= python3
FUZZ_SECONDS ?= 300
SOAK_MINUTES ?= 60
SOAK_ROWS ?= 10000000
SOAK_ONLY ?= tests/soak tests/sinks tests/e2e
export DEMO_SECONDS

BIN := .venv/bin
# Two at a time, since tests wait for servers most of the time: each process has servers, a JVM and a folder of its own.
TWO := -n 2 --dist
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test unit pg spark e2e nodes browser pictures test-spark42 lint types bench bench-capture bench-spark bench-documents bench-engine bench-reference bench-operations fuzz soak soak-long wheel docs clean

help:  ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-22s %s\n", $$1, $$2 }'

demo: .venv/demo.stamp  ## an embedded Postgres, a busy shop, three search indexes that follow it (DEMO_SECONDS ends it by itself)
	@$(BIN)/penstock demo

# One step after the other, each with its duration; the first ones leave a core to what the last ones need.
test: .venv/test.stamp  ## lint, types, unit, 30 s of fuzz, real servers, Spark, the whole pipeline
	@begin=$$(date +%s); \
	$(MAKE) --no-print-directory .venv/archive.stamp nodes browser > /dev/null 2>&1 & \
	for step in lint types unit fuzz pg spark e2e; do \
	  [ $$step != spark ] || wait; \
	  from=$$(date +%s); echo "--- $$step"; \
	  $(MAKE) --no-print-directory $$step FUZZ_SECONDS=30 || { echo "--- $$step failed after $$(($$(date +%s) - from)) s"; exit 1; }; \
	  echo "--- $$step: $$(($$(date +%s) - from)) s"; \
	done; \
	echo "--- all passed in $$(($$(date +%s) - begin)) s"

unit: .venv/test.stamp  ## tests without a server
	@$(BIN)/python -m pytest -q $(TWO) worksteal tests/unit

pg: .venv/test.stamp  ## tests against real servers, two majors
	@$(BIN)/python -m pytest -q $(TWO) worksteal tests/pg

spark: .venv/archive.stamp  ## tests on Spark, which brings its own Java
	@$(BIN)/python -m pytest -q $(TWO) worksteal tests/spark

e2e: .venv/archive.stamp nodes browser  ## sinks on real search nodes, and the whole pipeline
	@$(BIN)/python -m pytest -q $(TWO) loadgroup -m "not long" tests/e2e tests/sinks

nodes: .venv/test.stamp  ## fetch the search servers that tests start, by package name
	@$(BIN)/python -m tests.fixtures.nodes

browser:  ## Chromium, in which the page is tested: by apt where this is Debian and root, else yours to install
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } > /dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    echo "--- installing Chromium"; \
	    { apt-get -qq -o Acquire::Retries=3 update && apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 install --yes --no-install-recommends chromium fonts-dejavu-core; } > /dev/null; \
	  else echo "There is no Chromium here: without CI set, the tests of the page are skipped."; fi; }

pictures: .venv/test.stamp browser  ## the docs' pictures of the page, taken of the running demo
	@PENSTOCK_PICTURES=docs/images $(BIN)/python -m pytest -q tests/e2e/test_page.py

test-spark42: .venv-spark42/test.stamp  ## the smoke tests on the oldest PySpark that is supported
	@.venv-spark42/bin/python -m pytest -q -m smoke tests/spark
	@.venv-spark42/bin/python -m pytest -q tests/spark42
	@{ echo "PySpark 4.2.1, $$(date -u +%F), commit $$(git rev-parse --short HEAD), all passed:"; \
	  .venv-spark42/bin/python -m pytest -q --collect-only -m smoke tests/spark | grep ::; \
	  .venv-spark42/bin/python -m pytest -q --collect-only tests/spark42 | grep ::; } > tests/spark/last-run-on-4.2.txt

lint: .venv/test.stamp  ## ruff (rules and format), the order of the layers, the container file, the Kubernetes recipe, the scripts
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet . || { echo "Mend it with: ruff check --fix . && ruff format ."; exit 1; }
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/hadolint deploy/Dockerfile
	@$(BIN)/kubernetes-validate --strict --quiet deploy/kubernetes/[!k]*.yaml
	@$(BIN)/shellcheck deploy/spark-submit.sh .ci/run

types: .venv/test.stamp  ## mypy, strict
	@$(BIN)/mypy
	@MYPYPATH=src:bench $(BIN)/mypy bench

bench: bench-capture bench-spark bench-documents bench-engine bench-reference bench-operations  ## every benchmark

bench-capture: .venv/test.stamp  ## the capture beside pg_recvlogical, on the same WAL
	@$(BIN)/python bench/capture.py

bench-spark: .venv/test.stamp  ## the Spark source: latency, backlog, snapshot beside JDBC and COPY
	@$(BIN)/python bench/spark.py

bench-documents: .venv/test.stamp  ## documents beside a COPY by hand and beside one query a document
	@$(BIN)/python bench/documents.py

bench-engine: .venv/test.stamp  ## penstock run into a real OpenSearch node, beside what that node can take
	@$(BIN)/python bench/engine.py

bench-reference: .venv/test.stamp  ## reference tables: a change by table size, a lookup, a restart beside a new snapshot
	@$(BIN)/python bench/reference.py

bench-operations: .venv/test.stamp  ## a reconcile, a reindex, and what is reported of a busy, healthy system
	@$(BIN)/python bench/operations.py

fuzz: .venv/test.stamp  ## coverage-guided fuzz of the decoder (FUZZ_SECONDS)
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python fuzz/decoder.py

# Twice: as the tests choose, then with every run of the pipeline on Spark's tasks (of tests that do not take both anyhow;
# where there are none, pytest says 5). Each test's last result is kept, with its commit, so it can be run in parts.
SOAK := SOAK_ROWS=$(SOAK_ROWS) $(BIN)/python -m pytest -v --timeout=7200 --results tests/soak/last-run.txt $(SOAK_ONLY)
soak: .venv/archive.stamp browser  ## the sizes that the guarantees name (SOAK_ROWS, SOAK_ONLY); hours; keeps tests/soak/last-run.txt
	@failed=0; $(SOAK) || failed=1; PENSTOCK_SPREAD=1 $(SOAK) || test $$? = 5 || failed=1; exit $$failed

soak-long: .venv/archive.stamp  ## one run for SOAK_MINUTES, and nothing of it grows; writes tests/soak/last-long-run.txt
	@SOAK_MINUTES=$(SOAK_MINUTES) $(BIN)/python -m pytest -q -s tests/soak/test_long.py

wheel: .venv/test.stamp  ## build dist/*.whl, install it with pip into an empty environment, run its demo there
	@rm -rf dist && $(BIN)/python -m hatchling build -t wheel -d dist
	@PENSTOCK_WHEEL=$$(ls dist/*.whl) $(BIN)/python -m pytest -q tests/e2e/test_wheel.py

docs: .venv/test.stamp  ## write the generated pages and check that the docs are complete
	@$(BIN)/python -m penstock.cli.reference
	@$(BIN)/python -m penstock.config.reference
	@$(BIN)/python -m pytest -q tests/unit/test_guarantees.py tests/unit/test_docs.py

clean:  ## remove what the other targets made
	rm -rf .venv .venv-spark42 build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/python.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Penstock needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name another one: make PYTHON=python3.12 ..."; \
	  exit 1; }
	@$(PYTHON) -m venv .venv || { echo "'$(PYTHON)' has no venv module; on Debian and Ubuntu: apt-get install python3-venv"; rm -rf .venv; exit 1; }
	@touch $@

.venv/test.stamp: .venv/python.stamp pyproject.toml constraints.txt
	@echo "--- installing the test environment into .venv"
	@$(INSTALL) --editable '.[test]'
	@touch $@

# Dozens of JVMs are started by the tests, each in half the time.
.venv/archive.stamp: .venv/test.stamp
	@echo "--- making Spark's classes ready"
	@$(BIN)/python -m penstock.spark.archive
	@touch $@

.venv-spark42/test.stamp: .venv/python.stamp pyproject.toml constraints.txt
	@echo "--- installing the test environment with PySpark 4.2 into .venv-spark42"
	@$(PYTHON) -m venv .venv-spark42
	@sed 's/^pyspark==.*/pyspark==4.2.1/' constraints.txt > .venv-spark42/constraints.txt
	@.venv-spark42/bin/python -m pip install --quiet --disable-pip-version-check --constraint .venv-spark42/constraints.txt --editable '.[test]'
	@touch $@

.venv/demo.stamp: .venv/python.stamp pyproject.toml constraints.txt
	@echo "--- installing the demo into .venv"
	@$(INSTALL) --editable '.[demo]'
	@touch $@
