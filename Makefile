# The suite's entry point; `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The interpreter for the virtual environment: the first Python 3.11 with venv and pip.
find_python = for p in python3.11 python3 python; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null \
	&& command -v "$$p" && break; done; true
PYTHON ?= $(shell $(find_python))

# The active conda environment if it was made from environment.yml, otherwise .venv.
ifeq ($(CONDA_DEFAULT_ENV),novograd-repro)
VENV ?= $(CONDA_PREFIX)
else
VENV ?= .venv
endif
RUN := $(VENV)/bin/python
LOCK := requirements.lock
STAMP := $(VENV)/.installed-from-lock
PIP := $(RUN) -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes
PYTEST_FLAGS ?= -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## create the environment from requirements.lock (5 GB, some minutes, once)

# setuptools and wheel first: two packages are source distributions, and build isolation would
# download a second torch for fairseq. fairseq last: READTHEDOCS=1 makes it a pure Python package.
# With TORCH_INDEX the same versions of torch come from that wheel index, with their own CUDA
# libraries, for GPUs that the default build does not support; all else follows the lock.
TORCH_FAMILY := ^(torch|torchvision|torchaudio|triton|nvidia-.*|cuda-.*)==
BUILD_TOOLS := ^(pip|setuptools|wheel)==
locked = awk -v want='$(1)' -v skip='$(2)' '/^\#/ {next} /^[a-z0-9]/ \
	{show = ($$0 ~ want) && !(skip != "" && $$0 ~ skip)} show' $(LOCK)
MISMATCH := { echo "make: set-up stopped: pip could not install what requirements.lock says (see above)" >&2; exit 2; }

$(STAMP): $(LOCK)
	@if ! test -x $(RUN); then \
		if test -z "$(PYTHON)"; then \
			echo "make: no Python 3.11 with venv and pip found; install one (Debian: apt install python3.11-venv) or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 2; fi; \
		if ! "$(PYTHON)" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then \
			echo "make: PYTHON=$(PYTHON) is not a Python 3.11 with venv and pip" >&2; exit 2; fi; \
		echo "creating $(VENV) with $(PYTHON)"; "$(PYTHON)" -m venv $(VENV); fi
	@echo "installing $(LOCK) into $(VENV): about 5 GB, a few minutes"
	@$(PIP) -r <($(call locked,$(BUILD_TOOLS),)) || $(MISMATCH)
ifdef TORCH_INDEX
	@echo "torch from TORCH_INDEX, without the lock's checksums"
	@$(RUN) -m pip --disable-pip-version-check install --quiet --index-url "$(TORCH_INDEX)" \
		$$(grep -oE '^(torch|torchvision|torchaudio)==[0-9.]+' $(LOCK)) || $(MISMATCH)
	@$(PIP) --no-build-isolation -r <($(call locked,.,^fairseq-fixed==|$(TORCH_FAMILY))) || $(MISMATCH)
else
	@$(PIP) --no-build-isolation -r <($(call locked,.,^fairseq-fixed==)) || $(MISMATCH)
endif
	@READTHEDOCS=1 $(PIP) --no-build-isolation -r <($(call locked,^fairseq-fixed==,)) || $(MISMATCH)
	@$(RUN) -m pip check
	@$(RUN) -m scripts.build_kernels
	@touch $@

.PHONY: test
test: setup ## set up, then run the default tests (minutes)
	@OMP_NUM_THREADS=1 $(RUN) -m pytest $(PYTEST_FLAGS)

.PHONY: test-slow
test-slow: setup ## slow tests that the default run leaves out: many random kills, torch.compile
	@OMP_NUM_THREADS=1 $(RUN) -m pytest $(PYTEST_FLAGS) -m slow

.PHONY: test-cluster
test-cluster: setup ## run jobs on a real Slurm on this machine, installed through apt where possible (needs root)
	@OMP_NUM_THREADS=1 $(RUN) -m pytest -m cluster tests/cluster

# A separate environment that reuses the packages installed from the lock, so that only what
# Lightning, Transformers and Accelerate add is installed: no second torch.
INTEGRATIONS := .venv-integrations
ADDED := tests/integrations/requirements.txt

