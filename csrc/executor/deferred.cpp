#include "executor/deferred.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <c10/util/Exception.h>

#include "debug/metrics.h"
#include "executor/background.h"
#include "executor/donation.h"
#include "executor/dumps.h"
#include "executor/kept_runs.h"
#include "executor/live_data.h"
#include "executor/recipe.h"
#include "executor/run.h"
#include "executor/runtime.h"
#include "executor/sync.h"
#include "executor/transfer.h"
#include "executor/undo.h"
#include "lazy/lock.h"
#include "lazy/source.h"
#include "lazy/tensor.h"
#include "ops/dtypes.h"
#include "util/flags.h"

namespace torch_xla::executor {
namespace {

using lazy::DeviceData;
using lazy::Node;
using lazy::Value;
using ArrayPtr = std::shared_ptr<pjrt::Array>;

struct Deferred {
  std::shared_ptr<Compilation> compilation;  // null: the program is there
  std::shared_ptr<const Program> program;
  std::vector<DeviceData> inputs;
  std::vector<int32_t> reused_by;
  PackedNumbers numbers;
  std::vector<lazy::Numbers> numbers_of_calls;
  std::vector<std::weak_ptr<pjrt::Array>> results;
  std::vector<c10::weak_intrusive_ptr<Node>> leaves = {};  // that have them
  OverwrittenStorages overwritten;
  std::vector<GivenAway> given = {};
  int device;
  std::string line;

  const Program& known() const { return program != nullptr ? *program : compilation->program(); }
};

void launch(Deferred& deferred) {
  Run run{*deferred.program, {}, deferred.reused_by, deferred.numbers, deferred.device};
  for (const DeviceData& input : deferred.inputs) run.inputs.push_back(&input.array);
  Launched launched;
  try {
    launched = launch(run, false);
  } catch (const pjrt::Error& e) {
    fail_launch(run, e, deferred.line);
  }
  const debug::OftenTimed::Scope scope(wrapping_time());
  for (size_t i = 0; i < deferred.results.size(); ++i) {
    if (const ArrayPtr promised = deferred.results[i].lock()) {
      promised->fulfil(std::move(*launched.results[i]));
    }
  }
  InFlight::of(deferred.device)
      .add({std::move(launched.done), deferred.line, std::move(launched.taken_over),
            std::move(deferred.overwritten), std::move(deferred.given), deferred.program});
}

// What runs that are given up were to give, recorded anew.
using Recorded = std::unordered_map<const pjrt::Array*, Value>;

// The leaf that has data which it had given away to a run, or null.
c10::intrusive_ptr<Node> leaf_that_gave(const Deferred& run, const DeviceData& data) {
  const auto it = std::ranges::find(run.given, data.array,
                                    [](const GivenAway& given) { return given.data.array; });
  return it != run.given.end() ? it->leaf.lock() : c10::intrusive_ptr<Node>();
}

// Makes leaves the calls again that they were before the run was put off. Returns all of its calls.
std::vector<c10::intrusive_ptr<Node>> record_again(const Deferred& run, Recorded& recorded) {
  const Program& program = run.known();
  const Recipe& recipe = program.recipe;
  std::vector<c10::intrusive_ptr<Node>> leaf_of_call(recipe.calls.size());
  for (size_t i = 0; i < recipe.results.size(); ++i) {
    const size_t call = recipe.results[i].index - recipe.num_parameters;
    if (recipe.calls[call].signature->outputs.size() == 1) {
      leaf_of_call[call] = run.leaves[i].lock();
    }
  }
  std::vector<Value> parameters;
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    const DeviceData& input = run.inputs[i];
    const auto it = recorded.find(input.array.get());
    if (it != recorded.end()) {
      parameters.push_back(it->second);
    } else if (const auto leaf = leaf_that_gave(run, input); leaf.defined()) {
      parameters.push_back({leaf, 0});
    } else {
      parameters.push_back(data_value(program.interface.parameters[i].geometry, run.device, input));
    }
  }
  std::vector<c10::intrusive_ptr<Node>> calls;
  const auto value_of = [&](const Recipe::Operand& operand) {
    return recipe.is_parameter(operand)
               ? parameters[operand.index]
               : Value{calls[operand.index - recipe.num_parameters], operand.result};
  };
  for (size_t c = 0; c < recipe.calls.size(); ++c) {
    const Recipe::Call& call = recipe.calls[c];
    lazy::Operands operands;
    for (uint32_t i = 0; i < call.num_operands; ++i) {
      operands.push_back(value_of(recipe.operands[call.first_operand + i]));
    }
    lazy::Numbers numbers = run.numbers_of_calls[c];
    c10::intrusive_ptr<Node> node = std::move(leaf_of_call[c]);
    if (node.defined()) {
      node->become_call(call.signature, std::move(operands), std::move(numbers));
    } else {
      node = c10::make_intrusive<Node>(call.signature, std::move(operands), std::move(numbers),
                                       run.device);
    }
    node->source() = call.source;
    calls.push_back(std::move(node));
  }
  for (size_t i = 0; i < recipe.results.size(); ++i) {
    const Value value = value_of(recipe.results[i]);
    if (const ArrayPtr array = run.results[i].lock()) recorded.emplace(array.get(), value);
    const c10::intrusive_ptr<Node> leaf = run.leaves[i].lock();
    if (!leaf.defined() || leaf == value.node) continue;  // else one of several results of a call
    const Value copy = lazy::copy_value(value);
    leaf->become_call(copy.node->shared_signature(), lazy::Operands(copy.node->operands()), {});
    leaf->source() = value.node->source();
  }
  return calls;
}

// In the order in which they are to be launched. Guarded by the GraphLock.
class Queue {
 public:
  static Queue& get() {
    static auto& queue = *new Queue;
    return queue;
  }

