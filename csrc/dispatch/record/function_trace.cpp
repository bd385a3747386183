#include "dispatch/record/function_trace.h"

#include <unordered_map>

#include "lazy/operator.h"
#include "util/error.h"

namespace torch_xla::dispatch {

using lazy::Node;
using lazy::Storage;

Draws::Draws(const lazy::Function& function, lazy::RandomState::Position start, size_t count)
    : count_(count) {
  lazy::RandomState state(start);
  std::unordered_map<int64_t, size_t> places;
  for (size_t i = 0; i < count; ++i) places.emplace(static_cast<int64_t>(state.next_seed()), i);
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
  return c10::make_intrusive<Storage>(geometry, device_, leaf);
}

FunctionTrace::Recorded FunctionTrace::finish() {
  Recorded recorded;
  recorded.captured = function_->collect(
      [](const Node& node) { return Storage::AsideScope::made_since(node.id()); });
  recorded.draws = Draws(*function_, start_, random_.position().offset - start_.offset);
  recorded.function = std::move(function_);
  return recorded;
}

}  // namespace torch_xla::dispatch
