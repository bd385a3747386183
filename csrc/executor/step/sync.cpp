#include "executor/step/sync.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <c10/util/Exception.h>

#include "cpu/host_failure.h"
#include "debug/metrics.h"
#include "debug/trace.h"
#include "debug/waits.h"
#include "executor/compile/compile.h"
#include "executor/compile/graph.h"
#include "executor/compile/launched_exchanges.h"
#include "executor/compile/observer.h"
#include "executor/program/lower.h"
#include "executor/program/program.h"
#include "executor/run/donation.h"
#include "executor/run/in_flight.h"
#include "executor/run/live_data.h"
#include "executor/run/run.h"
#include "executor/run/run_time.h"
#include "executor/run/runtime.h"
#include "executor/run/transfer.h"
#include "executor/run/undo.h"
#include "executor/step/deferred.h"
#include "executor/step/read_data.h"
#include "lazy/source.h"
#include "util/error.h"
#include "util/flags.h"
#include "util/log.h"
#include "util/overloaded.h"

namespace torch_xla::executor {
namespace {

using lazy::DeviceData;
using lazy::Node;
using lazy::Storage;
using lazy::Value;

// A run that could not be had, and the exception for that.
struct RunFailed {
  std::unordered_set<const Node*>
      calls;  // all, or the one whose kernel has found fault with values
  std::exception_ptr why;
};

// Throws the exception that is being handled as the failure of the run.
[[noreturn]] void throw_run_failed(const Graph& graph) {
  const std::exception_ptr why = std::current_exception();
  throw RunFailed{failed_calls(graph.calls, why), why};
}

// Throws where a run would read what is gone: what needs that is set aside, and computed no more.
void check_inputs(const Graph& graph) {
  for (const Node* input : graph.parameters) {
    const pjrt::Array& array = *input->data().array;
    if (array.loss() == nullptr) continue;
    try {
      fail_lost(array);
    } catch (...) {
      throw RunFailed{{}, std::current_exception()};
    }
  }
}

// Throws that if it is why the run failed.
void throw_call_failed(const Graph& graph, const pjrt::Error& error) {
  const std::optional<int64_t> failing = cpu::failing_call(error.what());
  if (!failing) return;
  const auto ordinal = static_cast<size_t>(*failing);
  TXLA_CHECK(ordinal < graph.nodes.size(), "sync: expected a call of this run to fail, got ",
             error.what());
  const Node* call = graph.nodes[ordinal];
  const std::string line = call->source().str();
  try {
    fail(error, line.empty() ? "" : "\nThe call that failed was recorded at " + line + ".");
  } catch (...) {
    throw RunFailed{{call}, std::current_exception()};
  }
}

// While a run may fail, what it computes stays recorded.
void await(const std::vector<pjrt::Event>& done, const Graph& graph, const Program& program) {
  try {
    InFlight::await(done, program);
  } catch (const pjrt::Error& e) {
    throw_call_failed(graph, e);
    try {  // an earlier run may have failed, whose results it reads
      const std::string context =
          describe_failure(lazy::source_line(), 0) + observer().failed(graph);
      fail_read(e, graph.device, context);
    } catch (...) {
      throw_run_failed(graph);
    }
  }
}

// The arrays that a run gave, as data of its graph's results.
std::vector<DeviceData> data_of(const Graph& graph,
                                std::vector<std::shared_ptr<pjrt::Array>>&& arrays) {
  const debug::OftenTimed::Scope scope(wrapping_time());
  std::vector<DeviceData> data;
  data.reserve(arrays.size());
  for (size_t i = 0; i < arrays.size(); ++i) {
    const Node& call = *graph.results[i].node;
    data.push_back(counted(std::move(*arrays[i]), graph.device, &call.source()));
  }
  return data;
}

Run run_of(const Graph& graph, const Program& program, bool is_awaited, bool is_eager = false,
           bool keeps_inputs = false) {
  Run run{.program = program,
          .numbers = graph.numbers,
          .device = graph.device,
          .is_awaited = is_awaited,
          .is_eager = is_eager,
          .keeps_inputs = keeps_inputs};
  run.inputs.reserve(graph.parameters.size());
  for (const Node* input : graph.parameters) run.inputs.push_back(&input->data().array);
  return run;
}

// Launches the run. `watching` is told where there is one. `started` is for InFlight, unless it has
// ended by then.
Given run(const Graph& graph, const Program& program, const Cause& cause, bool is_awaited,
          Observer* watching, std::optional<InFlight::Run>& started) {
  bool may_fail = program.can_fail, keeps_inputs = false;
  if (watching != nullptr) {
    may_fail |= watching->awaits_runs();
    keeps_inputs = watching->launching(graph, program, cause);
  }
  const Run run = run_of(graph, program, is_awaited || may_fail, is_eager(cause), keeps_inputs);
  Launched launched;
  try {
    launched = launch(run);
  } catch (const pjrt::Error& e) {
    throw_call_failed(graph, e);
    try {
      fail_launch(run, e, lazy::source_line(), observer().failed(graph));
    } catch (...) {
      throw_run_failed(graph);
    }
  }
  Given given;
  if (donation_check() != DonationCheck::Off) given.taken_over = launched.taken_over;
  if (may_fail) {
    const debug::WaitScope scope("a run that may fail");
    await(launched.done, graph, program);
  } else {
    started = {std::move(launched.done), {}, std::move(launched.taken_over)};
    lazy::take_source(started->place);  // its text is for errors
  }
  given.data = data_of(graph, std::move(launched.results));
  return given;
}

// The work that waits on a device: storages in the order in which they were last written. Those
// that share a value share a root.
struct Pending {
  std::vector<Storage*> storages;
  std::vector<size_t> root_of;
  std::vector<Value> roots;
  std::vector<WantedSplit> wanted;  // of the first roots
  std::vector<const Node*> ending;  // what `storages` and their views refer to until they have data
  bool is_from_numbers = false;     // all that is read, and what is computed with it

