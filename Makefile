# Emberline's commands. `make demo` and `make test` each work on a fresh clone with nothing else done first.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
PYTEST_ARGS ?=
# Each worker starts a control plane of its own (1 GB); more of them wait for one another's cores.
TEST_WORKERS ?= 2
SOAK ?= 20
SOAK_TESTS := tests/unit/runtime_core tests/unit/gateway/test_holding.py tests/unit/gateway/test_abuse.py tests/unit/operator tests/cluster/test_operator_replicas.py \
  tests/cluster/test_operator_faults.py tests/cluster/test_scaling_steps.py
CHAOS_REPORT := docs/chaos.json

.PHONY: help setup demo test test-fast check bench soak bench-engine bench-gateway bench-native bench-operator gen lock clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## Make .venv from the lock and build the native module (a compiler is optional)

$(BIN)/uv:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed; install it or set PYTHON=" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, $$($(PYTHON) --version) was found; set PYTHON=" >&2; exit 1; }
	@echo "==> making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# The native module is built in place; the stamp is older than any source that it is built from when it must be built again.
$(VENV)/.ready: $(BIN)/uv requirements.lock pyproject.toml CMakeLists.txt $(wildcard runtime/native/*)
	@echo "==> installing the locked packages"
	@# Compiled here once: else the first start of each process pays for it, 2 s in an engine's wake.
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip sync --quiet --compile-bytecode --require-hashes requirements.lock
	@echo "==> installing emberline, and building its native module where there is a compiler (a minute)"
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-build-isolation --no-deps -e .
	@$(BIN)/python -c 'from emberline_runtime.native import refusals; print("".join(f"note: {r}\n" for r in refusals()), end="")'
	@touch $@

demo: setup ## A local cluster, a sleeping endpoint, its wake, its answers, and its sleep
	@$(BIN)/emberline-local demo

test: setup ## The whole test suite
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --durations=10 $(PYTEST_ARGS)

test-fast: setup ## The tests that need neither the control plane nor the model
	@$(BIN)/python -m pytest -m "not cluster and not model" $(PYTEST_ARGS)

check: setup ## Format, lint, types, import contracts, generated files
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/gen.py --check

gen: setup ## Write crds/ and docs/reference/ from the contract
	@$(BIN)/python scripts/gen.py

soak: setup ## Property tests with twenty times as many examples, new ones each time (SOAK=20), and ten minutes of chaos
	@EMBERLINE_SOAK=$(SOAK) $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist load -q $(SOAK_TESTS) $(PYTEST_ARGS)
	@# Alone: ten minutes of kills and restarts, whose counts are kept.
	@EMBERLINE_SOAK=$(SOAK) EMBERLINE_CHAOS_S=600 EMBERLINE_CHAOS_REPORT=$(CHAOS_REPORT) $(BIN)/python -m pytest -q tests/cluster/test_chaos.py $(PYTEST_ARGS)

bench: bench-native bench-engine bench-gateway bench-operator ## Every benchmark; each prints one JSON line last and fails on a miss

bench-native: setup ## The bf16 matrix-vector product against a raw read of the same bytes
	@$(BIN)/python bench/native_matvec.py

bench-engine: setup ## Continuous batching against transformers' static batches, same weights, one run
	@$(BIN)/python bench/engine.py

bench-gateway: setup ## What the gateway adds to a call
	@$(BIN)/python bench/gateway.py

bench-operator: setup ## A thousand endpoints and five thousand pods: writes, apply latency, memory, CPU (20 minutes)
	@PYTHONPATH=bench $(BIN)/python bench/operator_scale.py

lock: $(BIN)/uv ## Resolve requirements.lock anew from pyproject.toml
	@$(BIN)/uv pip compile --universal --generate-hashes --all-extras --no-header --upgrade pyproject.toml -o requirements.lock

clean: ## Remove the environment and build outputs
	@rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
