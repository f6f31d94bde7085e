# Each target works alone on a fresh machine: the environment is made first, where it is missing or out of date.
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

setup: $(READY)  ## make .venv with the tested versions (PYTHON=python3.12, TORCH=cpu, pypi or your index)

# Whoever names a build of torch or an interpreter wants it now, also where .venv is up to date.
ifneq ($(and $(filter setup,$(MAKECMDGOALS)),$(TORCH)$(filter command,$(origin PYTHON))),)
.PHONY: $(READY)
endif

$(READY): pyproject.toml constraints.txt
	@PYTHON=$(PYTHON) scripts/debian.sh venv
	@$(PYTHON) scripts/make_venv.py
	@scripts/debian.sh gl || true  # all but rendering works without
	@touch $@

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(READY)  ## mypy
	$(BIN)/mypy mcurl_torchrl

docs: $(DOCS_READY)  ## the documentation site in build/docs/site; a warning or a dead link is an error
	$(BIN)/python scripts/build_docs.py

docs-serve: $(DOCS_READY)  ## the same at localhost:8000, made again whenever a page changes
	$(BIN)/python scripts/build_docs.py --serve

$(DOCS_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

# Files in the order of the folders, which ends with short ones. By itself xdist puts those of few tests last, such as
# whole trainings, and then one worker waits for another.
SHARING := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
test: $(READY)  ## the fast tests and the docstrings' examples (PYTEST_ARGS="-k crop" picks)
	$(BIN)/pytest $(SHARING) --doctest-modules mcurl_torchrl tests --durations=10 $(PYTEST_ARGS)

test-slow: $(CLUSTER_READY)  ## the tests that take minutes
	$(BIN)/pytest -m slow -s --timeout 3600 $(PYTEST_ARGS)

$(CLUSTER_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cluster]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps hydra-ray-launcher==1.2.2
	@touch $@

mutants: $(READY)  ## break the code in named ways and see that a named test notices each
	$(BIN)/pytest -n auto -m slow tests/test_mutants.py $(PYTEST_ARGS)

DEMO_ENV_STEPS ?= 40000
demo: $(READY)  ## train M-CURL on cartpole-swingup at CPU sizes; leaves curve.png and videos/ (Ctrl-C saves)
	@scripts/debian.sh gl
	$(BIN)/python recipes/sac_mcurl.py env=cartpole-swingup preset=cpu total_env_steps=$(DEMO_ENV_STEPS) \
		evaluation.interval_env_steps=10000 evaluation.episodes=5 $(DEMO_ARGS)

bench: $(READY)  ## measure what the docs claim, half an hour; the released code needs clones: see docs/performance.md
	$(BIN)/python benchmarks/replay.py --json benchmarks/results/replay.json
	$(BIN)/python benchmarks/learner.py --json benchmarks/results/learner.json --plot docs/learner.png
	$(BIN)/python benchmarks/end_to_end.py --json benchmarks/results/end_to_end.json --plot docs/end_to_end.png
	$(BIN)/python benchmarks/performance.py

clean:  ## remove caches and build outputs; .venv stays
	rm -rf build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