  explicit Pending(int device) : may_go_back_(InFlight::of(device).overwritten()) {
    Storage::for_each_pending(device, [this](Storage& storage) { add(storage); });
  }

  // The values that are read, and all that waits for something on the way to them or is computed on
  // the way to what does: nothing is computed twice, neither what a loop of `item()` carries on nor
  // a forward pass whose loss is read before its gradients. Where numbers alone tell what is read,
  // what needs more than numbers goes on waiting.
  Pending(int device, std::vector<Value> read) : may_go_back_(InFlight::of(device).overwritten()) {
    for (const Value& value : read) root(value);
    const std::unordered_set<const Storage*> apart = apart_from_numbers(device);
    std::unordered_set<const Storage*> wanted;
    for (bool grows = true; grows;) {
      grows = false;
      const Graph graph(roots, device);
      Dependents dependents(graph);
      Storage::for_each_pending(device, [&](Storage& storage) {
        const Value value = storage.value();
        if (value.node->is_data() || !dependents.contains(value.node.get())) return;
        if (apart.contains(&storage) || !wanted.insert(&storage).second) return;
        root(value);
        grows = grows || !dependents.is_computed(value.node.get());
      });
    }
    Storage::for_each_pending(device, [&](Storage& storage) {
      if (wanted.contains(&storage) || storage.value().node->is_data()) add(storage);
    });
    Storage::for_each_pending(device, [&](Storage& storage) {
      if (storage.sharding() != nullptr) split_beginning(storage);
    });
  }

 private:
  void add(Storage& storage) {
    const Value value = storage.value();
    if (value.node->is_data()) {  // computed meanwhile, for another tensor or in the background
      const bool waits = value.node->data().array->is_promise() || may_go_back_.contains(&storage);
      if (!waits) storage.materialize(value);
      return;
    }
    storages.push_back(&storage);
    ending.push_back(value.node.get());
    storage.add_kept_by_views(ending);
    root_of.push_back(root(value));
    wanted.resize(roots.size());
    WantedSplit& of = wanted[root_of.back()];
    if (storage.sharding() != nullptr) of.sharding = storage.sharding();
    if (!storage.past().empty()) of.replaced = storage.past().front().node;
  }

