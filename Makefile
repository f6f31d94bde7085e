# Each target works on a fresh machine: it first creates or updates the environment if necessary.
PYTHON ?= python3
PYTEST_ARGS ?=
DEMO_ARGS ?=
BIN := .venv/bin
READY := .venv/.stamp
DOCS_READY := .venv/.docs-stamp
CLUSTER_READY := .venv/.cluster-stamp

.DEFAULT_GOAL := help
.PHONY: help setup lint type docs docs-serve test test-slow mutants demo bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(READY)  ## create .venv with the tested versions (options: PYTHON=python3.12, TORCH=cpu, TORCH=pypi, TORCH=INDEX)

# `make setup` with TORCH= or PYTHON= always runs, even if .venv is up to date.
ifneq ($(and $(filter setup,$(MAKECMDGOALS)),$(TORCH)$(filter command,$(origin PYTHON))),)
.PHONY: $(READY)
endif

$(READY): pyproject.toml constraints.txt
	@PYTHON=$(PYTHON) scripts/debian.sh venv
	@$(PYTHON) scripts/make_venv.py
	@scripts/debian.sh gl || true  # only rendering needs these packages
	@touch $@

lint: $(READY)  ## run ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(READY)  ## run mypy
	$(BIN)/mypy mcurl_torchrl

docs: $(DOCS_READY)  ## build the documentation site in build/docs/site; a warning or a dead link is an error
	$(BIN)/python scripts/build_docs.py

docs-serve: $(DOCS_READY)  ## serve the site at localhost:8000, and build it again when a file changes
	$(BIN)/python scripts/build_docs.py --serve

$(DOCS_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

# Test files run in the order of their folders, so that short files come last. By default xdist starts files with few
# tests last. Some of these are whole training runs, and the other workers would wait for them.
SHARING := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
test: $(READY)  ## run the fast tests and the examples of the docstrings (PYTEST_ARGS="-k crop" selects tests)
	$(BIN)/pytest $(SHARING) --doctest-modules mcurl_torchrl tests --durations=10 $(PYTEST_ARGS)

test-slow: $(CLUSTER_READY)  ## run the tests that take minutes
	$(BIN)/pytest -m slow -s --timeout 3600 $(PYTEST_ARGS)

$(CLUSTER_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cluster]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps hydra-ray-launcher==1.2.2
	@touch $@

mutants: $(READY)  ## test the tests: break the code in many ways; a test must fail each time
	$(BIN)/pytest -n auto -m slow tests/test_mutants.py $(PYTEST_ARGS)

DEMO_ENV_STEPS ?= 40000
demo: $(READY)  ## train M-CURL on cartpole-swingup at CPU sizes; writes curve.png and videos/ (Ctrl-C saves and stops)
	@scripts/debian.sh gl
	$(BIN)/python recipes/sac_mcurl.py env=cartpole-swingup preset=cpu total_env_steps=$(DEMO_ENV_STEPS) \
		evaluation.interval_env_steps=10000 evaluation.episodes=5 $(DEMO_ARGS)

bench: $(READY)  ## measure the numbers of docs/performance.md, half an hour (not those of the released code, which needs clones)
	$(BIN)/python benchmarks/replay.py --json benchmarks/results/replay.json
	$(BIN)/python benchmarks/learner.py --json benchmarks/results/learner.json --plot docs/learner.png
	$(BIN)/python benchmarks/learner.py --objectives --threads 1 --json benchmarks/results/objectives.json
	$(BIN)/python benchmarks/learner.py --sizes --threads 1 --json benchmarks/results/sizes.json
	$(BIN)/python benchmarks/end_to_end.py --json benchmarks/results/end_to_end.json --plot docs/end_to_end.png
	$(BIN)/python benchmarks/performance.py

clean:  ## remove caches and build outputs, but not .venv
	rm -rf build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
