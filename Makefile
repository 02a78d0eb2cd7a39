## make leaderboard   compare the routers            (LEADERBOARD_ARGS="--suite quick --name mine")
## make test          lint, type checks, test suite  (PYTEST_ARGS="tests/envs -n 0")
## make bench         measure the simulator's speed  (BENCH_ARGS=...)
## make lint          ruff and mypy alone
## make clean         remove what was built; keeps .venv and runs/
##
## The first target that needs it creates .venv and installs constraints.txt's versions there.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := PYTHONWARNINGS="ignore:Editable installation" \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help leaderboard test bench lint kernels clean FORCE

help:
	@sed -n 's/^## \{0,1\}//p' Makefile

leaderboard: kernels
	$(BIN)/prefixgym leaderboard $(LEADERBOARD_ARGS)

test: lint build/peers kernels
	$(BIN)/python -m pytest -n auto --dist loadfile $(PYTEST_ARGS)

bench: kernels
	$(BIN)/prefixgym bench --page docs/benchmarks.md $(BENCH_ARGS)

lint: build/installed
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy -p prefixgym
	MYPYPATH=tests/envs:tests/envs/cluster:tests/baselines:tests/baselines/peers $(BIN)/python -m mypy --explicit-package-bases tests

# Once for each version of the sources; all processes find them on disk.
kernels: build/installed
	$(BIN)/python -m prefixgym.envs.compilation

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src envs baselines agents experiments tests -name __pycache__ -prune -exec rm -rf {} +

.venv/pyvenv.cfg:
	$(PYTHON) -m venv .venv
	$(INSTALL) pip setuptools

# A strict editable install is a tree of links under build/, so it has to be made anew when build/
# is gone, when the work tree was moved, and when a package file was added or removed.
build/installed: .venv/pyvenv.cfg setup.cfg pyproject.toml constraints.txt build/package-files
	$(INSTALL) --no-build-isolation --config-settings editable_mode=strict -e '.[dev]'
	@touch $@

# The real routers of the parity tests, which are skipped where these cannot be had.
build/peers: build/installed peers.txt
	@{ $(INSTALL) --no-build-isolation --config-settings editable_mode=strict -e '.[peers]' && \
		$(INSTALL) --no-deps -r peers.txt && touch $@; } || \
		echo "make: not all real routers could be installed; their tests will be skipped"

# Always looked at, rewritten only when the list differs.
build/package-files: FORCE
	@mkdir -p build
	@{ pwd; find src envs baselines agents experiments \
		-name __pycache__ -prune -o -type f -print | LC_ALL=C sort; } > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
