# `make demo` and `make test` work on a machine with Python 3.11, g++, make and the package registries.
# Everything lands in .venv/, build/ and torch_xla/_XLAC*.so; `make clean` removes the last two.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
JOBS ?= $(shell nproc)
PYTEST_JOBS ?= 2
# Where pip takes torch from, if not the default index. The CPU build alone is smaller on Linux:
#   make demo TORCH_INDEX='--index-url https://download.pytorch.org/whl/cpu'
TORCH_INDEX ?=
TORCH := torch==2.13.0
# Only the XLA FFI headers are used, so its dependencies stay out.
JAXLIB := jaxlib==0.8.0
# Models for `make test-all`. torchvision's wheels ask for the torch build they were made with.
VISION := torchvision==0.28.0 timm==1.0.31 pillow==13.0.0 diffusers==0.42.1 requests==2.34.2 \
  urllib3==2.8.0 charset-normalizer==3.5.3 certifi==2026.10.19.post1 httpx==0.28.1 httpcore==1.0.9 \
  importlib-metadata==10.2.0 zipp==4.1.2
# The newest transformers whose Trainer makes an optimizer with FSDPv2, and what it needs other than
# .venv has, for `make test-all`.
TRAINER := transformers==5.2.0 huggingface_hub==1.33.0 tokenizers==0.22.2 httpx==0.28.1 httpcore==1.0.9 \
  certifi==2026.10.19.post1 accelerate==1.15.0 psutil==7.2.2
# Reads profiles, for `make test-all`: TensorBoard's plugin is made of it.
XPROF := xprof==2.24.2
# Compiles for TPUs that are not there; 0.7 GB, so `make test-all` alone takes it.
LIBTPU := libtpu==0.0.42.1

VENV := .venv
BIN := $(abspath $(VENV))/bin
PY := $(BIN)/python
BUILD := build
TPU_LIBRARY := $(abspath $(BUILD))/libtpu/libtpu/libtpu.so
TRAINER_PACKAGES := $(abspath $(BUILD))/trainer
XPROF_PACKAGES := $(abspath $(BUILD))/xprof
VISION_PACKAGES := $(abspath $(BUILD))/vision
PIP := $(PY) -m pip --disable-pip-version-check install --quiet
CTEST = $(BIN)/ctest --output-on-failure --timeout 300 -j $(JOBS)
# cmake looks for ninja; nothing may wait for a keyboard.
export PATH := $(BIN):$(PATH)
export PIP_NO_INPUT := 1

# What includes a precompiled header is cached only with these two (ccache's manual, "Precompiled headers").
CCACHE := $(shell command -v ccache)
SLOPPINESS := pch_defines,time_macros,include_file_mtime,include_file_ctime
CMAKE_ARGS := -G Ninja -DPython_EXECUTABLE=$(PY) -DTORCH_XLA_WERROR=ON $(if $(CCACHE),\
  '-DCMAKE_CXX_COMPILER_LAUNCHER=env;CCACHE_SLOPPINESS=$(SLOPPINESS);$(CCACHE)' \
  '-DCMAKE_CXX_FLAGS=-fpch-preprocess $(CXXFLAGS)')

CPP_FILES = $(shell find csrc examples tests/cpp tests/sanitizers -name '*.h' -o -name '*.cpp')
# The folders of the Python tests that exist by now, those of long tests first: no worker waits for another at
# the end.
FOLDERS := $(notdir $(wildcard $(addprefix tests/,models unit hlo ops api jobs spmd fuzz pytorch)))
PYTEST = $(PY) -m pytest -n $(PYTEST_JOBS) --dist worksteal --durations=30
SANITIZERS := address-undefined thread
# Under a sanitizer: what has callbacks, borrowed memory and failures in it. That of threads makes
# tests five to fifteen times slower: it takes those in which threads meet.
TESTS_FOR_address-undefined := tests/sanitizers tests/unit tests/api tests/spmd
TESTS_FOR_thread := tests/sanitizers tests/spmd/test_spmd_mode.py \
  $(patsubst %,tests/unit/test_%.py,donation in_flight sources threads traced_function undo) \
  $(patsubst %,tests/api/test_%.py,compile devices disk_cache faults loader metrics sync)
CHOSEN_FOR_address-undefined := not slow and not process_memory
CHOSEN_FOR_thread := not slow and not process_memory and not forks
# Those that take hours on a slow machine come in parts of their own.
SHARDED := ops fuzz
SHARDS := $(foreach folder,$(SHARDED),$(patsubst %,$(folder)-%of4,1 2 3 4))
PARTS := lint cpp $(filter-out $(SHARDED),$(FOLDERS)) $(SHARDS) tpu $(SANITIZERS)

.PHONY: demo test test-all test-results bench lint format build clean venv cpp-tests \
  $(PARTS:%=part-%) $(SHARDED:%=part-%)
.NOTPARALLEL:
.DELETE_ON_ERROR:

demo: build
	$(PY) examples/train_digits.py

# Most of the time is the compiler's: without LLVM's optimizations it takes two thirds.
test: export XLA_FLAGS := --xla_backend_optimization_level=0 $(XLA_FLAGS)
ifdef ROOM
# Those of one room: make test ROOM=executor; scripts/room_tests.py has the rooms.
test: build
	files=$$($(PY) scripts/room_tests.py $(ROOM)) && $(PYTEST) -m "not slow" $$files
