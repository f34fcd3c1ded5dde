# `make help` lists what there is. Nothing is needed beforehand but make and Python 3.11 to 3.13.

PYTHON ?=
TORCH_INDEX ?=
PYTEST_ARGS ?=
HYBRIDRL_SCALE ?= quick

ifeq ($(OS),Windows_NT)
  PY := .venv/Scripts/python.exe
else
  PY := .venv/bin/python
endif
READY := .venv/.ready
PIP := $(PY) -m pip --disable-pip-version-check --quiet
BOOK := $(PY) -c 'from jupyter_book.cli.main import main; main()' build . --all -W -n --keep-going

# The kernel and the console scripts must be this environment's, whatever else is active or installed.
export JUPYTER_PREFER_ENV_PATH := 1
export PYTHONNOUSERSITE := 1
export HYBRIDRL_SCALE

.DEFAULT_GOAL := help
.PHONY: help book test check smoke api strip accept serve clean lock

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z]+):.*## /make \1|/' | awk -F'|' '{printf "%-12s %s\n", $$1, $$2}'
	@echo
	@echo "HYBRIDRL_SCALE=smoke|quick|full   how much each notebook runs (now: $(HYBRIDRL_SCALE))"
	@echo "PYTHON=/path/to/python            the Python that makes .venv"
	@echo "TORCH_INDEX=URL                   take torch from this package index instead of the default one"
	@echo "PYTEST_ARGS='-k gae'              passed to pytest by make test"

book: $(READY) ## run every notebook on this machine and build the HTML book
	@$(BOOK)
	@echo "The book is at $(CURDIR)/_build/html/index.html"

test: check smoke ## everything that must pass: checks, the book at smoke scale, the tests
	@$(PY) -m pytest $(PYTEST_ARGS)

check: $(READY) ## lint, format, types, spelling
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -m codespell_lib

smoke: $(READY) ## run every notebook at the smallest scale, into build/smoke
	@rm -rf build/smoke
	@HYBRIDRL_SCALE=smoke $(BOOK) --path-output build/smoke

api: $(READY) ## write the API page of each new module
	@$(PY) book/_ext/api_pages.py

strip: $(READY) ## remove outputs from the notebooks, but for checked cells
	@$(PY) book/_ext/notebooks.py strip

accept: smoke ## store the new outputs of the notebooks' checked cells
	@$(PY) book/_ext/notebooks.py accept

serve: book ## build the book and serve it at http://127.0.0.1:8000
	@$(PY) -m http.server --bind 127.0.0.1 --directory _build/html 8000

clean: ## remove what was built (not .venv)
	rm -rf _build build dist .pytest_cache .mypy_cache .ruff_cache .coverage htmlcov

lock: $(READY) ## resolve requirements.lock again
	@$(PY) .ci/lock.py

# torch first and alone: its build differs by machine, and the lock must not replace the one chosen.
$(READY): requirements.lock pyproject.toml
	@if [ ! -x $(PY) ]; then found=; \
	for candidate in "$(PYTHON)" python3 python3.13 python3.12 python3.11 python; do \
	  if [ -n "$$candidate" ] && "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; \
	  then found="$$candidate"; break; fi; done; \
	if [ -z "$$found" ]; then \
	  echo "error: no Python 3.11, 3.12 or 3.13 (with venv and pip) was found; install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; fi; \
	echo "Making .venv with $$("$$found" --version)"; "$$found" -m venv .venv; fi
	@echo "Installing what requirements.lock names (once; minutes, most of them for torch)"
	@$(PIP) install --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $$(grep '^torch==' requirements.lock)
	@$(PIP) install -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@