  bool idle() const { return !is_busy_; }  // nothing waits and nothing is to be told; needs no lock
  const std::deque<Deferred>& runs() const { return runs_; }
  Deferred& last() { return runs_.back(); }
  void push(Deferred run) {
    for (const DeviceData& input : run.inputs) ++references_[input.array.get()];
    runs_.push_back(std::move(run));
    is_busy_ = true;
  }
  // The run that is to give a promised array.
  Deferred* giver_of(const ArrayPtr& array) {
    const auto gives = [&](const std::weak_ptr<pjrt::Array>& result) {
      return !result.owner_before(array) && !array.owner_before(result);
    };
    const auto run = std::ranges::find_if(
        runs_, [&](const Deferred& r) { return std::ranges::any_of(r.results, gives); });
    return run == runs_.end() ? nullptr : &*run;
  }
  long references(const pjrt::Array* array) const {
    const auto it = references_.find(array);
    return it == references_.end() ? 0 : it->second;
  }

  // Up to the first whose program is not there. Where one cannot be launched, all are given up:
  // those that come later may need it.
  void launch_ready() {
    while (!runs_.empty()) {
      Deferred& first = runs_.front();
      if (first.program == nullptr && !first.compilation->ended()) return;
      bool is_compiled = first.program != nullptr;
      try {
        if (!is_compiled) first.program = first.compilation->take();
        is_compiled = true;
        launch(first);
      } catch (const Compilation::Refused&) {
        give_up(first.device);
        return;
      } catch (const c10::OutOfMemoryError&) {
        return fail(std::current_exception(), true);
      } catch (...) {
        return fail(std::current_exception(), is_compiled);
      }
      pop();
    }
  }

  struct GivenUp {
    std::vector<c10::intrusive_ptr<Node>> calls_of_first;
    OverwrittenStorages overwritten;  // on the device that was asked for
  };
  // All are recorded again.
  GivenUp give_up(int device) {
    Recorded recorded;
    GivenUp given_up;
    for (const Deferred& run : runs_) give_back(run.given);
    for (Deferred& run : runs_) {
      auto calls = record_again(run, recorded);
      if (given_up.calls_of_first.empty()) given_up.calls_of_first = std::move(calls);
      if (run.device != device) continue;
      std::ranges::move(run.overwritten, std::back_inserter(given_up.overwritten));
    }
    while (!runs_.empty()) pop();
    return given_up;
  }

