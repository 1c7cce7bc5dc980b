# Two commands for a newcomer: `make demo` and `make test`. Both need Python 3.11 or newer, and nothing else.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# pip would compile every module there is, which takes as long as the rest; Python compiles what is imported, if it may.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-compile
SUPPLY := .venv-supply
DOCS := .venv-docs
SUITE := $(BIN)/python .ci/suite.py
CODE := cedar tests examples benchmarks docs/site conftest.py

# The first of these that is new enough and can make an environment; only looked for when .venv must be built.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done; true)

.PHONY: help venv demo test fast test-all test-changed test-load fuzz test-long browser formats coverage chaos lint format types layers check bench bench-full bench-core bench-optimizer bench-ablation bench-grows bench-resilient-plans bench-storage bench-chaos bench-moe bench-resilient bench-recommendation bench-recommendation-training bench-recommendation-storage bench-dedup bench-kinds bench-transport bench-cluster bench-scale bench-splits bench-tables bench-written bench-layouts bench-functions bench-auto docs docs-test dist pictures lock sbom audit clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

venv: $(STAMP)  ## build .venv with every extra; nothing to do when it is up to date

$(STAMP): setup.cfg constraints.txt
	@python="$(PYTHON)"; if [ -z "$$python" ]; then \
	  echo "error: no Python 3.11 or newer that can make virtual environments was found." >&2; \
	  echo "  next: install one (Debian, Ubuntu: apt install python3 python3-venv), or name it: make venv PYTHON=/path/to/python3" >&2; \
	  exit 1; fi; \
	echo "building .venv with $$python (once; a minute or more)"; \
	"$$python" -m venv .venv
	@$(PIP) --no-deps --require-hashes -r constraints.txt
	@$(PIP) --no-build-isolation -e '.[all,fbgemm,dev]' # what a platform needs beyond the pins, such as CUDA's libraries, and cedar
	@$(BIN)/python -c 'import cedar.pipeline, torch, numba, transformers, distributed' # compiled here once, not by each worker of the tests
	@touch $@

demo: $(STAMP)  ## train a recommendation model through a pipeline; DATA='path/*.parquet' takes your own files
	@$(BIN)/python examples/demo.py $(if $(DATA),--data '$(DATA)') $(if $(LABEL),--label '$(LABEL)')

test: lint types layers fast  ## linters, types, layers, and every test that is not marked heavy

fast: $(STAMP)  ## the fast tests alone, in four shards; SHARD=data runs one (data, engine, docs, users)
	@$(SUITE) fast $(if $(SHARD),--shard $(SHARD)) $(ARGS)

test-all: lint types layers $(STAMP)  ## every test, the heavy ones too; SHARD=data runs one of the four shards
	@$(SUITE) all $(if $(SHARD),--shard $(SHARD)) $(ARGS)

test-changed: $(STAMP)  ## heavy tests of what changed in the last eight hours of commits, for at most 15 minutes
	@$(SUITE) changed $(ARGS)

test-load: $(STAMP)  ## the fast tests three times while other programs take the cores and the memory
	@$(SUITE) load $(if $(SHARD),--shard $(SHARD)) $(ARGS)

chaos: $(STAMP)  ## random pipelines, stops, resumes, ranks that come and go, and plans; CASES=2000 of them, beyond that one check of each
	@CEDAR_CASES=$(or $(CASES),2000) $(BIN)/python -m pytest tests/test_exactness.py tests/test_plan_exactness.py \
	  tests/test_plan_failures.py tests/engine/delivery/test_elastic_random.py -n 2 --timeout 3600 $(ARGS)

fuzz: $(STAMP)  ## readers and decoders under a coverage-guided fuzzer, MINUTES=10 in all; ARGS='--only parquet tar', '--cases 1000000'
	@$(BIN)/python -m tests.fuzz.run --minutes $(or $(MINUTES),10) $(ARGS)

test-long: $(STAMP)  ## every test on fresh random inputs, many more of them than `make test-all` draws
	@HYPOTHESIS_PROFILE=long CEDAR_LONG=1 $(BIN)/python -m pytest -n 2 --timeout 3600 $(ARGS)

lint: $(STAMP)  ## ruff, rules and format; words of docs/words.txt
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/python .ci/words.py

format: $(STAMP)  ## let ruff mend what it can
	@$(BIN)/ruff check --fix $(CODE)
	@$(BIN)/ruff format $(CODE)

