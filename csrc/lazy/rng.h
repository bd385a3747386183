// RandomState: a seed and the count of random calls that have drawn from it. Every recorded random
// call draws a seed of its own, which reaches the program as a runtime number, so a new state never
// recompiles.
#pragma once

#include <cstdint>
#include <optional>

namespace torch_xla::lazy {

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): a counter
// in steps of the golden ratio, and a function that mixes it. `ops` computes on words of 64 bits:
// here, or in a program.
struct SplitMix {
  // Returns the counter after so many draws more.
  template <class Word, class Count, class Ops>
  static Word advanced(const Word& counter, const Count& draws, const Ops& ops) {
    return ops.plus(counter, ops.times(draws, 0x9e3779b97f4a7c15ull));
  }
  // Returns the seed that a draw gives which has brought the counter here.
  template <class Word, class Ops>
  static Word mixed(const Word& counter, const Ops& ops) {
    const Word once = ops.times(ops.folded(counter, 30), 0xbf58476d1ce4e5b9ull);
    return ops.folded(ops.times(ops.folded(once, 27), 0x94d049bb133111ebull), 31);
  }
};

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
  // Returns the whole state as one number, SplitMix's counter; a state with this seed continues
  // where this one is.
  uint64_t as_seed() const;

 private:
  // The caller holds the lock of all states.
  Position& drawn() const;

  mutable std::optional<Position> position_;
};

}  // namespace torch_xla::lazy
