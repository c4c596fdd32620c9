# Two commands matter: `make up` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
# Set in many images, and then each process that a test starts compiles everything again: 0.7 s of CPU instead of nothing.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: runtime venv up test coverage lint bench simulate streams linearize docs test-clients test-real lock audit sbom clean

runtime: $(RUNTIME)
venv: $(STAMP)

PIP := $(BIN)/pip install --disable-pip-version-check
# One line per package while pip works: `Collecting` from an index, `Processing` from a folder; then one for the unpacking.
NAMES := | sed -Eun 's/^Collecting ([^ =<>;]*).*/  \1/p; s|^Processing .*/([^/-]+)-[0-9].*|  \1|p; s/^Installing .*/  unpacking all/p'

define CREATE_VENV
@$(PYTHON) -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "Phalanx needs Python 3.11 or later with its venv; $(PYTHON) here is '$$($(PYTHON) --version 2>&1 | tail -n 1)'."; \
  echo "On Debian and Ubuntu:  sudo apt-get install python3 python3-venv"; \
  echo "Another Python:        make $(or $(MAKECMDGOALS),venv) PYTHON=python3.12"; exit 1; }
$(PYTHON) -m venv $(VENV)
endef

# Only what running needs. Every file is checked against its hash on the platform the lock was made for; elsewhere pip
# resolves the dependencies itself.
$(RUNTIME): SHELL := /bin/bash -o pipefail
$(RUNTIME): pyproject.toml requirements.lock
	$(CREATE_VENV)
	@if $(BIN)/python tools/lock.py --fits requirements.lock; then \
	  echo "Installing the runtime packages that requirements.lock pins:"; \
	  $(PIP) --require-hashes -r requirements.lock $(NAMES) && $(PIP) --quiet --no-deps -e .; \
	else \
	  echo "requirements.lock is for another platform. Installing what pyproject.toml allows:"; \
	  $(PIP) -e . $(NAMES); \
	fi
	@touch $(RUNTIME)

# Everything: tests, linters, documentation.
$(STAMP): SHELL := /bin/bash -o pipefail
$(STAMP): pyproject.toml requirements-dev.lock
	$(CREATE_VENV)
	@if $(BIN)/python tools/lock.py --fits requirements-dev.lock; then \
	  echo "Installing the development packages that requirements-dev.lock pins:"; \
	  $(PIP) --require-hashes -r requirements-dev.lock $(NAMES) && $(PIP) --quiet --no-deps --no-build-isolation -e .; \
	else \
	  echo "requirements-dev.lock is for another platform. Installing what pyproject.toml allows:"; \
	  $(PIP) -e '.[dev]' $(NAMES); \
	fi
	@touch $(RUNTIME) $(STAMP)

up: runtime
	$(BIN)/phalanx up --demo $(UP_ARGS)

test: venv
	$(BIN)/pytest -n 2 --ignore=tests/real $(TEST_ARGS)

# On a real kube-apiserver, from the folder that KUBEBUILDER_ASSETS names or from PATH (CONTRIBUTING.md).
test-real: venv
	$(BIN)/pytest -n 0 -rs tests/real $(TEST_ARGS)

test-clients: venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[clients]'
	PHALANX_INSTALL_CLIENTS=1 $(BIN)/pytest -n 0 tests/clients $(TEST_ARGS)

# Random life cycles of workloads on virtual time: SEQUENCES of every kind from SEED on, or as many as SECONDS allow.
# No moment takes more than 50,000 turns of the loop, so nothing hangs here. `lives` is the old name.
.PHONY: fuzz-workloads lives
fuzz-workloads lives: venv
	cd tests && ../$(BIN)/python -m support.lifecycle --seed $(or $(SEED),1000) --processes $(or $(PROCESSES),2) \
	  $(if $(STORY),--story "$(STORY)") $(if $(BRANCH),--branch $(BRANCH)) \
	  $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEQUENCES)$(SECONDS),,--sequences 200) $(if $(SEQUENCES),--sequences $(SEQUENCES))

lint: venv
	$(BIN)/ruff check src tests bench tools
	$(BIN)/ruff format --check --quiet src tests bench tools
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	@tools/javascript/lint

# What the tests reach, printed by file; the report of the whole suite takes a few minutes.
coverage: venv
	$(BIN)/pytest -n 2 --cov=phalanx --cov-report=term:skip-covered $(TEST_ARGS)

bench: venv
	$(BIN)/phalanx bench $(SUITE)

simulate: venv
	cd tests && ../$(BIN)/python -m support.simulation --seed $(or $(SEED),1) --steps $(or $(STEPS),100000) \
	  $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(TOTAL),--total $(TOTAL)) \
	  $(if $(PROCESSES),--processes $(PROCESSES))

# The pages made from the code, then the site: site/index.html, without network; a broken link fails.
docs: venv
	PYTHONPATH=tools $(BIN)/python -m pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet would hide warnings, and broken links would not fail
	@echo "built site/; look at it with: $(BIN)/python -m http.server -b 127.0.0.1 -d site 8000"

# The pictures in docs/images, taken again by the browser tests.
.PHONY: pictures
pictures: venv
	$(BIN)/pytest -q -n 0 tests/web/test_browser_story.py tests/web/test_browser_guide.py tests/web/test_browser_safety.py
	$(BIN)/python tools/pictures.py

# Pins what the image installs; after a change of the dependencies in pyproject.toml.
lock:
	$(BIN)/python tools/lock.py > requirements.lock.new
	mv requirements.lock.new requirements.lock
	$(BIN)/python tools/lock.py dev > requirements-dev.lock.new
	mv requirements-dev.lock.new requirements-dev.lock

# Known vulnerabilities of what is pinned; code 3 where no source of advisories can be reached.
audit: venv
	$(BIN)/pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python tools/audit.py

# What is installed, as CycloneDX JSON.
sbom: venv
	@$(BIN)/python tools/sbom.py

clean:
	rm -rf $(VENV) data dist build site

# Random streams of gangs: no promise moves or is broken, no node is over-committed.
streams: venv
	STREAMS=$(or $(STREAMS),10000) $(BIN)/pytest -q -n 2 tests/engine/test_promises.py

# Concurrent histories of the store and the API handlers, with crashes, each checked for an order that explains it.
linearize: venv
	cd tests && ../$(BIN)/python -m support.histories --histories $(or $(HISTORIES),100000) --seed $(or $(SEED),1)