types: $(STAMP)  ## mypy, strict
	@$(BIN)/mypy --num-workers auto || $(BIN)/mypy  # on a busy machine its workers may start too late, an internal error

layers: $(STAMP)  ## who may import whom
	@$(BIN)/lint-imports

check: $(STAMP)  ## any tests; ARGS='tests/operators -k shuffle' chooses them
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

browser: $(STAMP)  ## the pages of reports and runs in a Chromium that is there, under axe
	@$(PIP) -e '.[browser]'
	@$(BIN)/python -m pytest tests/watch/test_browser.py $(ARGS)

$(DOCS)/.installed: docs/requirements.txt
	@python3 -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r docs/requirements.txt
	@touch $@

docs: $(STAMP) $(DOCS)/.installed  ## the site, with its API reference, into build/site
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

docs-test: docs  ## the site's links and code blocks, public names, and its pages in a Chromium that is installed
	@$(PIP) -e '.[browser]'
	@CEDAR_SITE=build/site $(BIN)/python -m pytest -n 2 tests/docs $(ARGS)

formats: $(STAMP)  ## the readers and writers of Lance and Vortex, with their libraries
	@$(PIP) -e '.[lance,vortex]'
	@$(BIN)/python -m pytest -n 2 tests/datasets tests/conformance tests/lake tests/benchmarks/test_peers.py $(ARGS)

coverage: $(STAMP)  ## every test with coverage, and the share of these lines that the fast tests run
	@$(SUITE) coverage $(ARGS)

bench: $(STAMP)  ## ours against every peer, each in an environment of its own; ARGS='--only simclr --data DIR'
	@$(BIN)/python -m benchmarks.peers $(ARGS)

bench-full: $(STAMP)  ## the same with more rows, more rounds and every setting; hours
	@$(BIN)/python -m benchmarks.peers --full $(ARGS)

bench-core: $(STAMP)  ## the figures of the core, into benchmarks/out/; QUICK=1 for under a minute
	@$(BIN)/python -m benchmarks.core $(if $(QUICK),--quick) $(ARGS)

bench-optimizer: $(STAMP)  ## the figures of the optimizer; QUICK=1 for minutes, ARGS='--only whole --cases text wide' for some
	@$(BIN)/python -m benchmarks.optimizer $(if $(QUICK),--quick) $(ARGS)

bench-ablation: $(STAMP)  ## what each part of the optimizer is worth, added one by one; QUICK=1 for minutes
	@$(BIN)/python -m benchmarks.ablation $(if $(QUICK),--quick) $(ARGS)

bench-grows: $(STAMP)  ## what plans, mixes, wide tables and small batches cost as they grow
	@$(BIN)/python -m benchmarks.grows $(ARGS)

bench-chaos: $(STAMP)  ## killed workers, poison rows, resumes, soak; QUICK=1 for minutes, ARGS='--only kills poison stops'
	@$(BIN)/python -m benchmarks.chaos $(if $(QUICK),--quick) $(ARGS)

bench-storage: $(STAMP)  ## a store that fails 5 and 30% of its requests; QUICK=1 for a minute
	@$(BIN)/python -m benchmarks.storage $(if $(QUICK),--quick) $(ARGS)

bench-moe: $(STAMP)  ## the figures of the mixture-of-experts trainer; QUICK=1 for minutes, ARGS='--only language --minutes 30'; goes on where it was
	@$(BIN)/python -m benchmarks.moe $(if $(QUICK),--quick) $(ARGS)

bench-recommendation: $(STAMP)  ## all figures of recommendation; QUICK=1 for minutes, ARGS='--only storage quality' for some
	@$(BIN)/python -m benchmarks.recommendation $(if $(QUICK),--quick) $(ARGS)

bench-recommendation-training: $(STAMP)  ## training on deduplicated rows; QUICK=1 for minutes
	@$(BIN)/python -m benchmarks.recommendation_training $(if $(QUICK),--quick) $(ARGS)

bench-recommendation-storage: $(STAMP)  ## logs that are clustered by session; QUICK=1 for minutes
	@$(BIN)/python -m benchmarks.recommendation_storage $(if $(QUICK),--quick) $(ARGS)

bench-dedup: $(STAMP)  ## groups of lists that repeat; QUICK=1 for a minute
	@$(BIN)/python -m benchmarks.dedup $(if $(QUICK),--quick) $(ARGS)

bench-kinds: $(STAMP)  ## columns of every kind through everything, 20,000 cases; QUICK=1 for 300, ARGS='--seed 7 --cases 1'
	@$(BIN)/python -m benchmarks.column_kinds $(if $(QUICK),--quick) $(ARGS)

