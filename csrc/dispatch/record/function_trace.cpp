#include "dispatch/record/function_trace.h"

#include <unordered_map>

#include <torch/library.h>

#include "dispatch/calls/plan.h"
#include "lazy/operator.h"
#include "lazy/signature.h"
#include "ops/rules.h"
#include "util/error.h"

namespace torch_xla::dispatch {

using lazy::Node;
using lazy::Storage;

namespace {

TORCH_LIBRARY_FRAGMENT(torch_xla, m) {
  m.def("traced_function(Tensor[] storages, str function) -> Tensor[]");
}

}  // namespace

Draws::Draws(const lazy::Function& function, lazy::RandomState::Position start,
             lazy::RandomState::Position end)
    : count_(end.offset - start.offset) {
  TXLA_CHECK(
      end.seed == start.seed && end.offset >= start.offset,
      "xla: expected a function that leaves the random state to its calls, got one that sets "
      "it, which a recorded function cannot.");
  lazy::RandomState state(start);
  std::unordered_map<int64_t, size_t> places;
  for (size_t i = 0; i < count_; ++i) places.emplace(static_cast<int64_t>(state.next_seed()), i);
  for (const Node* call : function.calls) {
    const lazy::Signature& s = call->signature();
    for (size_t i = 0; i < s.numbers.size(); ++i) {
      if (!s.is_seed(i)) continue;
      const auto place = places.find(call->numbers()[i].integer);
      TXLA_CHECK(place != places.end(), s.op->name,
                 ": draws from a generator of its own, which a recorded function cannot.");
      used_.push_back(place->second);
    }
  }
}

lazy::Numbers Draws::draw(int device) const {
  std::vector<uint64_t> seeds;
  for (size_t i = 0; i < count_; ++i) {
    seeds.push_back(lazy::Device::of(device).random.next_seed());
  }
  lazy::Numbers numbers;
  for (const size_t place : used_) {
    lazy::Number number{};
    number.integer = static_cast<int64_t>(seeds[place]);
    numbers.push_back(number);
  }
  return numbers;
}

FunctionTrace::FunctionTrace(int device)
    : device_(device), random_(lazy::Device::of(device).random), start_(random_.position()) {}

FunctionTrace::~FunctionTrace() { random_.set(start_); }

c10::intrusive_ptr<Storage> FunctionTrace::parameter(const lazy::Geometry* geometry) {
  const lazy::Value leaf = lazy::placeholder(*geometry, device_);
  function_->add_parameter(leaf);
  storages_.push_back(c10::make_intrusive<Storage>(geometry, device_, leaf));
  return storages_.back();
}

at::Tensor FunctionTrace::stand_in(const lazy::Geometry* geometry) {
  return at::Tensor(c10::make_intrusive<lazy::TensorImpl>(parameter(geometry), geometry, 0,
                                                          c10::intrusive_ptr<lazy::View>()));
}

namespace {

// What mark_sharding() says of an argument is a constraint on what the body computes with.
bool is_split(lazy::Value value, const lazy::Value& argument) {
  while (value != argument && !value.node->is_data()) {
    const lazy::Operator& op = *value.node->signature().op;
    if (op.rule == nullptr || op.rule->lower != ops::rules::sharding_constraint) return false;
    value = value.node->operands()[0];
  }
  return value == argument;
}

}  // namespace

void FunctionTrace::check_unwritten(const char* name) const {
  for (size_t i = 0; i < storages_.size(); ++i) {
    TXLA_CHECK(is_split(storages_[i]->value(), function_->placeholders[i]), name,
               ": expected a body that does not write its arguments, got one that writes argument ",
               i, ".");
  }
}

FunctionTrace::Recorded FunctionTrace::finish() {
  Recorded recorded;
  recorded.captured = function_->collect(
      [](const Node& node) { return Storage::AsideScope::made_since(node.id()); });
  recorded.draws = draws_of(*function_);
  recorded.function = std::move(function_);
  return recorded;
}

c10::intrusive_ptr<const lazy::Signature> FunctionTrace::Recorded::signature() const {
  static const std::shared_ptr<const lazy::Operator> op =
      find_operator(lazy::operator_name("torch_xla::traced_function"));
  lazy::SignatureBuilder builder(*op);
  builder.begin_list(function->parameters.size());
  for (const Node* parameter : function->parameters) builder.tensor(&parameter->output(0));
  builder.fixed(c10::IValue(function->hash().hex()));
  for (size_t i = 0; i < draws.num_used(); ++i) builder.seed();
  for (const lazy::Value& result : function->results) {
    const lazy::Geometry& g = result.geometry();
    builder.output(lazy::intern_contiguous(g.dtype, g.sizes));
  }
  auto signature = builder.build();
  signature->expansion = function;
  return lazy::intern(std::move(signature));
}

}  // namespace torch_xla::dispatch
