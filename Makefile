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

# Needs torchvision beside transformers for all cases; says which it leaves out. About an hour on two cores: broken off, it goes on
# where it was, as long as the code is the same.
ROWS = build/accuracy-$(shell git rev-parse --short HEAD).jsonl
bench-accuracy: setup
	$(PIP) -e ".[bench]"
	$(BIN)/python -m bench.accuracy --peers --jobs 2 --rows $(ROWS) --write docs/accuracy.md

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
