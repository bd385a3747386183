// Random state: a seed, and how many random calls have drawn from it. Every recorded random call
// draws a seed of its own, which reaches the program as a runtime number, so a new state never
// recompiles.
#pragma once

#include <cstdint>

namespace torch_xla::lazy {

class RandomState {
 public:
  struct Position {
    uint64_t seed = 0;
    uint64_t offset = 0;  // calls so far
  };

  explicit RandomState(Position position) : position_(position) {}
  // One that differs from process to process.
  static RandomState unseeded();

  Position position() const;
  void set(Position position);
  // Advances the state and returns a well-mixed seed.
  uint64_t next_seed();
  // The whole state as one number: as a seed, it goes on where this state is.
  uint64_t as_seed() const;

 private:
  Position position_;
};

}  // namespace torch_xla::lazy
