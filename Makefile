# Everything starts here: `make demo` and `make test` set up what they need on a fresh machine, and are quick afterwards.
# Python 3.11 or newer and make are all that must exist; the servers of the integration tests come from Debian's packages.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check -qq
INSTALLED = $(VENV)/.installed
# One process more than the two cores of CI, as some tests mostly wait for servers, and files in the order of their names:
# xdist would begin with those of many tests and end with the longest, beside which nothing is left to do.
PYTEST_ARGS ?= -n 3 --dist loadfile --no-loadscope-reorder
BENCH_ARGS ?=
SOAK_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo setup servers test static check bench bench-accuracy soak docs screenshots format lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/:/' | awk -F: '{ printf "  make %-16s%s\n", $$1, $$2 }'

demo: setup  ## diagnose a GPU whose fan failed, from a simulated cluster
	@$(BIN)/rca diagnose --scenario scenarios/cooling_fault.yaml; status=$$?; \
	test $$status -eq 10 || { echo "demo: exit status $$status, expected 10 (causes found)" >&2; exit 1; }

setup: $(INSTALLED)  ## create .venv with the pinned development environment

$(INSTALLED): requirements-dev.lock pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one: make PYTHON=python3.12")'
	@echo "setting up $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV) || { echo "python cannot create $(VENV); on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(PIP) install --requirement requirements-dev.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@rm -rf $(VENV)/lib/python*/site-packages/rca  # the rules as copied there: a checkout has one set, its own
	@touch $@

servers:  ## install Prometheus, Alertmanager and VictoriaMetrics from Debian, where root and where missing
	@.ci/servers

test: setup servers  ## run every test
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(PYTEST_ARGS)

static: setup  ## check format, style, types, import contracts and the rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/rca check

check: static test  ## everything that must hold before a change is merged

bench: setup servers  ## run the benchmarks of speed and print their figures
	@for file in $(filter-out %/bench_accuracy.py,$(wildcard benchmarks/bench_*.py)); do $(BIN)/python $$file $(BENCH_ARGS) || exit 1; done

bench-accuracy: setup  ## measure how often the diagnosis is right; half an hour on two cores
	@$(BIN)/python benchmarks/bench_accuracy.py $(BENCH_ARGS)

soak: setup servers  ## kill, flood, cut off and outlive the server for an hour
	@$(BIN)/python benchmarks/soak.py $(SOAK_ARGS)

docs: setup  ## write the pages that follow from the rules, and paste what the program prints
	@$(BIN)/python -m docs.generate
	@$(BIN)/python docs/paste.py docs/cli.md docs/export.md README.md

screenshots: setup servers  ## take the pictures of pages that the documents show
	@$(BIN)/python -m docs.screenshots

format: setup  ## lay out the code, and fix what can be fixed
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format --quiet .

lock: setup  ## choose the newest versions that pyproject.toml allows, and pin them
	@rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip --disable-pip-version-check -qq install '.[dev]'
	@{ sed '/^[^#]/,$$d' requirements-dev.lock; .venv-lock/bin/python -m pip freeze --exclude rca; } > requirements-dev.lock.new
	@mv requirements-dev.lock.new requirements-dev.lock && rm -rf .venv-lock

clean:  ## remove everything that was made
	@rm -rf $(VENV) .venv-lock build dist .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
