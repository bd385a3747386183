#include "dispatch/functions/recorded_step.h"

#include <algorithm>
#include <utility>

#include "dispatch/functions/exported_function.h"
#include "dispatch/functions/recording.h"
#include "dispatch/sharding/mark_sharding.h"
#include "executor/compile/auto_sharding.h"
#include "executor/compile/difference.h"
#include "executor/program/lower.h"
#include "executor/program/program.h"
#include "executor/run/runtime.h"
#include "executor/run/transfer.h"
#include "executor/step/read.h"
#include "lazy/tensor.h"
#include "ops/dtypes.h"
#include "ops/sharding_constraint.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

// One run of the body.
struct StepRun {
  RecordedFunction recorded;
  std::vector<c10::intrusive_ptr<lazy::Storage>> storages;  // after the function's arguments
  std::vector<size_t> written;
  Tensors constants;  // the last parameters
};

const lazy::Geometry* dense_geometry(const at::Tensor& t) {
  if (!t.is_non_overlapping_and_dense()) {
    return lazy::intern_contiguous(t.scalar_type(), t.sizes());
  }
  return lazy::intern(t.scalar_type(), t.sizes(), t.strides());
}

void check_apart(const Tensors& arguments, const Recording::LentState& lent) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const lazy::TensorImpl* impl = lazy::as_lazy(arguments[i]);
    TXLA_CHECK(impl == nullptr || &impl->lazy_storage() != lent.storage.get(),
               "expected arguments beside the state, got argument ", i,
               ", which shares memory with a tensor that the step uses by itself. Clone it.");
  }
}

StepRun run_step(const Tensors& arguments, Body body, int device, uint64_t newest) {
  StepRun run;
  Recording recording(device, {.is_export = true, .lends = newest});
  Tensors placeholders;
  for (const at::Tensor& t : arguments) {
    placeholders.push_back(recording.placeholder(dense_geometry(t)));
    if (t.requires_grad()) placeholders.back().requires_grad_();
  }
  for (lazy::Value& value : exported_values(body(placeholders))) recording.result(std::move(value));
  for (size_t i = 0; i < arguments.size(); ++i) {
    TXLA_CHECK(!recording.is_written(i),
               "expected a step that leaves its arguments as they are, got "
               "one that writes argument ",
               i,
               ". Let it use the tensor without passing it, which "
               "makes it state, or clone it.");
  }
  for (const Recording::LentState& lent : recording.lent()) {
    check_apart(arguments, lent);
    recording.add_parameter(lent.placeholder);
    if (lent.is_written()) {
      run.written.push_back(run.storages.size());
      recording.result(lent.now());
    }
    run.storages.push_back(lent.storage);
  }
  run.recorded = recording.finish();
  return run;
}

std::string text_of(const lazy::Number& number, lazy::NumberKind kind) {
  switch (kind) {
    case lazy::NumberKind::Float:
    case lazy::NumberKind::Complex:
      return util::concat(number.real);
    default:
      return std::to_string(number.integer);
  }
}

// Says where a run of the step computes with another number than the run before.
std::string other_number(const lazy::Function& first, const lazy::Function& second) {
  for (size_t c = 0; c < std::min(first.calls.size(), second.calls.size()); ++c) {
    const lazy::Function::Call &before = first.calls[c], &now = second.calls[c];
    const lazy::Signature& s = *now.signature;
    if (before.signature->key != s.key) break;
    for (size_t i = 0; i < s.numbers.size(); ++i) {
      const lazy::Number &a = first.numbers_of(before)[i], &b = second.numbers_of(now)[i];
      if (s.is_seed(i) || (a.integer == b.integer && a.imag == b.imag)) continue;
      const std::string line = now.source.str();
      return util::concat("A number that Python has computed was ", text_of(a, s.numbers[i]),
                          " in one call and ", text_of(b, s.numbers[i]), " in the next, in ",
                          s.op->name, line.empty() ? "" : " at " + line,
                          ". Keep it in a tensor on xla, which the step writes, or pass it as one");
    }
  }
  return {};
}

void check_equal(const StepRun& first, const StepRun& second) {
  const lazy::Function &a = *first.recorded.function, &b = *second.recorded.function;
  std::string difference;
  if (a.hash() != b.hash()) {
    difference = other_number(a, b);
    if (difference.empty()) {
      difference = executor::first_difference(b, a);
    }
  } else if (first.storages != second.storages || first.written != second.written) {
    difference = "The next call uses other tensors. Write them in place";
  } else if (first.recorded.draws.count() != second.recorded.draws.count() ||
             first.recorded.draws.used() != second.recorded.draws.used()) {
    difference = "The next call draws other random numbers";
  } else if (!std::ranges::equal(first.constants, second.constants, [](auto& x, auto& y) {
               return x.nbytes() == y.nbytes() &&
                      std::equal(static_cast<const char*>(x.const_data_ptr()),
                                 static_cast<const char*>(x.const_data_ptr()) + x.nbytes(),
                                 static_cast<const char*>(y.const_data_ptr()));
             })) {
    difference =
        "Data that the step brings to xla differs from call to call. Pass it as an argument";
  }
  TXLA_CHECK(difference.empty(),
             "expected a step that computes the same in each call, got two calls that differ. ",
             difference, ".");
}

