# On a fresh machine with Python 3.11+, git and make:
#   make run    train FedAvg and FedNTD on images inside the package, compare them, write a report
#   make test   formatting, lint, types and tests
#   make test-flower   the tests of real federations, with Flower's processes
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := runs/demo

.PHONY: run test lint pytest test-flower format clean

run: $(VENV)/core
	@rm -rf $(DEMO)
	$(BIN)/fedntd run demo --set algorithm.name=fedavg --out $(DEMO)/fedavg
	$(BIN)/fedntd run demo --set algorithm.name=fedntd --out $(DEMO)/fedntd
	$(BIN)/fedntd compare $(DEMO)/fedavg $(DEMO)/fedntd
	$(BIN)/fedntd report $(DEMO)/fedavg $(DEMO)/fedntd --out $(DEMO)/report.html

test: lint pytest

# basedpyright is pyright packaged for pip alone, so that no other package index is needed
lint: $(VENV)/test
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/basedpyright --level error --pythonpath $(BIN)/python

# a process for each core, since more threads would be in their way; each begins with its own part of the files, so that
# what a file prepares is prepared once, and takes over tests of others when it is done
pytest: $(VENV)/test
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist worksteal

# four modules at a time, on two cores too, since a federation waits for its own processes a lot
test-flower: $(VENV)/test
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/flower src/fedntd/flower \
	  --numprocesses 4 --dist loadscope --no-loadscope-reorder

format: $(VENV)/test
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/test: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test,flower-simulation]'
	@touch $@ $(VENV)/core

clean:
	rm -rf $(VENV) runs
