# Begin with `make study` or `make test`. Both first set up a `.venv` in this checkout.
#
#   make study [SCALE=smoke|quick|laptop|desktop] [ARGS="--parallel 1"]
#   make setup     the .venv alone
#   make test      the default suite         make test-all   all but Slurm's
#   make test-slurm  a real Slurm, started on this machine from Debian's packages
#   make test-input  hundreds of bad inputs and damaged files, each with its answer
#   make check     ruff and mypy             make figures    draws SCALE's figures again
#   make docs      writes the generated parts of docs/ again
#   make sizes     how large the package is, against its goals
#   make gpu [MINUTES=9] [TO=FOLDER]  checks and measurements on a machine with one GPU
#   make clean     deletes caches of the tools; runs/ and prepared/ stay

SCALE ?= quick
ARGS ?=
PYTHON ?=

# A relative path: the checkout may lie under a directory with spaces in its name.
run := .venv/bin/python
# Set-up is done once per content of the lock file.
lock := $(shell cksum < requirements.lock | cut -d ' ' -f 1)
installed := .venv/installed-$(lock)
# And once per list of verbs: what the package's own entry points are.
ready := .venv/verbs-$(shell cksum < pyproject.toml | cut -d ' ' -f 1)
pip := $(run) -m pip install --quiet --disable-pip-version-check
# The lock file is whole, so that nothing else has to be found; torch has no hash (it says why).
hashed := --no-deps --require-hashes -r .venv/locked.txt

.PHONY: study test test-all test-slurm test-input check docs figures gpu clean setup sizes
.DEFAULT_GOAL := study

study: $(ready)
	@$(run) -m tst_study submit laptop --scale $(SCALE) $(ARGS)

figures: $(ready)
	@$(run) -m tst_study figures --runs runs/laptop-$(SCALE) --to runs/laptop-$(SCALE)/report

# A worker per processor, up to eight; the tests of a file stay together, with what they share.
test: $(ready)
	$(run) -m pytest -n logical --maxprocesses 8 --dist loadfile

test-all: $(ready)
	$(run) -m pytest -m 'not slurm'

test-slurm: $(ready)
	$(run) -m pytest -m slurm tests/slurm

test-input: $(ready)
	$(run) -m pytest -m input tests/input -n logical --maxprocesses 8

check: $(ready)
	$(run) -m ruff check .
	$(run) -m ruff format --check .
	$(run) -m mypy

docs: $(ready)
	$(run) -m docs.generate

gpu := benchmarks/gpu.py --minutes $(or $(MINUTES),9) $(and $(TO),--to '$(TO)')
# On a GPU machine the environment is the machine's own (torch with CUDA), hence no set-up here.
# It is looked for without importing torch, which would take a GPU's time but not count in MINUTES.
gpu:
	@command -v "$${CC:-cc}" > /dev/null || { echo "error: no C compiler, which torch.compile needs" \
	  "on a GPU; Debian: apt install gcc" >&2; exit 1; }
	@for candidate in $(or $(PYTHON),python3 .venv/bin/python); do \
	  "$$candidate" -c 'import os; from importlib.util import find_spec; find_spec("megatron").name; \
	    os.stat(os.path.dirname(find_spec("torch").origin) + "/lib/libtorch_cuda.so")' 2>/dev/null \
	    || continue; \
	  "$$candidate" -c 'import os, sysconfig; open(sysconfig.get_path("include") + "/Python.h")' \
	    2>/dev/null || { echo "error: $$candidate: no Python.h, which torch.compile needs on a GPU;" \
	    "Debian: apt install python3-dev" >&2; exit 1; }; \
	  exec "$$candidate" $(gpu); \
	done; exec $(or $(PYTHON),python3) $(gpu)

setup: $(ready)

sizes:
	@.ci/sizes

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(ready): $(installed)
	@echo '3 of 3: installing this checkout'
	@$(pip) --no-deps --no-build-isolation -e .
	@rm -f .venv/verbs-*
	@touch $@

$(installed):
	@.venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] not in [(3, 11), (3, 12), (3, 13)])' \
	    2>/dev/null || { \
	  for candidate in '$(PYTHON)' python3.11 python3.12 python3.13 python3; do \
	    "$$candidate" -c 'import sys, venv, ensurepip; \
	      sys.exit(sys.version_info[:2] not in [(3, 11), (3, 12), (3, 13)])' 2>/dev/null \
	      && found=$$candidate && break; \
	  done; \
	  [ -n "$$found" ] || { echo "error: no Python 3.11 to 3.13 with venv and pip on the PATH;" \
	    "install one (Debian: apt install python3.11-venv) or say: make PYTHON=/path/to/python" \
	    >&2; exit 1; }; \
	  "$$found" -m venv --clear .venv; }
	@echo 'Setting up .venv (once, 2 GB, one to three minutes)'
	@echo '1 of 3: downloading and installing torch'
	@$(pip) --no-compile "$$(grep '^torch==' requirements.lock)"
	@grep -v '^torch==' requirements.lock > .venv/locked.txt
	@echo "2 of 3: installing $$(grep -c '==' .venv/locked.txt) packages of requirements.lock"
	@if command -v uv > /dev/null; then uv pip install --quiet --python $(run) $(hashed); \
	  else $(pip) --no-compile $(hashed); fi
	@nice $(run) -m compileall -q -j 0 -x '/(tests|transformers/models)/' .venv/lib > /dev/null 2>&1 &  # beside what comes next
	@rm -f .venv/installed-*
	@touch $@
