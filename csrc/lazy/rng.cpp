#include "lazy/rng.h"

#include <mutex>
#include <random>

#include "util/fork_mutex.h"

namespace torch_xla::lazy {
namespace {

// Guards all states: it is held for some instructions, and for the one draw of a seed.
util::ForkMutex& mutex() {
  static auto& mutex = *new util::ForkMutex;
  return mutex;
}

struct OnHost {
  static uint64_t plus(uint64_t x, uint64_t y) { return x + y; }
  static uint64_t times(uint64_t x, uint64_t y) { return x * y; }
  static uint64_t folded(uint64_t x, int shift) { return x ^ (x >> shift); }
};

uint64_t counter(RandomState::Position p) { return SplitMix::advanced(p.seed, p.offset, OnHost()); }

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
  return SplitMix::mixed(counter(position), OnHost());
}

uint64_t RandomState::as_seed() const { return counter(position()); }

}  // namespace torch_xla::lazy
