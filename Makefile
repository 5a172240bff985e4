# Two commands do all the set-up: `make lab` to learn, `make test` to check. `make help` lists the rest.
# Every target goes through a stamp file, so the second run starts at once.

PYTHON ?= python3
VENV   ?= .venv
EXTRAS ?= dev,instructor
TORCH  ?= 2.13.0
ARGS   ?=
TESTS  ?=

PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check
# One for each choice of extras, so that `make setup EXTRAS=course,site` installs what an earlier choice left out.
STAMP  := $(VENV)/.installed-$(EXTRAS)
# Another torch than the one that is pinned is asked for by name: make unit TORCH=2.11.0 VENV=.venv-torch-2.11
PINS   := $(if $(filter command environment,$(origin TORCH)),$(VENV)/constraints.txt,constraints.txt)
LESSON := $(firstword $(sort $(wildcard notebooks/*.ipynb)))
BENCHMARKS := $(sort $(basename $(notdir $(filter-out %__init__.py,$(wildcard benchmarks/*.py)))) \
              $(patsubst benchmarks/%/__main__.py,%,$(wildcard benchmarks/*/__main__.py)))
# Four processes share the tests on two cores, since many wait for processes that they start. Two share the notebooks, where a cell is
# ended that takes many times what it should (seconds). The unit tests do without nbval, whose import takes seconds.
SHARED := -p no:nbval -n 4 --dist worksteal
NBVAL  := -p tests.forked_kernels --nbval --nbval-current-env --nbval-cell-timeout=400 --nbval-sanitize-with=tests/nbval_sanitize.cfg

# Containers run as root, where Jupyter asks for this flag; elsewhere it stays off.
ALLOW_ROOT := $(shell test "$$(id -u)" = 0 && echo --allow-root)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: lab test quick nightly setup lint types unit nbval gpu-test soak notebooks exercises site site-test lone dist one-click bench bench-env lock format clean distclean help

lab: $(STAMP)  ## set up, then open JupyterLab at the first lesson (ARGS=--no-browser on a headless machine)
	$(PY) -m jupyterlab $(ALLOW_ROOT) --ServerApp.jpserver_extensions=zerolab.course.lab=True --ServerApp.root_dir="$(CURDIR)" $(addprefix --LabApp.default_url=/lab/tree/,$(wildcard $(LESSON))) $(ARGS)

test: lint types unit nbval  ## set up, then lint, types, unit and rank tests, and the notebooks' outputs

quick: lint types  ## lint, types and the tests that a change touches, the nearest first, for 50 s (ARGS=--seconds=20)
	$(PY) tools/quick.py $(ARGS)

nightly: export ZEROLAB_NIGHTLY := 1
nightly: test  ## test, with all that a quicker choice stands for elsewhere: every lesson through nbgrader

setup: $(STAMP)  ## make .venv and install everything that lab and test need
	@echo "$(VENV) is ready."

lint: $(STAMP)  ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(STAMP)  ## mypy over the library
	$(PY) -m mypy zerolab

# Threads of torch that wait for work shall not take a core meanwhile (tests/conftest.py).
unit nbval quick: export OMP_WAIT_POLICY := PASSIVE
# Hundreds of processes import the library: what one compiles shall serve the next, also where images say otherwise.
unit nbval quick: export PYTHONDONTWRITEBYTECODE :=

unit: $(STAMP)  ## unit tests and rank tests (TESTS=tests/flat/test_flat.py for one file)
ifeq ($(TESTS),)
	$(PY) -m pytest $(SHARED) tests $(ARGS)
else
	$(PY) -m pytest $(TESTS) $(ARGS)
endif

nbval: $(STAMP)  ## run every lesson and solution, and compare each cell with its stored output
	@found=$$(find notebooks solutions -name '*.ipynb' -not -path '*/.ipynb_checkpoints/*' 2>/dev/null | sort); \
	if [ -z "$$found" ]; then echo "nbval: no notebook in notebooks/ or solutions/ yet, so there is nothing to compare."; \
	else echo "$(PY) -m pytest -n 2 --dist loadfile $(NBVAL)" $$found; $(PY) -m pytest -n 2 --dist loadfile $(NBVAL) $$found && $(PY) tools/compared.py $$found; fi

