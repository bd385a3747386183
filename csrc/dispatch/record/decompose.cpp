#include "dispatch/record/decompose.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "dispatch/calls/arguments.h"
#include "executor/run/runtime.h"
#include "lazy/function.h"
#include "lazy/recording.h"
#include "lazy/tensor.h"
#include "ops/on_host.h"
#include "ops/traits.h"
#include "util/error.h"
#include "util/hooks.h"
#include "util/lock_order.h"
#include "util/log.h"

namespace torch_xla::dispatch {

bool has_decomposition(const lazy::Operator& op) {
  return util::hooks.has_decomposition != nullptr && util::hooks.has_decomposition(op.handle);
}

namespace {

using lazy::Node;
using lazy::Value;

// A decomposition that is being recorded on this thread.
class Expanding {
 public:
  explicit Expanding(const util::Hash128& key) { keys_.push_back(key); }
  ~Expanding() { keys_.pop_back(); }
  Expanding(const Expanding&) = delete;
  Expanding& operator=(const Expanding&) = delete;

  static bool is_under_way(const util::Hash128& key) {
    return std::ranges::find(keys_, key) != keys_.end();
  }

 private:
  const lazy::Recording recording_;
  inline static thread_local std::vector<util::Hash128> keys_;
};

Route route_without_decomposition(const lazy::Operator& op) {
  const bool in_program = ops::has_host_kernel(op.handle, executor::Runtime::get().target());
  return in_program ? Route::Record : Route::Host;
}

// Adds the results of the decomposition. Returns false where a tensor is not ours.
bool add_results(const torch::jit::Stack& stack, std::vector<Value>& results) {
  const auto add = [&](const c10::IValue& one) {
    if (one.isNone() || !one.toTensor().defined()) {
      results.emplace_back();
      return true;
    }
    lazy::TensorImpl* impl = lazy::as_lazy(one.toTensor());
    if (impl == nullptr) return false;
    results.push_back(impl->read());
    return true;
  };
  for (const c10::IValue& v : stack) {
    if (!v.isTensorList()) {
      if (!add(v)) return false;
      continue;
    }
    for (const c10::IValue& e : v.toListRef()) {
      if (!add(e)) return false;
    }
  }
  return true;
}

// Returns whether the results are those of the signature.
bool fits(const std::vector<Value>& results, const lazy::Signature& signature) {
  if (results.size() != signature.outputs.size()) return false;
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    const lazy::Geometry* expected = signature.outputs[i];
    const Value& result = results[i];
    if (expected == nullptr) continue;
    if (!result || result.geometry().dtype != expected->dtype ||
        result.geometry().sizes != expected->sizes) {
      return false;
    }
  }
  return true;
}

// Returns whether PyTorch's decomposition fits the signature, which then holds its calls.
bool expand(lazy::Signature& signature, int device) {
  const Expanding expanding(signature.key);
  std::vector<Value> parameters, results, captured;
  std::vector<at::Tensor> placeholders;
  for (const lazy::OperandInfo& info : signature.operands) {
    Value value = lazy::placeholder(*info.geometry, device);
    parameters.push_back(value);
    placeholders.push_back(lazy::make_tensor(std::move(value), info.geometry, device));
  }
  torch::jit::Stack stack = arguments_of(
      signature, [&](size_t i) { return placeholders[i]; },
      [&](size_t) -> at::Scalar {
        util::fail(util::ErrorKind::Runtime, signature.op->name,
                   ": expected static numbers. Please report this operator.");
      });
  try {
    util::hooks.decompose(signature.op->handle, &stack);
  } catch (const std::exception& e) {
    TXLA_VLOG(1) << signature.op->name << ": its decomposition failed: " << e.what();
    return false;
  }
  if (!add_results(stack, results)) return false;
  // A seed must not be frozen.
  const auto belongs = [](const Node& node) { return node.signature().num_seeds == 0; };
  auto expansion =
      std::make_shared<lazy::Function>(lazy::function_of(parameters, results, belongs, captured));
  if (!fits(results, signature) || !captured.empty()) {
    TXLA_VLOG(1) << signature.op->name << ": its decomposition has other results";
    return false;
  }
  signature.expansion = std::move(expansion);
  return true;
}

}  // namespace

Route route_of(const lazy::Operator& op) {
  if (op.rule != nullptr) return Route::Record;
  if (!op.traits->known_shape &&
      (has_tag(op, at::Tag::dynamic_output_shape) || has_tag(op, at::Tag::data_dependent_output))) {
    return Route::Host;
  }
  static util::Mutex mutex;
  static auto& known = *new std::unordered_map<const lazy::Operator*, Route>;
  {
    const std::lock_guard lock(mutex);
    const auto it = known.find(&op);
    if (it != known.end()) return it->second;
  }
  const Route route = has_decomposition(op) ? Route::Record : route_without_decomposition(op);
  const std::lock_guard lock(mutex);
  known[&op] = route;
  return route;
}

Route expand_signature(lazy::Signature& signature, int device) {
  const lazy::Operator& op = *signature.op;
  TXLA_CHECK(!Expanding::is_under_way(signature.key), op.name,
             ": its decomposition calls it again.");  // the host's kernel, then, without it
  if (has_decomposition(op) && expand(signature, device)) return Route::Record;
  return route_without_decomposition(op);
}

}  // namespace torch_xla::dispatch
