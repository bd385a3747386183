#include "lazy/rng.h"

#include <mutex>
#include <random>

#include "util/fork_mutex.h"

namespace torch_xla::lazy {
namespace {

// Of all states: it is held for some instructions, and for the one draw of a seed.
util::ForkMutex& mutex() {
  static auto& mutex = *new util::ForkMutex;
  return mutex;
}

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): a counter
// in steps of the golden ratio, and a function that mixes it.
uint64_t counter(RandomState::Position p) { return p.seed + p.offset * 0x9e3779b97f4a7c15ull; }

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

RandomState::Position& RandomState::drawn() const {
  if (!position_) {
    std::random_device entropy;
    position_ = {(uint64_t{entropy()} << 20) ^ entropy(), 0};
  }
  return *position_;
}

RandomState::Position RandomState::position() const {
  const std::lock_guard lock(mutex());
  return drawn();
}

void RandomState::set(Position position) {
  const std::lock_guard lock(mutex());
  position_ = position;
}

uint64_t RandomState::next_seed() {
  const std::lock_guard lock(mutex());
  Position& position = drawn();
  ++position.offset;
  return mix(counter(position));
}

uint64_t RandomState::as_seed() const { return counter(position()); }

}  // namespace torch_xla::lazy
