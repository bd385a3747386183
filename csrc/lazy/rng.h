// RandomState: a seed and the count of random calls that have drawn from it. Every recorded random
// call draws a seed of its own, which reaches the program as a runtime number, so a new state never
// recompiles.
#pragma once

#include <cstdint>
#include <optional>

namespace torch_xla::lazy {

class RandomState {
 public:
  struct Position {
    uint64_t seed = 0;
    uint64_t offset = 0;  // calls so far
  };

  // Its seed differs from process to process; it is drawn when it is first asked for.
  RandomState() = default;
  explicit RandomState(Position position) : position_(position) {}

  Position position() const;
  void set(Position position);
  // Advances the state and returns a well-mixed seed.
  uint64_t next_seed();
  // Returns the whole state as one number; a state with this seed continues where this one is.
  uint64_t as_seed() const;

 private:
  // The caller holds the lock of all states.
  Position& drawn() const;

  mutable std::optional<Position> position_;
};

}  // namespace torch_xla::lazy
