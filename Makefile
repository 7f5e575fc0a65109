# What can be done here. `make` alone lists it. Needs Python >= 3.11 and make; .venv is made on first use.

PYTHON ?= python3
# What the machine must have for a strict run: a test that is skipped for want of one of these fails. See tests/support/machine.py.
REQUIRE ?= root,user,userns,git,node,npm,zsh,network,docker,browser
# Further arguments for pytest: make test ARGS="-k timeout -x"
ARGS ?=
# How many processes run tests at once; JOBS=0 runs them in one, for a debugger. More than processors, since many wait.
JOBS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) + 2 )))
# Only some stages of check-all: make check-all STAGES="prove clients"
STAGES ?=
# PACKAGES=no keeps `make test` as root from installing missing Debian packages.
PACKAGES ?= yes

export PYTHON PACKAGES
# Tests start hundreds of Pythons, and each would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.run-installed
DEV := $(VENV)/.dev-installed
PYTEST := $(BIN)/python -m pytest
# By test, not by file: whoever is done takes over tests of the others.
SHARDED := $(PYTEST) --numprocesses=$(JOBS) --maxprocesses=8 --dist=worksteal

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test check check-all lint types layers format bench soak prove backends clients fuzz lock packages clean

help: ## list what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-9s %s\n", $$1, $$2 }'

$(RUN): pyproject.toml requirements/run.lock tools/make-venv
	@tools/make-venv run
	@touch $@

$(DEV): $(RUN) requirements/dev.lock requirements/installer.lock
	@tools/make-venv dev
	@touch $@

setup: $(DEV) ## make .venv with everything for working on Corral

demo: $(RUN) ## show what Corral does, in seconds
	@CORRAL_DATA_DIR="$(CURDIR)/$(VENV)/corral-data" $(BIN)/python -P examples/demo

packages:
	@tools/ensure-packages

test: $(DEV) packages ## run the tests, one pass of each; what this machine can't do is skipped with a reason
	@$(SHARDED) $(ARGS)

lint: $(DEV) ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(DEV) ## mypy, strict
	@$(BIN)/mypy

layers: $(DEV) ## import-linter: flow goes down
	@$(BIN)/lint-imports --no-cache

format: $(DEV) ## let ruff repair what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# One after the other and the tests last, also under make -j: their closing line is the last one printed.
check: $(DEV) packages ## exactly what CI runs: lint, types, layers, and the tests for more users and backends, none skipped
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory types
	@$(MAKE) --no-print-directory layers
	@$(SHARDED) -m "not backends and not prove and not clients and not soak" --require=$(REQUIRE) --durations=20 $(ARGS)

check-all: $(DEV) packages ## the whole matrix, up to an hour: both users, all backends, knock-outs, fuzz, clients
	@REQUIRE=$(REQUIRE) $(BIN)/python tools/check-all $(STAGES)

bench: $(RUN) ## latency and density here, beside the peers that are installed
	@$(BIN)/corral bench

soak: $(DEV) ## open, close and kill hundreds of times, and count what is left
	@$(PYTEST) -m soak --timeout=0 $(ARGS)

prove: $(DEV) ## switch each defence off and show that a probe goes red
	@$(PYTEST) -m prove --timeout=0 $(ARGS)

backends: $(DEV) packages ## the whole conformance suite on the backends that speak to a service
	@$(PYTEST) -m "backends or not backends" --timeout=0 tests/conformance/test_docker.py tests/conformance/test_daytona.py \
		tests/conformance/test_podman.py \
		tests/security/test_docker_views.py tests/server/test_hostile_through_sdk.py tests/adapters $(ARGS)

clients: $(DEV) ## install the clients that others wrote for the server's protocol, and run them against it
	@$(PYTEST) -m clients --timeout=0 $(ARGS)

fuzz: $(DEV) ## the property tests and the server's requests with a hundred times the examples
	@$(PYTEST) tests/property tests/server/test_fuzz.py --hypothesis-profile=fuzz --timeout=0 $(ARGS)

lock: $(DEV) ## write requirements/*.lock anew (make lock ARGS=--upgrade)
	@tools/lock $(ARGS)

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests tools examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
