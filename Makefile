# make run    set-up and the main job: CORPUS=path MINUTES=5 OUT=folder
# make test   set-up and all tests          make bench  set-up and the speed table
# make setup  only the set-up               make soak   the long fault tests: ROWS=1,3,27-40,31=50
# Works from any folder (make -f .../Makefile run), again after an interruption, and reinstalls only what changed.

SELF   := $(abspath $(MAKEFILE_LIST))
# Words are all that make knows: "my notes/remask" would be two folders, and `rm -rf` would take the first.
ifneq ($(words $(SELF)),1)
$(error remask: make cannot work in a folder with a space in its path ($(SELF)): move the checkout to another)
endif
ROOT   := $(patsubst %/,%,$(dir $(SELF)))
PYTHON ?= python3
VENV   := $(ROOT)/.venv
BIN    := $(VENV)/bin
OUT    ?= remask-out/quickstart
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup setup-test setup-bench run test lint bench soak clean

help:
	@sed -n '1,4s/^# *//p' $(ROOT)/Makefile

define install
	@echo "remask: installing $(1) into .venv (constraints.txt has the versions)"
	@$(BIN)/python -m pip install --quiet -c $(ROOT)/constraints.txt -e "$(ROOT)[$(1)]" 2> $(VENV)/install.log \
		|| { cat $(VENV)/install.log >&2; echo "remask: the installation failed; see above, then run the same command again" >&2; exit 69; }
endef

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "remask: Python 3.11 or newer is needed, $$($(PYTHON) --version 2>&1) was found; try make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 69; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "remask: this Python has no venv; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 69; }
	@echo "remask: creating .venv"
	@rm -rf "$(VENV)" && $(PYTHON) -m venv "$(VENV)"
	@touch $@

$(VENV)/.core: $(VENV)/.created $(ROOT)/pyproject.toml $(ROOT)/constraints.txt
	$(call install,serve)
	@touch $@

$(VENV)/.test: $(VENV)/.core
	$(call install,test)
	@touch $@

$(VENV)/.bench: $(VENV)/.core
	$(call install,bench)
	@touch $@

setup: $(VENV)/.core
setup-test: $(VENV)/.test
setup-bench: $(VENV)/.bench

run: setup
	@$(BIN)/remask quickstart $(if $(CORPUS),"$(CORPUS)") $(if $(MINUTES),--minutes $(MINUTES)) --out "$(OUT)"

lint: setup-test
	@cd $(ROOT) && $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

# In the order of the folders: long files of faults/ and integration/ come first, short ones of unit/ fill up the end.
# Compiled first, as pip does with what it installs: tests start hundreds of processes, some where Python may not write.
test: lint
	@$(BIN)/python -m compileall -q $(ROOT)/remask
	@cd $(ROOT) && $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

bench: setup-bench
	@cd $(ROOT) && $(BIN)/python -m benchmarks

soak: setup-test
	@cd $(ROOT) && REMASK_SOAK="$(or $(ROWS),all)" $(BIN)/python -m pytest tests/faults -x

clean:
	@rm -rf "$(VENV)"
