# seatrial: build, test and run. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLUSTER := $(PYTHON) tests/cluster
ENVD_SOURCES := $(wildcard runner-image/envd/*.go runner-image/envd/go.*)

.PHONY: help venv lock up down status kubeconfig images demo test test-static test-unit test-envd test-chart test-cluster test-deep \
	tutorial bench parity perf chaos fuzz sbom licences audit conformance generate docs

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)$$/  \1\t\2/' | expand -t 18

# --- tools ----------------------------------------------------------------------------------------------------------------------------

venv: $(VENV)/.complete ## a virtual environment with the locked dependencies

$(VENV)/.complete: requirements/dev.txt pyproject.toml
	@echo "venv: installing the locked dependencies"
	@$(PYTHON) -m venv $(VENV) || { apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); }
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

lock: venv ## pin the dependencies anew after a change of pyproject.toml
	@for set in dev operator; do $(BIN)/uv pip compile --quiet --no-header --no-emit-index-url --generate-hashes --python-version 3.11 \
		--extra operator $$([ $$set = operator ] || echo --extra dev) pyproject.toml -o requirements/$$set.txt; done

# --- local cluster --------------------------------------------------------------------------------------------------------------------

up: ## start the local Kubernetes (kind with Docker, else a real single node) and its S3 server
	@$(CLUSTER) up

down: ## end it; nothing of it stays but the build cache
	@$(CLUSTER) down

status: ## components, health, addresses
	@$(CLUSTER) status

kubeconfig: ## print the path of its kubeconfig
	@$(CLUSTER) kubeconfig

images: ## build what changed and load it onto the node
	@$(CLUSTER) images

# --- use ------------------------------------------------------------------------------------------------------------------------------

demo: venv ## from nothing to five graded trials
	@examples/demo.sh

# --- tests ----------------------------------------------------------------------------------------------------------------------------

test: venv ## everything that CI runs
	@rm -rf build/test-results
	@$(MAKE) --no-print-directory test-static audit test-unit test-envd test-chart test-cluster conformance

test-static: venv ## lint, types, layers, generated files
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m seatrial.api.crdgen --check

test-unit: venv ## the fast tests: no cluster
	@SEATRIAL_HARBOR_PYTHON="$$($(BIN)/python -m tests.harbor_python)" $(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile tests/unit tests/integration

test-envd: ## the environment's helper, in Go
	@cd runner-image/envd && test -z "$$(gofmt -l .)" && go vet ./... && go test ./...

test-chart: venv ## what the chart renders
	@$(BIN)/python -m pytest -q tests/chart

# One more try for a test that a busy machine disturbed; the report counts it as rerun.
CLUSTER_TESTS = $(BIN)/python -m pytest -q --durations 20 --reruns 1 --reruns-delay 5 tests/e2e tests/perf

test-cluster: venv up images ## tests on the local cluster
	@$(CLUSTER_TESTS) -m "not deep"

test-deep: venv up images ## the long tests: installation, observability, queues, every command of the documentation
	@$(CLUSTER_TESTS) -m deep

tutorial: venv up images ## follow the pages from an empty cluster to a gate in CI; writes docs/transcript.md
	@$(BIN)/python -m pytest -q tests/e2e/test_docs.py -m deep -k "install or first-evaluation"
	@$(BIN)/python -m tests.transcripts

perf: venv ## load: 100 and 1,000 trials against an API server with kwok; more with PERF="--trials 10000"
	@$(BIN)/python -m tests.perf $(PERF)

chaos: venv up images ## kill every part at random under a job on the local cluster; CHAOS="--kills 20"
	@$(BIN)/python -m tests.chaos $(CHAOS)

bench: venv up images ## measure; writes docs/benchmarks.md and build/bench.json
	@$(BIN)/python -m tests.bench

parity: venv up images ## the same tasks under Harbor and under seatrial; writes docs/parity.md
	@$(BIN)/python -m tests.parity

fuzz: venv ## ten minutes of hostile input for parser and extractor
	@$(BIN)/python tests/fuzz/fuzz_parse.py --seconds 300
	@$(BIN)/python tests/fuzz/fuzz_extract.py --seconds 300

conformance: venv ## docs/conformance.md from the recorded test results
	@$(BIN)/python tests/conformance/report.py

# --- what is shipped ------------------------------------------------------------------------------------------------------------------

sbom: venv ## bills of materials below build/sbom, in CycloneDX
	@$(BIN)/python -m supply sbom

licences: venv ## docs/licences.md; fails on a licence that nobody has read
	@$(BIN)/python -m supply licences

audit: venv ## known vulnerabilities of what is shipped, where their data can be had
	@$(BIN)/python -m supply audit

generate: venv ## CRDs, dashboards, alerts and reference pages from the code
	@$(BIN)/python -m seatrial.api.crdgen
	@$(BIN)/python -m dashboards
	@$(BIN)/python -m reference

docs: conformance ## documents that are generated