$(INTEGRATIONS)/.installed: $(ADDED) $(STAMP)
	@echo "installing $(ADDED) into $(INTEGRATIONS)"
	@rm -rf $(INTEGRATIONS)
	@$(RUN) -m venv --without-pip $(INTEGRATIONS)
	@$(RUN) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		>"$$(ls -d $(INTEGRATIONS)/lib/python*/site-packages)/lock.pth"
	@$(INTEGRATIONS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps \
		--require-hashes -r $(ADDED) || { echo "make: pip could not install $(ADDED) (see above)" >&2; exit 2; }
	@$(INTEGRATIONS)/bin/python -m pip check
	@touch $@

.PHONY: test-integrations
test-integrations: $(INTEGRATIONS)/.installed ## test NovoGrad in Lightning, Transformers, Accelerate and FSDP2
	@OMP_NUM_THREADS=1 $(INTEGRATIONS)/bin/python -m pytest $(PYTEST_FLAGS) tests/integrations

.PHONY: test-faults
test-faults: setup ## inject faults from outside and count how many are survived, 20 minutes (ARGS=--quick)
	@OMP_NUM_THREADS=1 $(RUN) -m tests.faults $(ARGS)

.PHONY: smoke
smoke: setup ## one experiment from command to record on generated data, in seconds
	@$(RUN) -m scripts.launch experiment=imagenet/novograd_100ep scale=smoke

.PHONY: demo
demo: setup ## the headline rows of all four tasks on small data: one table and a report
	@$(RUN) -m scripts.demo $(ARGS)

.PHONY: reproduce-imagenet
reproduce-imagenet: setup ## Tables 1-3; without a GPU Table 1 on small data (SCALE= TABLES= SEEDS= ARGS=)
	@$(RUN) -m scripts.reproduce imagenet $(REPRODUCE)

.PHONY: reproduce-librispeech
reproduce-librispeech: setup ## Tables 4, 5 and Figure 1; without a GPU Table 4 on synthetic speech
	@$(RUN) -m scripts.reproduce librispeech $(REPRODUCE)

.PHONY: reproduce-wmt
reproduce-wmt: setup ## Table 6; without a GPU on a program's messages (SCALE= SEEDS= ARGS=)
	@$(RUN) -m scripts.reproduce wmt14 $(REPRODUCE)

.PHONY: reproduce-wikitext
reproduce-wikitext: setup ## Table 7 and Figure 2; without a GPU on a small Wikipedia text (SCALE= SEEDS= ARGS=)
	@$(RUN) -m scripts.reproduce wikitext103 $(REPRODUCE)

# What `make reproduce-… SCALE=mini TABLES=1,3 SEEDS=0,1,2 ARGS="…"` passes on.
REPRODUCE = $(if $(SCALE),scale=$(SCALE)) $(if $(TABLES),--tables $(TABLES)) \
	$(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

.PHONY: gpu-check
gpu-check: setup ## check a GPU node and time every task on it: results/bench/gpu-<name>.json
	@$(RUN) -m scripts.gpu_check $(ARGS)

.PHONY: sweep
sweep: setup ## a grid of runs on all GPUs or cores (SWEEP=imagenet_lr SCALE= ARGS=)
	@$(RUN) -m scripts.sweep sweep=$(SWEEP) $(if $(SCALE),scale=$(SCALE)) $(ARGS)

.PHONY: study
study: setup ## test the paper's claims on small data, some hours (ARGS=--plan, ARGS=--short)
	@$(RUN) -m scripts.study $(ARGS)

.PHONY: report
report: setup ## the paper's numbers beside ours: results/REPORT.md, results/report.html, README
	@$(RUN) -m scripts.report

.PHONY: publish
publish: setup ## copy records of finished runs from a clean commit to results/runs (ARGS=--replace)
	@$(RUN) -m scripts.publish $(ARGS)

.PHONY: compare
compare: setup ## curves of runs side by side (ARGS="experiment=imagenet/* group_by=optimizer")
	@$(RUN) -m scripts.compare $(ARGS)

.PHONY: wandb-sync
wandb-sync: setup ## upload offline W&B runs, segment by segment (ARGS=--dry-run)
	@$(RUN) -m scripts.wandb_sync $(ARGS)

.PHONY: check
check: setup ## lint, formatting, types, and whether the report matches the records
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@$(RUN) -m scripts.report --check

.PHONY: format
format: setup ## fix what ruff can fix
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

.PHONY: bench
bench: setup ## time all hot paths against their competitors: docs/performance.md (FULL=1: more rounds)
	@$(RUN) -m scripts.bench $(BENCH)
	@$(RUN) -m scripts.report

# What `make bench-… FULL=1 ARGS="--device cpu"` passes on.
BENCH = $(if $(FULL),--full) $(ARGS)

.PHONY: bench-optim
bench-optim: setup ## NovoGrad's step against torch's optimizers and other NovoGrad implementations
	@$(RUN) -m scripts.bench optim $(BENCH)
	@$(RUN) -m scripts.report

.PHONY: bench-engine
bench-engine: setup ## a training step through the engine against a bare loop
	@$(RUN) -m scripts.bench engine $(BENCH)
	@$(RUN) -m scripts.report

.PHONY: bench-input
bench-input: setup ## images per second per core, against torchvision's reference pipeline
	@$(RUN) -m scripts.bench input $(BENCH)
	@$(RUN) -m scripts.report

.PHONY: bench-librispeech
bench-librispeech: setup ## utterances per second of Jasper's step and front end, against NVIDIA's code path
	@$(RUN) -m scripts.bench librispeech $(BENCH)
	@$(RUN) -m scripts.report

.PHONY: bench-wmt
bench-wmt: setup ## Transformer-big's step and beam search, against fairseq's own
	@$(RUN) -m scripts.bench wmt $(BENCH)
	@$(RUN) -m scripts.report

.PHONY: bench-wikitext
bench-wikitext: setup ## Transformer-XL's step and evaluation, against the original code path
	@$(RUN) -m scripts.bench wikitext $(BENCH)
	@$(RUN) -m scripts.report

.PHONY: bench-commands
bench-commands: setup ## how long help, plan, report and a smoke run take, compared with importing torch
	@$(RUN) -m scripts.bench commands $(BENCH)
	@$(RUN) -m scripts.report

.PHONY: lock
lock: setup ## resolve pyproject.toml into requirements.lock, with checksums (ARGS=--upgrade)
	@$(RUN) -m scripts.lock $(ARGS)

.PHONY: wheel
wheel: setup ## build the package novograd (the folder optim/) into dist/
	@$(RUN) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

.PHONY: clean
clean: ## remove the environment and the tools' caches
	@rm -rf .venv $(INTEGRATIONS) .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
