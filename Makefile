# make run, make test: each sets itself up in .venv; needs Python >= 3.11 and nothing else.
# make test-all adds the slow tests, make test-release the long ones before a release.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test test-all test-release docs outputs site lint format bench install clean

run: install
	$(BIN)/python -m experiments.run --config=configs/tpt48.py

test: lint
	$(BIN)/python -m pytest

test-all: lint
	$(BIN)/python -m pytest -m "not release"

test-release: lint
	$(BIN)/python -m pytest -m ""

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install
	$(BIN)/python -m graphfl_jax.configs.reference > docs/guide/settings.md

# What the commands print, on the pages that show it.
outputs: install
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python docs/site/outputs.py README.md docs/guide/recipes.md

# The pages as a site; open build/site/index.html.
site: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	$(BIN)/python -m mkdocs build --strict --site-dir build/site

bench: install
	$(BIN)/python -m experiments.bench --config=configs/tpt48.py

install: $(VENV)/installed

# Touched last, so that an interrupted installation is taken up again.
$(VENV)/installed: requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "graphfl_jax needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .ruff_cache