  void report() {
    launch_ready();
    if (failures_.empty()) return;
    const std::vector<Failure> failures = std::exchange(failures_, {});
    is_busy_ = !runs_.empty();
    for (const Failure& failure : failures) {
      std::vector<const Node*> calls;
      for (const auto& call : failure.calls) {
        if (!call->is_data()) calls.push_back(call.get());
      }
      undo(failed_calls(calls, failure.why), failure.device, {}, failure.overwritten);
    }
    std::rethrow_exception(failures.front().why);
  }

 private:
  // One that was not told yet. What the run was to do is undone when that happens, not before: a
  // thread that knows nothing of it may be in the middle of a step that goes on from there.
  struct Failure {
    std::exception_ptr why;
    std::vector<c10::intrusive_ptr<Node>> calls;  // of the run; none where nothing is undone
    int device;
    OverwrittenStorages overwritten;
  };

  void fail(const std::exception_ptr& why, bool is_undone) {
    const int device = runs_.front().device;
    GivenUp given_up = give_up(device);
    if (!is_undone) given_up = {};
    failures_.push_back(
        {why, std::move(given_up.calls_of_first), device, std::move(given_up.overwritten)});
    is_busy_ = true;
  }
  void pop() {
    for (const DeviceData& input : runs_.front().inputs) {
      const auto it = references_.find(input.array.get());
      if (--it->second == 0) references_.erase(it);
    }
    runs_.pop_front();
    is_busy_ = !runs_.empty() || !failures_.empty();
  }

  std::deque<Deferred> runs_;
  std::unordered_map<const pjrt::Array*, long> references_;  // of inputs
  std::vector<Failure> failures_;
  std::atomic<bool> is_busy_ = false;
};

// Whether the program can be had in the background, by what is known of it.
bool allows(const Program& program, int device) {
  return !program.can_fail && util::flag::XLA_BACKGROUND_COMPILE() &&
         !util::flag::XLA_SYNC_WAIT() && !util::flag::XLA_DEBUG_NANS() && !shows_failed() &&
         !tells_compilations() && !keeps_runs() && Runtime::get().devices(device).size() == 1;
}

}  // namespace

long deferred_references(const pjrt::Array& array) {
  const Queue& queue = Queue::get();
  return queue.idle() ? 0 : queue.references(&array);
}

bool has_deferred_before(const Graph& graph) {
  if (Queue::get().idle()) return false;
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const pjrt::Array& array = *graph.parameters[i]->data().array;
    if (array.is_promise()) return true;
    if (graph.reused_by[i] >= 0 && deferred_references(array) > 0) return true;
  }
  return false;
}