  // Finds out whether numbers alone tell the roots, and if so returns the storages that need more.
  std::unordered_set<const Storage*> apart_from_numbers(int device) {
    std::unordered_set<const Storage*> apart;
    FromNumbers from_numbers;
    is_from_numbers = std::ranges::all_of(
        roots, [&](const Value& root) { return from_numbers.contains(root.node.get()); });
    if (!is_from_numbers) return apart;
    Storage::for_each_pending(device, [&](Storage& storage) {
      const bool is_whole = storage.sharding() == nullptr;
      if (!is_whole || !from_numbers.contains(storage.value().node.get())) apart.insert(&storage);
    });
    return apart;
  }

  // Splits the value that a storage began with as the storage is.
  void split_beginning(const Storage& storage) {
    if (storage.past().empty()) return;
    const Storage::Past& first = storage.past().front();
    for (size_t i = 0; i < roots.size(); ++i) {
      if (roots[i].node->id() != first.node || roots[i].index != first.index) continue;
      wanted.resize(roots.size());
      wanted[i].sharding = storage.sharding();
    }
  }

  size_t root(const Value& value) {
    std::vector<size_t>& of_outputs = seen_[value.node.get()];
    of_outputs.resize(value.node->num_outputs(), kNone);
    size_t& known = of_outputs[value.index];
    if (known == kNone) {
      known = roots.size();
      roots.push_back(value);
    }
    return known;
  }

  static constexpr size_t kNone = std::numeric_limits<size_t>::max();
  const std::unordered_set<const Storage*> may_go_back_;  // where a run fails that has not ended
  std::unordered_map<const Node*, std::vector<size_t>> seen_;  // the roots, by output
};

Graph graph_of_run(Pending& pending, int device, bool takes_offers) {
  return Graph(std::move(pending.roots), device,
               util::flag::XLA_NO_DONATION() ? nullptr : &pending.ending, pending.wanted,
               takes_offers);
}

// A search for the program of a graph, over some attempts.
struct Search {
  util::Hash128 key;  // of the graph in the last attempt
  Missing missing;
  std::exception_ptr refusal;  // why its program could not be made

