# make demo   quantize a trained model, run it stock and native, print a table
# make test   linters, type checker and tests; PYTEST_ARGS=--slow runs the slow ones too, TORCH=no leaves torch out;
#             make lint and make pytest do one half each
# Both make an environment in $(VENV) and install this checkout there.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= yes
PYTEST_ARGS ?=

bin = $(VENV)/bin
bootstrap = $(PYTHON) scripts/bootstrap.py $(VENV)
cxx_files = find runtime_ops benchmarks examples tests/runtime_ops \( -name '*.h' -o -name '*.c' -o -name '*.cc' \) -print0

.PHONY: demo test pytest lint environment mypy style format models clean python

demo: python
	@$(bootstrap)
	@$(bin)/python examples/quickstart.py

test: lint
	@$(MAKE) --no-print-directory pytest

# Without the plugins that happen to be installed: pytest would rewrite all of Hypothesis for its own in every process.
pytest:
	PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(bin)/python -m pytest -p xdist -n auto --dist worksteal $(PYTEST_ARGS)

lint: environment
	@$(MAKE) --no-print-directory -j 2 mypy style

environment: python
	@$(bootstrap) --dev $(if $(filter no,$(TORCH)),--no-torch)

# With the numpy that Python 3.10 has, types are other ones.
mypy:
	@if $(bin)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then $(bin)/mypy; else echo "mypy: NOT RUN, it needs Python 3.11"; fi

style:
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(cxx_files) | xargs -0 $(bin)/clang-format --dry-run --Werror

format: python
	@$(bootstrap) --dev --no-torch
	$(bin)/ruff check --fix .
	$(bin)/ruff format .
	$(cxx_files) | xargs -0 $(bin)/clang-format -i

models: python
	@$(bootstrap) --dev
	$(bin)/python models/make_models.py

clean:
	rm -rf build demo dist .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

python:
	@command -v $(PYTHON) >/dev/null || { echo "rnnqc: found no '$(PYTHON)'; install Python 3.10 or newer, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