std::optional<Given> defer(const Graph& graph, const std::vector<lazy::Storage*>& storages,
                           const std::vector<size_t>& root_of,
                           std::shared_ptr<const Program> program, Missing& missing,
                           const Cause& cause) {
  static const debug::Counter counter("DeferredRuns");
  constexpr size_t kMost = 8;  // that wait: each holds the data of a step
  Queue& queue = Queue::get();
  if (queue.runs().size() >= kMost) return std::nullopt;
  if (program == nullptr && missing.compilation == nullptr && missing.program == nullptr) {
    return std::nullopt;  // it lacks something else
  }
  const Program& known = program != nullptr               ? *program
                         : missing.compilation != nullptr ? missing.compilation->program()
                                                          : *missing.program;
  if (!allows(known, graph.device)) return std::nullopt;
  Deferred run{.compilation = std::exchange(missing.compilation, nullptr),
               .program = std::move(program),
               .inputs = {},
               .reused_by = graph.reused_by,
               .numbers = graph.numbers,
               .numbers_of_calls = {},
               .results = {},
               .overwritten =
                   overwritten_by(graph, storages, root_of, known.reuses_buffers && known.has_run),
               .device = graph.device,
               .line = lazy::source_line()};
  Given given;
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    run.inputs.push_back(graph.parameters[i]->data());
    const bool is_taken = known.reuses_buffers && graph.reused_by[i] >= 0;
    if (is_taken && donation_check() != DonationCheck::Off) {
      given.taken_over.push_back(run.inputs.back().array);
    }
  }
  for (const Node* call : graph.calls) run.numbers_of_calls.push_back(call->numbers());
  for (const Value& result : graph.results) {
    const lazy::Geometry& g = result.geometry();
    given.data.push_back(counted(
        pjrt::Array::promise(Runtime::get().client(), to_pjrt(ops::device_dtype(g.dtype)), g.sizes),
        graph.device, &result.node->source()));
    run.results.push_back(given.data.back().array);
  }
  save_graph(graph, nullptr, cause);
  if (run.program == nullptr) {
    if (run.compilation == nullptr) run.compilation = Compilation::start(missing, cause);
    count_update(graph);
  }
  run.given = give_away(graph, known);
  queue.push(std::move(run));
  counter.add();
  return given;
}

void note_deferred(const std::vector<Value>& leaves) {
  Deferred& last = Queue::get().last();
  for (const Value& leaf : leaves) last.leaves.emplace_back(leaf.node);
  note_leaves(last.overwritten, leaves);
}

void note_replaced(lazy::Storage& storage, const Value& before) {
  const Value now = storage.value();
  const auto has_array = [](const Value& v) {
    return v.node->is_data() && v.node->data().array != nullptr;
  };
  if (!has_array(before) || !has_array(now) || before == now) return;
  InFlight& in_flight = InFlight::of(storage.device_index());
  const ArrayPtr& array = now.node->data().array;
  Deferred* giver = array->is_promise() ? Queue::get().giver_of(array) : nullptr;
  if (giver == nullptr && !in_flight.may_fail()) return;
  const DeviceData& data = before.node->data();
  // Data that others hold, too, is not held here: a later run may take it over.
  const bool is_held = before.node.use_count() == 1 &&
                       data.array.use_count() == 1 + deferred_references(*data.array);
  Overwritten replaced{.storage = &storage,
                       .root = 0,
                       .leaf = now.node->id(),
                       .before_leaf = before.node->id(),
                       .before = data.array,
                       .held = is_held ? data.array : nullptr,
                       .donatable = data.donatable,
                       .geometry = &before.node->output(0)};
  storage.promise(now);
  if (giver != nullptr) {
    giver->overwritten.push_back(std::move(replaced));
  } else {  // waits for all runs before it, as a run does
    in_flight.add({.done = {}, .line = "", .donated = {}, .overwritten = {std::move(replaced)}});
  }
}

size_t num_deferred() {
  const lazy::GraphLock lock;
  return Queue::get().runs().size();
}

bool are_there(const std::vector<Value>& values) {
  const lazy::GraphLock lock;
  return std::ranges::all_of(values, [](const Value& value) {
    return value.node->is_data() && !value.node->data().array->is_promise();
  });
}

void launch_deferred() {
  Queue& queue = Queue::get();
  if (queue.idle()) return;
  const lazy::GraphLock lock;
  queue.launch_ready();
}

void report_deferred() {
  Queue& queue = Queue::get();
  if (queue.idle()) return;
  const lazy::GraphLock lock;
  queue.report();
}

void await_deferred() {
  Queue& queue = Queue::get();
  while (!queue.idle()) {
    std::shared_ptr<Compilation> awaited;
    {
      const lazy::GraphLock lock;
      queue.launch_ready();
      if (queue.runs().empty()) return;
      awaited = queue.runs().front().compilation;
    }
    awaited->wait();
  }
}

void finish_deferred() {
  await_deferred();
  report_deferred();
}

}  // namespace torch_xla::executor
