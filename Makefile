# `make` prints what there is. Each tier of tests has a budget in minutes on two cores, printed when it ends.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := PYTHONPATH=contracts:operator:worker:plugins/compression $(BIN)/python
CLUSTER ?= embedded
FUZZ_SECONDS ?= 600
LOCKS := base operator worker dev fuzz integrations

BUDGET_unit := 6
BUDGET_boundary := 5
BUDGET_local := 15
BUDGET_api := 8
BUDGET_e2e := 30

.PHONY: help
help: ## what can be made
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- environment

.PHONY: venv
venv: $(VENV)/.stamp ## .venv with everything that development needs (fast when it is there)

$(VENV)/.stamp: requirements/dev.txt pyproject.toml
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11; set PYTHON=" >&2; exit 1; }
	@[ -x $(BIN)/uv ] || awk '/^uv==/ {on = 1} /^[a-z]/ && !/^uv==/ {on = 0} on' requirements/dev.txt > $(VENV)/uv.txt
	@[ -x $(BIN)/uv ] || $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	$(BIN)/uv pip install -q --compile-bytecode --python $(BIN)/python --require-hashes -r requirements/dev.txt
	$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: lock
lock: venv ## write requirements/*.txt anew from pyproject.toml (UPGRADE=1 takes newer versions)
	@for name in $(LOCKS); do \
	  case $$name in \
	    base) extras="" ;; fuzz) extras="--extra fuzz" ;; operator) extras="--extra operator --extra nvml" ;; worker) extras="--extra worker" ;; \
	    integrations) extras="--extra worker --extra integrations --extra dev" ;; \
	    dev) extras="--extra operator --extra worker --extra nvml --extra dev" ;; \
	  esac; \
	  $(BIN)/uv pip compile -q pyproject.toml $$extras --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	    --generate-hashes --no-annotate --no-header --no-emit-index-url $(if $(UPGRADE),--upgrade) -o requirements/$$name.txt; \
	done

# ---- code

.PHONY: fmt
fmt: venv ## format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: lint
lint: venv ## style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

.PHONY: types
types: venv ## mypy --strict
	$(BIN)/mypy

.PHONY: layers
layers: venv ## import contracts: which part may know which
	PYTHONPATH=contracts:operator:worker $(BIN)/lint-imports

.PHONY: crds
crds: venv ## write crds/ and the chart's copy from the models
	$(RUN) -m kuangchao_operator.api.crdgen crds
	$(RUN) -m kuangchao_operator.api.crdgen --chart charts/kuangchao/templates/crds

.PHONY: chart
chart: crds ## check the chart
	@cluster/kc install --api-only
	"$$(cluster/kc bin)/helm" lint --strict charts/kuangchao -n kuangchao-system

.PHONY: generated
generated: venv ## fail if a generated file is not what its generator writes
	$(RUN) -m kuangchao_operator.api.crdgen crds --check
	$(RUN) -m kuangchao_operator.api.crdgen --chart charts/kuangchao/templates/crds --check

.PHONY: interfaces
interfaces: venv ## fail if an interface breaks callers of the last release and no proposal allows it
	$(RUN) -m hack.interfaces check

.PHONY: interfaces-release
interfaces-release: venv ## write docs/interfaces/<version>.json, once for each release
	$(RUN) -m hack.interfaces release

.PHONY: check
check: lint types layers generated interfaces ## everything that runs nothing

# ---- cluster

.PHONY: images
images: ## build both images with this machine's podman (no Docker engine)
	@cluster/kc install
	cluster/kc image-base
	cluster/kc build -f Dockerfile.operator -t kuangchao-operator:dev .
	cluster/kc build -f Dockerfile.worker -t kuangchao-worker:dev .

.PHONY: cluster-up
cluster-up: ## the embedded cluster: three nodes on this machine
	@cluster/kc install
	cluster/kc up

.PHONY: demo
demo: venv ## cluster, chart and a training job, followed to its end (CLUSTER=embedded|kind|existing)
	CLUSTER=$(CLUSTER) hack/demo.sh

.PHONY: down
down: ## stop the cluster and drop its state (images and binaries stay cached)
	cluster/kc down --purge

# ---- tests

# $(call tier,name,arguments): pytest on a tier, then how its time compares with its budget.
define tier
	@started=$$SECONDS; $(BIN)/python -m pytest -q -m $(1) $(2) $(ARGS); used=$$((SECONDS - started)); \
	printf '%s: %d s of %d min\n' $(1) $$used $(BUDGET_$(1)); \
	[ $$used -le $$(($(BUDGET_$(1)) * 60)) ] || echo "$(1): over budget" >&2
endef

.PHONY: test-unit
test-unit: venv ## decisions, tokens, planner: no process, no network
	$(call tier,unit,tests/unit)

.PHONY: test-boundary
test-boundary: venv ## refusals, import contracts, packaging
	$(call tier,boundary,tests/boundary)

.PHONY: test-local
test-local: venv ## whole jobs as processes of this machine, with real torch
	$(call tier,local,tests/local)

.PHONY: test-api
test-api: venv ## a real kube-apiserver: schemas, CEL, chart, operator
	@cluster/kc install --api-only
	$(call tier,api,tests/api)

.PHONY: test-e2e
# Tests that end the cluster run only where none was up, so nobody loses one they work with.
test-e2e: export KC_TEST_DESTRUCTIVE ?= $(if $(wildcard /run/netns/kc-cp),,1)
test-e2e: venv ## the embedded cluster: training, faults, refusals on real kubelets (root)
	@cluster/kc install
	$(call tier,e2e,tests/e2e cluster/tests)

.PHONY: test
test: venv ## all tiers, whatever one of them says; the cluster's beside the light ones, each tier's output in one piece
	@$(MAKE) -k -j2 --output-sync=target test-e2e test-unit test-boundary test-api test-local

INTEGRATIONS := .venv-integrations
.PHONY: test-integrations
test-integrations: venv ## Hugging Face Trainer and Lightning under `command`, in an environment of their own (no part of `test`)
	@[ -x $(INTEGRATIONS)/bin/python ] || $(VENV)/bin/uv venv -q --python $(VENV)/bin/python $(INTEGRATIONS)
	$(VENV)/bin/uv pip install -q --compile-bytecode --python $(INTEGRATIONS)/bin/python --require-hashes -r requirements/integrations.txt
	$(INTEGRATIONS)/bin/python -m pytest -q -m integrations tests/integrations $(ARGS)

.PHONY: gpu-check
gpu-check: venv ## one rank over NCCL: parity, peak memory, tokens/s (on a machine with a GPU; no part of `test`)
	@found=$$($(RUN) -c 'import torch; print(torch.cuda.is_available())'); \
	if [ "$$found" = True ]; then $(BIN)/python -m pytest -q -m gpu tests/gpu $(ARGS); \
	else echo "gpu-check: skipped, torch finds no GPU on this machine"; fi

.PHONY: fuzz
fuzz: venv ## whatever reads bytes from outside, guided by coverage (FUZZ_SECONDS=600; findings stay in .fuzz)
	$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/fuzz.txt
	mkdir -p .fuzz/found
	PYTHONPATH=contracts:operator:worker:. $(BIN)/python -m tests.fuzz .fuzz/corpus \
	  -max_total_time=$(FUZZ_SECONDS) -max_len=9000 -timeout=5 -artifact_prefix=.fuzz/found/ $(ARGS)

.PHONY: bench
bench: venv ## measure, and print the figures as they came out
	$(RUN) -m bench $(ARGS)

.PHONY: verify
verify: check test ## everything that CI runs
