# The Python extension torch_xla/_XLAC, built against the torch that is installed.
find_package(pybind11 CONFIG QUIET)
if(NOT pybind11_FOUND)
  execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
                  OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
  find_package(pybind11 CONFIG REQUIRED)
endif()

if(NOT TORCH_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/torch_install.py
                  OUTPUT_VARIABLE TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT EXISTS "${TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "torch: expected an installed torch, found none for ${Python_EXECUTABLE}. "
                      "Run: pip install torch==2.13.0, or pass -DTORCH_DIR=<folder>")
endif()
message(STATUS "torch: ${TORCH_DIR}")

# The FFI headers must be 0.1: every plugin accepts handlers built with them (docs/architecture.md).
if(NOT XLA_FFI_INCLUDE_DIR)
  find_wheel_header(XLA_FFI_INCLUDE_DIR jaxlib include)
endif()
if(NOT EXISTS "${XLA_FFI_INCLUDE_DIR}/xla/ffi/api/c_api.h")
  message(FATAL_ERROR "xla/ffi/api/c_api.h: expected in the wheel jaxlib, found nothing at '${XLA_FFI_INCLUDE_DIR}'. "
                      "Run: pip install jaxlib==0.8.0, or pass -DXLA_FFI_INCLUDE_DIR=<folder>")
endif()

file(GLOB EXTENSION_SOURCES CONFIGURE_DEPENDS
     csrc/lazy/*.cpp csrc/ops/*.cpp csrc/cpu/*.cpp csrc/executor/*/*.cpp csrc/dispatch/*.cpp
     csrc/dispatch/*/*.cpp csrc/debug/*.cpp)
file(GLOB BINDING_SOURCES CONFIGURE_DEPENDS csrc/python/*.cpp)
# In torch_xla_base.
list(FILTER EXTENSION_SOURCES EXCLUDE REGEX
     "csrc/debug/metrics[a-z_]*\\.cpp$|csrc/cpu/(call_text|imports|large_blocks)\\.cpp$")
add_library(torch_xla_headers INTERFACE)
target_include_directories(torch_xla_headers SYSTEM INTERFACE
  ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include ${XLA_FFI_INCLUDE_DIR})
target_link_libraries(torch_xla_headers INTERFACE torch_xla_base)
# The bindings alone know Python. Each unit that includes pybind11 compiles half of it, so they are few.
add_library(torch_xla_bindings OBJECT ${BINDING_SOURCES})
set_target_properties(torch_xla_bindings PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 5)
target_link_libraries(torch_xla_bindings PRIVATE torch_xla_headers pybind11::module)
pybind11_add_module(_XLAC NO_EXTRAS ${EXTENSION_SOURCES})
# A unit compiles 2 s of templates of torch before its own: neighbours share them. Names in anonymous
# namespaces must differ among neighbours, the compiler says where they do not.
set_target_properties(_XLAC PROPERTIES UNITY_BUILD ${TORCH_XLA_UNITY} UNITY_BUILD_BATCH_SIZE 5)
target_link_libraries(_XLAC PRIVATE torch_xla_headers torch_xla_bindings
  ${TORCH_DIR}/lib/libtorch_python.so ${TORCH_DIR}/lib/libtorch.so
  ${TORCH_DIR}/lib/libtorch_cpu.so ${TORCH_DIR}/lib/libc10.so)
# PyTorch's libraries bring the shared C++ library into the process. A copy in the extension, which some
# toolchains link without being asked, has another table of locales: streams then call what is not theirs.
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.so.6
                OUTPUT_VARIABLE SHARED_LIBSTDCXX OUTPUT_STRIP_TRAILING_WHITESPACE)
if(IS_ABSOLUTE "${SHARED_LIBSTDCXX}")
  target_link_libraries(_XLAC PRIVATE ${SHARED_LIBSTDCXX})
endif()
file(STRINGS torch_xla/version.py VERSION_LINE REGEX "^DISTRIBUTION_VERSION = ")
string(REGEX REPLACE ".*(\".*\")" "\\1" TORCH_XLA_VERSION ${VERSION_LINE})
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS torch_xla/version.py)
set_source_files_properties(csrc/executor/stored/program_file.cpp PROPERTIES
  COMPILE_DEFINITIONS TORCH_XLA_VERSION=${TORCH_XLA_VERSION})
# They stay alone: headers of c10d are nobody else's there, and the others are quick.
set_source_files_properties(csrc/executor/stored/job_programs.cpp csrc/executor/stored/disk_cache.cpp
  csrc/executor/stored/tcp_store.cpp csrc/executor/run/doing.cpp csrc/dispatch/replicas/job_store.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
if(NOT TORCH_XLA_DIAGNOSTICS)
  # Those that look at util::kDiagnostics.
  set_source_files_properties(csrc/lazy/source.cpp csrc/debug/waits.cpp
    csrc/executor/run/live_data.cpp csrc/executor/insight/recompiles.cpp PROPERTIES COMPILE_DEFINITIONS TORCH_XLA_NO_DIAGNOSTICS)
endif()
# torch is imported before the extension, so its libraries are found by name in the running process.
set_target_properties(_XLAC PROPERTIES SKIP_BUILD_RPATH ON INSTALL_RPATH "")

if(SKBUILD)
  install(TARGETS _XLAC LIBRARY DESTINATION torch_xla)
elseif(TORCH_XLA_SANITIZE OR NOT TORCH_XLA_DIAGNOSTICS)
  # scripts/sanitized.sh and benchmarks/diagnostics.py load it from there in place of the one beside the package.
  set_target_properties(_XLAC PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
else()
  # A development build puts the extension beside the package, ready to import.
  set_target_properties(_XLAC PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_SOURCE_DIR}/torch_xla)
endif()

# Most files meet the same headers of torch: parsing them once more than halves the build.
target_precompile_headers(_XLAC PRIVATE
  <ATen/Context.h> <ATen/Functions.h> <ATen/core/Tensor.h> <ATen/core/dispatch/Dispatcher.h>
  <ATen/core/ivalue.h> <torch/library.h>
  <algorithm> <functional> <map> <memory> <span> <string> <unordered_map> <unordered_set> <vector>)
