# Two commands matter: `make demo` starts the service with example data, `make test` runs every test.
# Each target installs what it needs; later runs find the stamp files in .venv and start immediately.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Some shells disable bytecode files; every process would then compile 850 modules, which takes 3.5 s of processor time.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HOST ?= 127.0.0.1
PORT ?= 8000
WORKERS ?= 3
MINUTES ?= 10
PIP := $(BIN)/pip install -q --disable-pip-version-check --no-deps --require-hashes
LOCK := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --override overrides.txt \
        --custom-compile-command "make lock" $(UPGRADE)
LOCK_FOLDER ?= .
# Test files with campaigns that are larger under SOAK=1 (tests/cases.py)
CAMPAIGNS = $(shell grep -rlw sized --include='test_*.py' tests)
FAST := tests/domain tests/analysis tests/client tests/delivery tests/demo tests/test_architecture.py
SOURCES := app workers threewalls migrations tests bench threewalls_entry.py

##@ The two commands
.PHONY: demo
demo: $(VENV)/.runtime  ## Start on http://127.0.0.1:8000 with the demo project (HOST=, PORT=); data in demo-data/
	@exec $(BIN)/threewalls demo --host $(HOST) --port $(PORT)

.PHONY: test
test: $(VENV)/.dev  ## Run every test against real Redis, PostgreSQL and Chromium (WORKERS= processes, ARGS= for pytest)
	@.ci/test-services
	@exec $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: test-fast
test-fast: $(VENV)/.dev  ## Run the tests that need no server, database or browser: domain, client, documents
	@exec $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not server" $(FAST) $(ARGS)

##@ Every day
.PHONY: serve
serve: $(VENV)/.runtime  ## Start an empty service; data in data/
	@exec $(BIN)/threewalls serve --host $(HOST) --port $(PORT)

.PHONY: setup
setup: $(VENV)/.dev  ## Install everything a developer needs into .venv

.PHONY: format
format: $(VENV)/.dev  ## Format the code (ruff) and the templates (djlint)
	$(BIN)/ruff format -q .
	$(BIN)/ruff check -q --fix --exit-zero .
	$(BIN)/djlint templates --reformat --quiet --warn

.PHONY: lint
lint: $(VENV)/.dev  ## Check format and lint
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/djlint templates --check
	$(BIN)/djlint templates --lint --quiet

.PHONY: types
types: $(VENV)/.dev  ## Check types
	$(BIN)/mypy

.PHONY: check
check:  ## Everything that CI checks
	@.ci/run

.PHONY: soak
soak: $(VENV)/.dev  ## Run all campaigns in full: kills, full disks, damage, load (MINUTES= for each), fuzz, golden corpus
	@.ci/test-services
	@$(BIN)/python -m bench.soak --minutes $(MINUTES)
	@SOAK=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(CAMPAIGNS) $(ARGS)

.PHONY: screenshot
screenshot: $(VENV)/.dev  ## Retake docs/screenshot.png from the demo in a real browser
	@.ci/test-services chromium
	$(BIN)/python -m docs.take_screenshot

##@ Dependencies
.PHONY: lock
lock: $(VENV)/.build  ## Lock the dependencies of pyproject.toml (UPGRADE=--upgrade takes the newest)
	$(LOCK) --extra server --extra mcp pyproject.toml -o $(LOCK_FOLDER)/requirements.lock
	$(LOCK) --extra server --extra mcp --group dev pyproject.toml -c $(LOCK_FOLDER)/requirements.lock \
	  -o $(LOCK_FOLDER)/requirements-dev.lock
	$(LOCK) --group build -o $(LOCK_FOLDER)/requirements-build.lock

.PHONY: vega
vega:  ## Build static/vega, the part of Vega that draws the charts, from npm packages (needs Node.js 20)
	@cd .ci/vega && npm ci --silent && node build.mjs && ls -l ../../static/vega

.PHONY: sbom
sbom: $(VENV)/.runtime  ## Write the release's software bill of materials, CycloneDX JSON
	@version=$$($(BIN)/python -c 'from importlib.metadata import version; print(version("threewalls"))'); \
	  $(BIN)/python .ci/sbom.py > threewalls-$$version.cdx.json && echo threewalls-$$version.cdx.json

.PHONY: clean
clean:  ## Remove generated files (keeps data/ and demo-data/)
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis test-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find app tests -type d -empty -delete

.PHONY: help
help:
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "'$(PYTHON)' is missing or older than Python 3.11. Choose another one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv module is missing. Install it as root, e.g.: apt-get install python3-venv"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# uv and setuptools have a lock of their own, because what serves needs neither. pip checks their hashes, then uv
# installs the rest in a tenth of pip's time.
$(VENV)/.build: requirements-build.lock | $(BIN)/python
	@$(PIP) -r requirements-build.lock
	@touch $@

# pip is the fallback: some machines configure their package index only in pip's settings.
define install
	@echo "Installing $(1) into $(VENV)"
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --require-hashes -r $(1) || $(PIP) -r $(1)
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation --no-index -e .
endef

$(VENV)/.runtime: requirements.lock pyproject.toml $(VENV)/.build
	$(call install,requirements.lock)
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml $(VENV)/.build
	$(call install,requirements-dev.lock)
	@touch $@ $(VENV)/.runtime
