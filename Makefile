# Everything a person or CI does with this repository. `make demo` and `make test` need nothing but Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test quick lint compat docs recipes picture wheel bench bench-accuracy rules clean

# Without bytecode, pip is faster. Python compiles a module when it is first imported, and must be allowed to keep the result.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt

setup: $(VENV)/.ready

# The demo does not wait for what only the tests need, which is most of it.
$(VENV)/.demo: pyproject.toml constraints.txt
	@echo "Installing torch, Legroom and its dependencies into $(VENV). This takes a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e ".[demo]"
	touch $@

$(VENV)/.ready: $(VENV)/.demo
	@echo "Installing what the tests need into $(VENV). This takes a few minutes."
	$(PIP) -e ".[dev]"
	touch $@

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

# One worker more than cores, because some tests wait for processes, and at most 8: each worker needs about 1 GiB. A worker takes
# over the waiting tests of another one.
WORKERS := $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((cores < 7 ? cores + 1 : 8)))
test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests

# About 90 seconds on two cores: style of changed files, types, and the fast unit tests. Types are checked at the same time as the tests.
QUICK := -m "not slow and not ranks and not ray and not browser" tests/unit
quick: setup
	@files=$$(git diff --name-only --diff-filter=d HEAD -- '*.py'; git ls-files --others --exclude-standard '*.py'); \
		test -z "$$files" || { $(BIN)/ruff check $$files && $(BIN)/ruff format --check $$files; }
	@$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -n 2 -q $(QUICK); tests=$$?; wait $$types && exit $$tests

# The quick tests with another release of torch: `make compat TORCH=2.6`.
COMPAT = build/torch-$(TORCH)
compat:
	@test -n "$(TORCH)" || { echo "Which torch? For example: make compat TORCH=2.6"; exit 2; }
	test -d $(COMPAT) || $(PYTHON) -m venv $(COMPAT)
	grep -vE '^(torch|sympy)==' constraints.txt > $(COMPAT)/constraints.txt
	$(COMPAT)/bin/pip install --quiet --disable-pip-version-check -c $(COMPAT)/constraints.txt "torch==$(TORCH).*" ".[test]"
	$(COMPAT)/bin/pip uninstall --quiet --yes legroom
	PYTHONPATH=src $(COMPAT)/bin/python -m pytest -n 2 -q -p no:cacheprovider $(QUICK)

# The documentation site, in build/site. Fails for a link or an anchor that does not exist.
docs: $(VENV)/.demo
	$(PIP) -e ".[docs,lint]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir build/site

# Records the programs in examples/recipes and draws the pictures of their pages. `make recipes ONLY=empty_cache` draws one.
recipes: setup
	$(BIN)/python docs/recipe_pictures.py $(ONLY)

# Draws the report in the README.
picture: setup
	$(BIN)/python docs/terminal_picture.py docs/images/oom.svg legroom run --gpu 384MiB examples/digits_cnn.py --batch-size 256

# Builds the wheel and the sdist in dist/, and runs the commands of each in a new environment.
wheel:
	rm -rf dist build/fresh
	$(PYTHON) -m build --outdir dist
	$(PYTHON) .github/recompress_wheel.py dist/*.whl
	@test $$(wc -c < $$(echo dist/*.whl)) -lt 3500000 || { echo "The wheel has 3.5 MB or more."; exit 1; }
	for file in dist/*.whl dist/*.tar.gz; do \
		$(PYTHON) -m venv --clear build/fresh && \
		build/fresh/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $$file && \
		(cd build/fresh && bin/legroom --version && bin/legroom --help && bin/legroom doctor) || exit 1; \
	done

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The quick measuring programs. `python -m bench --list` lists all of them.
bench: setup
	$(BIN)/python -m bench

# Accuracy cases are traced with the library versions that they were measured with. Those are installed into their own folder,
# because the tests use a newer transformers.
PACKAGES := build/bench-packages
$(PACKAGES)/.ready: bench/requirements.txt $(VENV)/.ready
	rm -rf $(PACKAGES)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(PACKAGES) -r $<
	touch $@

# All measured cases and other estimators: about two hours on two cores. If interrupted, it continues from the saved rows of the same commit.
# `make bench-accuracy CASES=reference` runs one set (about eight minutes) and does not change docs/accuracy.md.
JOBS ?= 2
ROWS = build/accuracy-$(shell git rev-parse --short HEAD).jsonl
bench-accuracy: $(PACKAGES)/.ready
	PYTHONPATH=$(PACKAGES) HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m bench.accuracy.peaks --jobs $(JOBS) --rows $(ROWS) \
		--peers build/other-estimators.jsonl $(if $(CASES),$(addprefix --cases ,$(CASES)),--write docs/accuracy.md)

# Rebuilds the tables and models of cuda_rules from recordings; steps without recordings are skipped with the command that records them.
# See bench/rules/README.md. `make rules CHECK=1` writes nothing and fails if a rebuilt file differs.
rules: setup
	$(BIN)/python -m bench.rules.rebuild $(if $(CHECK),--check)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