bench-transport: $(STAMP)  ## how blocks travel between processes, and what is left behind; QUICK=1 for minutes
	@$(BIN)/python -m benchmarks.transport $(if $(QUICK),--quick) $(ARGS)

bench-cluster: $(STAMP)  ## a Dask cluster of this machine, and what befalls its workers; QUICK=1 for minutes
	@$(BIN)/python -m benchmarks.cluster $(if $(QUICK),--quick) $(ARGS)

bench-scale: $(STAMP)  ## 4,096 simulated ranks: what they read, agree on and resume from; QUICK=1 for seconds, ARGS='--only talk --ranks 512'
	@$(BIN)/python -m benchmarks.scale $(if $(QUICK),--quick) $(ARGS)

bench-splits: $(STAMP)  ## a million splits to the first batch, and manifests; ARGS='--splits 1000000 --only splits' for some
	@$(BIN)/python -m benchmarks.splits $(ARGS)

bench-tables: $(STAMP)  ## join, unique and fit of ten million rows on two ranks, beside polars; QUICK=1 for a minute, ARGS='--only join'
	@$(BIN)/python -m benchmarks.tables $(if $(QUICK),--quick) $(ARGS)

bench-written: $(STAMP)  ## data sets that jobs write: rows over 100 kills, time beside encoding alone; ARGS='--only kills --kills 10'
	@$(BIN)/python -m benchmarks.written $(ARGS)

bench-layouts: $(STAMP)  ## files made to be read: decoding by layout, epochs with Budget(layout=); QUICK=1 for seconds
	@$(BIN)/python -m benchmarks.layouts $(if $(QUICK),--quick) $(ARGS)

bench-functions: $(STAMP)  ## functions of one's own by size and GIL, and rows as they are done; QUICK=1 for minutes
	@$(BIN)/python -m benchmarks.functions $(if $(QUICK),--quick) $(ARGS)

bench-auto: $(STAMP)  ## the defaults next to the best executor by hand, for 24 pipelines; QUICK=1 for minutes
	@$(BIN)/python -m benchmarks.auto_choice $(if $(QUICK),--quick) $(ARGS)

bench-resilient: $(STAMP)  ## what a dead worker costs the resilient trainer; QUICK=1 for minutes, ARGS='--only kills --minutes 10'; goes on where it was
	@$(BIN)/python -m benchmarks.resilient $(if $(QUICK),--quick) $(ARGS)

bench-resilient-plans: $(STAMP)  ## schedules of the resilient trainer; QUICK=1 for two minutes, ARGS='--only exact'; goes on where it was
	@$(BIN)/python -m benchmarks.resilient_plans $(if $(QUICK),--quick) $(ARGS)

dist: $(STAMP)  ## a wheel in dist/, tried in an empty environment: it runs the README's ten lines; ARGS=--newest ignores the pins
	@rm -rf dist build
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist .
	@$(BIN)/python .ci/check_wheel.py dist/cedar_data-*.whl $(ARGS)

pictures: $(STAMP)  ## draw the pictures of the docs; those of pages need a Chromium
	@for script in docs/pictures/*.py; do $(BIN)/python "$$script"; done

$(SUPPLY)/.installed:
	@python3 -m venv $(SUPPLY)
	@$(SUPPLY)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile uv cyclonedx-bom pip-audit pip-licenses
	@touch $@

lock: $(SUPPLY)/.installed  ## the hashes of all pins in constraints.txt anew
	@$(SUPPLY)/bin/python .ci/lock.py $(SUPPLY)/bin/uv

sbom: $(STAMP) $(SUPPLY)/.installed  ## what .venv holds: dist/sbom.json (CycloneDX), and the licenses in docs/licenses.md
	@mkdir -p dist
	@$(SUPPLY)/bin/cyclonedx-py environment $(BIN)/python --of JSON -o dist/sbom.json
	@$(SUPPLY)/bin/python .ci/licenses.py $(SUPPLY)/bin/pip-licenses $(BIN)/python

audit: $(SUPPLY)/.installed  ## known weaknesses of the pinned packages; needs an index of advisories
	@$(SUPPLY)/bin/pip-audit --require-hashes --disable-pip --progress-spinner off -r constraints.txt

clean:  ## remove what was built, .venv included
	rm -rf .venv $(SUPPLY) $(DOCS) build dist *.egg-info benchmarks/out .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
