# `make help` lists the targets. Each also works as plain commands in any environment that has the requirements: pip,
# dvc, pytest, python -m pipeline.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:
.SUFFIXES:
.DELETE_ON_ERROR:
.PHONY: help setup doctor repro notebooks quick test test-avx2 test-all campaign-kills campaign-fuzz campaign-verify campaign-scale audit check viz docs bench clean lock lower-bounds preset

PYTHON ?= python3
STAGES := prepare finetune extract reduce filter train report
STAMP := .venv/.installed

# All recipes and the commands in dvc.yaml run in .venv, whatever environment the caller has activated. If Python wrote no
# compiled files, each process would compile the project again.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/.venv/bin:$(PATH)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install; again if the requirements change

doctor: setup ## check the installation, repair the files of a killed DVC, and print a fix for each mismatch
	@python -m pipeline doctor

repro: setup ## run the stages of params.yaml that are not up to date
	@python -m pipeline validate
	@python -m pipeline repair
	@dvc repro
	@python -m pipeline check-lock
	@echo "report: $(CURDIR)/data/report/report.html"

# Without JupyterLab's requests to the network: news, updates, extensions.
notebooks: setup ## open the notebooks in JupyterLab
	@jupyter lab --LabApp.news_url=None --LabApp.extension_manager=readonly \
	  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate notebooks

viz: setup ## browse the embeddings and try other radii, in a browser
	@python -m viz

# Without its banner about the next version of mkdocs.
docs: setup ## build README.md and docs/ as a site that works offline, into .work/site
	@python docs/tooling/params_page.py
	@python docs/tooling/refusals_page.py
	@python docs/tooling/reliability_counts.py
	@NO_MKDOCS_2_WARNING=1 mkdocs build --quiet
	@echo "site: $(CURDIR)/.work/site/index.html"

preset: setup ## NAME=cifar10 writes params.yaml from presets/; PRECISION=bf16 for a GPU; without NAME lists them
	@python -m pipeline preset $(NAME) $(if $(PRECISION),--precision $(PRECISION))

# All tests of a file run in one process, because they share fixtures. Two processes share two cores: for tiny batches a
# second thread of each costs more than it gains, and threads that wait by spinning take the core from others. With
# another worker in the place of a crashed one pytest-xdist 3.8 waits forever (its issues 1323 and 1378).
PYTEST := OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# tests/fixtures/changed.py selects the files, tests/fixtures/needs.py sets the marks. Contract tests are included.
quick: setup ## a minute of tests of the files that differ from the last commit
	@$(PYTEST) --changed -m "not slow and not subprocess and not browser"

test: setup ## the fast tests
	@$(PYTEST)

# torch and oneDNN then round as on a processor without AVX-512. So does MKL on Intel; on AMD it ignores the variable.
AVX2 := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2

CPUINFO := /proc/cpuinfo
NUMERIC := distributed training models optim runs run_analysis

test-avx2: setup ## the numeric tests and all canonical runs, as on a processor without AVX-512
	@if grep -qw avx512f $(CPUINFO); then $(AVX2) $(PYTEST) tests/integration/distributed $(NUMERIC:%=tests/unit/%); \
	  else echo "no AVX-512 here: \`make test\` runs the numeric tests as this would"; fi
	@$(AVX2) pytest -q -m slow -k all_runs tests/unit/training/test_canonical_runs.py

# Slow tests wait for processes of their own much of the time, so three share two cores.
test-all: setup ## all tests, including the slow ones
	@$(PYTEST) -n 3 -m ""

# Takes an hour or more on two cores; KILL_SEED chooses other moments.
campaign-kills: setup ## kill `make repro` on a tiny project 200 times at random, and searches and exports 20 times each; the result must be the same
	@KILLS=200 pytest -m "" tests/integration/faults/test_dvc_kills.py tests/integration/faults/test_tune_kills.py tests/integration/faults/test_export_kills.py

# Takes half an hour on a core.
campaign-fuzz: setup ## change bytes and values of every kind of input 5,000 times; no reader may end in a traceback
	@FUZZ=5000 pytest -q --timeout 0 tests/integration/faults/test_fuzzed_readers.py tests/integration/faults/test_fuzzed_tables.py

