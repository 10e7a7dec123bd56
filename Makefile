# `make demo` and `make test` are all one needs; everything runs in .venv, which they create on first use.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-portable test-slow test-long fuzz browser peers docs bench lint types format constraints dist clean

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Two stamps: what the demo needs is there within a minute, the extras and the test tools take longer.
READY  := $(VENV)/.demo-done
STAMP  := $(VENV)/.setup-done
EXTRAS := all
FUZZ   := 50
BENCH  := .venv-bench
AXE    := $(VENV)/axe/node_modules/axe-core/axe.min.js
# One worker per core; torch's own threads would only get in each other's way.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal
# -qq: errors only. Python compiles what it imports anyway; to compile everything takes a minute.
PIP    := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check --constraint constraints.txt
# uv does in seconds what takes pip minutes. Where it cannot be had, or reads other indexes than pip and fails, pip does it.
UV     := $(BIN)/uv pip install -qq --python $(BIN)/python --constraint constraints.txt

# Where the environment forbids Python to keep what it has compiled, every process compiles torch anew, for seconds.
export PYTHONDONTWRITEBYTECODE :=

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## create .venv with the package, its extras and the test tools, pinned by constraints.txt

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "tmifpe needs Python 3.10 or newer: make setup PYTHON=python3.12")'
	@echo "Setting up $(VENV) (once; some minutes if packages must be downloaded) ..."
# Where python3 comes without ensurepip (Debian without python3-venv), pip itself puts pip into the environment.
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) > /dev/null 2>&1 || { \
	  $(PYTHON) -m venv --without-pip --clear $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install -qq pip; }
# torch comes first and alone: what follows is then resolved around the build that is there (on disk, or the CPU
# build of an index given in PIP_EXTRA_INDEX_URL) and never replaces it by another one.
	@$(PIP) torch
	@$(PIP) uv 2> /dev/null && $(UV) -e '.[plots]' 2> /dev/null || $(PIP) -e '.[plots]'
	@touch $(READY)

$(STAMP): $(READY) requirements-dev.txt
	@echo "Adding the extras and the test tools (once) ..."
	@$(UV) -r requirements-dev.txt -e '.[$(EXTRAS)]' 2> /dev/null || $(PIP) -r requirements-dev.txt -e '.[$(EXTRAS)]'
	@touch $(STAMP)

demo: $(READY) ## the bundled models under all losses: a table, a figure, and what they show
	@$(BIN)/tmifpe demo

test: setup ## the tests (a few minutes; SLOW=1: with those of test-slow in one session)
	@$(PYTEST) -m '$(if $(SLOW),,not slow and )not long'

test-portable: setup ## the numerical tests, as other processors would compute (a few minutes)
	@$(BIN)/python scripts/test_portable.py

test-slow: setup ## 512 images of Table 1, killed runs, long fuzzing, memory
	@$(PYTEST) -m slow

test-long: setup ## a full row of Table 1 and 2,000 certified networks, of which .ci/run tests a part
	@$(PYTEST) -m long

fuzz: setup ## property-based tests with FUZZ (50) times as many cases
	@TMIFPE_FUZZ=$(FUZZ) $(PYTEST) -m hypothesis --timeout=7200

# Both are optional: without them the tests in a browser are skipped, and say why. npm puts axe-core beside the packages.
browser: setup ## what the tests in a browser need: Chromium (Debian, as root) and axe-core (npm)
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && \
	  { apt-get install -qq -y --no-install-recommends chromium > /dev/null 2>&1 || \
	    { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium > /dev/null; }; }; } || \
	  echo "No Chromium: the tests in a browser will be skipped."
	@test -f $(AXE) || { command -v npm > /dev/null && \
	  npm install --silent --no-audit --no-fund --prefix $(VENV)/axe axe-core@4 > /dev/null; } || \
	  echo "No axe-core: the tests of accessibility will be skipped."

# Tests of the doors and trackers look here; without it, those that need it are skipped and say why.
peers: $(VENV)/peers/.done ## what the tests compare with or log to: torchattacks, MLflow, Weights & Biases
$(VENV)/peers/.done: requirements-peers.txt | setup
	@$(UV) --no-deps --target $(VENV)/peers -r requirements-peers.txt 2> /dev/null || \
	  $(PIP) --no-deps --target $(VENV)/peers --upgrade -r requirements-peers.txt
	@touch $@

# The kernels of the notebooks and the theory page are ours: nothing is fetched, and a warning is an error.
docs: setup ## the documentation site, in build/docs (half a minute)
	@$(BIN)/python -m sphinx -q -W --keep-going -n -b html docs build/docs
	@echo "The site is in build/docs/index.html"

# The peers have a venv of their own: torchattacks brings files of another `robustbench`, and ART pins what it likes.
$(BENCH)/.done: pyproject.toml constraints.txt
	@echo "Setting up $(BENCH) with the peers (once) ..."
	@$(PYTHON) -m venv $(BENCH)
	@$(BENCH)/bin/python -m pip install -qq --no-compile --disable-pip-version-check --constraint constraints.txt torch
	@$(BENCH)/bin/python -m pip install -qq --no-compile --disable-pip-version-check --constraint constraints.txt \
	  -e '.[plots,onnx,autoattack,timm]' foolbox adversarial-robustness-toolbox
	@$(BENCH)/bin/python -m pip install -qq --no-compile --disable-pip-version-check --no-deps torchattacks
	@touch $@

bench: $(BENCH)/.done ## against the peers, in docs/benchmarks.md (hours; QUICK=1: a quarter of an hour)
	@$(BENCH)/bin/python benchmarks/peers.py measure $(if $(QUICK),--quick --rounds 2)
	@$(BENCH)/bin/python benchmarks/peers.py growth $(if $(QUICK),--rounds 1)
	@$(BENCH)/bin/python benchmarks/peers.py page

lint: setup ## style and common mistakes
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup ## static types
	@$(BIN)/pyright

format: setup ## rewrite the files in the house style
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

constraints: setup ## pin the versions that are installed now
	@$(BIN)/python scripts/freeze_constraints.py

# twine is needed here only; nothing is uploaded.
dist: setup ## the wheel and the sdist, in dist, checked
	@rm -rf dist
	@$(PIP) twine
	@$(BIN)/python -m hatchling build
	@$(BIN)/python -m twine check --strict dist/*

clean: ## remove .venv and everything generated
	rm -rf $(VENV) $(BENCH) build dist demo .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
