#include "executor/step/deferred.h"

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
#include "executor/compile/background.h"
#include "executor/compile/new_state.h"
#include "executor/compile/observer.h"
#include "executor/run/array_types.h"
#include "executor/run/donation.h"
#include "executor/run/live_data.h"
#include "executor/run/run.h"
#include "executor/run/runtime.h"
#include "executor/run/undo.h"
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
  PackedNumbers numbers;
  std::vector<lazy::Number> numbers_of_calls;
  std::vector<std::weak_ptr<pjrt::Array>> results;
  std::vector<c10::weak_intrusive_ptr<Node>> leaves = {};  // that have them
  OverwrittenStorages overwritten;
  std::vector<GivenAway> given = {};
  int device;
  lazy::Source place = {};  // in the user's program

  const Program& known() const { return program != nullptr ? *program : compilation->program(); }
};

void launch(Deferred& deferred) {
  Run run{.program = *deferred.program, .numbers = deferred.numbers, .device = deferred.device};
  for (const DeviceData& input : deferred.inputs) run.inputs.push_back(&input.array);
  Launched launched;
  try {
    launched = launch(run);
  } catch (const pjrt::Error& e) {
    fail_launch(run, e, deferred.place.str());
  }
  const debug::OftenTimed::Scope scope(wrapping_time());
  for (size_t i = 0; i < deferred.results.size(); ++i) {
    if (const ArrayPtr promised = deferred.results[i].lock()) {
      promised->fulfil(std::move(*launched.results[i]));
    }
  }
  InFlight::of(deferred.device)
      .add({std::move(launched.done), std::move(deferred.place), std::move(launched.taken_over),
            std::move(deferred.overwritten), std::move(deferred.given), deferred.program});
}

// The values of runs that are given up, recorded anew, by the arrays that were promised.
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
  const lazy::Function& function = program.function;
  std::vector<c10::intrusive_ptr<Node>> leaf_of_call(function.calls.size());
  for (size_t i = 0; i < function.results.size(); ++i) {
    const size_t call = function.call_of(function.results[i]);
    if (function.calls[call].signature->outputs.size() == 1) {
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
  lazy::Instance again =
      lazy::instantiate(function, parameters, run.numbers_of_calls, run.device, leaf_of_call);
  for (size_t i = 0; i < function.results.size(); ++i) {
    const Value& value = again.results[i];
    if (const ArrayPtr array = run.results[i].lock()) recorded.emplace(array.get(), value);
    const c10::intrusive_ptr<Node> leaf = run.leaves[i].lock();
    if (!leaf.defined() || leaf == value.node) continue;  // else one of several results of a call
    const Value copy = lazy::copy_value(value);
    leaf->become_call(copy.node->shared_signature(), lazy::Operands(copy.node->operands()), {});
    leaf->source() = value.node->source();
  }
  return std::move(again.calls);
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
    for (const DeviceData& input : run.inputs) input.array->add_waiting_runs(1);
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
    for (size_t i = 0; i < failures_.size(); ++i) take_failure_in_flight(failures_[i].device);
    if (failures_.empty()) return;
    const std::vector<Failure> failures = std::exchange(failures_, {});
    is_busy_ = !runs_.empty();
    for (const Failure& failure : failures) {
      std::vector<const Node*> calls;
      for (const auto& call : failure.calls) {
        if (!call->is_data()) calls.push_back(call.get());
      }
      OverwrittenStorages overwritten;  // a storage may go back over several of them
      for (const Failure& other : failures) {
        if (other.device != failure.device) continue;
        std::ranges::copy(other.overwritten, std::back_inserter(overwritten));
      }
      undo(failed_calls(calls, failure.why), failure.device, {}, overwritten);
    }
    std::rethrow_exception(failures.front().why);
  }

  // Puts the failure of a run in flight, if there is one, before those of runs that waited: these
  // may stem from it.
  void take_failure_in_flight(int device) {
    std::optional<InFlight::Failure> failed = InFlight::of(device).take_failure();
    if (!failed) return;
    std::ranges::move(give_up(device).overwritten, std::back_inserter(failed->overwritten));
    failures_.insert(failures_.begin(), {failed->why, {}, device, std::move(failed->overwritten)});
    is_busy_ = true;
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
    for (const DeviceData& input : runs_.front().inputs) input.array->add_waiting_runs(-1);
    runs_.pop_front();
    is_busy_ = !runs_.empty() || !failures_.empty();
  }

  std::deque<Deferred> runs_;
  std::vector<Failure> failures_;
  std::atomic<bool> is_busy_ = false;
};