# Takes four minutes on a core.
campaign-verify: setup ## forge 200 projects in ten ways, and make 100 honest ones; verify must name the forged ones alone
	@FORGED_PER_KIND=20 pytest -q -s -m slow tests/unit/commands/verify/test_retraining_campaign.py

# Takes three hours or more on two cores, and 4 GB of memory.
campaign-scale: setup ## 200,000 images of 1,000 classes, a report of 10,000 runs, two soaks of an hour each
	@IMAGES=200000 CLASSES=1000 SOAK=3600 pytest -s -m "" tests/integration/faults/test_scale.py

audit: setup ## look up known vulnerabilities of the packages in requirements.lock; needs the network
	@python -m venv .work/audit
	@.work/audit/bin/python -m pip install --quiet pip-audit
	@.work/audit/bin/pip-audit --requirement requirements.lock --no-deps --disable-pip --strict

check: setup ## lint, format and types
	@ruff check .
	@ruff format --check .
	@mypy

# Programs that take --data read the pipeline's output, and others require arguments; some run for hours. Modules without
# `main` are no programs.
bench: setup ## measure: the programs in benchmarks/ that need no --data and no other arguments
	@for file in $$(grep -l '^def main' benchmarks/[a-z]*.py | xargs grep -LE '"--data"|required=True'); do \
	  echo "== $$file"; python -m "benchmarks.$$(basename "$$file" .py)" || exit 1; done

# Only ignored files inside the stages' own folders: overrides.csv, params.yaml and images stay.
clean: ## delete the outputs of the stages and .work; asks first (YES=1: without asking)
	@git clean -ndX -- $(STAGES:%=data/%) data/recursive .work
	@[ -n "$(YES)" ] || { printf 'Delete these? [y/N] '; read -r answer && [ "$$answer" = y ]; } \
	  || { echo 'nothing deleted'; exit 1; }
	@git clean -qfdX -- $(STAGES:%=data/%) data/recursive .work
	@echo 'deleted; `dvc repro` takes finished stages from .dvc/cache, `dvc repro --force` runs them again'

lock: setup ## write requirements.lock again from pyproject.toml
	@command -v uv > /dev/null || python -m pip install --quiet uv
	@uv pip compile --quiet --universal --python-version 3.11 --extra all pyproject.toml -o requirements.lock

# Tests of code that computes, reads and writes. Old packages raise deprecation warnings about newer packages.
LOWER_TESTS := unit/optim unit/models unit/training unit/runs unit/run_analysis unit/test_live.py unit/features unit/reduction \
  unit/scoring unit/reporting unit/artifacts unit/config unit/viz unit/tuning unit/batchsieve unit/test_arms.py unit/test_errors.py unit/test_parallel.py \
  unit/benchmarks/test_pruning_rules.py unit/benchmarks/test_label_noise_detection.py \
  unit/commands/test_repair.py unit/commands/test_tune.py unit/simulator/test_machine.py integration/stages \
  integration/notebooks
EXTRAS := stages viz notebooks cleanlab tuning datasets docs dev

lower-bounds: setup ## run most fast tests with every requirement at its lower bound, in a separate environment
	@command -v uv > /dev/null || python -m pip install --quiet uv
	@uv venv --quiet --clear --python 3.11 .work/lower-bounds
	@uv pip install --quiet --python .work/lower-bounds/bin/python --resolution lowest-direct \
	  $(EXTRAS:%=--extra %) -r pyproject.toml
	@.work/lower-bounds/bin/python -m pytest -W default::DeprecationWarning $(LOWER_TESTS:%=tests/%)

# pip compiles 20,000 files on one core; here all cores do. Some packages ship files that are no Python of today.
$(STAMP): pyproject.toml requirements.lock | .venv/bin/python
	@python -m pip install --no-compile --disable-pip-version-check --no-input -c requirements.lock -e '.[all]'
	@python -m compileall -q -j 0 .venv/lib > /dev/null 2>&1 || true
	@touch $@

# A half-made .venv would look finished to the next run.
.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'error: $(PYTHON) is missing or older than 3.11: make setup PYTHON=<a newer one>' >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null \
	  || { echo 'error: $(PYTHON) cannot make environments: install python3-venv, or make setup PYTHON=<another>' >&2; exit 2; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 2; }
