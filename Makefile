# make tune    tune this machine: configs/llm.yaml on a GPU, configs/cpu.yaml without one
# make test    lint, types, layers and tests, in an environment made from scratch; prints what a call costs above its plan
# make test-thorough   the tests of both tiers: `make test` leaves out those that repeat what quicker ones guard, or take long
# make test-gpu  the tests of a GPU in rounds: ARGS="ROUND --seconds 600 --reports FILE"; a second call goes on
# make lint    the checks alone
# make sizes   layers, files per folder, the longest files and functions, lines of code
# make docs    the page of the command line, and the documentation as a site, built strictly into build/site
# make bench   what the README's numbers come from
#
# Everything happens in .venv, made anew only when pyproject.toml changes. PYTHON chooses the interpreter (3.11 or newer).

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# SHAPES=configs/llm.yaml, OP=softmax, ARGS="--budget 10" narrow `make tune`
SHAPES ?= $(shell $(BIN)/python -c 'import torch; print("configs/llm.yaml" if torch.cuda.is_available() else "configs/cpu.yaml")')
JOBS   ?= 2
# a third of the time tests wait for processes, locks and naps
TESTERS ?= 3
# by what tests share: tests/sharing.py says what goes together, and in which order
SHARED  = -n $(TESTERS) --dist loadscope --no-loadscope-reorder

# what no test imports, or few do: half of the sources in the environment, which Python compiles when they are imported
SELDOM  = /tests/|/testing/_internal/|/(alembic|optuna|sqlalchemy|sympy)/testing/|/(huggingface_hub|transformers)/cli/
SELDOM := $(SELDOM)|/transformers/(exporters|models|pipelines|(testing_utils|trainer|training_args)\.py)|/huggingface_hub/inference/
SELDOM := $(SELDOM)|/ray/(air|autoscaler|dashboard|data|llm|rllib|scripts|serve|thirdparty_files|train|tune)/
SELDOM := $(SELDOM)|/ray/(_private/(runtime_env/agent|thirdparty/pynvml)|experimental/sandbox|util/(collective|dask|spark|state))/
SELDOM := $(SELDOM)|/sympy/(categories|codegen|crypto|diffgeom|holonomic|liealgebras|parsing/(autolev|latex)|physics|stats|vector)/
SELDOM := $(SELDOM)|/(benchmarks?|hipify|tensorboard|vendored_templates)/|/torch/(_vendor|ao/(ns|pruning)|backends/_nnapi|profiler/_cuspy)/
SELDOM := $(SELDOM)|/torch/distributed/(_tools|flight_recorder|optim|pipelining)/|/sqlalchemy/(dialects/(mssql|mysql|oracle)|ext/asyncio)/
SELDOM := $(SELDOM)|/(accelerate/test_utils|fsspec/implementations|hypothesis/extra|numpy/(distutils|f2py)|optuna/visualization)/
SELDOM := $(SELDOM)|/(babel|backrefs|cffi|cu12|dateutil|distlib|functorch|identify|liger_kernel|llvmlite|markdown|markdown_it)/
SELDOM := $(SELDOM)|/(material|mkdocs|mypyc?|numba|pip|playwright|pre_commit|pycparser|pydantic/v1|pygments/lexers|pymdownx)/
SELDOM := $(SELDOM)|/(python_discovery|rich/_unicode_data|setuptools|tomlkit|torchgen|virtualenv|watchdog)/

.PHONY: tune test tests test-thorough test-gpu lint style types sizes bench docs clean

tune: $(STAMP)
	$(BIN)/tune --shapes $(SHAPES) $(addprefix --op ,$(OP)) $(ARGS)

# threads that wait for one another do not spin: there are no cores to spare
test tests test-thorough: export OMP_WAIT_POLICY = PASSIVE
# the tests start a hundred processes of ours: modules are compiled once, before several would, whatever the shell asks for
test tests test-thorough: export PYTHONDONTWRITEBYTECODE =
# types and tests at once: mypy is one process here, and tests leave an eighth of two cores idle
test: style
	$(BIN)/python -m compileall -q -j $(JOBS) registry kernel_registry tuning_db plugins benchmarks
	$(MAKE) --no-print-directory --jobs 2 types tests
	$(BIN)/python -m benchmarks.dispatch_overhead --device cpu --rounds 3 --calls --op softmax

tests: $(STAMP)
	$(BIN)/pytest $(SHARED)

test-thorough: $(STAMP)
	$(BIN)/pytest $(SHARED) --thorough

test-gpu: $(STAMP)
	$(BIN)/python -m tests.gpu.rounds $(ARGS)

lint: export MYPY_NUM_WORKERS = $(JOBS)
lint: style types

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

sizes: $(STAMP)
	$(BIN)/python -m benchmarks.sizes

bench: $(STAMP)
	$(BIN)/python -m benchmarks

docs: export NO_MKDOCS_2_WARNING = 1
docs: $(STAMP)
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# the project once more: Ray has a script named tune, too, and the last one written stays
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[cuda]' --group dev
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --reinstall-package kernel-registry --editable .
	-$(BIN)/python -m compileall -qq -j $(JOBS) -x '$(SELDOM)' $(VENV)/lib
	touch $@
