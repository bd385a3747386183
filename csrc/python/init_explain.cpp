// Why programs were compiled again, and where the user's program waited.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "debug/waits.h"
#include "executor/compile/compile.h"
#include "executor/insight/recompiles.h"
#include "executor/insight/watchers.h"
#include "executor/run/live_data.h"
#include "lazy/tensor.h"
#include "python/init.h"
#include "python/settled.h"

namespace py = pybind11;
using py::literals::operator""_a;

namespace torch_xla::python {
namespace {

std::vector<py::dict> recompiles(bool clear) {
  std::vector<py::dict> all;
  for (const executor::Recompile& r : executor::recompiles(clear)) {
    all.push_back(py::dict("number"_a = r.number, "name"_a = r.name, "place"_a = r.place,
                           "seconds"_a = r.seconds, "from_disk"_a = r.from_disk, "key"_a = r.key,
                           "earlier_key"_a = r.earlier_key, "kind"_a = r.kind, "what"_a = r.what,
                           "line"_a = r.line, "earlier_line"_a = r.earlier_line,
                           "advice"_a = r.advice, "text"_a = r.str()));
  }
  return all;
}

std::vector<py::dict> waits(bool clear) {
  std::vector<py::dict> all;
  for (const debug::Wait& w : debug::waits(clear)) {
    all.push_back(py::dict("place"_a = w.place, "why"_a = w.why, "count"_a = w.count,
                           "seconds"_a = w.seconds));
  }
  return all;
}

std::vector<py::dict> live_data() {
  std::vector<py::dict> all;
  for (const executor::LiveData& d : executor::live_data()) {
    all.push_back(py::dict("id"_a = reinterpret_cast<uintptr_t>(d.array), "device"_a = d.device,
                           "bytes"_a = d.bytes, "type"_a = d.type, "line"_a = d.maker.str(),
                           "scope"_a = lazy::scope_name(d.maker.scope)));
  }
  return all;
}

// The id of the data that a tensor's storage has, as live_data() has it; 0 where it waits to be
// computed.
uintptr_t data_id(const at::Tensor& tensor) {
  const lazy::GraphLock lock;
  lazy::Storage& storage = lazy::expect_lazy(tensor, "_xla_data_id").lazy_storage();
  if (!storage.has_value()) return 0;
  const lazy::Value value = storage.value();
  if (!value.node->is_data()) return 0;
  return reinterpret_cast<uintptr_t>(value.node->data().array.get());
}

// For each program that is kept: its name, its line, and the bytes of its temporaries.
std::vector<std::tuple<std::string, std::string, int64_t>> temporaries() {
  std::vector<std::tuple<std::string, std::string, int64_t>> all;
  for (const auto& program : executor::cached_programs()) {
    int64_t bytes = 0;
    for (const auto& executable : program->executables) {
      if (const auto stats = executable->memory_stats()) bytes = std::max(bytes, stats->temp_bytes);
    }
    all.emplace_back(program->name, program->place, bytes);
  }
  return all;
}

}  // namespace

void init_explain(py::module_& m) {
  executor::start_watching();
  m.def("_xla_recompiles", settled(&recompiles), py::arg("clear") = false);
  m.def("_xla_live_data", settled(&live_data));
  m.def("_xla_data_id", &data_id);
  m.def("_xla_temporaries", settled(&temporaries));
  m.def("_xla_waits", settled(&waits), py::arg("clear") = false);
}

}  // namespace torch_xla::python
