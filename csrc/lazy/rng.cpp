#include "lazy/rng.h"

#include <array>
#include <atomic>
#include <random>

namespace torch_xla::lazy {
namespace {

// Unseeded programs differ from run to run, as in PyTorch.
std::array<std::atomic<uint64_t>, 256>& states() {
  static auto& table = *[] {
    auto* states = new std::array<std::atomic<uint64_t>, 256>;
    std::random_device entropy;
    for (auto& state : *states) state = (uint64_t{entropy()} << 20) ^ entropy();
    return states;
  }();
  return table;
}

}  // namespace

uint64_t rng_state(int device) { return states()[device].load(); }
void set_rng_state(int device, uint64_t state) { states()[device].store(state); }
void set_rng_state_of_all(uint64_t state) {
  for (auto& s : states()) s.store(state);
}

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
uint64_t next_seed(int device) {
  uint64_t z = states()[device].fetch_add(0x9e3779b97f4a7c15ull) + 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace torch_xla::lazy