else
test: lint cpp-tests build
	$(CTEST) --test-dir $(BUILD)
	$(PYTEST) --durations=30 --durations-min=5 -m "not slow" $(FOLDERS:%=tests/%)
endif

# Every part, or some: make test-all PARTS='ops-1of4 thread'; `ops` is all of its four.
test-all:
	@MAKE=$(MAKE) scripts/test_parts.sh $(BUILD)/results $(PARTS)

test-results:
	@cat $(BUILD)/results/*.result

part-lint: lint

part-cpp: cpp-tests
	$(CTEST) --test-dir $(BUILD)

$(FOLDERS:%=part-%): part-%: build
	$(PYTEST) tests/$*

$(SHARDS:%=part-%): part-%: build
	TEST_SHARD=$(lastword $(subst -, ,$*)) $(PYTEST) tests/$(firstword $(subst -, ,$*))

# Next to .venv: transformers would import a torchvision there, which goes with tests/models alone.
part-models: $(VISION_PACKAGES)/.installed
part-models: export PYTHONPATH := $(VISION_PACKAGES)

part-spmd: $(TRAINER_PACKAGES)/.installed
part-spmd: export TRAINER_PACKAGES_PATH := $(TRAINER_PACKAGES)

part-api: $(XPROF_PACKAGES)/.installed
part-api: export XPROF_PACKAGES_PATH := $(XPROF_PACKAGES)

part-tpu: build $(TPU_LIBRARY)
	TPU_LIBRARY_PATH=$(TPU_LIBRARY) $(PYTEST) tests/tpu

# The C++ tests, and Python tests with the whole extension built for the sanitizer.
$(SANITIZERS:%=part-%): part-%: $(BUILD)/.configured-tests
	$(BIN)/cmake -S . -B $(BUILD)/$* $(CMAKE_ARGS) -DTORCH_XLA_TESTS=ON -DTORCH_XLA_SANITIZE=$*
	$(BIN)/ninja -C $(BUILD)/$* -j $(JOBS)
	LSAN_OPTIONS=suppressions=$(CURDIR)/tests/sanitizers/leak.supp $(CTEST) --test-dir $(BUILD)/$*
	scripts/sanitized.sh $(BUILD)/$* $(PYTEST) --capture=sys -m "$(CHOSEN_FOR_$*)" $(TESTS_FOR_$*)

$(TPU_LIBRARY): $(VENV)/.installed
	$(PIP) --target $(BUILD)/libtpu --no-deps $(LIBTPU)
	@touch $@

$(TRAINER_PACKAGES)/.installed: $(VENV)/.installed
	$(PIP) --target $(@D) --no-deps $(TRAINER)
	@touch $@

$(VISION_PACKAGES)/.installed: $(VENV)/.installed
	$(PIP) --target $(@D) --no-deps $(VISION)
	@touch $@

$(XPROF_PACKAGES)/.installed: $(VENV)/.installed
	$(PIP) --target $(@D) $(XPROF)
	@touch $@

# Side by side with a build that notes nothing of what explains a run.
bench: build
	$(BIN)/cmake -S . -B $(BUILD)/plain $(CMAKE_ARGS) -DTORCH_XLA_DIAGNOSTICS=OFF
	$(BIN)/ninja -C $(BUILD)/plain -j $(JOBS) _XLAC
	$(PY) -m benchmarks
	$(PY) -m benchmarks.diagnostics $(BUILD)/plain

lint: $(VENV)/.installed
	@echo "clang-format --dry-run -Werror: $(words $(CPP_FILES)) files"
	@$(BIN)/clang-format --dry-run -Werror $(CPP_FILES) || { echo 'make format would mend this.'; exit 1; }
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(PY) scripts/check_includes.py
	$(PY) scripts/check_rooms.py
	$(PY) scripts/check_operators.py
	$(PY) scripts/room_tests.py
	$(PY) scripts/check_docs.py

format: $(VENV)/.installed
	@$(BIN)/clang-format -i $(CPP_FILES)
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format --quiet .

venv: $(VENV)/.installed

$(VENV)/.installed: requirements-dev.txt Makefile
	bash scripts/system_deps.sh $(PYTHON)
	@# An interrupted first run leaves an environment without pip.
	$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing $(TORCH) and requirements-dev.txt into $(VENV)"
	$(PIP) $(TORCH_INDEX) $(TORCH)
	$(PIP) -r requirements-dev.txt
	$(PIP) --no-deps $(JAXLIB)
	@# The package runs from this checkout, whatever the current folder.
	echo "$(CURDIR)" > "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch_xla_checkout.pth"
	@touch $@

$(BUILD)/.configured: $(VENV)/.installed
	$(BIN)/cmake -S . -B $(BUILD) $(CMAKE_ARGS)
	@touch $@

build: $(BUILD)/.configured
	$(BIN)/ninja -C $(BUILD) -j $(JOBS) _XLAC

$(BUILD)/.configured-tests: $(BUILD)/.configured
	bash scripts/system_deps.sh $(PY) --tests
	$(BIN)/cmake -S . -B $(BUILD) $(CMAKE_ARGS) -DTORCH_XLA_TESTS=ON
	@touch $@

cpp-tests: $(BUILD)/.configured-tests
	$(BIN)/ninja -C $(BUILD) -j $(JOBS) torch_xla_tests step_runner

clean:
	rm -rf $(BUILD) dist torch_xla/_XLAC*.so
