# `make demo`, `make demo-nn` and `make test` need only python3 (3.11 or newer) and make: what else
# they use is installed into a private environment, $(VENV), the first time.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Two workers share the cores: threads of BLAS would only get in each other's way.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal
# Most of a fast test's time is compilation, a third of it by LLVM's optimiser, whose programs run
# a few times only. The slow tests are compiled as users compile.
QUICK := JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(PYTEST)
LAWS := law or hypothesis

.PHONY: demo demo-nn test test-but-laws slow laws-slow laws-x64 laws-many lint types layers docs benchmarks clean

demo: $(VENV)/package.stamp  ## fit and forecast real data, drawn to demo.png
	$(BIN)/linmodels demo --out demo.png

demo-nn: $(VENV)/package.stamp  ## error bars for a network that reads digits, drawn to demo-nn.png
	$(BIN)/python -m linmodels_nn.demo --out demo-nn.png

test: $(VENV)/development.stamp  ## the fast tests, under four minutes
	$(QUICK) -m 'not slow'

test-but-laws: $(VENV)/development.stamp  ## the fast tests that are no laws
	$(QUICK) -m 'not (slow or $(LAWS))'

slow: $(VENV)/development.stamp  ## the tests that take longer than a few seconds
	$(PYTEST) -m slow

laws-slow: $(VENV)/development.stamp  ## every law at 200 examples
	LINMODELS_HYPOTHESIS_PROFILE=slow $(PYTEST) -m '$(LAWS)'

laws-x64: $(VENV)/development.stamp  ## every law again in 64 bit
	JAX_ENABLE_X64=1 $(QUICK) -m '($(LAWS)) and not slow'

laws-many: $(VENV)/development.stamp  ## every law at 10,000 examples: hours
	LINMODELS_HYPOTHESIS_PROFILE=many $(PYTEST) -m '$(LAWS)'

lint: $(VENV)/development.stamp
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(VENV)/development.stamp
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: $(VENV)/development.stamp
	$(BIN)/lint-imports

docs: $(VENV)/development.stamp  ## the site, into site/; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

benchmarks: $(VENV)/development.stamp
	set -e; for script in benchmarks/[a-z]*.py; do $(BIN)/python "$$script"; done
	set -e; for script in benchmarks/paper/[a-z]*.py; do \
	  $(BIN)/python -m "benchmarks.paper.$$(basename "$$script" .py)"; done
	$(BIN)/python -m benchmarks.paper.mnist

clean:
	rm -rf $(VENV) site demo.png demo-nn.png .pytest_cache .jax_cache .hypothesis .ruff_cache .import_linter_cache

$(VENV)/package.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || { \
	  echo "linmodels needs Python 3.11 or newer, but $(PYTHON) is" \
	    "$$($(PYTHON) --version 2> /dev/null || echo missing): make PYTHON=/path/to/python $(MAKECMDGOALS)" >&2; \
	  exit 1; }
	@echo "Installing linmodels into $(VENV): some minutes, once"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot make virtual environments: install its venv module" \
	    "(python3-venv on Debian and Ubuntu)" >&2; \
	  exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --editable '.[cli,plots]'
	@touch $@

$(VENV)/development.stamp: $(VENV)/package.stamp
	@echo "Installing the development tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --group dev
	@touch $@
