// Devices, barriers and random state.
#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <tuple>

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "cpu/large_blocks.h"
#include "debug/metrics.h"
#include "dispatch/device/autograd_threads.h"
#include "dispatch/device/generator.h"
#include "dispatch/record/context.h"
#include "dispatch/record/fallback.h"
#include "dispatch/replicas/job_store.h"
#include "executor/compile/background.h"
#include "executor/compile/compile.h"
#include "executor/insight/analysis.h"
#include "executor/run/donation.h"
#include "executor/run/in_flight.h"
#include "executor/run/runtime.h"
#include "executor/step/spmd_mode.h"
#include "executor/step/sync.h"
#include "executor/stored/disk_cache.h"
#include "lazy/device.h"
#include "lazy/lock.h"
#include "lazy/tensor.h"
#include "python/init.h"
#include "python/settled.h"
#include "util/error.h"
#include "util/flags.h"

namespace py = pybind11;

namespace torch_xla::python {

int device_index(const std::string& device) {
  if (device.empty() || device == "xla") return executor::current_device();
  constexpr std::string_view kPrefix = "xla:";
  int index = -1;
  const char* end = device.data() + device.size();
  if (device.starts_with(kPrefix)) {
    const auto [rest, error] = std::from_chars(device.data() + kPrefix.size(), end, index);
    if (rest != end || error != std::errc()) index = -1;
  }
  if (index < 0 || index >= lazy::Device::kMost) {
    util::fail(util::ErrorKind::Value, "device: expected 'xla' or 'xla:<index>', got '", device,
               "'.");
  }
  return index;
}

std::string real_device_name(const pjrt::Device& device) {
  return executor::Runtime::get().device_type() + ":" + std::to_string(device.id());
}

namespace {

std::string device_name(int index) { return "xla:" + std::to_string(index); }

executor::PluginChoice choice_from(const py::dict& d) {
  executor::PluginChoice choice;
  choice.device_type = d["device_type"].cast<std::string>();
  choice.library_path = d["library_path"].cast<std::string>();
  choice.options = d["options"].cast<pjrt::Options>();
  choice.compile_options = d["compile_options"].cast<pjrt::Options>();
  choice.rank = d["rank"].cast<int>();
  choice.num_processes = d["num_processes"].cast<int>();
  if (const py::object store = d["store"]; !store.is_none()) {
    auto [host, port, prefix] = store.cast<std::tuple<std::string, uint16_t, std::string>>();
    choice.store = dispatch::job_store(std::move(host), port, std::move(prefix));
  }
  return choice;
}

void sync(const std::string& device, bool wait, executor::CompiledRegion* region,
          const std::string& cause, const std::string& graph_name) {
  dispatch::refresh_debug_flags();
  // Recording needs no client. Where there is no tensor either, there is nothing to do, and
  // programs that only call this must not create one.
  const int index = device_index(device);
  if (executor::Runtime::get_if_made() == nullptr &&
      lazy::Device::of(index).live_storages.load() == 0)
    return;
  static const debug::Counter marks("MarkStep");
  marks.add();
  const bool is_barrier = cause != executor::kExamined.of_run;
  executor::Cause why{.of_run = cause, .is_barrier = is_barrier};
  why.graph_name = region != nullptr ? region->name() : graph_name;
  executor::sync_device(index, wait, why, region);
  executor::tell_metrics();
  if (!util::flag::XLA_METRICS_FILE().empty()) {
    py::module_::import("torch_xla.debug.metrics_saver").attr("save_metrics")();
  }
}

std::unique_ptr<lazy::GraphLock> held_for_fork;  // set by the thread that forks, under the lock

std::vector<int> indices_or_all(const std::vector<std::string>& devices) {
  std::vector<int> indices;
  for (const std::string& d : devices) indices.push_back(device_index(d));
  if (devices.empty()) {
    if (executor::Runtime* runtime = executor::Runtime::get_if_made()) {
      for (int i = 0; i < runtime->device_count(); ++i) indices.push_back(i);
    }
  }
  return indices;
}

// Those behind logical devices, all of this process where none are named.
std::vector<std::string> real_devices(const std::optional<std::vector<std::string>>& devices) {
  executor::Runtime& runtime = executor::Runtime::get();
  std::vector<std::string> names;
  for (const int index : indices_or_all(devices.value_or(std::vector<std::string>()))) {
    for (const pjrt::Device& d : runtime.devices(index).mine) names.push_back(real_device_name(d));
  }
  return names;
}

// The attributes that the plugin gives a device, and its name.
py::dict attributes(const pjrt::Device& device) {
  py::dict result;
  for (const auto& [name, value] : device.attributes()) result[name.c_str()] = py::cast(value);
  result["name"] = real_device_name(device);
  return result;
}

// The sums over the real devices; empty where the plugin keeps no statistics.
py::dict memory_info(const std::string& device) {
  int64_t used = 0, limit = 0, peak = 0;
  for (const pjrt::Device& d : executor::Runtime::get().devices(device_index(device)).mine) {
    const auto stats = d.memory_stats();
    if (!stats) return {};
    used += stats->bytes_in_use;
    limit += stats->bytes_limit.value_or(0);
    peak += stats->peak_bytes_in_use.value_or(0);
  }
  py::dict info;
  info["bytes_used"] = used;
  info["bytes_limit"] = limit;
  info["peak_bytes_used"] = peak;
  return info;
}

// An XLA_FFI_Handler* that programs call by a name. XLA calls the CPU's platform "Host".
void register_custom_call(const std::string& name, const py::capsule& handler,
                          const std::string& platform) {
  TXLA_CHECK_KIND(util::ErrorKind::Value, handler.get_pointer() != nullptr,
                  "_xla_register_custom_call_target: expected a function, got null.");
  executor::Runtime& runtime = executor::Runtime::get();
  const bool done =
      pjrt::register_ffi_handler(*runtime.client().shared_plugin(), name, handler.get_pointer(),
                                 platform == "CPU" ? "Host" : platform);
  TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, done, "_xla_register_custom_call_target: ",
                  "expected a plugin with the FFI extension, got that of ", runtime.device_type(),
                  ", which has none.");
}

void bind_devices(py::module_& m) {
  // For who has changed a flag of recording, which are read at each sync otherwise.
  m.def("_xla_refresh_debug_flags", &dispatch::refresh_debug_flags);
  m.def("_set_plugin_resolver", [](py::function fn) {
    executor::set_plugin_resolver([fn = std::make_shared<py::function>(std::move(fn))] {
      const py::gil_scoped_acquire gil;
      return choice_from((*fn)().cast<py::dict>());
    });
  });
  m.def("_xla_is_initialized", [] { return executor::Runtime::get_if_made() != nullptr; });
  m.def("_xla_get_devices", [] {
    std::vector<std::string> names;
    for (int i = 0; i < executor::Runtime::get().device_count(); ++i)
      names.push_back(device_name(i));
    return names;
  });
  m.def("_xla_num_devices", [] { return executor::Runtime::get().device_count(); });
  m.def("_xla_num_global_devices",
        [] { return executor::Runtime::get().client().devices().size(); });
  m.def("_xla_num_real_devices",
        [] { return executor::Runtime::get().client().addressable_devices().size(); });
  m.def("_xla_real_devices", &real_devices, py::arg("devices") = py::none());
  m.def("_xla_get_device_attributes", [](const std::string& device) {
    return attributes(executor::Runtime::get().devices(device_index(device)).mine.front());
  });
  m.def("_xla_get_all_device_attributes", [] {
    std::vector<py::dict> all;
    for (const pjrt::Device& d : executor::Runtime::get().client().devices())
      all.push_back(attributes(d));
    return all;
  });
  m.def("_xla_get_device_ordinal", &device_index);
  m.def("_xla_get_default_device_ordinal", &executor::current_device);
  m.def("_xla_get_platform_version",
        [] { return executor::Runtime::get().client().platform_version(); });
  m.def("_xla_register_custom_call_target", &register_custom_call, py::arg("name"),
        py::arg("function"), py::arg("platform"));
  m.def("_xla_get_process_index", [] { return executor::Runtime::get().client().process_index(); });
  m.def("_xla_get_num_processes", [] {
    int last = 0;
    for (const pjrt::Device& d : executor::Runtime::get().client().devices())
      last = std::max(last, d.process_index());
    return last + 1;
  });
  m.def("_xla_is_spmd", &executor::is_spmd);
  m.def("_xla_use_spmd", &executor::use_spmd);
  m.def("_xla_get_default_device", [] {
    executor::Runtime::get();
    return device_name(executor::current_device());
  });
  m.def("_xla_set_default_device", [](const std::string& device) {
    executor::set_current_device(device_index(device));
    return device_name(executor::current_device());
  });
  m.def("_xla_device_type", [] { return executor::Runtime::get().device_type(); });
  m.def(
      "_xla_device_kind",
      [](const std::string& device) {
        return executor::Runtime::get().devices(device_index(device)).mine.front().kind();
      },
      py::arg("device") = "");
  m.def("_xla_memory_info", settled(&memory_info));
  m.def("_xla_empty_cache", &cpu::free_kept);
}

void bind_runs(py::module_& m) {
  using executor::CompiledRegion;
  py::class_<CompiledRegion, std::shared_ptr<CompiledRegion>>(m, "_Region")
      .def(py::init<std::string, bool, std::optional<size_t>, const CompiledRegion*>(),
           py::arg("name"), py::arg("whole"), py::arg("most_graphs"), py::arg("like") = nullptr)
      .def_property_readonly("name", &CompiledRegion::name)
      .def("enter", &CompiledRegion::enter);
  m.def(
      "_xla_step_marker",
      [](const std::string& device, const std::vector<std::string>&, bool wait, bool,
         CompiledRegion* region, const std::string& cause,
         const std::string& graph_name) { sync(device, wait, region, cause, graph_name); },
      py::arg("device") = "", py::arg("devices") = std::vector<std::string>(),
      py::arg("wait") = true, py::arg("reset_scope") = true, py::arg("region") = nullptr,
      py::arg("cause") = "user torch_xla.sync", py::arg("graph_name") = "");
  m.def("_xla_leave_region", &CompiledRegion::leave);
  m.def("_xla_in_region", [] { return CompiledRegion::current() != nullptr; });
  m.def("_get_current_graph_name", [] {
    const CompiledRegion* region = CompiledRegion::current();
    return region == nullptr ? std::string() : region->name();
  });
  m.def("_set_use_eager_mode", &dispatch::set_eager_mode);
  m.def("_get_use_eager_mode", &dispatch::is_eager_mode);
  m.def(
      "_xla_sync_live_tensors",
      [](const std::string& device, const std::vector<std::string>&, bool wait) {
        executor::sync_device(device_index(device), wait, {"user _xla_sync_live_tensors"});
      },
      py::arg("device") = "", py::arg("devices") = std::vector<std::string>(),
      py::arg("wait") = true);
  m.def(
      "_xla_wait_device_ops",
      [](const std::vector<std::string>& devices) {
        for (const int index : indices_or_all(devices)) executor::wait_device(index);
      },
      py::arg("devices") = std::vector<std::string>());
  // A function that waits for the runs that have been launched by now.
  m.def("_xla_mark", [](const std::string& device) {
    executor::finish_deferred();
    return py::cpp_function(
        [mark = executor::InFlight::of(device_index(device)).mark()] { mark->wait(); },
        py::call_guard<py::gil_scoped_release>());
  });
}

void bind_random(py::module_& m) {
  m.def(
      "_xla_set_rng_seed",
      [](uint64_t seed, const std::string& device) {
        lazy::Device::of(device_index(device)).random.set({seed, 0});
      },
      py::arg("seed") = 101, py::arg("device") = "");
  // Creates no client: devices that come later are seeded too.
  m.def("_xla_set_rng_seed_all", [](uint64_t seed) {
    for (int i = 0; i < lazy::Device::kMost; ++i) lazy::Device::of(i).random.set({seed, 0});
  });
  m.def(
      "_xla_get_rng_seed",
      [](const std::string& device) {
        return lazy::Device::of(device_index(device)).random.as_seed();
      },
      py::arg("device") = "");
  m.def("_xla_default_generator", [](const std::string& device) {
    return dispatch::default_generator(device_index(device));
  });
}

void bind_process(py::module_& m) {
  // Around fork(): the child must not inherit a graph that another thread is changing.
  m.def("_xla_before_fork", [] { held_for_fork = std::make_unique<lazy::GraphLock>(); });
  m.def("_xla_after_fork", [] { held_for_fork.reset(); });
  // Launches the runs that wait for their programs; throws why one cannot be.
  m.def("_xla_finish_deferred_runs", &executor::finish_deferred);
  m.def("_xla_join_compilations", &executor::Compilation::wait_for_all);
  m.def("_xla_set_background", [](const std::string& mode) {
    using Mode = executor::Compilation::Mode;
    executor::Compilation::set_mode(mode == "pause"    ? Mode::Pausing
                                    : mode == "refuse" ? Mode::Refusing
                                                       : Mode::Normal);
  });
  m.def("_xla_num_deferred_runs", &executor::num_deferred);
  m.def("_xla_drain_autograd_threads", &dispatch::drain_autograd_threads,
        py::call_guard<py::gil_scoped_release>());
}

void bind_programs(py::module_& m) {
  m.def("_set_custom_compile_options", [](pjrt::Options options) {
    executor::set_custom_compile_options(std::move(options));
    executor::await_deferred();  // what is being compiled would come after
    executor::clear_cached_programs();
  });
  // Says whether a persistent cache can be at this place; the environment says that it is.
  m.def(
      "_xla_check_persistent_cache",
      [](const std::string& folder, bool read_only) {
        executor::await_deferred();
        TXLA_CHECK(!executor::DiskCache::settled(),
                   "initialize_cache: expected a process that has computed nothing yet, got one "
                   "that has compiled programs. Call it before the first sync and before any value "
                   "of an xla tensor is read.");
        executor::DiskCache(folder, read_only);
      },
      py::call_guard<py::gil_scoped_release>());
  // Says whether this process has compiled or loaded a program, so that the cache is chosen.
  m.def("_xla_computation_cache_is_initialized", &executor::DiskCache::settled);
  m.def(
      "_xla_set_check_donation",
      [](bool on, bool poison) {
        executor::set_donation_check(!on      ? executor::DonationCheck::Off
                                     : poison ? executor::DonationCheck::Poison
                                              : executor::DonationCheck::Search);
      },
      py::arg("on"), py::arg("poison") = false);
  m.def("_xla_set_reads_views_by_programs", &dispatch::set_reads_views_by_programs);
  m.def("_xla_num_cached_programs", [] {
    executor::await_deferred();
    return executor::cached_programs().size();
  });
  m.def("_xla_clear_cached_programs", settled(&executor::clear_cached_programs));
}

}  // namespace

void init_runtime(py::module_& m) {
  bind_devices(m);
  bind_runs(m);
  bind_random(m);
  bind_process(m);
  bind_programs(m);
}

}  // namespace torch_xla::python
