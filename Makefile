# `make train` and `make test` need only Python and make; everything else is set up by them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest --numprocesses 2 --dist loadfile
READY := $(VENV)/.ready

.PHONY: browser setup train test test-promises test-slow check format bench docs clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

train: setup
	$(BIN)/remuda train treasurehunt

# What a newcomer waits for: every module, and every engine, learner, game and promise once.
test: setup
	$(PYTEST) -m "not slow and not promise"

# The promises in full: matrix, resume, faults and short chaos, Ray, adapters, hostile files, the board in a browser.
test-promises: setup browser
	$(PYTEST) -m "promise and not slow"

# Everything, with the slow ones.
test-slow: setup
	$(PYTEST)

# Chromium for the tests of the board: the system's, or else one from the package manager.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } || \
		echo "Chromium could not be installed: install it, or the tests of the board fail" >&2

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation site, without the network; a broken link or a page outside the table of contents is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Every benchmark that takes minutes; docs/benchmarks.md is written from what they print.
bench: setup
	$(BIN)/python -m benchmarks --record

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
