# `make demo` and `make test` do all the set-up on a fresh machine.
VENV ?= .venv
PYTHON ?= python3
# torch goes in first: the plain 'torch' of the package's dependencies may pull gigabytes of CUDA libraries.
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin

# `make notebooks SAVE=--save` keeps the outputs. The one on the real pair needs its folders: see its first cell.
NOTEBOOKS := $(filter-out examples/real_pair.ipynb,$(wildcard examples/*.ipynb))

.PHONY: demo test lint types dist notebooks

demo: $(VENV)/ready
	$(BIN)/hf-specgen demo

test: $(VENV)/ready
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/mypy

dist: $(VENV)/ready
	$(BIN)/python .ci/dist.py

notebooks: $(VENV)/ready
	$(BIN)/python .ci/notebooks.py $(SAVE) $(NOTEBOOKS)

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@
