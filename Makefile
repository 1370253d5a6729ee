# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv first; only Python 3.10+ is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRAINERS := .venv-trainers
TORCH_VERSION ?= 2.13.0
N ?= 10
EXTRAS_ARGS ?= --quick
SIDE_BY_SIDE = -n 3 --dist loadfile --no-loadscope-reorder
# Tests start hundreds of Python processes; each would compile topoplan anew where bytecode is not written.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-long test-network flaky extras goldens torch-suite conformance-suite fault-tolerance-suite torch-versions trainers lint format schemas man screenshots notebook docs package shown setup gpu-test gpu-check clean

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

# What does not depend on how fast the machine is. One worker more than the two cores that it is meant for: tests of real
# ranks wait for each other, and each worker imports and collects all tests.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not gpu and not network and not long" $(SIDE_BY_SIDE) $(PYTEST_ARGS)

# Long searches, builds of packages, whole documents, more cases of what `make test` has.
test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -m "long and not network and not gpu" $(SIDE_BY_SIDE) $(PYTEST_ARGS)

# Emulated machines, cut links, MPI, browsers, real rates: one test at a time, on a quiet machine.
test-network: $(VENV)/.dev
	$(BIN)/python -m pytest -m "network and not gpu" $(PYTEST_ARGS)

# The tests of `make test` N times, in random order, beside busy loops: which ones fail by chance?
flaky: $(VENV)/.dev
	$(BIN)/python scripts/flaky.py $(N) $(FLAKY_ARGS)

# A copy without any extra: its modules, commands, backend and hook. EXTRAS_ARGS= runs all tests that are left, too.
extras: $(VENV)/.dev
	$(BIN)/python scripts/extras.py --check $(EXTRAS_ARGS)

# What the product does beside what is recorded in tests/goldens; make goldens RENEW=1 records it anew.
goldens: $(VENV)/.dev
	$(BIN)/python scripts/compare_goldens.py $(if $(RENEW),--renew)

gpu-test: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

gpu-check: $(VENV)/.demo
	$(BIN)/python scripts/gpu_check.py

torch-suite: $(VENV)/.dev
	$(BIN)/python scripts/torch_suite.py

# torch's test/distributed/test_c10d_collectives.py and its like, with c10d_backend_common.py beside: make conformance-suite FILES=...
conformance-suite: $(VENV)/.dev
	$(BIN)/python scripts/conformance_suite.py $(FILES)

# torch's test/distributed/test_c10d_fault_tolerance.py, which no wheel has: make fault-tolerance-suite FILE=...
fault-tolerance-suite: $(VENV)/.dev
	$(BIN)/python scripts/fault_tolerance_suite.py $(FILE)

torch-versions: $(VENV)/.dev
	$(BIN)/python scripts/torch_versions.py $(TORCH_VERSIONS_ARGS)

# An environment of its own: other people's frameworks bring a hundred packages.
trainers: $(TRAINERS)/.base
	$(TRAINERS)/bin/python scripts/trainers.py --install $(TRAINERS_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	sh scripts/mypy.sh $(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schemas: $(VENV)/.base
	$(BIN)/python scripts/write_schemas.py

# The documents as a site, in site/: open site/index.html (searching needs a server: `python -m http.server -d site`).
docs: $(VENV)/.docs
	$(BIN)/python -m mkdocs build --quiet

# What users get: the source distribution, the wheel made from it, and what must work from that in a fresh environment.
package: $(VENV)/.dev
	$(BIN)/python scripts/check_package.py

# The outputs of examples/research.ipynb, by running it without Jupyter.
notebook: $(VENV)/.base
	$(BIN)/python scripts/write_notebook.py

# The pictures of reports in docs/images, by a headless Chromium.
screenshots: $(VENV)/.base
	$(BIN)/python scripts/write_screenshots.py

# man -l build/man/topo-synth.1
man: $(VENV)/.dev
	$(BIN)/python scripts/write_man.py build/man

# Every example of every help, as it is printed: some minutes.
shown: $(VENV)/.dev
	TOPOPLAN_RUN_SHOWN=1 $(BIN)/python -m pytest tests/cli/test_help.py -k examples $(PYTEST_ARGS)

setup: $(VENV)/.base

$(VENV)/.base: pyproject.toml setup.py scripts/setup.sh $(wildcard runtime/extras/native/*pp)
	PYTHON=$(PYTHON) TORCH_VERSION=$(TORCH_VERSION) sh scripts/setup.sh $(VENV)
	touch $@

$(TRAINERS)/.base: pyproject.toml scripts/setup.sh
	PYTHON=$(PYTHON) TORCH_VERSION=$(TORCH_VERSION) sh scripts/setup.sh $(TRAINERS)
	touch $@

$(VENV)/.demo: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	touch $@

$(VENV)/.docs: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

$(VENV)/.dev: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --editable '.[demo,dev,docs,mpi]'
	touch $@

clean:
	rm -rf $(VENV) $(TRAINERS) .venv-torch-* build site *.egg-info
