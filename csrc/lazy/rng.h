// The random state of a device: one integer. Every recorded random call draws its own seed from it,
// which reaches the program as a runtime number, so a new state never recompiles.
#pragma once

#include <cstdint>

namespace torch_xla::lazy {

uint64_t rng_state(int device);
void set_rng_state(int device, uint64_t state);
void set_rng_state_of_all(uint64_t state);
// Advances the state and returns a well-mixed seed.
uint64_t next_seed(int device);

}  // namespace torch_xla::lazy