gpu-test: $(STAMP)  ## on a machine with GPUs: hold all stages to DDP and FSDP2 there, and write a report to paste into an issue (ARGS='--only memory')
	@PYTHONPATH="$(CURDIR)/tests" $(PY) -m gpucheck $(ARGS)

soak: $(STAMP)  ## kill, interrupt and starve the commands at 200 random moments (ARGS='--moments 50 --seed 1'), train 1,000 fuzzed nets (NETS=100), and run 10,000 collectives and 1,000 killed saves (MINUTES=5); hours
	$(PY) tools/soak.py $(ARGS)
	$(PY) tests/zero/zero_fuzz.py --nets $(or $(NETS),1000)
	$(PY) tests/checkpoint/soak_ranks.py --launches $(or $(LAUNCHES),1000) --saves $(or $(SAVES),1000) $(if $(MINUTES),--minutes $(MINUTES))

notebooks: $(STAMP)  ## build the notebooks from their texts, run them and store their outputs
	$(PY) -m zerolab.course.notebooks $(ARGS)

exercises: $(STAMP)  ## build notebooks from their texts and run nothing; an exercise that somebody has worked in is refused
	$(PY) -m zerolab.course.notebooks --no-run $(ARGS)

site: $(STAMP)  ## build the course as static pages in build/site, from the stored outputs
	@$(PIP) install --quiet -c $(PINS) -e '.[$(EXTRAS),site]'
	@$(PY) docs/site/build.py

site-test: site  ## build the site and look at it in Chromium: widths, texts, weight, links, scenes
	$(PY) -m pytest -p no:nbval tests/house/test_site.py tests/house/test_site_browser.py $(ARGS)

lone: $(STAMP)  ## notebooks that install the library themselves, in build/lone (ZEROLAB_REPOSITORY=https://github.com/OWNER/NAME)
	@$(PY) docs/site/oneclick.py

dist: $(STAMP)  ## wheel and sdist in dist/, looked at by twine
	@$(PIP) install --quiet -c $(PINS) -e '.[$(EXTRAS),site]'
	rm -rf dist
	$(PY) -m build
	$(PY) -m twine check --strict dist/*

one-click: $(STAMP)  ## install the built wheel in a fresh environment and run a lone lesson there; minutes
	$(PY) tools/one_click.py $(ARGS)

format: $(STAMP)  ## let ruff fix and format what it can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(STAMP)  ## run every benchmark; each says its method (peers that are not installed are left out; see bench-env)
	@set -e; for name in $(BENCHMARKS); do echo "== benchmarks.$$name"; $(PY) -m benchmarks.$$name $(ARGS); done

# DeepSpeed's build imports torch, so it must see the one in .venv instead of a build environment of its own.
bench-env: $(STAMP)  ## add the peers that the benchmarks measure: DeepSpeed and transformers
	$(PIP) install --quiet -c constraints.txt setuptools wheel
	$(PIP) install --quiet -c constraints.txt --no-build-isolation -e '.[$(EXTRAS),bench]'

lock:  ## resolve every extra anew and rewrite constraints.txt and environment.yml (TORCH=2.13.0)
	$(PYTHON) tools/lock.py --torch $(TORCH)

clean:  ## remove caches and outputs; .venv stays
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist out *.egg-info
	find . -path ./$(VENV) -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -print | xargs rm -rf

distclean: clean  ## clean, and remove .venv as well
	rm -rf $(VENV)

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The stamp is older than either file after a change, so the next target installs again.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || \
	  { echo "zerolab needs Python 3.11 or newer, but there is no '$(PYTHON)' on PATH: install one, or name it, as in 'make setup PYTHON=python3.12'."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "zerolab needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1): name a newer one, as in 'make setup PYTHON=python3.12'."; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "'$(PYTHON) -m venv $(VENV)' failed: install your system's venv package (python3-venv on Debian and Ubuntu) and try again."; exit 1; }
	@echo "Installing zerolab and its tools into $(VENV); the first time takes a minute or more."
	@test $(PINS) = constraints.txt || sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $(PINS)
	@$(PIP) install --quiet -c $(PINS) -e '.[$(EXTRAS)]'
	@touch $@
