#include "executor/run/donation.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <limits>
#include <map>
#include <unordered_set>

#include "executor/program/lower.h"
#include "executor/run/array_types.h"
#include "executor/run/runtime.h"
#include "hlo/ops.h"
#include "lazy/tensor.h"
#include "ops/dtypes.h"
#include "pjrt/executable.h"
#include "util/error.h"

namespace torch_xla::executor {
namespace {

#ifdef TORCH_XLA_DEBUG
constexpr DonationCheck kByDefault = DonationCheck::Poison;
#else
constexpr DonationCheck kByDefault = DonationCheck::Off;
#endif

std::atomic<DonationCheck> current{kByDefault};

// NaN, or the complement of integers: no element stays what it is.
hlo::Value wrong(const hlo::Value& x) {
  if (!hlo::is_float(x.dtype()) && !hlo::is_complex(x.dtype())) return hlo::logical_not(x);
  return hlo::splat(x.builder(), std::numeric_limits<double>::quiet_NaN(), x.type());
}

enum class Does { Copy, Overwrite };

std::string program_for(Does does, const hlo::Type& type, const spmd::Sharding* sharding) {
  hlo::Builder b;
  std::array<hlo::Attributes, 1> attributes, of_result;
  if (does == Does::Overwrite) attributes[0] = {{"tf.aliasing_output", hlo::attr::i32(0)}};
  if (sharding != nullptr) {
    b.set_lacks(Runtime::get().target().lacks);
    add_mesh(b, sharding->mesh);
    of_result[0] = {sharding_attribute(b, sharding, type.dims.size())};
    attributes[0].push_back(of_result[0][0]);
  }
  const hlo::Value x = b.begin_function("main", std::span(&type, 1), attributes)[0];
  const hlo::Value result = does == Does::Copy ? x : wrong(x);
  b.end_function(std::span(&result, 1), of_result);
  return b.finish();
}

// Under the graph lock.
std::shared_ptr<pjrt::Array> run(Does does, const pjrt::Array& array, int device) {
  static auto& known = *new std::map<std::string, std::unique_ptr<pjrt::Executable>>;
  const spmd::Sharding* s = array.sharding();
  const hlo::Dims sizes = s == nullptr ? array.dims() : s->held_sizes(array.dims());
  const std::string text = program_for(does, {ops::to_hlo(held_dtype(array)), sizes}, s);
  const pjrt::CompileOptions options = compile_options_of(device);
  std::string key = text;
  for (const int id : options.device_ids) key += std::to_string(id) + ",";
  std::unique_ptr<pjrt::Executable>& executable = known[key];
  if (executable == nullptr)
    executable = pjrt::Executable::compile(Runtime::get().client(), text, options);
  const pjrt::Array* const arguments[] = {&array};
  std::shared_ptr<pjrt::Array> result = std::move(executable->execute(arguments).outputs[0]);
  if (array.sharding() != nullptr) result->set_sharding(array.sharding(), array.dims());
  return result;
}

// Keeps the memory of the last arrays that were overwritten from being used anew.
void quarantine(std::shared_ptr<pjrt::Array> poisoned) {
  constexpr size_t kMost = 16;
  static auto& kept = *new std::deque<std::shared_ptr<pjrt::Array>>;
  kept.push_back(std::move(poisoned));
  if (kept.size() > kMost) kept.pop_front();
}

// The CPU plugin overwrites a copy where the memory is lent; other plugins refuse.
void overwrite(const pjrt::Array& array, int device) {
  const bool has_addresses = Runtime::get().device_type() == "CPU";
  const void* address = has_addresses ? array.buffer(0).unsafe_pointer() : nullptr;
  std::shared_ptr<pjrt::Array> poisoned = run(Does::Overwrite, array, device);
  TXLA_CHECK(!has_addresses || poisoned->buffer(0).unsafe_pointer() == address,
             "donation: expected that a run takes over memory that nobody else has, got memory "
             "that is lent. Please report this.");
  quarantine(std::move(poisoned));
}

}  // namespace

DonationCheck donation_check() { return current; }

void set_donation_check(DonationCheck check) { current = check; }

const pjrt::Array* StandIns::of(std::shared_ptr<pjrt::Array> array) {
  std::shared_ptr<pjrt::Array> copy = run(Does::Copy, *array, device_);
  return copies_.emplace_back(std::move(array), std::move(copy)).second.get();
}

void StandIns::poison_taken(InFlight::Arrays& kept) {
  for (auto& [array, copy] : std::exchange(copies_, {})) {
    if (copy->is_deleted()) overwrite(*array, device_);
    kept.push_back(std::move(copy));
  }
}

void check_no_readers(const InFlight::Arrays& taken_over, int device) {
  std::unordered_set<const lazy::Node*> seen;
  std::vector<const lazy::Node*> stack;
  const auto visit = [&](const lazy::Node* node) {
    if (seen.insert(node).second) stack.push_back(node);
  };
  lazy::Storage::for_each_pending(
      device, [&](lazy::Storage& storage) { visit(storage.value().node.get()); });
  while (!stack.empty()) {
    const lazy::Node* node = stack.back();
    stack.pop_back();
    for (const lazy::Value& operand : node->operands()) visit(operand.node.get());
    TXLA_CHECK(
        !node->is_data() || std::ranges::find(taken_over, node->data().array) == taken_over.end(),
        "donation: expected that nothing reads the memory that a run has taken over, got a "
        "call that does. Please report this.");
  }
}

}  // namespace torch_xla::executor
