# Two commands on a fresh machine: `make run` and `make test`. `make help` lists the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
DOCS := $(VENV)/.installed-docs
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-compile -c constraints.txt
DATABASE := sqlite:///outputs/mlflow.db
PORT ?= 5000
GRAPHS ?= outputs/compare/runs
ARGS ?=
JOBS ?= logical
# A run and the tests start many processes, and each would compile what it imports where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal
EXPERIMENTS ?= table_6_3 figure_5_2 figure_5_3 figure_4_2 figure_4_3 figure_6_1 alpacomm_table_1 alpacomm_table_2 alpacomm_figure_5 table_6_4 table_6_4_models table_6_4_chosen ablation scaling convergence

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev docs run partition simulate reproduce convergence sweep bench bench-runtime fidelity train test test-all lint format report ui pictures clean clean-all

help:  ## List these commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## Install into .venv what the commands need; does nothing when that is up to date

setup-dev: $(DEV) $(DOCS)  ## Install also what tests, checks, adapters and pages need

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "NetSplit needs Python 3.11 or newer, and '$(PYTHON)' is not: say which to use, as in 'make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12'." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	$(BIN)/python -c 'import netsplit, matplotlib.pyplot, mlflow, numba, ortools.sat.python.cp_model, sklearn.datasets, torchvision.models'
	@touch $@

# Tests run in many processes, each of which would compile by numba what is not compiled yet.
$(DEV): $(STAMP)
	$(INSTALL) -e '.[dev]'
	$(BIN)/python -c "from netsplit.partition.compile_all import compile_all; compile_all()"
	@touch $@

$(DOCS): $(STAMP)
	$(INSTALL) -e '.[docs]'
	@touch $@

run: $(STAMP)  ## Compare the methods of the default experiment; ARGS="model=... epochs=1" changes it
	$(BIN)/python -m runners.compare $(ARGS)

partition: $(STAMP)  ## Plan a profiled graph file; ARGS="graph=<file> cluster=mixed3 explain=true"
	$(BIN)/python -m runners.partition $(ARGS)

simulate: $(STAMP)  ## Predict an iteration of a graph file; ARGS="graph=<file> schedule=1f1b show_program=true"
	$(BIN)/python -m runners.simulate $(ARGS)

bench: $(STAMP)  ## Every partitioner on every graph file of a folder; GRAPHS=<folder> ARGS="--time-limit 60"
	$(BIN)/python -m benchmarks.partitioners --graphs $(GRAPHS) $(ARGS)

bench-runtime: $(STAMP)  ## Speed of training beside one device, the ideal and torch's pipelining; ARGS="--quick"
	$(BIN)/python -m benchmarks.runtime $(ARGS)

fidelity: $(STAMP)  ## Predicted against measured seconds and bytes; ARGS="--quick"
	$(BIN)/python -m benchmarks.fidelity $(ARGS)

train: $(STAMP)  ## Train with one method; ARGS as for run
	$(BIN)/python -m runners.train $(ARGS)

test: $(DEV)  ## Run the tests, without the slow ones; ARGS="-k digits" chooses, JOBS=0 takes one process
	$(PYTEST) $(ARGS)

test-all: $(DEV)  ## Run all tests
	$(PYTEST) -m "slow or not slow" $(ARGS)

lint: $(DEV)  ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV)  ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reproduce: $(STAMP)  ## The thesis's tables and pictures, one after another, then the report; EXPERIMENTS="table_6_3 ..."
	@failed=; for name in $(EXPERIMENTS); do \
	  command=runners.compare; test ! -f reproduce/conf/experiment/$$name.yaml || command=reproduce; \
	  echo "== $$name: python -m $$command experiment=$$name"; \
	  $(BIN)/python -m $$command experiment=$$name $(ARGS) || failed="$$failed $$name"; \
	  test $$name != convergence || $(BIN)/python -m benchmarks.torch_ddp || failed="$$failed torch_ddp"; \
	done; \
	$(BIN)/python -m runners.report; \
	test -z "$$failed" || { echo "Not reproduced:$$failed; each says why above." >&2; exit 1; }

convergence: $(STAMP)  ## NetSplit's training beside data parallelism's, ours and PyTorch's, on two workers
	$(BIN)/python -m runners.compare experiment=convergence $(ARGS)
	$(BIN)/python -m benchmarks.torch_ddp

sweep: $(DEV)  ## Search micro-batches and schedule; ARGS="cluster=titan_rtx5 model=vgg19 dataset=synthetic"
	$(BIN)/python -m runners.compare --multirun hydra/sweeper=optuna partitioner=[auto] \
	  schedule=gpipe,1f1b,zb_h1 schedule.microbatches=2,4,8 $(ARGS)

report: $(STAMP)  ## Recorded comparisons and studies as one page, outputs/report.html; ARGS="runs=3"
	$(BIN)/python -m runners.report $(ARGS)

ui: $(STAMP)  ## Show the recorded runs in a browser; PORT=5000
	exec $(BIN)/netsplit ui --port $(PORT) --database $(DATABASE)

docs: $(DOCS)  ## Build the pages of docs/, with tutorial and reference, to site/index.html; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

pictures: $(DEV)  ## Make the pages' pictures anew, in minutes; those of a browser need Chromium
	NETSPLIT_PICTURES=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -rs tests/docs/test_pictures.py

clean:  ## Remove outputs and caches
	rm -rf outputs multirun mlruns site build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +

clean-all: clean  ## Remove .venv too
	rm -rf $(VENV)