  // Returns the program, or null: see `missing`.
  std::shared_ptr<const Program> find(std::string_view name, const Graph& graph) {
    const bool again = std::exchange(key, graph.key) == graph.key;
    const std::exception_ptr why = std::exchange(refusal, nullptr);
    if (again && why != nullptr) std::rethrow_exception(why);
    return program_of(name, graph, again, missing);
  }
};

void make_and_keep(const Unmade& unmade, const Cause& cause) {
  try {
    keep(unmade, cause, make(unmade, cause));
  } catch (const NotMade& failure) {
    failure.raise();
  }
}

// Does what is missing.
void settle(Search& search, int device, const Cause& cause) {
  // References to data would keep a run from taking it over.
  Missing missing = std::exchange(search.missing, {});
  std::visit(util::Overloaded{
                 [](std::monostate) {},
                 [&](NewState& state) {
                   Cause before = cause;  // the program of the line is the one that comes after
                   before.is_of_line = false;
                   {
                     const lazy::GraphLock lock;
                     state.constants = materialize_zeros(std::move(state.constants), device);
                   }
                   materialize(state.constants, device, before);
                 },
                 [&](const Unplanned& unplanned) {
                   for (const auto& [value, sharding] : unplanned.data) {
                     split_data(value, device, sharding);
                   }
                   if (unplanned.request != nullptr) make_plan(*unplanned.request);
                 },
                 [&](const Unmade& unmade) {
                   try {
                     make_and_keep(unmade, cause);
                   } catch (...) {
                     search.refusal = std::current_exception();
                   }
                 },
                 [](const Awaited& awaited) { awaited.wait(); },
                 [](EarlierRuns) { finish_deferred(); },
             },
             missing);
}

// Calls `attempt` under the GraphLock until it returns true; on false the search says what is
// missing. The compiler runs without the lock, so the graph may have changed when `attempt` is
// called again.
template <class Attempt>
void with_program(int device, const Cause& cause, Attempt attempt) {
  constexpr int kPatience = 3;  // then others have to wait, or a busy thread could starve this one
  Search search;
  static const debug::OftenTimed lock_time("DeviceLockWait");
  for (int tries = 1;; ++tries) {
    {
      std::optional<debug::OftenTimed::Scope> wait(lock_time);
      const lazy::GraphLock lock;
      wait.reset();
      if (attempt(search)) return;
      if (tries >= kPatience) settle(search, device, cause);
    }
    if (tries < kPatience) settle(search, device, cause);
  }
}

// Returns the program of a graph, or null. Where it cannot be had, its calls stay recorded: others
// may need it no more. Where the compiler says that it lacks memory, the run would, too: throws
// RunFailed.
std::shared_ptr<const Program> find_for_run(Search& search, const Graph& graph,
                                            std::string_view name) {
  try {
    return search.find(name, graph);
  } catch (const c10::OutOfMemoryError&) {
    throw_run_failed(graph);
  }
}

// Results as leaves. Whoever else uses a call's only result uses the leaf from now on.
std::vector<Value> leaves_of(const std::vector<Value>& roots, std::vector<DeviceData> data,
                             int device) {
  std::vector<Value> leaves;
  leaves.reserve(roots.size());
  for (size_t i = 0; i < roots.size(); ++i) {
    const Value& root = roots[i];
    if (root.node->num_outputs() == 1) {
      root.node->become_data(std::move(data[i]));
      leaves.push_back({root.node, 0});
    } else {
      leaves.push_back(data_value(root.geometry().row_major(), device, std::move(data[i])));
    }
  }
  return leaves;
}

bool has_pending_calls(int device) {
  bool found = false;
  Storage::for_each_pending(
      device, [&](Storage& storage) { found = found || !storage.value().node->is_data(); });
  return found;
}

// Gives the storages that wait for a run their data by `take`, and the caller the leaves of its
// roots.
template <class Take>
std::vector<Value> take_results(const Pending& pending, const Graph& graph, Given given,
                                Take take) {
  std::vector<Value> leaves = leaves_of(graph.results, std::move(given.data), graph.device);
  for (size_t i = 0; i < pending.storages.size(); ++i) {
    take(*pending.storages[i], leaves[pending.root_of[i]]);
  }
  if (!has_pending_calls(graph.device)) ++lazy::Device::of(graph.device).step;
  if (donation_check() != DonationCheck::Off) check_no_readers(given.taken_over, graph.device);
  return leaves;
}

// Launches the run and places its results. Throws RunFailed.
std::vector<Value> compute(const Pending& pending, const Graph& graph,
                           const std::shared_ptr<const Program>& program, bool replay_views,
                           const Cause& cause, bool is_awaited, Observer* watching) {
  OverwrittenStorages overwritten =
      overwritten_by(*program, graph.parameters, pending.storages, pending.root_of);
  std::unordered_set<const Storage*> may_go_back;
  std::optional<InFlight::Run> started;
  Given given = run(graph, *program, cause, is_awaited, watching, started);
  std::vector<GivenAway> by_hand;
  if (graph.offers_taken) by_hand = give_away(*program, graph.parameters);
  if (started) {
    for (const Overwritten& o : overwritten) may_go_back.insert(o.storage);
  }
  const auto take = [&](Storage& storage, const Value& leaf) {
    if (may_go_back.contains(&storage)) {
      storage.promise(leaf);
    } else {
      storage.materialize(leaf, replay_views);
    }
  };
  const Calls exchanges = exchanges_in(graph, program.get());
  std::vector<Value> leaves = take_results(pending, graph, std::move(given), take);
  note_exchanged(exchanges, graph, leaves);
  if (started) {
    note_leaves(overwritten, leaves);
    started->overwritten = std::move(overwritten);
    started->given = std::move(by_hand);
    started->program = program;
    InFlight::of(graph.device).add(std::move(*started));
  }
  if (watching != nullptr) watching->launched(leaves, graph.device);
  return leaves;
}

// Puts the run off if it may be, and returns the leaves of its roots; else says what comes first.
std::optional<std::vector<Value>> put_off(const Pending& pending, const Graph& graph,
                                          const std::shared_ptr<const Program>& program,
                                          Missing& missing, const Cause& cause, bool may_wait) {
  std::optional<Given> given;
  if (may_wait) given = defer(graph, pending.storages, pending.root_of, program, missing, cause);
  if (!given) {
    if (program != nullptr) missing = EarlierRuns();
    return std::nullopt;
  }
  const auto take = [](Storage& storage, const Value& leaf) { storage.promise(leaf); };
  const Calls exchanges = exchanges_in(graph, program.get());
  std::vector<Value> leaves = take_results(pending, graph, std::move(*given), take);
  note_deferred(leaves);
  note_exchanged(exchanges, graph, leaves);
  return leaves;
}

// The results of a run of the program on these numbers alone, where they are remembered.
std::optional<std::vector<Value>> recall(const Pending& pending, const Graph& graph,
                                         const Program& program) {
  const std::vector<at::Tensor>* known = program.remembered.find(graph.numbers);
  if (known == nullptr) return std::nullopt;
  Given given;
  for (size_t i = 0; i < known->size(); ++i) {
    given.data.push_back(keep_on_host((*known)[i], graph.device, &graph.results[i].node->source()));
  }
  const auto take = [](Storage& storage, const Value& leaf) {
    storage.materialize(leaf, /*replay_views=*/false);
  };
  return take_results(pending, graph, std::move(given), take);
}

// A run on numbers alone, which gives the same when it comes again.
struct Repeatable {
  std::shared_ptr<const Program> program;
  PackedNumbers numbers;
  std::vector<Value> leaves;
};

void remember(Repeatable run, int device) {
  std::vector<at::Tensor> results = read_data(run.leaves, device);
  const lazy::GraphLock lock;
  run.program->remembered.add(run.numbers, std::move(results));
}

}  // namespace

void sync_device(int device, bool wait, const Cause& cause, CompiledRegion* region) {
  util::log::refresh();
  const debug::Span span("sync");
  report_failures(device);
  Observer* const watching = observing();
  if (watching != nullptr) [[unlikely]]
    watching->report(device, /*wait=*/false);
  std::exception_ptr failure;
  bool complete = false;
  const auto attempt = [&](Search& search) {
    if (failure == nullptr) report_deferred();  // else it would compute what has failed again
    Pending pending(device);
    complete = true;
    if (pending.roots.empty()) return true;
    const Graph graph = graph_of_run(pending, device, true);
    if (const CompiledRegion* broken = CompiledRegion::current())
      broken->check_run("a sync", graph, cause);
    // What is left over of a graph that failed is none that the region would have.
    CompiledRegion* const counting = failure == nullptr ? region : nullptr;
    if (counting != nullptr) counting->check_number(graph);
    std::string_view name = "sync";
    if (region != nullptr) name = "compile";
    if (region != nullptr && !region->name().empty()) name = region->name();
    try {
      check_inputs(graph);
      const auto program = find_for_run(search, graph, name);
      if (program == nullptr || has_deferred_before(graph, cause.is_barrier)) {
        const bool may_wait = cause.is_barrier && !wait;
        const bool is_put_off =
            put_off(pending, graph, program, search.missing, cause, may_wait).has_value();
        if (is_put_off && counting != nullptr) counting->add(graph);
        return is_put_off;
      }
      if (counting != nullptr) counting->add(graph);
      compute(pending, graph, program, true, cause, wait || util::flag::XLA_SYNC_WAIT(), watching);
    } catch (const RunFailed& failed) {
      undo(failed.calls, device);
      if (failure == nullptr) failure = failed.why;
      complete = false;  // the rest can be computed
    }
    return true;
  };
  while (!complete) with_program(device, cause, attempt);
  if (failure != nullptr) std::rethrow_exception(failure);
  if (!cause.is_barrier) finish_deferred();
  if (wait || util::flag::XLA_SYNC_WAIT()) wait_device(device);
}

namespace {

// `current`, where there is one, gives the values.
void materialize(std::vector<Value>& values, int device, const Cause& cause,
                 const Current& current) {
  Observer* const watching = observing();
  if (watching != nullptr) [[unlikely]]
    watching->report(device, /*wait=*/false);
  bool complete = false;
  std::optional<Repeatable> repeated;
  bool asks = current != nullptr;
  const auto attempt = [&](Search& search) {
    const bool are_new = std::exchange(asks, false);
    if (are_new) values = current();
    std::vector<Value> roots;
    std::vector<size_t> root_of(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const Value& value = values[i] = if_exchanged(values[i]);
      if (value.node->is_data()) {
        TXLA_CHECK(value.node->data().array != nullptr,
                   "xla: expected a tensor with a value, got a placeholder. Values cannot be read "
                   "while a function is being recorded.");
        if (value.node->data().array->is_given_away()) fail_lost(*value.node->data().array);
        continue;
      }
      const auto known = std::find(roots.begin(), roots.end(), value);
      root_of[i] = static_cast<size_t>(known - roots.begin());
      if (known == roots.end()) roots.push_back(value);
    }
    complete = true;
    if (roots.empty()) return true;
    report_deferred();
    Pending pending(device, std::move(roots));
    for (const Value& value : values) {
      if (!value.node->is_data()) pending.ending.push_back(value.node.get());
    }
    const Graph graph = graph_of_run(pending, device, cause.takes_offers || reads_take_offers());
    if (const CompiledRegion* broken = CompiledRegion::current()) {
      broken->check_run("a value that is read", graph, cause);
    }
    if (const Node* call = exchanged_again(graph)) {
      TXLA_CHECK(
          current && !are_new,
          "collectives: expected a value that is to be exchanged, or its data, got one that "
          "another thread has exchanged and overwritten meanwhile. Its call was recorded at ",
          call->source().str(), ". Read a copy of it.");
      asks = true;
      return false;
    }
    std::vector<bool> waits;
    for (const Value& value : values) waits.push_back(!value.node->is_data());
    const auto take = [&](const std::vector<Value>& leaves) {
      for (size_t i = 0; i < values.size(); ++i) {
        if (waits[i]) values[i] = leaves[root_of[i]];
      }
    };
    try {
      check_inputs(graph);
      const auto program = find_for_run(search, graph, cause.program);
      if (program == nullptr || has_deferred_before(graph, cause.is_barrier)) {
        const auto leaves =
            put_off(pending, graph, program, search.missing, cause, cause.is_barrier);
        if (leaves) take(*leaves);
        return leaves.has_value();
      }
      const bool may_repeat = pending.is_from_numbers && !program->can_fail &&
                              graph.mesh == nullptr && !cause.is_barrier;
      if (may_repeat) {
        if (const auto leaves = recall(pending, graph, *program)) {
          take(*leaves);
          return true;
        }
      }
      const std::vector<Value> leaves = compute(pending, graph, program, program->reuses_buffers,
                                                cause, !cause.is_barrier, watching);
      take(leaves);
      if (may_repeat && program->remembered.comes_again(graph.numbers)) {
        repeated = {program, graph.numbers, leaves};
      }
    } catch (const RunFailed& failed) {
      if (undo(failed.calls, device, values)) std::rethrow_exception(failed.why);
      complete = false;  // it was computed for others
    }
    return true;
  };
  const auto is_done = [&] { return cause.is_barrier || are_there(values); };
  for (bool is_first = true; is_first || !is_done(); is_first = false) {
    if (!is_first) finish_deferred();  // which may make them calls again
    complete = false;
    while (!complete) with_program(device, cause, attempt);
  }
  if (repeated) remember(std::move(*repeated), device);
}

}  // namespace

void materialize(std::vector<Value>& values, int device, const Cause& cause) {
  materialize(values, device, cause, {});
}

std::vector<Value> materialize(const Current& current, int device, const Cause& cause) {
  std::vector<Value> values;
  materialize(values, device, cause, current);
  return values;
}

void launch(at::TensorList tensors, int device, const Cause& cause) {
  const auto waiting = [&] {
    std::vector<Value> values;
    for (const at::Tensor& tensor : tensors) {
      Value value = lazy::expect_lazy(tensor, "launch").read();
      if (!value.node->is_data()) values.push_back(std::move(value));
    }
    return values;
  };
  materialize(waiting, device, cause);
}

std::vector<double> time_runs(std::vector<Value>& values, int device, double seconds) {
  constexpr size_t kFewest = 3, kMost = 100;
  std::vector<double> taken;
  const auto attempt = [&](Search& search) {
    std::vector<Value> roots;
    for (const Value& value : values) {
      if (!value.node->is_data()) roots.push_back(value);
    }
    if (roots.empty()) return true;
    const Graph graph(std::move(roots), device);
    const auto program = search.find(kExamined.program, graph);
    if (program == nullptr) return false;
    if (has_deferred_before(graph, /*is_barrier=*/false)) {
      search.missing = EarlierRuns();
      return false;
    }
    const Run run = run_of(graph, *program, /*is_awaited=*/true);
    Launched result;
    double all = 0;
    try {
      while (taken.size() < kFewest || (all < seconds && taken.size() < kMost)) {
        const auto start = std::chrono::steady_clock::now();
        result = launch(run);
        for (const pjrt::Event& event : result.done) event.await();
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
        all += taken.emplace_back(time.count());
      }
    } catch (const pjrt::Error& e) {
      fail(e, observer().failed(graph));
    }
    std::vector<Value> leaves =
        leaves_of(graph.results, data_of(graph, std::move(result.results)), device);
    for (Value& value : values) {
      if (!value.node->is_data())
        value = std::move(leaves[static_cast<size_t>(&value - values.data())]);
    }
    return true;
  };
  with_program(device, kExamined, attempt);
  return taken;
}

void wait_device(int device) {
  const debug::WaitScope scope("a wait for the device");
  finish_deferred();
  wait_for_runs(device);
  RunTime::await_all(device);
  debug::wait_for_device_events();
  if (Observer* const watching = observing()) watching->report(device, /*wait=*/true);
}

namespace {

Graph graph_of(const std::vector<Value>& values, int device) {
  std::vector<Value> roots;
  for (const Value& v : values) {
    if (!v.node->is_data()) roots.push_back(v);
  }
  return Graph(std::move(roots), device);
}

}  // namespace

std::string stablehlo_of(const std::vector<Value>& values, int device, std::string_view platform) {
  const lazy::GraphLock lock;
  const ops::Target target = platform.empty() ? Runtime::get().target() : ops::target_of(platform);
  const Graph graph = graph_of(values, device);
  return lower(graph.function(), graph.interface(), target).text;
}

std::string stablehlo_of_sync(int device, std::string_view platform) {
  const lazy::GraphLock lock;
  Pending pending(device);
  TXLA_CHECK(!pending.roots.empty(), "expected tensors on xla:", device,
             " that wait to be computed, got none. Record the step first.");
  const Graph graph = graph_of_run(pending, device, true);
  return lower(graph.function(), graph.interface(), ops::target_of(platform)).text;
}

std::string portable_stablehlo_of(const std::vector<Value>& values, int device) {
  const lazy::GraphLock lock;
  return lower_portable(graph_of(values, device).function());
}

util::Hash128 graph_hash_of(const std::vector<Value>& values, int device, bool with_offers) {
  const lazy::GraphLock lock;
  const Graph graph = graph_of(values, device);
  util::Hasher h;
  bool any = false;
  for (const Node* leaf : graph.parameters) {
    if (!with_offers || !leaf->data().array->is_offered()) continue;
    h.add(leaf->place);
    any = true;
  }
  return any ? h.add(graph.key).finish() : graph.key;
}

}  // namespace torch_xla::executor