const spmd::Sharding* sharding_of_state(lazy::Storage& storage) {
  const spmd::Sharding* s = storage.sharding();
  if (s == nullptr && storage.has_value()) s = executor::sharding_of(storage.value());
  return s != nullptr ? s->evened(storage.geometry().sizes) : nullptr;
}

// Asks a planner for the shardings of values of which nobody else says them.
void plan(executor::PortableOptions& options, const StepRun& run,
          std::vector<const spmd::Sharding*>& of_arguments) {
  const lazy::Function& function = *run.recorded.function;
  executor::PlanRequest request;
  request.platform = options.platform;
  request.num_devices = executor::Runtime::get().devices(0).all.size();
  if (request.num_devices == 1) return;
  request.text =
      executor::describe(function, ops::target_of(options.platform), request.num_devices);
  request.leaves = of_arguments;
  request.replaces.assign(function.results.size(), -1);
  for (size_t i = 0; i < options.reused_by.size(); ++i) {
    if (options.reused_by[i] < 0) continue;
    request.replaces[static_cast<size_t>(options.reused_by[i])] = static_cast<int32_t>(i);
  }
  const executor::SplitPlan plan = executor::ask_split_planner(request);
  options.mesh = plan.mesh;
  options.values = plan.results;
  for (size_t i = 0; i < of_arguments.size(); ++i) {
    if (of_arguments[i] == nullptr) of_arguments[i] = plan.leaves[i];
  }
}

// Sets how the program's arguments and results are split. Written state stays split as it was.
void split(executor::PortableOptions& options, const StepRun& run, size_t num_results,
           std::vector<const spmd::Sharding*> of_arguments, const Tensors& arguments) {
  ops::NamedShardings named;
  std::vector<const spmd::Sharding*>& all = named.all;
  of_arguments.resize(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const spmd::Sharding*& s = of_arguments[i];
    if (s == nullptr && lazy::is_lazy(arguments[i])) s = sharding_of(arguments[i]);
    if (s != nullptr) s = s->evened(arguments[i].sizes());
  }
  for (const auto& storage : run.storages) of_arguments.push_back(sharding_of_state(*storage));
  if (executor::has_split_planner()) plan(options, run, of_arguments);
  if (options.mesh != nullptr) all.push_back(spmd::Sharding::replicated(options.mesh, 0));
  for (const spmd::Sharding* s : of_arguments) {
    if (s == nullptr) continue;
    TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, !s->is_manual,
                    "expected arguments and state that are not manual, got ", s->gspmd(),
                    ". Begin and end manual code within the step.");
    all.push_back(s);
  }
  named.add(*run.recorded.function);
  if (all.empty()) return;
  options.mesh = named.common_mesh();
  options.results.resize(num_results);
  for (const size_t i : run.written) {
    const spmd::Sharding* s = of_arguments[arguments.size() + i];
    const size_t rank = run.storages[i]->geometry().sizes.size();
    options.results.push_back(s != nullptr ? s : spmd::Sharding::replicated(options.mesh, rank));
  }
  options.arguments = std::move(of_arguments);
  options.with_locations = true;  // for the lines that devices exchange data for
}

int device_of_steps() {
  const int device = executor::current_device();
  executor::require_device(device);
  const auto holds = [](at::ScalarType dtype) { return ops::device_dtype(dtype) == dtype; };
  TXLA_CHECK(holds(at::kFloat) && holds(at::kDouble) && holds(at::kLong),
             "expected a device that holds PyTorch's dtypes, got one that holds others under "
             "XLA_USE_BF16, XLA_DOWNCAST_BF16 or XLA_USE_32BIT_LONG. Leave these out.");
  return device;
}

}  // namespace

void rehearse_step(const Tensors& arguments, Body body) {
  const int device = device_of_steps();
  const lazy::GraphLock lock;
  run_step(arguments, body, device, lazy::id_boundary());
}

RecordedStep record_step(const Tensors& arguments, Body body, std::string_view platform,
                         std::vector<const spmd::Sharding*> shardings) {
  const int device = device_of_steps();
  const lazy::GraphLock lock;
  const uint64_t newest = lazy::id_boundary();
  // A run may leave something behind, which the next one alone sees.
  StepRun run = run_step(arguments, body, device, newest);
  StepRun next = run_step(arguments, body, device, newest);
  for (StepRun* r : {&run, &next}) r->constants = executor::download(r->recorded.captured, device);
  check_equal(run, next);

  RecordedStep step;
  const lazy::Function& function = *run.recorded.function;
  executor::PortableOptions options;
  options.platform = platform;
  const size_t num_results = function.results.size() - run.written.size();
  options.reused_by.assign(arguments.size() + run.storages.size(), -1);
  for (size_t i = 0; i < run.written.size(); ++i) {
    options.reused_by[arguments.size() + run.written[i]] = static_cast<int32_t>(num_results + i);
  }
  if (platform != ops::kPortable) {
    split(options, run, num_results, std::move(shardings), arguments);
  }
  step.draws = run.recorded.draws.count() != 0;
  if (step.draws) options.seeds = {run.recorded.draws.count(), run.recorded.draws.used()};
  step.text = executor::lower_portable(function, run.constants, options);
  for (const auto& storage : run.storages) {
    step.states.push_back(at::Tensor(c10::make_intrusive<lazy::TensorImpl>(
        storage, &storage->geometry(), 0, c10::intrusive_ptr<lazy::View>())));
  }
  step.written = std::move(run.written);
  return step;
}

}  // namespace torch_xla::dispatch
