# Everything a person or CI does with this repository. `make demo` and `make test` need nothing but Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test lint bench bench-accuracy clean

PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

setup: $(VENV)/.ready

# The demo does not wait for what only the tests need, which is most of it.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e ".[demo]"
	touch $@

$(VENV)/.ready: $(VENV)/.demo
	$(PIP) -e ".[dev]"
	touch $@

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

test: setup
	$(BIN)/python -m pytest -n 2 tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m bench

# Cases are traced with the releases that they were measured with, which lie in a folder of their own: the tests have a newer transformers.
PACKAGES := build/bench-packages
$(PACKAGES)/.ready: bench/requirements.txt $(VENV)/.ready
	rm -rf $(PACKAGES)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(PACKAGES) -r $<
	touch $@

# All measured cases: some hours on two cores, other estimators among them. Broken off, it goes on where it was as long as the code is the same.
# `make bench-accuracy CASES=reference` has one set only (eight minutes of processor time) and leaves the page as it is.
JOBS ?= 2
ROWS = build/accuracy-$(shell git rev-parse --short HEAD).jsonl
bench-accuracy: $(PACKAGES)/.ready
	PYTHONPATH=$(PACKAGES) HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m bench.accuracy.peaks --jobs $(JOBS) --rows $(ROWS) \
		--peers build/other-estimators.jsonl $(if $(CASES),$(addprefix --cases ,$(CASES)),--write docs/accuracy.md)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
