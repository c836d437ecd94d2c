# Everything runs in .venv, made from PYTHON (3.11 or newer) and the versions in constraints.txt.
# Where packages come from is pip's own configuration: PIP_INDEX_URL, PIP_FIND_LINKS and the like are passed on.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

# A PYTHONPATH of the caller's could put another prepserver before the one of this checkout. Without bytecode, each of
# the many processes of the tests would compile this checkout anew.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PYTHONDONTWRITEBYTECODE

# What an editable install reads: a change of these means installing again.
INPUTS := pyproject.toml constraints.txt $(wildcard *.py) $(shell find prepserver -name '*.[ch]')

# The tests of what decides, and those of sources, which cover their specs: see `make coverage`.
COVERING := $(addprefix tests/unit/,order pipeline protocol) \
	$(filter-out %/test_equal_speeds.py %/test_histories.py,$(wildcard tests/unit/schedule/test_*.py)) \
	$(addprefix tests/unit/prepclient/test_,places.py session.py delivery.py timing.py) \
	tests/unit/transform/test_boxes.py tests/unit/source

.PHONY: help demo test test-unit coverage lint docs bench bench-smoke bench-peers chaos soak fuzz fuzz-smoke wheels deb clean

help:
	@echo 'make demo         see it work, in under 90 s: three training jobs on one shared stream, then on DataLoaders'
	@echo 'make test         all tests but the long ones'
	@echo 'make test-unit    unit tests alone, without those that take long and are the same with every Python'
	@echo 'make coverage     every branch of what decides is taken by its own tests; `make test COVERED=1` leaves them out'
	@echo 'make lint         formatting, ruff, mypy, import rules'
	@echo 'make docs         builds the documents as a site, in site/; open site/index.html'
	@echo 'make bench        measurements against DataLoader; writes bench/out/. More: python -m bench --list'
	@echo 'make bench-smoke  the same for seconds: does it run'
	@echo 'make bench-peers  against every loader that is installed (python -m bench.peers.venvs); writes bench/out/'
	@echo 'make soak         the tests that run for minutes'
	@echo 'make chaos        random kills for a stated time'
	@echo 'make fuzz         the compiled kernels under sanitizers for an hour; wants the source of libjpeg-turbo'
	@echo 'make fuzz-smoke   the same for a minute, with what the machine has'
	@echo 'make wheels       what is published: sdist, wheels for x86-64 and aarch64, and an SBOM'
	@echo 'make deb          a Debian package of these wheels'
	@echo 'make clean        removes .venv, caches and what was built'
	@echo 'Another Python: make test-unit PYTHON=python3.12 VENV=.venv-3.12'

demo: $(VENV)/.installed
	$(BIN)/prepserver demo $(DEMO_ARGS)

# With COVERED=1, as CI calls it, without the tests that `make coverage` has run. Files go in their order, those of real
# daemons first: they take longest, and wait so much that three of them keep two cores busy.
test: $(VENV)/.installed-dev
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder \
		$(if $(COVERED),$(COVERING:%=--ignore=%)) $(PYTEST_ARGS)

test-unit: $(VENV)/.installed-dev
	$(PYTEST) -n 2 --dist loadfile -m 'not once and not soak' tests/unit $(PYTEST_ARGS)

# Always the same examples: a branch that only luck takes is not covered. Without pytest's cache, in which CI looks for
# failures of the tests that run beside this.
coverage: $(VENV)/.installed-dev
	$(PYTEST) -n 2 -p no:cacheprovider --cov --hypothesis-profile=ci $(COVERING) $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The variable turns off an announcement by the theme's authors.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.installed
	$(BIN)/python -m bench compare $(BENCH_ARGS)

bench-smoke: $(VENV)/.installed
	$(BIN)/python -m bench compare --smoke $(BENCH_ARGS)

bench-peers: $(VENV)/.installed
	$(BIN)/python -m bench peers $(BENCH_ARGS)

soak: $(VENV)/.installed-dev
	$(PYTEST) -m soak $(PYTEST_ARGS)

chaos: $(VENV)/.installed-dev
	$(PYTEST) -m chaos $(PYTEST_ARGS)

fuzz: $(VENV)/.installed-dev
	$(BIN)/python -m tests.fuzz --libjpeg --seconds 3600 $(FUZZ_ARGS)

fuzz-smoke: $(VENV)/.installed-dev
	$(BIN)/python -m tests.fuzz --seconds 50 $(FUZZ_ARGS)

wheels:
	PYTHON=$(PYTHON) .ci/wheels

deb:
	.ci/deb

clean:
	rm -rf $(VENV) .fuzz build dist site bench/out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find prepserver client tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps make a second run start at once.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(INPUTS) | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(INPUTS) | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(INPUTS) | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[docs]'
	@touch $@ $(VENV)/.installed
