#include "executor/sync.h"

#include <deque>
#include <mutex>
#include <unordered_map>

#include <Python.h>

#include "debug/metrics.h"
#include "executor/graph.h"
#include "executor/program_cache.h"
#include "executor/runtime.h"
#include "util/error.h"
#include "util/flags.h"
#include "util/log.h"

namespace torch_xla::executor {
namespace {

using lazy::DeviceData;
using lazy::Node;
using lazy::Storage;
using lazy::Value;

ProgramCache& programs() {  // guarded by the graph lock
  static auto& cache = *new ProgramCache;
  return cache;
}

// Runs in flight and failures not yet reported.
struct InFlight {
  std::mutex mutex;
  std::deque<pjrt::Event> events;
  std::exception_ptr failure;

  static InFlight& of(int device) {
    static auto& table = *new std::array<InFlight, 256>;
    return table[device];
  }

  void add(pjrt::Event event) {
    event.on_ready([this](std::exception_ptr error) {
      if (error == nullptr) return;
      const std::lock_guard lock(mutex);
      if (failure == nullptr) failure = error;
    });
    const std::lock_guard lock(mutex);
    while (!events.empty() && events.front().ready()) events.pop_front();
    events.push_back(std::move(event));
  }

  // A failed run is reported once.
  void rethrow() {
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex);
      std::swap(error, failure);
    }
    if (error != nullptr) std::rethrow_exception(error);
  }
};

std::shared_ptr<const Program> find_or_compile(const Graph& graph) {
  static const debug::Counter hits("CachedCompile"), misses("UncachedCompile");
  static const debug::Metric time("CompileTime");
  if (auto program = programs().find(graph.key)) {
    hits.add();
    return program;
  }
  misses.add();
  Runtime& runtime = Runtime::get();
  const debug::TimedScope scope(time);
  const std::string text = lower(graph, runtime.device_type());
  TXLA_VLOG(3) << "graph " << graph.key.hex() << ":\n" << text;
  pjrt::CompileOptions options;
  options.device_ids = {runtime.device(graph.device).id()};
  auto program = std::make_shared<Program>();
  {
    const BlockingScope blocking;
    program->executable = runtime.client().compile(text, options);
  }
  programs().insert(graph.key, program,
                    static_cast<size_t>(util::flag::XLA_COMPILATION_CACHE_SIZE()));
  return program;
}

template <class T>
std::unique_ptr<pjrt::Buffer> send_numbers(const std::vector<T>& numbers, pjrt::DType dtype,
                                           const Graph& graph) {
  Runtime& runtime = Runtime::get();
  const int64_t n = static_cast<int64_t>(numbers.size());
  return runtime.client().from_host(numbers.data(), dtype, std::span(&n, 1), std::nullopt,
                                    pjrt::HostSemantics::ImmutableOnlyDuringCall,
                                    runtime.device(graph.device));
}

// Launches the run and returns the data of each root.
std::vector<DeviceData> run(const Graph& graph) {
  static const debug::Metric time("ExecuteTime");
  static const debug::Counter created("CreateDataHandles");
  const auto program = find_or_compile(graph);
  const debug::TimedScope scope(time);
  std::vector<PJRT_Buffer*> arguments;
  arguments.reserve(graph.inputs.size() + 2);
  for (const Node* input : graph.inputs) arguments.push_back(input->data().buffer->handle());
  std::unique_ptr<pjrt::Buffer> floats, ints;
  if (!graph.numbers.floats.empty()) {
    floats = send_numbers(graph.numbers.floats, PJRT_Buffer_Type_F64, graph);
    arguments.push_back(floats->handle());
  }
  if (!graph.numbers.ints.empty()) {
    ints = send_numbers(graph.numbers.ints, PJRT_Buffer_Type_S64, graph);
    arguments.push_back(ints->handle());
  }
  pjrt::Executable::Result result = program->executable->execute(arguments);
  InFlight::of(graph.device).add(std::move(result.done));
  std::vector<DeviceData> data;
  data.reserve(result.outputs.size());
  for (auto& buffer : result.outputs) data.push_back({std::move(buffer), true});
  created.add(static_cast<int64_t>(data.size()));
  return data;
}

}  // namespace

Value data_value(const lazy::Geometry* geometry, int device, DeviceData data) {
  return {c10::make_intrusive<Node>(geometry, device, std::move(data)), 0};
}

