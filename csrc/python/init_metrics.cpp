// torch_xla.debug.metrics: counters, metrics and their reports.
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "debug/metrics.h"
#include "python/settled.h"
#include "util/error.h"

namespace py = pybind11;

namespace torch_xla::python {

namespace {

// (total samples, their sum, [(seconds since the epoch, value), ...]) or None.
py::object metric_data(const std::string& name) {
  const std::optional<debug::MetricData> data = debug::metric_data(name);
  if (!data) {
    return py::none();
  }
  py::list samples(data->samples.size());
  for (std::size_t i = 0; i < data->samples.size(); ++i) {
    const debug::Sample& sample = data->samples[i];
    samples[i] = py::make_tuple(static_cast<double>(sample.timestamp_ns) * 1e-9, sample.value);
  }
  return py::make_tuple(data->total_samples, data->accumulator, samples);
}

void add_to_counter(const std::string& name, std::int64_t n) { debug::counter(name)->add(n); }

void add_sample(const std::string& name, double value, const std::string& unit) {
  static const std::map<std::string, debug::Unit> kUnits = {
      {"time", debug::Unit::Time}, {"bytes", debug::Unit::Bytes}, {"value", debug::Unit::Value}};
  const auto found = kUnits.find(unit);
  TXLA_CHECK_KIND(util::ErrorKind::Value, found != kUnits.end(), "metric ", name,
                  ": expected the unit 'time', 'bytes' or 'value', got '", unit, "'.");
  debug::Metric(name, found->second).add(value);
}

}  // namespace

void init_metrics(py::module_& m) {
  m.def("_xla_metrics_report", settled(&debug::metrics_report));
  m.def("_short_xla_metrics_report", settled(&debug::short_metrics_report),
        py::arg("counter_names"), py::arg("metric_names"));
  m.def("_xla_counter_names", settled(&debug::counter_names));
  m.def("_xla_counter_value", settled(&debug::counter_value), py::arg("name"));
  m.def("_xla_metric_names", settled(&debug::metric_names));
  m.def("_xla_metric_data", settled(&metric_data), py::arg("name"));
  m.def("_clear_xla_counters", settled(&debug::clear_counters));
  m.def("_clear_xla_metrics", settled(&debug::clear_metrics));
  // For what is counted in Python. A time is in nanoseconds.
  m.def("_xla_add_to_counter", &add_to_counter, py::arg("name"), py::arg("n") = 1);
  m.def("_xla_add_sample", &add_sample, py::arg("name"), py::arg("value"),
        py::arg("unit") = "time");
}

}  // namespace torch_xla::python
