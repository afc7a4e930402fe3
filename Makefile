# What people type and what CI runs. `make` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

RPC := platform/samovar_gateway/rpc

.DEFAULT_GOAL := help
.PHONY: help install demo chat up fmt check test bench docs proto clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Samovar needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

install: $(STAMP) ## Make .venv with everything in it

demo: $(STAMP) ## Start the platform, deploy MiniLM and SmolLM2, call them, stop
	$(BIN)/python functions/examples/demo.py

chat: $(STAMP) ## Start the platform, deploy SmolLM2, talk with it, stop
	$(BIN)/python functions/examples/demo.py --chat

up: $(STAMP) ## The same, but stay up until Ctrl-C
	$(BIN)/python functions/examples/demo.py --stay

fmt: $(STAMP) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: $(STAMP) ## Lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy functions storage pool_manager platform tests
	$(BIN)/lint-imports

test: $(STAMP) ## Run the tests
	$(BIN)/python -m pytest -m "not gpu"

bench: $(STAMP) ## Run all benchmarks and write docs/benchmarks.md
	$(BIN)/python tests/benchmarks/run_all.py

docs: $(STAMP) ## Write the generated pages (settings)
	$(BIN)/python docs/generate.py

proto: ## Compile the messages of gRPC (in a place of its own: it wants a newer protobuf)
	$(PYTHON) -m venv build/proto
	build/proto/bin/python -m pip install --quiet grpcio-tools
	build/proto/bin/python -m grpc_tools.protoc -I$(RPC) --descriptor_set_out=$(RPC)/open_inference.binpb open_inference.proto

clean: ## Remove .venv and caches
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
