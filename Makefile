# `make help` lists the targets. Needs Python 3.11 or newer, make and git; everything else is installed into $(VENV).

PYTHON ?= python3
VENV ?= .venv
# An extra package index: PyTorch's CPU index, say, to do without CUDA on Linux.
TORCH_INDEX ?=
# `make … CONSTRAINTS=` takes the newest versions of everything.
CONSTRAINTS ?= constraints.txt

PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PIP_OPTIONS := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
PORT ?= 8000
# How many processes share the tests; JOBS=0 keeps them in one, where a debugger works.
JOBS ?= 2
# `make experiments EXPERIMENTS=boyan-structured` runs one of them.
EXPERIMENTS ?=
# Options for `make lab`: LAB=--allow-root in a container, say.
LAB ?=

.DEFAULT_GOAL := help
.PHONY: help install book pdf test lint fix serve lab experiments screenshots weigh lighthouse links wheel pins clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

install: $(STAMP) ## make the environment and install the package, editable, with all extras

$(STAMP): pyproject.toml $(wildcard $(CONSTRAINTS))
	@test -x $(PY) || { $(PYTHON) tools/check_python.py && $(PYTHON) -m venv $(VENV); }
	@$(PY) tools/check_python.py
	$(PY) -m pip install $(PIP_OPTIONS) -e '.[book,gym,test,dev]'
	@touch $@

book: $(STAMP) ## run every chapter and build the site, strictly
	$(PY) tools/build_book.py

pdf: $(STAMP) ## print the whole book into _build/html/ictd.pdf; needs Chromium
	$(PY) tools/build_book.py --if-stale
	$(PY) tools/pdf.py

test: $(STAMP) ## run all tests; builds the site first if it is not current
	$(PY) -m pytest -m compile tests
	$(PY) -m pytest -n $(JOBS) --dist worksteal --cov --cov-fail-under=95

lint: $(STAMP) ## check style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) tools/chapters.py
	$(PY) -m mypy

fix: $(STAMP) ## mend what can be mended by machine
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(PY) tools/chapters.py --fix

serve: book ## build the site and serve it on this machine
	$(PY) -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

lab: $(STAMP) ## open the chapters as notebooks in JupyterLab
	JUPYTER_CONFIG_PATH=.jupyter $(PY) -m jupyterlab $(LAB) book

experiments: $(STAMP) ## pretrain what the chapter on emergence shows: hours, and it goes on where it stopped
	$(PY) tools/experiments.py $(EXPERIMENTS)

screenshots: book ## photograph every page: wide, narrow, dark
	$(PY) tools/screenshots.py

weigh: $(STAMP) ## list what every page loads, and when it can be used; needs Chromium
	$(PY) tools/build_book.py --if-stale
	$(PY) tools/weigh.py

lighthouse: $(STAMP) ## have Lighthouse judge three pages; fetches it, needs Chromium
	$(PY) tools/build_book.py --if-stale
	$(PY) tools/lighthouse.py

links: $(STAMP) ## ask every address that the book links to
	$(PY) tools/assets.py
	$(VENV)/bin/jupyter-book build . --builder linkcheck

wheel: $(STAMP) ## build the package and try it in an environment of its own
	rm -rf dist
	$(PY) -m build
	$(PY) tools/try_wheel.py $(PIP_OPTIONS)

pins: $(STAMP) ## write what is installed to constraints.txt
	$(PY) tools/pins.py

clean: ## remove what was built; the environment and the fetched assets stay
	rm -rf _build dist .coverage
