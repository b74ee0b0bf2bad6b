# Every target has its explanation on its own line, behind `##`; `make help` prints them.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help venv test test-all lint check generated release-check docs bench-overhead bench-diagnosis bench-by-hand bench-loader bench-tune bench-honesty bench-search bench-edits bench-ranks bench-hosts bench-remote bench-ray regress wild gpu-day gpu-wheels clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(BIN)/hasten ## make .venv with hasten (editable), the test tools and mkdocs

$(BIN)/hasten: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --editable '.[test,docs]'
	@touch $@

test: venv ## run the tests that start no script and take no seconds; a minute on two cores
	$(BIN)/pytest -m "not slow" -n 2 --dist loadgroup

test-all: venv ## run every test; seven minutes on two cores
	$(BIN)/pytest -n 2 --dist loadgroup

lint: venv ## ruff (rules and format) and pyright (strict)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint ## what a commit must pass: lint, generated files, and the guards of tests/guards
	$(BIN)/python docs/generate.py --check
	$(BIN)/pytest tests/guards

generated: venv ## write every generated file: tables and pictures of docs/, the repository's address
	$(BIN)/python docs/generate.py

docs: generated ## build the pages into site/; a broken link is an error
	$(BIN)/mkdocs build --strict

release-check: venv ## build sdist and wheel into dist/, install the wheel in a fresh environment and try it
	$(BIN)/python .ci/release_check.py

bench-overhead: venv ## what measuring costs: step times with and without hasten, in turn
	$(BIN)/python benchmarks/overhead.py

bench-diagnosis: venv ## hasten on every script of tests/faulty, beside what fixing by hand gained
	$(BIN)/python benchmarks/diagnosis.py

bench-by-hand: venv ## what fixing each script of tests/faulty gains, with nobody measuring inside it
	$(BIN)/python benchmarks/by_hand.py

bench-loader: venv ## hasten.Loader beside its peers; see benchmarks/loader_requirements.txt
	$(BIN)/python benchmarks/loader.py

bench-tune: venv ## hasten tune on every script of tests/faulty, against the script fixed by hand
	$(BIN)/python benchmarks/tune.py

bench-honesty: venv ## a script against itself, slowed down, and made worse: what trials say of it
	$(BIN)/python benchmarks/honesty.py

bench-search: venv ## what the search finds against every combination of the same switches
	$(BIN)/python benchmarks/search.py

bench-edits: venv ## hasten prove on 20 planted edits of training scripts: 10 faster, 5 that do nothing, 5 harmful
	$(BIN)/python benchmarks/edits.py

bench-ranks: venv ## planted faults of three ranks, what watching costs, and many simulated ranks; ONLY="planted delays"
	$(BIN)/python benchmarks/ranks.py $(if $(ONLY),--only $(ONLY))

bench-hosts: venv ## two hosts on a slow network, as root: network namespaces and tc
	$(BIN)/python benchmarks/two_hosts.py

bench-remote: venv ## a data set behind a slow HTTP server, against the least that delay and bandwidth allow
	$(BIN)/python benchmarks/remote.py

bench-ray: venv ## samples made on a Ray cluster of three nodes on this machine, beside local workers
	$(BIN)/python benchmarks/ray_workers.py

regress: venv ## this checkout against another commit, in turn; BASE=COMMIT [HEAD=COMMIT] [ONLY="size commands"]
	$(BIN)/python benchmarks/regress.py $(BASE) $(if $(HEAD),--head $(HEAD)) $(if $(ONLY),--only $(ONLY))

wild: venv ## public training scripts that nobody here wrote: diagnosis, search and the best of all settings, resumable; ONLY="NAME ..."
	$(BIN)/python benchmarks/wild/wild.py run $(ONLY)
	$(BIN)/python benchmarks/wild/wild.py table

gpu-day: ## everything that only a GPU can tell, resumable; ONLY="diagnose case_studies" BUDGET=30m RESULTS=DIR DRY=1
	PYTHON=$(GPU_PYTHON); $${PYTHON:-$(BIN)/python} benchmarks/gpu_day.py $(if $(DRY),--dry) $(if $(ONLY),--only $(ONLY)) $(if $(BUDGET),--budget $(BUDGET)) $(if $(RESULTS),--results $(RESULTS))

gpu-wheels: ## the packages that a machine with torch but no network may lack, into .wheels/; WHEELS_FOR=3.12
	$(PYTHON) -m pip download --no-deps --only-binary=:all: --python-version $(or $(WHEELS_FOR),3.12) --implementation cp \
		$(foreach n,28 27 24 17 12 5,--platform manylinux_2_$(n)_x86_64) --platform manylinux2014_x86_64 \
		--dest .wheels msgspec vl-convert-python simplejpeg threadpoolctl blake3 cykooz-resizer shtab

clean: ## remove what these targets made; kept runs in .hasten/ stay
	rm -rf .venv site build dist .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks docs -name __pycache__ -prune -exec rm -rf {} +