// Tells whether the program may be had in the background.
bool allows(const Program& program, int device) {
  return !program.can_fail && util::flag::XLA_BACKGROUND_COMPILE() &&
         !util::flag::XLA_SYNC_WAIT() && observer().may_defer() &&
         Runtime::get().devices(device).all.size() == 1;
}

}  // namespace

void Awaited::wait() const { compilation->wait(); }

std::shared_ptr<const Program> program_of(std::string_view name, const Graph& graph, bool again,
                                          Missing& missing) {
  if (auto program = find_program(name, graph, again)) return program;
  const auto compilation = Compilation::find(graph.key);
  if (compilation == nullptr) {
    std::visit([&](auto&& lack) { missing = std::move(lack); }, lack_of(name, graph));
    return nullptr;
  }
  static const debug::Counter hits("CachedCompile");
  if (!again) hits.add();
  if (compilation->ended()) {
    count_update(graph);
    return compilation->take();
  }
  missing = Awaited{compilation};
  return nullptr;
}

bool has_deferred_before(const Graph& graph, bool is_barrier) {
  const Queue& queue = Queue::get();
  if (queue.idle()) return false;
  if (is_barrier && std::ranges::count(queue.runs(), graph.device, &Deferred::device) > 0) {
    return true;
  }
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const pjrt::Array& array = *graph.parameters[i]->data().array;
    if (array.is_promise()) return true;
    if (graph.reused_by[i] >= 0 && array.waiting_runs() > 0) return true;
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
  const auto* const awaited = std::get_if<Awaited>(&missing);
  auto* const unmade = std::get_if<Unmade>(&missing);
  if (program == nullptr && awaited == nullptr && unmade == nullptr) {
    return std::nullopt;  // it lacks something else
  }
  const Program& known = program != nullptr   ? *program
                         : awaited != nullptr ? awaited->compilation->program()
                                              : *unmade->program;
  if (!allows(known, graph.device)) return std::nullopt;
  Deferred run{.compilation = awaited != nullptr ? awaited->compilation : nullptr,
               .program = std::move(program),
               .inputs = {},
               .numbers = graph.numbers,
               .numbers_of_calls = {},
               .results = {},
               .overwritten = overwritten_by(known, graph.parameters, storages, root_of),
               .device = graph.device};
  lazy::take_source(run.place);
  for (const Node* call : graph.calls) {
    std::ranges::copy(call->numbers(), std::back_inserter(run.numbers_of_calls));
  }
  Given given;
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    run.inputs.push_back(graph.parameters[i]->data());
    if (known.reuses(i) && donation_check() != DonationCheck::Off) {
      given.taken_over.push_back(run.inputs.back().array);
    }
  }
  for (const Value& result : graph.results) {
    const lazy::Geometry& g = result.geometry();
    given.data.push_back(counted(
        pjrt::Array::promise(Runtime::get().client(), to_pjrt(ops::device_dtype(g.dtype)), g.sizes),
        graph.device, &result.node->source()));
    run.results.push_back(given.data.back().array);
  }
  observer().deferred(graph, cause);
  if (run.program == nullptr) {
    if (run.compilation == nullptr) {
      run.compilation = Compilation::start(std::move(*unmade), cause, &launch_deferred);
    }
    count_update(graph);
  }
  missing = {};
  if (graph.offers_taken) run.given = give_away(known, graph.parameters);
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
  // Data that others hold, too, is not held here: a later run may take it over.
  const ArrayPtr& held = before.node->data().array;
  const bool is_held = before.node.use_count() == 1 && held.use_count() == 1 + held->waiting_runs();
  Overwritten replaced = overwritten_by(storage, *before.node, is_held);
  replaced.leaf = now.node->id();
  storage.promise(now);
  if (giver != nullptr) {
    giver->overwritten.push_back(std::move(replaced));
  } else {  // waits for all runs before it, as a run does
    in_flight.add({.done = {}, .place = {}, .donated = {}, .overwritten = {std::move(replaced)}});
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

void report_failures(int device) {
  Queue& queue = Queue::get();
  if (InFlight::of(device).has_failed()) {
    const lazy::GraphLock lock;
    queue.take_failure_in_flight(device);
  }
  report_deferred();
}

void wait_for_runs(int device) {
  InFlight::of(device).await_all();
  report_failures(device);
}

void fail_read(const pjrt::Error& error, int device, const std::string& context) {
  wait_for_runs(device);
  fail(error, context);
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
