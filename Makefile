# Two commands from nothing: `make demo` and `make test`. Everything lives in .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check lint types unit soak test-gpu clean

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
	$(BIN)/python -m pytest -m "not soak and not gpu"

test: check unit

# Minutes to an hour: fault matrices, thousands of collectives, many seeds.
soak: .venv/ready-dev
	$(BIN)/python -m pytest -m soak --timeout 3600

# Where a GPU is; uses the interpreter that is there (make test-gpu PYTHON=python3), whose torch may warn of other things.
test-gpu:
	PYTHONPATH=src:$$PYTHONPATH $(PYTHON) -m pytest -m gpu tests/gpu tests/data/test_augment.py \
		-p no:cacheprovider -p no:benchmark -o filterwarnings=default

clean:
	rm -rf .venv runs report.html
