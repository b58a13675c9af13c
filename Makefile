# Two commands do everything: `make demo` shows the main job, `make test` checks the whole project.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
WORKERS ?= 2

.PHONY: demo verdicts docs build browser test test-all test-gpu check format lock clean

# Everything but torch is pinned with its hashes; torch is pinned, and which of its builds (CPU or GPU) is pip's choice.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
$(READY): pyproject.toml constraints.txt requirements.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps "$$(grep '^torch==' constraints.txt)"
	$(PIP) --require-hashes -r requirements.txt
	$(PIP) --no-deps --no-build-isolation -e .
	touch $(READY)

# The versions of constraints.txt, what they need in turn, and the hashes of all files of each. Needs uv.
lock:
	echo "hatchling\neditables" | uv pip compile pyproject.toml - --extra dev --constraint constraints.txt --universal \
	  --python-version 3.11.5 --generate-hashes --no-emit-package torch --no-emit-index-url --no-emit-find-links \
	  --no-annotate --no-header $(LOCK_OPTIONS) --output-file requirements.txt

demo: $(READY)
	$(BIN)/semfocus compare even_pairs --quick

# Verdicts, figures and pages from the published runs alone, of the paper and of our own questions: nothing is trained.
verdicts: $(READY)
	$(BIN)/semfocus rebuild results/paper --out build/paper
	$(BIN)/semfocus rebuild results/focus --out build/focus

# The site, into site/: a broken link, or a public name without a page or a docstring, fails. Nothing is fetched.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Wheel and source archive, into dist/, as they would be uploaded.
build: $(READY)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check

# The page is tested in a real browser; without one those tests skip. Playwright drives Debian's, and downloads none.
browser:
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium) \
	  || echo "no chromium: the tests that need a browser will be skipped"

# One torch thread a worker: two threads beside a busy core can be a hundred times slower than one.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow"

test-all: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --hypothesis-profile search

# Attention on a GPU, several processes at once: kernels compile on the CPU. Where nothing can be installed, name an
# interpreter that has torch, numpy, pytest and hypothesis:   make test-gpu GPU_PYTHON=python3
SHARDS ?= 12
test-gpu: export SEMFOCUS_TEST_DEVICE = cuda
test-gpu: export NVIDIA_TF32_OVERRIDE = 0
test-gpu: export PYTHONPATH := src:$(PYTHONPATH)
test-gpu: $(if $(GPU_PYTHON),,$(READY))
	mkdir -p build && rm -f build/test-gpu-*
	for i in $$(seq $(SHARDS)); do \
	  (SEMFOCUS_TEST_SHARD=$$i/$(SHARDS) $(or $(GPU_PYTHON),$(BIN)/python) -m pytest -q -p no:cacheprovider \
	    tests/conformance tests/attention tests/fused tests/execution/test_streams.py > build/test-gpu-$$i.txt 2>&1 || touch build/test-gpu-failed) & \
	done; wait
	tail -qn 1 build/test-gpu-*.txt
	! test -e build/test-gpu-failed || (grep -h "^FAILED\|^ERROR" build/test-gpu-*.txt; exit 1)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist site