void sync_device(int device, bool wait) {
  util::log::refresh();
  InFlight::of(device).rethrow();
  {
    const lazy::GraphLock lock;
    // Storages in the order in which they began to wait; those that share a value share a root.
    std::vector<Storage*> storages;
    std::vector<size_t> root_of;
    std::vector<Value> roots;
    std::unordered_map<const Node*, std::vector<std::pair<uint32_t, size_t>>> seen;
    Storage::for_each_pending(device, [&](Storage& storage) {
      const Value value = storage.value();
      if (value.node->is_data()) {  // computed meanwhile, for another tensor
        storage.materialize(value);
        return;
      }
      auto& outputs = seen[value.node.get()];
      size_t root = roots.size();
      for (const auto& [index, known] : outputs) {
        if (index == value.index) root = known;
      }
      if (root == roots.size()) {
        outputs.emplace_back(value.index, root);
        roots.push_back(value);
      }
      storages.push_back(&storage);
      root_of.push_back(root);
    });
    if (!roots.empty()) {
      const Graph graph(std::move(roots), device, !util::flag::XLA_NO_DONATION());
      std::vector<DeviceData> data = run(graph);
      std::vector<Value> leaves(graph.roots.size());
      for (size_t i = 0; i < graph.roots.size(); ++i) {
        const Value& root = graph.roots[i];
        if (root.node->num_outputs() == 1) {
          root.node->become_data(std::move(data[i]));
          leaves[i] = {root.node, 0};
        } else {
          leaves[i] =
              data_value(lazy::intern_contiguous(root.geometry().dtype, root.geometry().sizes),
                         device, std::move(data[i]));
        }
      }
      for (size_t i = 0; i < storages.size(); ++i) storages[i]->materialize(leaves[root_of[i]]);
    }
  }
  if (wait || util::flag::XLA_SYNC_WAIT()) wait_device(device);
}

void materialize(std::vector<Value>& values, int device) {
  const lazy::GraphLock lock;
  std::vector<Value> roots;
  std::vector<size_t> position;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].node->is_data()) {
      TXLA_CHECK(values[i].node->data().buffer != nullptr,
                 "xla: expected a tensor with a value, got a placeholder. Values cannot be read "
                 "while an operator is being decomposed.");
      continue;
    }
    roots.push_back(values[i]);
    position.push_back(i);
  }
  if (roots.empty()) return;
  const Graph graph(roots, device, false);
  std::vector<DeviceData> data = run(graph);
  for (size_t i = 0; i < roots.size(); ++i) {
    Value& root = roots[i];
    if (root.node->num_outputs() != 1) {
      values[position[i]] =
          data_value(lazy::intern_contiguous(root.geometry().dtype, root.geometry().sizes), device,
                     std::move(data[i]));
    } else if (!root.node->is_data()) {  // the same value may have been asked for twice
      // Whoever else uses this value now uses the data.
      root.node->become_data(std::move(data[i]));
    }
  }
}

void wait_device(int device) {
  InFlight& in_flight = InFlight::of(device);
  std::deque<pjrt::Event> events;
  {
    const std::lock_guard lock(in_flight.mutex);
    std::swap(events, in_flight.events);
  }
  {
    const BlockingScope blocking;
    for (const pjrt::Event& event : events) {
      try {
        event.await();
      } catch (const pjrt::Error&) {
        // Its callback has kept the failure; it is thrown below, once.
        const std::lock_guard lock(in_flight.mutex);
        if (in_flight.failure == nullptr) in_flight.failure = std::current_exception();
      }
    }
  }
  in_flight.rethrow();
}

std::string stablehlo_of(const std::vector<Value>& values, int device) {
  const lazy::GraphLock lock;
  std::vector<Value> roots;
  for (const Value& v : values) {
    if (!v.node->is_data()) roots.push_back(v);
  }
  return lower(Graph(std::move(roots), device, false), Runtime::get().device_type());
}

size_t cached_programs() {
  const lazy::GraphLock lock;
  return programs().size();
}

void clear_cached_programs() {
  const lazy::GraphLock lock;
  programs().clear();
}

BlockingScope::BlockingScope() : state_(nullptr) {
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) state_ = PyEval_SaveThread();
}

BlockingScope::~BlockingScope() {
  if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

}  // namespace torch_xla::executor
