# Two commands from nothing: `make demo` and `make test`; `make docs` builds the documentation. Everything lives in .venv, the newest torch in .venv-newest.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := python -m pip install --quiet --disable-pip-version-check
PIP := $(BIN)/$(INSTALL) --constraint constraints.txt
NEWEST := .venv-newest
CHOSEN := -m "not soak and not gpu"

.PHONY: demo test check lint types unit docs newest test-newest soak test-gpu tree clean

# The pinned torch goes in first: a plain `torch` would bring several gigabytes of GPU libraries.
.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) --editable .
	touch $@

.venv/ready-dev: .venv/ready
	$(PIP) --editable '.[dev]'
	touch $@

.venv: .venv/ready

demo: .venv/ready
	$(BIN)/manyhands compare glyphs

check: lint types

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready-dev
	$(BIN)/mypy

unit: .venv/ready-dev
	$(BIN)/python -m pytest $(CHOSEN)

# The documentation site in site/: a link or an anchor that leads nowhere ends the build. The variable hides an advertisement.
docs: .venv/ready-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: check docs unit

# Whatever torch a plain `pip install torch` brings, several gigabytes of it.
$(NEWEST)/brought:
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/$(INSTALL) torch
	$(NEWEST)/bin/python -m pip list --format freeze | sed 's/^\(.*\)==.*/^\1==/' > $@

# At every call the newest of today; all else as pinned. Only where that cannot be, what torch brought along goes unpinned.
newest: $(NEWEST)/brought
	$(NEWEST)/bin/$(INSTALL) --upgrade torch
	$(NEWEST)/bin/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > $(NEWEST)/torch
	grep -v '^torch==' constraints.txt | cat $(NEWEST)/torch - > $(NEWEST)/pinned
	grep -vif $(NEWEST)/brought constraints.txt | cat $(NEWEST)/torch - > $(NEWEST)/loose
	$(NEWEST)/bin/$(INSTALL) --constraint $(NEWEST)/pinned --editable '.[dev]' || \
		$(NEWEST)/bin/$(INSTALL) --constraint $(NEWEST)/loose --editable '.[dev]'

test-newest: newest
	$(NEWEST)/bin/python -c 'import torch; print("torch", torch.__version__)'
	$(NEWEST)/bin/python -m pytest $(CHOSEN)

# Minutes to an hour: fault matrices, thousands of collectives, many seeds.
soak: .venv/ready-dev
	$(BIN)/python -m pytest -m soak --timeout 3600

# Where a GPU is; uses the interpreter that is there (make test-gpu PYTHON=python3), whose torch may warn of other things.
test-gpu:
	PYTHONPATH=$(CURDIR)/src:$$PYTHONPATH $(PYTHON) -m pytest -m gpu tests/gpu tests/data/test_augment.py \
		-p no:cacheprovider -p no:benchmark -o filterwarnings=default

# One line per file in docs/architecture.md, from the docstrings.
tree: .venv/ready-dev
	$(BIN)/python -m tests.tree

clean:
	rm -rf .venv $(NEWEST) runs report.html site
