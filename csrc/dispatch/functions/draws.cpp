#include "dispatch/functions/draws.h"

#include <unordered_map>

#include "lazy/device.h"
#include "lazy/operator.h"
#include "util/error.h"

namespace torch_xla::dispatch {

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
  for (const lazy::Function::Call& call : function.calls) {
    const lazy::Signature& s = *call.signature;
    for (const lazy::Number& seed : function.numbers_of(call).last(s.num_seeds)) {
      const auto place = places.find(seed.integer);
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

}  // namespace torch_xla::dispatch
